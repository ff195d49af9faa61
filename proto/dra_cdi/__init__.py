"""The Container Device Interface: files that say what a container runtime changes for a device.

A driver writes a file, a container runtime reads it. The rules here are for both: the content of a file, the version of
the interface that it needs, and the files that a runtime refuses. They are the rules of releases 0.3.0 to 1.1.0 of the
interface's own Go library; containerd and CRI-O use it. plugin-helper.md section 10 lists them, and the places where
this package is stricter.

A value that breaks a rule cannot be made: its constructor raises CdiError, for a driver that writes and a runtime that
reads alike. No library for this exists for Python; the format: https://github.com/cncf-tags/container-device-interface.

Edits are the changes in a container that gets a device: variables, device nodes, mounts, hooks, groups, network
interfaces. A file has the devices of one kind, and the version of the interface that a runtime needs to understand
them. A runtime refuses a file that uses more than its version has. ``CdiSpec.of`` declares the oldest version that
suffices, so that old runtimes can read the file as well. The text is YAML, of which JSON is a part. Runtimes refuse a
key that stands twice and a field that they do not know; a field that is ``null`` counts as left out.

Of a folder ``.json`` and ``.yaml`` files are read (``CdiDirectory``), and ids such as ``vendor.com/gpu=gpu0`` resolved
over all of them together (``CdiIndex``).
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import yaml
from dra_api.yaml_text import loader


class CdiError(ValueError):
    """A CDI file, or a value in it, cannot be used. The message names file, device, field and remedy, where known."""


_PART = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def check_kind(kind: str) -> None:
    """Raises CdiError, unless this is a kind."""
    vendor, _, class_ = kind.partition("/")
    for word, part in (("vendor", vendor), ("class", class_)):
        if not _PART.fullmatch(part):
            raise CdiError(
                f"kind {kind!r} is not of the form vendor/class: the {word} {part!r} has to start with a letter, end "
                "with a letter or digit, and have only letters, digits, '_', '-' and '.', such as example.com/gpu"
            )


def check_device_name(name: str) -> None:
    """Raises CdiError, unless a device may be called this."""
    if not _DEVICE.fullmatch(name):
        raise CdiError(
            f"device name {name!r} is not valid: start and end it with a letter or digit, "
            "and use only letters, digits, '_', '.', ':' and '-'"
        )


HOOKS: Final = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
"""The moments in a container's life at which a hook runs."""

_UINT32_VALUES: Final = (0, 2**32 - 1)
_INT64_VALUES: Final = (-(2**63), 2**63 - 1)
_CLOS_ID_BYTES: Final = 4095


class Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A part of a file. A field that no release of the interface has is refused, as runtimes do."""


class DeviceNode(Part, frozen=True):
    """A device node at ``path`` in the container.

    ``host_path`` is where it is on the host, if not there; ``type`` is ``b`` (block), ``c`` or ``u`` (character) or
    ``p`` (FIFO), ``permissions`` what the container may do: a combination of ``r``, ``w`` and ``m`` (make nodes).
    A runtime takes what is left out from the host's node.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None

    def __post_init__(self) -> None:
        _filled("path of a device node", self.path)
        if self.type not in ("", "b", "c", "u", "p"):
            raise CdiError(f"type {self.type!r} of device node {self.path}: use b, c, u or p, or leave it out")
        if set(self.permissions) - set("rwm"):
            raise CdiError(
                f"permissions {self.permissions!r} of device node {self.path}: use a combination of r, w and m"
            )
        for name, value in (("major", self.major), ("minor", self.minor)):
            _within(_INT64_VALUES, f"{name} of device node {self.path}", value)
        for name, number in (("fileMode", self.file_mode), ("uid", self.uid), ("gid", self.gid)):
            _within(_UINT32_VALUES, f"{name} of device node {self.path}", number)

    @property
    def source(self) -> str:
        """The path on the host."""
        return self.host_path or self.path


