"""The files of a claim that containers get: CDI files, and device metadata if they are on.

A CDI file says how a prepared device gets into a container. ``dra_cdi`` knows what a file may say, and refuses what a
container runtime would refuse. A file is written under a hidden name, flushed to the disk and renamed, so that a
runtime never reads half of one, even after a power failure. Its name contains the uid of the claim: unpreparing finds
it by that, even after a restart that lost everything else (TD-02, TD-03). A hidden name is ``.<driver>=<claim
uid>-<random>.tmp``: no driver's name has ``=`` in it, so hidden files of ``gpu-nic`` and ``gpu`` are not confused.

Device metadata say in the container which devices it has, and what is known of them (KEP 5304). There is one file per
request of a claim. It holds the same object once per version of the format, in the order that the driver wants. Put the
newest first: an old reader finds a version that it knows behind a newer one. All versions have the same fields.

A metadata file is ``<folder>/<claim uid>/<request>/metadata.json``, mounted by the CDI device of the first device of
the request. A container that runs has the file itself, not its name, so a changed file is rewritten in place; a reader
may see half of it, and tries again. Metadata never keep a claim from being prepared: what goes wrong with their files
is logged. Spec: PH-11 to PH-14, K37-META-01 to -05.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
from dra_api.codec import DecodeError, convert
from dra_api.meta import Part
from dra_api.references import base_request
from dra_api.resource import DeviceAttribute, NetworkDeviceData
from dra_api.validation import FieldError
from dra_api.validation.device import device_attribute
from dra_api.validation.formats import qualified_name
from dra_api.validation.metadata import mapping
from dra_cdi import CdiDevice, CdiError, CdiSpec, ContainerEdits, Mount, check_kind, encode

from dra_kubeletplugin.driver import Prepared, PreparedDevice
from dra_kubeletplugin.errors import ClaimError, MetadataError
from dra_kubeletplugin.files.claim_record import ClaimRecord

from .folders import HostParts, KeptFiles

CDI_DIR = Path("/var/run/cdi")

_FILE_PART = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_ENDS = (".json", ".tmp")
_ABANDONED_SECONDS: Final = 60.0
"""A hidden file of this age, in seconds, was left by a process that ended while it wrote."""


class _Kind(msgspec.Struct):
    kind: str


class CdiFolder:
    """The CDI files of one driver, named ``<driver>-<claim uid>-<part>.json``, of kind ``<driver>/<class_name>``.

    Any object with the same methods can take its place, for instance to write on another machine (TD-04). All
    methods raise CdiError, which names the file; the constructor, if CDI does not allow the driver's name.
    """

    def __init__(self, folder: Path, driver: str, class_name: str = "claim") -> None:
        self.folder = folder
        self._driver = driver
        self._kind = f"{driver}/{class_name}"
        self.kept = KeptFiles()
        check_kind(self._kind)

    def create(self) -> None:
        """Make the folder if it is missing, and remove what a process that was killed left half written."""
        try:
            self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            for path in self._paths(f".{self._driver}="):
                if path.stat().st_mtime < time.time() - _ABANDONED_SECONDS:
                    path.unlink()
        except FileNotFoundError:
            pass  # another instance of the driver was quicker
        except OSError as error:
            raise CdiError(f"cannot create the CDI folder {self.folder}: {error}") from error

    def write(self, claim_uid: str, part: str, edits: ContainerEdits) -> str:
        """Write what a part of a claim, usually a request or a device, changes in containers. Return its CDI id.

        A file that says so already is left as it is: a full disk, or a process without descriptors, must not cost a
        running pod its file. Another content of the same part is replaced. A folder that is missing is made.
        """
        path = self.folder / f"{self._prefix(claim_uid)}{_checked(part)}.json"
        name = f"claim-{claim_uid}-{part}"
        try:
            content = encode(CdiSpec.of(self._kind, [CdiDevice(name, edits)]))
        except (CdiError, UnicodeEncodeError) as error:
            raise CdiError(f"CDI file {path.name}: {error}") from error
        self.kept.add(claim_uid, path)
        try:
            if not _says(path, content):
                try:
                    _write_whole(path, content, f".{self._driver}={claim_uid}-")
                except (FileNotFoundError, IsADirectoryError):  # the folder was removed, or somebody made the file one
                    self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
                    _make_way(path)
                    _write_whole(path, content, f".{self._driver}={claim_uid}-")
        except OSError as error:
            raise CdiError(f"cannot write the CDI file {path}: {error}") from error
        return f"{self._kind}={name}"

    def remove(self, claim_uid: str) -> bool:
        """Remove all files of a claim, half written ones as well; False if there were none."""
        found = self._paths(self._prefix(claim_uid), f".{self._driver}={claim_uid}-")
        self.kept.forget(claim_uid)
        for path in found:
            self._unlink(path)
        return bool(found)

    def sweep(self, *, keep: Iterable[str]) -> None:
        """Remove the files of claims other than these, and what a killed process was writing.

        No other instance of the driver may be writing meanwhile.
        """
        kept = tuple(self._prefix(uid) for uid in keep)
        hidden = f".{self._driver}="
        for path in self._paths(f"{self._driver}-", hidden):
            if path.name.startswith(hidden) or (not path.name.startswith(kept) and self._is_ours(path)):
                self._unlink(path)

    def _paths(self, *begins: str) -> list[Path]:
        """Return the files whose names begin so, hidden and whole ones; none if the folder is missing."""
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CdiError(f"cannot read the CDI folder {self.folder}: {error}") from error
        # The folder may have the files of 1,000 claims: most names fail the first comparison.
        return [self.folder / name for name in sorted(names) if name.startswith(begins) and name.endswith(_ENDS)]

    def _is_ours(self, path: Path) -> bool:
        """Whether the kind is this driver's; the name may be that of a driver whose name begins like this one's."""
        try:
            return msgspec.json.decode(_read(path), type=_Kind).kind == self._kind
        except (OSError, ValueError):
            return False

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except IsADirectoryError:
            _make_way(path)  # a folder is no CDI file of ours, and must not keep a claim from being unprepared
        except OSError as error:
            raise CdiError(f"cannot remove the CDI file {path}: {error}") from error

    def _prefix(self, claim_uid: str) -> str:
        return f"{self._driver}-{_checked(claim_uid)}-"


def _checked(part: str) -> str:
    """The text, if it can be part of a file name. Raises CdiError."""
    if not _FILE_PART.fullmatch(part):
        raise CdiError(f"{part!r} cannot be part of a CDI file name: use letters, digits, '_', '.' and '-'")
    return part


def _says(path: Path, content: bytes) -> bool:
    """Return whether a file has this content; one that cannot be read is written again, if that works."""
    try:
        return _read(path) == content
    except OSError:
        return False


def _read(path: Path) -> bytes:
    """Return the content of a file. Raises OSError, also for a pipe: it would block the plugin for ever."""
    if os.path.lexists(path) and not path.is_file():
        raise FileExistsError(errno.EEXIST, "it is no regular file", str(path))
    return path.read_bytes()


def _make_way(path: Path) -> None:
    """Remove what stands in the place of a file, unless it is a folder with something in it.

    Container runtimes make a folder where they are to mount a file that is missing.
    """
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        elif os.path.lexists(path) and not path.is_file():
            path.unlink()


def _write_whole(path: Path, content: bytes, prefix: str) -> None:
    """Replace a file in one step. Raises OSError, and then leaves no trace."""
    descriptor, hidden = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o600)  # edits may hold opaque parameters; container runtimes are root
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        Path(hidden).unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """Put the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


