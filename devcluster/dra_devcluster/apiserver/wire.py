"""Requests on the wire: the target in the URL, the query, and the body in JSON or protobuf.

A URL says resource, namespace, object and sub-resource. A body has a media type, a limit of size, and an answer the
shape that the client asked for.

`kubectl` sends typed commands (create namespace, evictions, delete options...) in the Kubernetes protobuf format: four
magic bytes, then a `runtime.Unknown` message that names apiVersion and kind and carries the object's own message.
``decode_protobuf`` gives the plain dicts that JSON bodies give, and raises MalformedProtobuf with a text for a 400
answer. Field numbers are data (`schema/protobuf.json`): {message: {number: [JSON name, type, "list"|"map"]}}, an empty
JSON name meaning that the fields of that message stand in the parent, a type ending in "!" that a zero is a value and
not absence. Answers need no protobuf: every client that accepts it accepts JSON as well.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Literal
from urllib.parse import unquote

import orjson
import yaml
from aiohttp import web
from dra_api import yaml_text
from dra_api.values import format_time

from dra_devcluster.apiserver.errors import Json, bad_request, not_acceptable, too_large, unsupported_media_type
from dra_devcluster.apiserver.structure import load_data

_MAGIC = b"k8s\x00"
_META = "k8s.io.apimachinery.pkg.apis.meta.v1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MalformedProtobuf(ValueError):
    """The body is not a Kubernetes protobuf object, or of a kind that is not known; the text says which."""


def decode_protobuf(body: bytes) -> dict[str, Any]:
    """The object in `body`, with apiVersion and kind, zero values absent as in JSON."""
    if not body.startswith(_MAGIC):
        raise MalformedProtobuf("the body does not start with the protobuf magic k8s\\x00")
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        type_meta = {number: _text(value) for number, value in _fields(envelope.get(1, b""))}
        api_version, kind = type_meta.get(1, ""), type_meta.get(2, "")
        raw = envelope.get(2, b"")
        if raw.startswith(b"{"):  # a client may put JSON into the envelope
            return dict(orjson.loads(raw))
        decoded = _message(_message_name(api_version, kind), raw)
    except MalformedProtobuf:
        raise
    except (IndexError, struct.error, TypeError, AttributeError, ValueError, OverflowError) as fault:
        raise MalformedProtobuf(f"the protobuf body cannot be read: {fault}") from fault
    return {"apiVersion": api_version, "kind": kind, **decoded}


@cache
def _messages() -> dict[str, dict[int, list[str]]]:
    table = load_data("protobuf.json")
    return {name: {int(number): entry for number, entry in fields.items()} for name, fields in table.items()}


def _message_name(api_version: str, kind: str) -> str:
    group, _, version = api_version.rpartition("/")
    package = group.split(".")[0] or "core"
    for name in (f"k8s.io.api.{package}.{version}.{kind}", f"{_META}.{kind}"):
        if name in _messages():
            return name
    raise MalformedProtobuf(f"the protobuf form of {api_version} {kind} is unknown: send JSON")


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and raw value (int or bytes) of each field of one message."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        wire = tag & 7
        if wire == 0:
            value: Any
            value, position = _varint(data, position)
        elif wire == 2:
            size, position = _varint(data, position)
            if position + size > len(data):
                raise IndexError("a field is longer than its message")
            value, position = data[position : position + size], position + size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            (value,) = struct.unpack_from("<d" if wire == 1 else "<f", data, position)
            position += size
        else:
            raise IndexError(f"wire type {wire} is not used by Kubernetes")
        yield tag >> 3, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number is longer than 64 bits")


def _message(name: str, data: bytes) -> dict[str, Any]:
    known = _messages()[name]
    out: dict[str, Any] = {}
    for number, raw in _fields(data):
        if number not in known:
            continue  # a newer client's field; the real server drops it as well
        key, kind, *shape = known[number]
        if not key:
            out.update(_message(kind, raw))
        elif shape == ["list"]:
            out.setdefault(key, []).append(_value(kind, raw))
        elif shape == ["map"]:
            entry = dict(_fields(raw))
            out.setdefault(key, {})[_text(entry.get(1, b""))] = _value(kind, entry.get(2, b""))
        else:
            value = _value(kind.rstrip("!"), raw)
            if value or isinstance(value, dict) or kind.endswith("!"):
                out[key] = value
    return {key: value for key, value in out.items() if value is not None}


def _value(kind: str, raw: Any) -> Any:
    if kind == "string":
        return _text(raw)
    if kind == "bool":
        return bool(raw)
    if kind in ("int32", "int64"):
        return raw - (1 << 64) if raw >> 63 else raw
    if kind == "bytes":
        return base64.b64encode(raw).decode()
    special = _SPECIAL.get(kind.rsplit(".", 1)[-1])
    return special(dict(_fields(raw))) if special else _message(kind, raw)


def _text(raw: bytes) -> str:
    return raw.decode()


def _time(parts: dict[int, Any]) -> str | None:
    """RFC 3339; the zero time of Go is absence."""
    seconds = _value("int64", parts.get(1, 0))
    if seconds <= 0 and not parts.get(2):
        return None
    return format_time(_EPOCH + timedelta(seconds=seconds))


def _micro_time(parts: dict[int, Any]) -> str | None:
    text = _time(parts)
    return text and f"{text[:-1]}.{parts.get(2, 0) // 1000:06d}Z"


def _int_or_string(parts: dict[int, Any]) -> int | str:
    return _text(parts.get(3, b"")) if parts.get(1) else int(_value("int32", parts.get(2, 0)))


def _raw_json(parts: dict[int, Any]) -> Any:
    return orjson.loads(parts[1]) if parts.get(1) else None


_SPECIAL: dict[str, Callable[[dict[int, Any]], Any]] = {
    "Time": _time,
    "MicroTime": _micro_time,
    "Quantity": lambda parts: _text(parts.get(1, b"0")) or "0",
    "IntOrString": _int_or_string,
    "RawExtension": _raw_json,
    "FieldsV1": _raw_json,
    "ExtraValue": lambda parts: [_text(parts[1])] if 1 in parts else [],
}


def flag(query: Mapping[str, str], name: str) -> bool:
    """A flag is set by its mere presence, unless it says ``false`` or ``0``."""
    return name in query and query[name].lower() not in ("false", "0")


@dataclass(frozen=True, slots=True)
class Target:
    """``/apis/<group>/<version>/namespaces/<namespace>/<plural>/<name>/<subresource>/<tail>``, each part may be ''."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    tail: str = ""  # what follows a sub-resource: the path behind ``proxy``


