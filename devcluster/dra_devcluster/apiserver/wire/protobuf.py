"""Request bodies in the Kubernetes protobuf format, decoded to the plain dicts that JSON bodies give.

    decode_protobuf(body) -> dict            raises MalformedProtobuf with a text for a 400 answer

`kubectl` sends typed commands (create namespace, evictions, delete options...) in this format: four magic bytes, then
a `runtime.Unknown` message that names apiVersion and kind and carries the object's own message.
Field numbers are data (`schema/protobuf.json`): {message: {number: [JSON name, type, "list"|"map"]}}, an empty JSON
name meaning that the fields of that message stand in the parent, a type ending in "!" that a zero is a value and not
absence. Answers need no protobuf: every client that accepts it accepts JSON as well.
"""

import base64
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import orjson
from dra_api.values import format_time

from dra_devcluster.apiserver.structure import load_data

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_META = "k8s.io.apimachinery.pkg.apis.meta.v1"
_UNKNOWN = "k8s.io.apimachinery.pkg.runtime.Unknown"
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
