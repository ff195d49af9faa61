"""Device metadata: a file in the container that says which devices it has, and what is known of them (KEP 5304).

There is one file per request of a claim. It holds the same object once per version of the format, in the order that the
driver wants. Put the newest first: an old reader finds a version that it knows behind a newer one. All versions have
the same fields. Spec: PH-11, PH-14, K37-META-01 to -05.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
from dra_api.codec import DecodeError, convert
from dra_api.meta import Part
from dra_api.resource import DeviceAttribute, NetworkDeviceData
from dra_api.validation import FieldError
from dra_api.validation.fields.device import device_attribute
from dra_api.validation.formats import qualified_name
from dra_api.validation.lists import mapping

from dra_kubeletplugin.errors import MetadataError

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