def parse_target(path: str) -> Target | None:
    """The target of a URL path; None when the path is not one of a resource."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    # ``namespaces/x/status`` is the namespace's own sub-resource, ``namespaces/x/pods`` are pods inside.
    if rest[0] == "namespaces" and len(rest) > 2 and not (group == "" and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "")[:3]
    return Target(group, version, plural, namespace, name, subresource, "/".join(rest[3:]))


BODY_BYTES = 3 * 2**20  # as the real server's
JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
PATCHES: dict[str, Literal["json", "merge", "strategic", "apply"]] = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
}
_READABLE = (JSON, YAML, PROTOBUF)

Shape = Literal["object", "table", "metadata"]
_ONE = "PartialObjectMetadata"


@dataclass(frozen=True, slots=True)
class Wanted:
    shape: Shape = "object"
    yaml: bool = False
    version: str = "v1"  # of meta.k8s.io, for tables and metadata
    is_list: bool = False  # metadata of a list

    def check_metadata(self, group: str, kind: str, *, is_list: bool) -> None:
        """Metadata of an object and of a list of them have different names. Raises a 406."""
        if self.shape == "metadata" and self.is_list is not is_list:
            package = group.partition(".")[0] or "core"
            asked, there = (f"{_ONE}List", "not a list") if self.is_list else (_ONE, "a list")
            raise not_acceptable(f"you requested {asked}, but the requested object is {there} (*{package}.{kind})")


async def read_body(request: web.BaseRequest) -> bytes:
    """The whole body. Raises 413 beyond the limit."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > BODY_BYTES:
            raise too_large(BODY_BYTES)
    return bytes(body)


