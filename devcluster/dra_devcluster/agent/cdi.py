"""Container Device Interface: from device ids (``vendor/class=name``) to edits of a container.

Drivers write *spec files* (JSON or YAML) into a directory; each describes the devices of one kind and how a
container has to be changed to use them. It reads versions 0.3.0 to 0.8.0. A malformed file affects only its own
devices: a container that asks for one of them gets the error.

No I/O here except ``CdiDirectory``, which reads the files anew when they have changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import yaml

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0")
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_-]*")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


class CdiError(ValueError):
    """A spec file is malformed, or a device cannot be resolved."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


class DeviceNode(_Part, frozen=True):
    """A device file in the container; ``host_path`` is where it is on the host, if not at ``path``."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None

    @property
    def source(self) -> str:
        """The path on the host."""
        return self.host_path or self.path


class Mount(_Part, frozen=True):
    """A file or directory of the host that appears in the container."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class Hook(_Part, frozen=True):
    """A program that a runtime runs around the life of the container."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class ContainerEdits(_Part, frozen=True):
    """What changes in a container; ``env`` entries are ``NAME=value``."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()

    def __add__(self, other: ContainerEdits) -> ContainerEdits:
        return ContainerEdits(
            env=self.env + other.env,
            device_nodes=self.device_nodes + other.device_nodes,
            mounts=self.mounts + other.mounts,
            hooks=self.hooks + other.hooks,
            additional_gids=self.additional_gids + other.additional_gids,
        )

    def environment(self) -> dict[str, str]:
        """The variables; the last of equal names counts."""
        return dict(entry.split("=", 1) for entry in self.env)


class _SpecDevice(_Part, frozen=True):
    name: str
    container_edits: ContainerEdits = ContainerEdits()


class Spec(_Part, frozen=True):
    """One spec file."""

    cdi_version: str
    kind: str
    devices: tuple[_SpecDevice, ...] = ()
    container_edits: ContainerEdits = ContainerEdits()


def parse_spec(text: str, *, is_json: bool) -> Spec:
    """A spec file's content. Raises CdiError, which names the fault."""
    try:
        spec = msgspec.json.decode(text, type=Spec) if is_json else msgspec.convert(yaml.safe_load(text), Spec)
    except (msgspec.DecodeError, yaml.YAMLError) as error:
        raise CdiError(f"malformed CDI spec: {error}") from error
    if spec.cdi_version not in VERSIONS:
        raise CdiError(f"unsupported CDI version {spec.cdi_version!r}, use one of {', '.join(VERSIONS)}")
    if not _KIND.fullmatch(spec.kind):
        raise CdiError(f"kind {spec.kind!r} is not of the form vendor/class")
    if not spec.devices:
        raise CdiError("the CDI spec has no devices")
    for device in spec.devices:
        if not _DEVICE.fullmatch(device.name):
            raise CdiError(f"device name {device.name!r} is not valid")
    edits = [spec.container_edits, *(device.container_edits for device in spec.devices)]
    for entry in (entry for edit in edits for entry in edit.env):
        if entry.find("=") < 1:
            raise CdiError(f"environment entry {entry!r} is not of the form NAME=value")
    return spec


@dataclass(slots=True)
class CdiIndex:
    """All devices of all spec files, by id."""

    devices: dict[str, tuple[Spec, ContainerEdits]] = field(default_factory=dict)
    conflicts: set[str] = field(default_factory=set)
    errors: dict[str, CdiError] = field(default_factory=dict)

    def add(self, spec: Spec) -> None:
        """Take in a spec. A device that two files describe cannot be resolved."""
        for device in spec.devices:
            key = f"{spec.kind}={device.name}"
            if key in self.devices:
                self.conflicts.add(key)
            self.devices[key] = (spec, device.container_edits)

    def resolve(self, ids: Iterable[str]) -> ContainerEdits:
        """The edits for these devices together: a spec's own edits once, then each device's.

        Raises CdiError, which names the devices that cannot be resolved and the files that could not be read.
        """
        ids = list(dict.fromkeys(ids))
        missing = [key for key in ids if key not in self.devices or key in self.conflicts]
        if missing:
            broken = "".join(f"; {file}: {error}" for file, error in sorted(self.errors.items()))
            twice = [key for key in missing if key in self.conflicts]
            clash = f"; described by several files: {', '.join(twice)}" if twice else ""
            raise CdiError(f"unresolvable CDI devices {', '.join(missing)}{clash}{broken}")
        edits = ContainerEdits()
        seen: list[Spec] = []
        for key in ids:
            spec, device_edits = self.devices[key]
            if not any(spec is other for other in seen):
                seen.append(spec)
                edits += spec.container_edits
            edits += device_edits
        return edits


class CdiDirectory:
    """The spec files of one node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parsed: dict[Path, tuple[tuple[int, int, int], Spec | CdiError]] = {}

    def index(self) -> CdiIndex:
        """Everything that the directory describes right now; only changed files are read."""
        files = sorted(self.path.glob("*")) if self.path.is_dir() else []
        known, self._parsed = self._parsed, {}
        index = CdiIndex()
        for file in files:
            if file.suffix not in (".json", ".yaml", ".yml") or file.name.startswith("."):
                continue
            try:
                stat = file.stat()
                version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
                cached = known.get(file)
                parsed = cached[1] if cached and cached[0] == version else _read(file)
            except OSError:
                continue  # removed between listing and reading
            self._parsed[file] = (version, parsed)
            if isinstance(parsed, CdiError):
                index.errors[file.name] = parsed
            else:
                index.add(parsed)
        return index


def _read(file: Path) -> Spec | CdiError:
    try:
        return parse_spec(file.read_text(), is_json=file.suffix == ".json")
    except UnicodeDecodeError as error:
        return CdiError(f"not a text file: {error}")
    except CdiError as error:
        return error


def missing_paths(edits: ContainerEdits) -> list[str]:
    """Host paths that the edits need and that do not exist."""
    wanted = [node.source for node in edits.device_nodes] + [mount.host_path for mount in edits.mounts]
    return [path for path in wanted if not Path(path).exists()]
