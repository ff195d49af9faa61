"""A file: the devices of one kind, and the version of the interface that a runtime needs to understand them.

A file declares its version, and a runtime refuses one that uses more than its version has. ``CdiSpec.of`` declares the
oldest version that suffices, so that old runtimes can read the file as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self

import msgspec

from .edits import ContainerEdits, Part
from .errors import CdiError
from .names import check_device_name, check_kind

VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""What files may declare, oldest first."""


class CdiDevice(Part, frozen=True):
    """One device of a file. It has to change something in a container."""

    name: str
    container_edits: ContainerEdits
    annotations: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_device_name(self.name)
        if not self.container_edits:
            raise CdiError(
                "the containerEdits are empty: add at least one variable in env, because runtimes refuse a device that "
                "changes nothing"
            )


class CdiSpec(Part, frozen=True):
    """One file: devices of one ``kind``, which is ``vendor/class``.

    ``container_edits`` are for containers that get any of the devices.
    """

    cdi_version: str
    kind: str
    devices: tuple[CdiDevice, ...]
    container_edits: ContainerEdits | None = None
    annotations: dict[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        kind: str,
        devices: Sequence[CdiDevice],
        *,
        container_edits: ContainerEdits | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> Self:
        """The file with the oldest version that suffices."""
        newest = cls(
            cdi_version=VERSIONS[-1],
            kind=kind,
            devices=tuple(devices),
            container_edits=container_edits,
            annotations=dict(annotations or {}),
        )
        return msgspec.structs.replace(newest, cdi_version=minimum_version(newest))

    def __post_init__(self) -> None:
        check_kind(self.kind)
        if not self.devices:
            raise CdiError("the file has no devices: add one, or remove the file")
        seen = set()
        for device in self.devices:
            if device.name in seen:
                raise CdiError(f"device {device.name!r} is described twice: remove one of them")
            seen.add(device.name)
        version = self.cdi_version.removeprefix("v")
        if version not in VERSIONS:
            raise CdiError(f"cdiVersion {self.cdi_version!r} is not known: use one of {', '.join(VERSIONS)}")
        least = minimum_version(self)
        if VERSIONS.index(version) < VERSIONS.index(least):
            raise CdiError(f"cdiVersion {self.cdi_version} lacks what the file uses: declare {least} or newer")

    def all_edits(self) -> list[ContainerEdits]:
        """Those of the file, then those of each device."""
        edits = [self.container_edits] if self.container_edits else []
        return edits + [device.container_edits for device in self.devices]


def minimum_version(spec: CdiSpec) -> str:
    """The oldest version that has all that the file uses."""
    return next((version for version, needed in _NEEDED if needed(spec)), VERSIONS[0])


def _needs_1_1_0(spec: CdiSpec) -> bool:
    """Network devices; schemata and monitoring of Intel RDT."""
    return any(
        edits.net_devices
        or (edits.intel_rdt and (edits.intel_rdt.schemata is not None or edits.intel_rdt.enable_monitoring))
        for edits in spec.all_edits()
    )


def _needs_0_7_0(spec: CdiSpec) -> bool:
    """Intel RDT, groups."""
    return any(edits.intel_rdt or edits.additional_gids for edits in spec.all_edits())


def _needs_0_6_0(spec: CdiSpec) -> bool:
    """Annotations; a dot in the class."""
    annotated = spec.annotations or any(device.annotations for device in spec.devices)
    return bool(annotated) or "." in spec.kind.partition("/")[2]


def _needs_0_5_0(spec: CdiSpec) -> bool:
    """A device name that starts with a digit; a device node elsewhere on the host."""
    return any(device.name[0].isdigit() for device in spec.devices) or any(
        node.host_path for edits in spec.all_edits() for node in edits.device_nodes
    )


def _needs_0_4_0(spec: CdiSpec) -> bool:
    """The type of a mount."""
    return any(mount.type for edits in spec.all_edits() for mount in edits.mounts)


_NEEDED: Final[tuple[tuple[str, Callable[[CdiSpec], bool]], ...]] = (
    ("1.1.0", _needs_1_1_0),
    ("0.7.0", _needs_0_7_0),
    ("0.6.0", _needs_0_6_0),
    ("0.5.0", _needs_0_5_0),
    ("0.4.0", _needs_0_4_0),
)
"""Newest first. 0.8.0 and 1.0.0 brought nothing that a file can use."""
