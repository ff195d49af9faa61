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
        """Write the files of a record; returns its devices with the ids. Raises CdiError, and leaves no CDI file then.

        Containers that find no file do not start; with the file of one device only, one would start without the others.
        """
        mounts = self.metadata.write(record)
        try:
            return [
                self._written(
                    record.uid, index, device, (device.edits or ContainerEdits()) + mounts.get(index, ContainerEdits())
                )
                for index, device in enumerate(record.devices)
            ]
        except BaseException:
            self.withdraw(record.uid)
            raise

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