class Mount(Part, frozen=True):
    """A file or folder of the host in the container; ``options`` such as ``ro``, ``type`` such as ``tmpfs``."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""

    def __post_init__(self) -> None:
        _filled("hostPath of a mount", self.host_path)
        _filled("containerPath of a mount", self.container_path)


class Hook(Part, frozen=True):
    """A program of the host that the runtime runs when ``hook_name`` (of ``HOOKS``) says; ``timeout`` in seconds."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None

    def __post_init__(self) -> None:
        if self.hook_name not in HOOKS:
            raise CdiError(f"hookName {self.hook_name!r}: use one of {', '.join(HOOKS)}")
        _filled(f"path of hook {self.hook_name}", self.path)
        _variables(self.env)
        _within(_INT64_VALUES, f"timeout of hook {self.hook_name}", self.timeout)


class IntelRdt(Part, frozen=True):
    """Shares of cache and memory bandwidth (Intel Resource Director Technology); ``clos_id`` names the class."""

    clos_id: str = msgspec.field(default="", name="closID")
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] | None = None
    enable_monitoring: bool = False

    def __post_init__(self) -> None:
        name = self.clos_id
        if name == "/":
            return
        if name in (".", "..") or set(name) & set("/\n") or len(name.encode()) > _CLOS_ID_BYTES:
            raise CdiError(f"closID {name[:40]!r} of intelRdt: use a file name, or / for the root class")


class NetDevice(Part, frozen=True):
    """A network interface of the host that moves into the container as ``name``."""

    host_interface_name: str
    name: str

    def __post_init__(self) -> None:
        _filled("hostInterfaceName of a network device", self.host_interface_name)
        _filled("name of a network device", self.name)


class ContainerEdits(Part, frozen=True):
    """What changes in a container; ``env`` holds ``NAME=value``."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.env:
            _variables(self.env)
        if self.net_devices:
            _once("hostInterfaceName of netDevices", (device.host_interface_name for device in self.net_devices))
            _once("name of netDevices", (device.name for device in self.net_devices))
        for group in self.additional_gids:
            _within(_UINT32_VALUES, "an entry of additionalGids", group)

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return self != ContainerEdits()

    def __add__(self, other: ContainerEdits) -> ContainerEdits:
        """Both, one after the other. Of Intel RDT, and of one network interface, the later one counts."""
        net_devices = {device.host_interface_name: device for device in self.net_devices + other.net_devices}
        return ContainerEdits(
            env=self.env + other.env,
            device_nodes=self.device_nodes + other.device_nodes,
            net_devices=tuple(net_devices.values()),
            hooks=self.hooks + other.hooks,
            mounts=self.mounts + other.mounts,
            intel_rdt=other.intel_rdt or self.intel_rdt,
            additional_gids=self.additional_gids + other.additional_gids,
        )

    def environment(self) -> dict[str, str]:
        """The variables; the last of equal names counts."""
        return dict(entry.split("=", 1) for entry in self.env)


def _filled(what: str, value: str) -> None:
    if not value:
        raise CdiError(f"the {what} is empty: give it, or leave the whole entry out")


def _within(limits: tuple[int, int], what: str, value: int | None) -> None:
    low, high = limits
    if value is not None and not low <= value <= high:
        raise CdiError(f"the {what} is {value}: use a number from {low} to {high}")


def _variables(entries: Iterable[str]) -> None:
    if isinstance(entries, str | Mapping):
        raise CdiError(f"env is {entries!r}: give a list of texts of the form NAME=value")
    for entry in entries:
        if not isinstance(entry, str) or entry.find("=") < 1 or "\0" in entry:
            raise CdiError(f"env entry {entry!r}: use the form NAME=value")


def _once(what: str, values: Iterable[str]) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise CdiError(f"the {what} {value!r} is given twice: use each once")
        seen.add(value)


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
_WITHIN_DEVICE = re.compile(r"devices\[(?P<number>\d+)\]\.?(?P<rest>.*)")
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
    if device := _WITHIN_DEVICE.fullmatch(path):
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
        found = file.stat()
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            return CdiError("cannot be read: it is no regular file")  # to open a pipe would block for ever
        version = (found.st_ino, found.st_mtime_ns, found.st_size)
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
