"""The files that containers get by a claim's record: CDI files, and device metadata if they are on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dra_api.relations.references import base_request
from dra_cdi import ContainerEdits

from dra_kubeletplugin.driver import Prepared, PreparedDevice

from .cdi import CdiFolder
from .checkpoint import ClaimRecord
from .metadata_files import MetadataFiles


class ClaimFiles:
    """Written from records, removed by uid."""

    def __init__(self, cdi: CdiFolder, metadata: MetadataFiles) -> None:
        self._cdi = cdi
        self.metadata = metadata

    def write(self, record: ClaimRecord) -> Prepared:
        """Write the files of a record that differ, and return its devices with the ids.

        Raises CdiError, and leaves the files that are there. Those of a prepared claim are valid: a container that
        starts again needs them, and names them all, so that it never starts with some of its devices only. The caller
        withdraws the files of a claim that is not prepared.
        """
        mounts = self.metadata.write(record)
        return [
            self._written(
                record.uid, index, device, (device.edits or ContainerEdits()) + mounts.get(index, ContainerEdits())
            )
            for index, device in enumerate(record.devices)
        ]

    def withdraw(self, uid: str) -> bool:
        """Remove the CDI files of a claim: runtimes refuse to start a container with it then. False if there were none.

        Raises CdiError.
        """
        return self._cdi.remove(uid)

    def remove(self, uid: str) -> None:
        """Remove all files of a claim. Raises CdiError or ClaimError."""
        self._cdi.remove(uid)
        self.metadata.remove(uid)

    def sweep(self, *, keep: Collection[str]) -> None:
        """Remove the files of claims other than these. Raises CdiError or ClaimError."""
        self._cdi.sweep(keep=keep)
        self.metadata.sweep(keep=keep)

    def _written(self, uid: str, index: int, device: PreparedDevice, edits: ContainerEdits) -> PreparedDevice:
        if not edits:
            return device
        part = "-".join([*(base_request(request) for request in device.requests[:1]), str(index)])
        return replace(device, cdi_ids=(self._cdi.write(uid, part, edits), *device.cdi_ids))
