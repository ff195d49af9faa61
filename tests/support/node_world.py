"""The prepared claims of one node without sockets: such claims in, the driver's calls and the files out."""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dra_api.codec import encode
from dra_api.resource import ResourceClaim
from dra_kubeletplugin import CdiFolder, ClaimRef, ContainerEdits, Driver, Prepared, PreparedDevice, results_for
from dra_kubeletplugin.claims.conflicts import fingerprint, own_part
from dra_kubeletplugin.claims.prepared import PreparedClaims
from dra_kubeletplugin.files import checkpoint, claim_files
from dra_kubeletplugin.files.checkpoint import ClaimRecords, boot_id
from dra_kubeletplugin.files.claim_files import ClaimFiles, MetadataFiles
from dra_kubeletplugin.files.claim_record import ClaimRecord, HeldDevice
from dra_kubeletplugin.files.folders import HostParts
from dra_kubeletplugin.slices import PoolCounters
from dra_kubeletplugin.testing import allocated_claim
from dra_kubeletplugin.testing.api import Json

MakeClaim = Callable[..., Awaitable[Json]]
"""Makes an allocated claim: ``await claim("name", device="gpu-0", config=[...])``."""


def prepared_claim(driver: str, node: str, device: str, name: str) -> tuple[ResourceClaim, ClaimRecord]:
    """A claim of one device in the node's pool, and its record; containers have the claim's name in ``CLAIM``."""
    claim = allocated_claim(driver, f"{node}/{device}", name=name)
    (result,) = results_for(driver, claim)
    record = ClaimRecord(
        uid=claim.metadata.uid,
        namespace="default",
        name=name,
        boot_id=boot_id(),
        fingerprint=fingerprint(driver, claim),
        phase="prepared",
        holds=(HeldDevice(pool=result.pool, device=result.device),),
        devices=(PreparedDevice.of(result, edits=ContainerEdits(env=(f"CLAIM={name}",))),),
        allocated=encode(own_part(driver, claim)).decode(),
        node=node,
    )
    return claim, record


DRIVER = "gpu.example.com"


def allocated(name: str, *devices: str, config: dict[str, Any] | None = None, **fields: Any) -> ResourceClaim:
    """A claim of the driver ``DRIVER``; the same name is the same claim."""
    return allocated_claim(DRIVER, *devices, name=name, parameters=config, **fields)


def ref(name: str) -> ClaimRef:
    """The claim as the kubelet names it to unprepare it."""
    return ClaimRef("default", name, f"uid-of-{name}")


