"""CDI files, and the folder of them that a runtime reads.

A file has the devices of one kind, and the version of the interface that a runtime needs to understand them. A runtime
refuses a file that uses more than its version has. ``CdiSpec.of`` declares the oldest version that suffices, so that
old runtimes can read the file as well. The text is YAML, of which JSON is a part. Runtimes refuse a key that stands
twice and a field that they do not know; a field that is ``null`` counts as left out.

Of a folder ``.json`` and ``.yaml`` files are read (``CdiDirectory``), and ids resolved over all of them together
(``CdiIndex``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import yaml
from dra_api.yaml_text import loader

from dra_cdi.edits import CdiError, ContainerEdits, Part, check_device_name, check_kind

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


def minimum_version(spec: CdiSpec) -> str:
    """The oldest version that has all that the file uses."""
    # 0.8.0 and 1.0.0 brought nothing that a file can use. Versions of one digit each compare as texts do.
    least = VERSIONS[0]
    if spec.annotations or "." in spec.kind.partition("/")[2]:
        least = "0.6.0"
    if spec.container_edits:
        least = max(least, _needed_by(spec.container_edits))
    for device in spec.devices:
        if device.annotations:
            least = max(least, "0.6.0")
        elif device.name[0].isdigit():
            least = max(least, "0.5.0")
        least = max(least, _needed_by(device.container_edits))
    return least


def _needed_by(edits: ContainerEdits) -> str:
    """The oldest version that has these edits."""
    rdt = edits.intel_rdt
    if edits.net_devices or (rdt and (rdt.schemata is not None or rdt.enable_monitoring)):
        return "1.1.0"
    if rdt or edits.additional_gids:
        return "0.7.0"
    for node in edits.device_nodes:
        if node.host_path:
            return "0.5.0"
    for mount in edits.mounts:
        if mount.type:
            return "0.4.0"
    return VERSIONS[0]


_PLACE = re.compile(r"(?P<message>.*) - at `\$\.?(?P<path>.*)`", re.DOTALL)
_DEVICE = re.compile(r"devices\[(?P<number>\d+)\]\.?(?P<rest>.*)")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`")


def encode(spec: CdiSpec) -> bytes:
    """The file's text, as JSON.

    Raises CdiError if a value has the wrong type, such as a string where a tuple of strings belongs: Python lets that
    into a model, and a runtime would refuse it.
    """
    text = msgspec.json.encode(spec)
    decode(text)
    return text


def decode(text: str | bytes) -> CdiSpec:
    """A file's content. Raises CdiError for what a runtime would refuse; the message names device and field."""
    try:
        content = _load(text.decode() if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        raise CdiError(f"this is not text: {error}; write the file as UTF-8") from error
    except _KeyTwiceError as error:
        raise CdiError(str(error)) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # the last: a number of thousands of digits
        raise CdiError(f"this is neither JSON nor YAML: {' '.join(str(error).split())}") from error
    try:
        msgspec.json.encode(content)  # what no UTF-8 can hold
        return msgspec.convert(content, CdiSpec)
    except UnicodeEncodeError as error:
        raise CdiError(f"a text holds half of a surrogate pair: {error}; write the character itself") from error
    except msgspec.ValidationError as error:
        raise CdiError(_located(str(error), content)) from error


class _KeyTwiceError(yaml.YAMLError):
    """In JSON as well; loaders of YAML pass on no other class."""


def _load(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_mapping)
    except json.JSONDecodeError:
        return yaml.load(text, _Loader)  # derived from SafeLoader


def _mapping(pairs: Iterable[tuple[Hashable, Any]]) -> dict[Hashable, Any]:
    mapping: dict[Hashable, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise _KeyTwiceError(f"the key {key!r} appears twice in one object: remove one of them")
        mapping[key] = value
    return {key: value for key, value in mapping.items() if value is not None}


class _Loader(loader(yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a key that stands twice; keys of a merged mapping (``<<``) may be repeated."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        _mapping((key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        return _mapping(super().construct_mapping(node, deep).items())


def _located(error: str, content: Any) -> str:
    """msgspec's message, with the device's name for its number."""
    found = _PLACE.fullmatch(error)
    message, path = (found["message"], found["path"]) if found else (error, "")
    if unknown := _UNKNOWN.fullmatch(message):
        message = f"unknown field {unknown['name']}: remove it, or correct its name"
    if device := _DEVICE.fullmatch(path):
        number = int(device["number"])
        entry = content["devices"][number]
        name = entry.get("name") if isinstance(entry, dict) else None
        place = f"device {name!r}" if isinstance(name, str) else f"devices[{number}]"
        path = f"{place}, {device['rest']}" if device["rest"] else place
    return f"{path}: {message}" if path else message


_FILE_BYTES = 16 * 2**20
"""Bytes of a file. A device takes about 200."""
_Known = tuple[tuple[int, int, int], CdiSpec | CdiError]
"""A file's inode, time and size, and what it said then."""


class CdiDirectory:
    """The files of one folder, read anew when they have changed.

    A file that cannot be used costs only its own devices: a container that asks for one of them gets the error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parsed: dict[Path, _Known] = {}

    def index(self) -> CdiIndex:
        """Everything that the folder describes right now; a folder that does not exist describes nothing."""
        files = sorted(self.path.glob("*")) if self.path.is_dir() else []
        known, self._parsed = self._parsed, {}
        index = CdiIndex()
        for file in files:
            if file.suffix not in (".json", ".yaml"):
                continue
            try:
                parsed = self._current(file, known)
            except (FileNotFoundError, IsADirectoryError):
                continue  # removed between listing and reading, or no file
            except OSError as error:
                parsed = CdiError(f"cannot be read: {error}")
            if isinstance(parsed, CdiError):
                index.errors[file.name] = parsed
            else:
                index.add(parsed)
        return index

    def _current(self, file: Path, known: dict[Path, _Known]) -> CdiSpec | CdiError:
        stat = file.stat()
        version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        cached = known.get(file)
        parsed = cached[1] if cached and cached[0] == version else _read(file)
        self._parsed[file] = (version, parsed)
        return parsed


def _read(file: Path) -> CdiSpec | CdiError:
    try:
        with file.open("rb") as stream:
            content = stream.read(_FILE_BYTES + 1)
        if len(content) > _FILE_BYTES:
            return CdiError(f"the file is larger than {_FILE_BYTES >> 20} MiB: make several files of it")
        return decode(content)
    except CdiError as error:
        return error


@dataclass(slots=True)
class CdiIndex:
    """``devices`` by id; ``errors`` by the name of the file that cannot be used."""

    devices: dict[str, tuple[CdiSpec, ContainerEdits]] = field(default_factory=dict)
    conflicts: set[str] = field(default_factory=set)
    errors: dict[str, CdiError] = field(default_factory=dict)

    def add(self, spec: CdiSpec) -> None:
        """Take in a file. A device that two files describe cannot be resolved."""
        for device in spec.devices:
            key = f"{spec.kind}={device.name}"
            if key in self.devices:
                self.conflicts.add(key)
            self.devices[key] = (spec, device.container_edits)

    def resolve(self, ids: Iterable[str]) -> ContainerEdits:
        """The edits for these devices together: a file's own edits once, then each device's.

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
        seen: list[CdiSpec] = []
        for key in ids:
            spec, device_edits = self.devices[key]
            if not any(spec is other for other in seen):
                seen.append(spec)
                edits += spec.container_edits or ContainerEdits()
            edits += device_edits
        return edits
