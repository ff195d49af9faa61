"""The device metadata files of a driver on its node, which CDI mounts into containers.

A file follows from the record of its claim: ``<folder>/<claim uid>/<request>/metadata.json``, mounted by the CDI device
of the first device of the request. A container that runs has the file itself, not its name, so a changed file is
rewritten in place; a reader may see half of it, and tries again. Metadata never keep a claim from being prepared: what
goes wrong with their files is logged. Spec: PH-11 to PH-13.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
from dra_api.relations.references import base_request
from dra_cdi import ContainerEdits, Mount

from dra_kubeletplugin.driver import PreparedDevice
from dra_kubeletplugin.errors import ClaimError

from .checkpoint import ClaimRecord
from .device_metadata import (
    DeviceMetadata,
    MetadataClaim,
    MetadataDevice,
    MetadataRequest,
    container_path,
    encode_metadata,
)

log = logging.getLogger(__name__)


class MetadataFiles:
    """The files of the driver ``driver`` in ``folder``.

    Without ``versions`` of the format none are written. Those from before stay as long as their claims are prepared,
    because a container that starts again mounts them again.
    """

    def __init__(self, folder: Path, driver: str, versions: tuple[str, ...]) -> None:
        self._folder = folder
        self._driver = driver
        self.versions = versions

    def write(self, record: ClaimRecord) -> dict[int, ContainerEdits]:
        """Write what changed of a claim's files; returns, by the index of a device, what it mounts."""
        mounts: dict[int, ContainerEdits] = {}
        if not self.versions:
            return mounts
        for request, indices in _by_request(record).items():
            path = self._folder / record.uid / request / "metadata.json"
            was_there = path.exists()
            try:
                _rewrite(path, encode_metadata(self._content(record, request, indices), self.versions))
            except OSError as error:
                log.error("cannot write the device metadata %s of claim %s: %s", path, record.ref, error)
                if not was_there:
                    with suppress(OSError):  # half a file is worse than none
                        path.unlink(missing_ok=True)
                    continue
                # Containers mount it by the CDI file, which stays as it is.
            name = record.pod_claim_name or record.name
            target = container_path(self._driver, name, request, template=bool(record.pod_claim_name))
            mount = Mount(str(path), str(target), ("ro", "bind"))
            mounts[indices[0]] = mounts.get(indices[0], ContainerEdits()) + ContainerEdits(mounts=(mount,))
        return mounts

    def remove(self, uid: str) -> None:
        """Remove the files of a claim; none is fine."""
        try:
            shutil.rmtree(self._folder / uid)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ClaimError(f"cannot remove the device metadata {self._folder / uid}: {error}") from error

    def sweep(self, *, keep: Iterable[str]) -> None:
        """Remove the files of claims other than these. Raises ClaimError."""
        kept = set(keep)
        for path in self._folder.glob("*/"):
            if path.name not in kept:
                self.remove(path.name)

    def _content(self, record: ClaimRecord, request: str, indices: Sequence[int]) -> DeviceMetadata:
        devices = [record.devices[index] for index in indices]
        name = next(name for name in devices[0].requests if base_request(name) == request)
        return DeviceMetadata(
            metadata=MetadataClaim(
                name=record.name,
                namespace=record.namespace,
                uid=record.uid,
                generation=1 + record.generations.get(request, 0),
            ),
            pod_claim_name=record.pod_claim_name or None,
            requests=(MetadataRequest(name=name, devices=tuple(self._device(device) for device in devices)),),
        )

    def _device(self, device: PreparedDevice) -> MetadataDevice:
        return MetadataDevice(
            driver=self._driver,
            pool=device.pool,
            name=device.device,
            attributes=dict(device.attributes),
            network_data=device.network,
        )


def with_metadata(record: ClaimRecord, request: str, devices: Iterable[PreparedDevice]) -> ClaimRecord:
    """The record with the attributes and network data of these devices, which serve the request. Raises ClaimError."""
    new = {_key(device): device for device in devices}
    serving = {_key(record.devices[index]) for index in _by_request(record).get(request, ())}
    if not serving:
        raise ClaimError(f"request {request!r} not found in prepared claim {record.ref}")
    for pool, name, _ in new.keys() - serving:
        raise ClaimError(f"device {name} of pool {pool} does not serve request {request!r} of claim {record.ref}")
    changed = []
    for before in record.devices:
        now = new.get(_key(before), before)
        changed.append(replace(before, attributes=now.attributes, network=now.network))
    generations = {**record.generations, request: record.generations.get(request, 0) + 1}
    return msgspec.structs.replace(record, devices=tuple(changed), generations=generations)


def _key(device: PreparedDevice) -> tuple[str, str, str | None]:
    return device.pool, device.device, device.share_id


def _by_request(record: ClaimRecord) -> dict[str, list[int]]:
    """The devices of each request, by their index."""
    found: dict[str, list[int]] = {}
    for index, device in enumerate(record.devices):
        for request in dict.fromkeys(base_request(name) for name in device.requests):
            found.setdefault(request, []).append(index)
    return found


def _rewrite(path: Path, content: bytes) -> None:
    """Make this the content of the file, which keeps its inode. Raises OSError."""
    try:
        if path.read_bytes() == content:
            return
    except FileNotFoundError:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o644)
        file.write(content)
        file.truncate()