class Hardware(Driver):
    """Makes a file per claim, which stands for what a driver does to devices; ``calls`` tells what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[str] = []
        self.answer: Callable[[Prepared], Any] = lambda prepared: prepared

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        results = results_for(DRIVER, claim)
        devices = " ".join(f"{result.pool}/{result.device}" for result in results)
        self.calls.append(f"prepare {claim.metadata.name}: {devices}")
        (self.folder / claim.metadata.uid).write_text(devices)
        edits = [ContainerEdits(env=(f"DEVICE={result.pool}/{result.device}",)) for result in results]
        prepared = [PreparedDevice.of(result, edits=each) for result, each in zip(results, edits, strict=True)]
        return self.answer(prepared)  # type: ignore[no-any-return]  # may be wrong on purpose

    async def unprepare(self, claim: ClaimRef) -> None:
        self.calls.append(f"unprepare {claim.name}: {' '.join(f'{d.pool}/{d.device}' for d in claim.devices)}")
        (self.folder / claim.uid).unlink(missing_ok=True)


@dataclass
class NodeWorld:
    """The folders of a driver; ``start`` makes a process of it."""

    root: Path
    driver: Hardware = field(init=False)
    prepared: PreparedClaims = field(init=False)
    gone: set[str] = field(default_factory=set)  # devices that are not published, as "pool/device"
    counters: dict[str, PoolCounters | None] = field(default_factory=dict)  # by pool
    deciding: Callable[[], AbstractAsyncContextManager[int | None]] = nullcontext
    with_metadata: bool = False
    node_name: str = "p"

    def __post_init__(self) -> None:
        self.hardware = self.root / "hardware"
        self.hardware.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """A process without memory, in the place of the one before."""
        for name in ("prepared", "records"):
            self.__dict__.pop(name, None)  # with its descriptors
        self.driver = Hardware(self.hardware)
        self.records = ClaimRecords(self.root / "claims")
        self.records.create()
        folder = CdiFolder(self.root / "cdi", DRIVER)
        folder.create()
        metadata = MetadataFiles(self.root / "metadata", DRIVER, ("v1alpha1",) if self.with_metadata else ())
        self.prepared = PreparedClaims(
            self.driver,
            DRIVER,
            self.records,
            ClaimFiles(folder, metadata, HostParts(self.root, DRIVER)),
            offers=self._offers,
            deciding=self.deciding,
            counters=lambda pool: self.counters.get(pool),
            node=self.node_name,
        )

    async def give(self, *claims: ResourceClaim) -> None:
        """Prepare the claims, and answer a kubelet."""
        results = {claim.metadata.uid: await self.prepared.prepare(claim) for claim in claims}
        assert not any(isinstance(result, Exception) for result in results.values()), results
        self.prepared.answered(results)
        self.prepared.record_answered(results)

    def _offers(self, pool: str, device: str) -> bool:
        return f"{pool}/{device}" not in self.gone

    def cdi_files(self) -> list[Path]:
        return sorted((self.root / "cdi").iterdir())

    def containers(self, uid: str) -> list[str]:
        """What the CDI files of a claim give to containers."""
        specs = [json.loads(path.read_text()) for path in self.cdi_files() if f"-{uid}-" in path.name]
        return [env for spec in specs for device in spec["devices"] for env in device["containerEdits"]["env"]]

    def leftovers(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_file())


_CHANGES = ("open", "replace", "unlink", "mkdir", "rmdir", "fchmod", "fsync")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Disk:
    """Fails the change number ``at`` below ``root``, and if it ``lasts`` those after it; ``seen`` counts them."""

    def __init__(self, root: Path, at: int, number: int, *, lasts: bool) -> None:
        self._root, self._at, self._number, self._lasts = str(root), at, number, lasts
        self.seen = 0

    def change(self, path: object) -> None:
        """One is about to be made. Raises OSError."""
        name = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
        if name.startswith(self._root) and "/hardware/" not in name:
            self.seen += 1
            if self.seen == self._at or (self._lasts and self.seen > self._at):
                raise OSError(self._number, os.strerror(self._number), name)

    @contextmanager
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patch:
            for name in _CHANGES:
                patch.setattr(os, name, self._checked(getattr(os, name)))
            for module in (checkpoint, claim_files):
                patch.setattr(module, "open", self._opened, raising=False)
            yield

    def _checked(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def checked(path: Any, *more: Any, **named: Any) -> Any:
            if real.__name__ != "open" or more[0] & _WRITING:
                at = named.get("dir_fd")
                self.change(path if at is None else f"{os.readlink(f'/proc/self/fd/{at}')}/{path}")
            return real(path, *more, **named)

        return checked

    def _opened(self, descriptor: int, mode: str, **named: Any) -> Any:
        """A file whose content finds no room."""
        file = builtins.open(descriptor, mode, **named)  # noqa: SIM115  # its user closes it
        if "w" in mode:
            write = file.write

            class Full:
                def __enter__(self) -> Full:
                    return self

                def __exit__(self, *_: object) -> None:
                    file.close()

                def write(this, content: bytes) -> int:  # noqa: N805  # the disk is ``self``
                    self.change(descriptor)
                    return write(content)

                def __getattr__(self, name: str) -> Any:
                    return getattr(file, name)

            return Full()
        return file