log = logging.getLogger(__name__)


CONTAINER_DIR: Final = Path("/var/run/kubernetes.io/dra-device-attributes")
"""Where a container finds the files."""

_GROUP: Final = "metadata.resource.k8s.io"
_ALPHA, _BETA = "v1alpha1", "v1beta1"
VERSIONS: Final = (_BETA, _ALPHA)  # newest first
_KIND: Final = "DeviceMetadata"


class MetadataDevice(Part, frozen=True):
    """One device; ``attributes`` as in a ResourceSlice."""

    driver: str
    pool: str
    name: str
    attributes: dict[str, DeviceAttribute] = {}  # noqa: RUF012  # msgspec copies defaults
    network_data: NetworkDeviceData | None = None


class MetadataRequest(Part, frozen=True):
    """The devices of a request, whose name includes the sub-request, if there is one."""

    name: str
    devices: tuple[MetadataDevice, ...] = ()


class MetadataClaim(Part, frozen=True):
    """The claim; ``generation`` counts the contents of the file."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0


class DeviceMetadata(Part, frozen=True):
    """What a file says. ``pod_claim_name`` is the claim's name in the pod, where a template made the claim."""

    metadata: MetadataClaim = MetadataClaim()
    pod_claim_name: str | None = None
    requests: tuple[MetadataRequest, ...] = ()