def media_type(request: web.BaseRequest) -> str:
    """The Content-Type without its parameters; JSON when there is none."""
    return request.headers.get("Content-Type", JSON).partition(";")[0].strip().lower() or JSON


def parse_object(body: bytes, kind_of_body: str) -> Json:
    """The object of a body. Raises 400 for malformed content and 415 for unknown media types."""
    if kind_of_body == PROTOBUF:
        try:
            return decode_protobuf(body)
        except MalformedProtobuf as error:
            raise bad_request(str(error)) from error
    if kind_of_body not in _READABLE:
        raise unsupported_media_type(_READABLE)
    document = parse_document(body, is_yaml=kind_of_body == YAML)
    if not isinstance(document, dict):
        raise bad_request("the body of the request is not a JSON object: an object has at least apiVersion and kind")
    return document


def parse_document(body: bytes, *, is_yaml: bool = False) -> Any:
    """Any JSON (or YAML) document. Raises 400."""
    try:
        return _yaml(body) if is_yaml else orjson.loads(body)
    except (orjson.JSONDecodeError, yaml.YAMLError, RecursionError) as error:
        raise bad_request(f"the object provided is unrecognized (must be of type json or yaml): {error}") from error


def _yaml(body: bytes) -> Any:
    try:
        return orjson.loads(body)  # JSON is YAML, and the usual case
    except orjson.JSONDecodeError:
        document = yaml_text.load(body)
    # Converted to JSON and back: dates become texts, and keys that JSON does not allow are refused.
    try:
        return orjson.loads(orjson.dumps(document))
    except TypeError as error:
        raise yaml.YAMLError(str(error)) from error


_CLAUSE = re.compile(r"\s*(?P<type>[^;,\s]+)(?P<parameters>(?:;[^,]*)?)")
_SHAPES: dict[str, Shape] = {"Table": "table", _ONE: "metadata", f"{_ONE}List": "metadata"}
_META_VERSIONS = ("v1", "v1beta1")
_META_GROUP = "meta.k8s.io"


def wanted(accept: str) -> Wanted:
    """The first clause of the Accept header that can be met. Raises 406."""
    if not accept or accept == JSON:
        return Wanted()
    for clause in accept.split(","):
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            continue
        parameters = dict(part.strip().partition("=")[::2] for part in match["parameters"].split(";") if part)
        shape = _SHAPES.get(parameters.get("as", ""))
        version = parameters.get("v", "")
        is_served = shape is not None and version in _META_VERSIONS and parameters.get("g") == _META_GROUP
        if "as" in parameters and not is_served:
            continue
        is_list = parameters.get("as") == f"{_ONE}List"
        if match["type"] in (JSON, "application/*", "*/*"):
            return Wanted(shape or "object", version=version or "v1", is_list=is_list)
        if match["type"] == YAML:
            return Wanted(shape or "object", yaml=True, version=version or "v1", is_list=is_list)
    raise not_acceptable(f"only the following media types are accepted: {JSON}, {YAML}")


def respond(
    body: bytes, want: Wanted = Wanted(), code: int = 200, headers: Sequence[tuple[str, str]] = ()
) -> web.Response:
    """A response of JSON bytes, as YAML if so asked."""
    kind = JSON
    if want.yaml:
        body, kind = yaml.safe_dump(orjson.loads(body), sort_keys=False).encode(), YAML
    return web.Response(body=body, status=code, headers=headers, content_type=kind)