def versions_to_write(asked: bool | Sequence[str]) -> tuple[str, ...]:
    """The versions of the format that a file has, in order; none if there are to be no files.

    True stands for what a library of Kubernetes 1.36 writes. A list follows 1.37, and needs v1beta1. Raises ValueError.
    """
    if isinstance(asked, bool):
        return (_ALPHA,) if asked else ()
    names = ", ".join(VERSIONS)
    if isinstance(asked, str) or not set(asked) <= set(VERSIONS):
        raise ValueError(f"{asked!r} is not a list of versions of the file; known are {names}")
    if _BETA not in asked or len(set(asked)) < len(asked):
        raise ValueError(f"the versions {list(asked)} must have {_BETA} among them, and each once; known are {names}")
    return tuple(asked)


def encode_metadata(content: DeviceMetadata, versions: Iterable[str]) -> bytes:
    """A file's text, with an object for each of the versions."""
    fields = msgspec.to_builtins(content)
    objects = ({"apiVersion": f"{_GROUP}/{version}", "kind": _KIND, **fields} for version in versions)
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in objects)


def decode_metadata(text: str | bytes) -> DeviceMetadata:
    """What a file says, from the first object of a version that is known here.

    Raises MetadataError. The driver may be writing the file, so a reader should try again after it.
    """
    unknown = []
    for entry in _objects(text.decode(errors="replace") if isinstance(text, bytes) else text):
        group, _, version = str(entry.get("apiVersion", "")).rpartition("/")
        if not version or not entry.get("kind"):
            raise MetadataError(f"an object without apiVersion or kind: {json.dumps(entry)[:100]}")
        if group != _GROUP or version not in VERSIONS:
            unknown.append(f"{group}/{version}")
        elif entry["kind"] != _KIND:
            raise MetadataError(f"{_GROUP}/{version} has no kind {entry['kind']!r}, only {_KIND}")
        else:
            return _decoded(entry)
    if unknown:
        raise MetadataError(
            f"no compatible metadata version found in stream (unknown versions: {', '.join(unknown)}); known are "
            + ", ".join(f"{_GROUP}/{version}" for version in VERSIONS)
        )
    raise MetadataError("no metadata objects found in stream")


def metadata_faults(content: DeviceMetadata) -> tuple[str, ...]:
    """What is wrong with the attributes of a content that was decoded, each with its place; empty if nothing is.

    Drivers write without a check and readers decode without one, so that one attribute costs no container the others.
    Each has to have one value, or one list, and a name as in a ResourceSlice. K37-META-09.
    """
    found: list[FieldError] = []
    for number, request in enumerate(content.requests):
        for place, device in enumerate(request.devices):
            path = f"requests[{number}].devices[{place}].attributes"
            found += mapping(device.attributes, path, qualified_name, device_attribute)
    return tuple(map(str, found))


def read_metadata(claim: str, request: str, *, template: bool = False, root: Path = CONTAINER_DIR) -> DeviceMetadata:
    """What all drivers say of the devices of a request, read in a container.

    ``claim`` is the name of the claim, or with ``template`` the name that the pod has for it. Raises MetadataError.
    """
    folder = root / _folder(template) / claim / request
    files = sorted(folder.glob("*-metadata.json"))
    if not files:
        raise MetadataError(f"no metadata files found in {folder}")
    found = []
    for file in files:
        try:
            found.append(decode_metadata(file.read_bytes()))
        except (OSError, MetadataError) as error:
            raise MetadataError(f"{file}: {error}") from error
    devices: dict[str, tuple[MetadataDevice, ...]] = {}
    for entry in (entry for content in found for entry in content.requests):
        devices[entry.name] = devices.get(entry.name, ()) + entry.devices
    return DeviceMetadata(
        pod_claim_name=next((content.pod_claim_name for content in found if content.pod_claim_name), None),
        requests=tuple(MetadataRequest(name=name, devices=each) for name, each in devices.items()),
    )


def container_path(driver: str, claim: str, request: str, *, template: bool) -> PurePosixPath:
    """Where a container finds what a driver says of a request."""
    return PurePosixPath(CONTAINER_DIR / _folder(template) / claim / request / f"{driver}-metadata.json")


def _folder(template: bool) -> str:
    return "resourceclaimtemplates" if template else "resourceclaims"


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that stand one after the other in a text."""
    decoder, position = json.JSONDecoder(), 0
    while rest := text[position:].lstrip():
        position = len(text) - len(rest)
        try:
            entry, position = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError) as error:
            raise MetadataError(f"read metadata object from stream: {error}") from error
        if not isinstance(entry, dict):
            raise MetadataError(f"expected an object in the stream, found {json.dumps(entry)[:100]}")
        yield entry


def _decoded(entry: dict[str, Any]) -> DeviceMetadata:
    try:
        return convert(DeviceMetadata, entry)
    except DecodeError as error:
        raise MetadataError(f"decode {entry['apiVersion']}: {error}") from error


class MetadataFiles:
    """The files of the driver ``driver`` in ``folder``.

    Without ``versions`` of the format none are written. Those from before stay as long as their claims are prepared,
    because a container that starts again mounts them again.
    """

    def __init__(self, folder: Path, driver: str, versions: tuple[str, ...]) -> None:
        self._folder = folder
        self._driver = driver
        self.kept = KeptFiles()
        self.versions = versions

    def write(self, record: ClaimRecord) -> dict[int, ContainerEdits]:
        """Write what changed of a claim's files; returns, by the index of a device, what it mounts."""
        mounts: dict[int, ContainerEdits] = {}
        if not self.versions:
            return mounts
        for request, indices in _by_request(record).items():
            path = self._folder / record.uid / request / "metadata.json"
            was_there = path.exists()
            self.kept.add(record.uid, path)
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
        """Remove the files of a claim; none is fine. What is no folder has none, and is left to its owner."""
        self.kept.forget(uid)
        path = self._folder / uid
        try:
            if stat.S_ISDIR(path.lstat().st_mode):  # to open a pipe would block the plugin for ever
                shutil.rmtree(path)
            else:
                log.warning("%s is no folder with the device metadata of a claim, and stays: remove it by hand", path)
        except (FileNotFoundError, NotADirectoryError):
            pass  # something else lies where the folder should be, so there are no files of claims
        except OSError as error:
            raise ClaimError(f"cannot remove the device metadata {path}: {error}") from error

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
    _make_way(path)
    try:
        if _read(path) == content:
            return
    except FileNotFoundError:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o644)
        file.write(content)
        file.truncate()


class ClaimFiles:
    """Written from records, removed by uid."""

    def __init__(self, cdi: CdiFolder, metadata: MetadataFiles, parts: HostParts) -> None:
        self._cdi = cdi
        self.metadata = metadata
        self.parts = parts

    def write(self, record: ClaimRecord) -> Prepared:
        """Write the files of a record that differ, and return its devices with the ids.

        Raises CdiError, and leaves the files that are there. Those of a prepared claim are valid: a container that
        starts again needs them, and names them all, so that it never starts with some of its devices only. The caller
        withdraws the files of a claim that is not prepared.
        """
        self.note(record)
        mounts = self.metadata.write(record)
        return [
            self._written(
                record.uid, index, device, (device.edits or ContainerEdits()) + mounts.get(index, ContainerEdits())
            )
            for index, device in enumerate(record.devices)
        ]

    def note(self, record: ClaimRecord) -> None:
        """Tell other drivers which parts of the host a claim has; without room for that it goes without."""
        try:
            self.parts.write(record)
        except ClaimError as error:
            log.error("other drivers of this node do not see what claim %s has: %s", record.ref, error)

    def withdraw(self, uid: str) -> bool:
        """Remove the CDI files of a claim: runtimes refuse to start a container with it then. False if there were none.

        Raises CdiError.
        """
        return self._cdi.remove(uid)

    def remove(self, uid: str) -> None:
        """Remove all files of a claim. Raises CdiError or ClaimError."""
        self._cdi.remove(uid)
        self.metadata.remove(uid)
        self.parts.remove(uid)

    def lost(self) -> set[str]:
        """Return the claims of which somebody else has removed a file that this process has written."""
        return self._cdi.kept.lost() | self.metadata.kept.lost() | self.parts.kept.lost()

    def forget(self, uid: str) -> None:
        """Miss no file of a claim any more: another instance has removed them."""
        self._cdi.kept.forget(uid)
        self.metadata.kept.forget(uid)
        self.parts.kept.forget(uid)

    def sweep(self, *, keep: Collection[str]) -> None:
        """Remove the files of claims other than these. Raises CdiError or ClaimError."""
        self._cdi.sweep(keep=keep)
        self.metadata.sweep(keep=keep)
        self.parts.sweep(keep=keep)

    def _written(self, uid: str, index: int, device: PreparedDevice, edits: ContainerEdits) -> PreparedDevice:
        if not edits:
            return device
        part = "-".join([*(base_request(request) for request in device.requests[:1]), str(index)])
        return replace(device, cdi_ids=(self._cdi.write(uid, part, edits), *device.cdi_ids))
