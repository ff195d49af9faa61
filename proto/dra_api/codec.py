"""JSON that nests deeper than Python's decoders go, cut to a depth that they read.

The API server accepts 10,000 levels, and the opaque parameters of a claim have room for 5,000; Python's decoders raise
RecursionError, some at 1,000, from 3.14 on where the stack ends. One such object must not keep the others of a list
from being read. So where that happens, what nests too deep is replaced by ``TOO_DEEP``; only a scan for brackets is
needed for that, no recursion.

Converts between JSON and the structs of this package.

Decoding is strict about types and lenient about unknown fields, as in clients of the API server. A list is decoded item
by item, so that a malformed object does not spoil the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, Final, TypeVar, cast

import msgspec

from dra_api.values import Quantity, QuantityError, parse_quantity

JSON_LEVELS: Final = 500
TOO_DEEP: Final = f"nested more than {JSON_LEVELS} levels deep"
_MARK: Final = b'"%s"' % TOO_DEEP.encode()
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


def shallow(data: bytes) -> bytes:
    """The JSON with ``TOO_DEEP`` in the place of each array or object below that many others.

    >>> shallow(b'{"a":' * 600 + b"1" + b"}" * 600).count(b"{")
    500
    """
    parts: list[bytes] = []
    depth = kept = 0
    for match in _TOKEN.finditer(data):
        token = match[0]
        if token in (b"{", b"["):
            depth += 1
            if depth == JSON_LEVELS + 1:
                parts.append(data[kept : match.start()])
        elif token in (b"}", b"]"):
            if depth == JSON_LEVELS + 1:
                parts.append(_MARK)
                kept = match.end()
            depth -= 1
    return b"".join((*parts, data[kept:])) if depth <= JSON_LEVELS else data


def was_cut(data: bytes) -> bool:
    """Whether ``shallow`` has replaced something."""
    return _MARK in data


T = TypeVar("T")


class DecodeError(ValueError):
    """The JSON does not have the shape of the kind; the message names the field."""


def _from_json(type_: type, value: Any) -> Any:
    if type_ is Quantity:
        if isinstance(value, str):
            return parse_quantity(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return parse_quantity(repr(value))
        raise QuantityError(f"expected a quantity, got {type(value).__name__}")
    raise NotImplementedError(type_)


def _to_json(value: Any) -> Any:
    if isinstance(value, Quantity):
        return value.text
    raise NotImplementedError(type(value))


@cache
def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_, dec_hook=_from_json)


encode: Final = msgspec.json.Encoder(enc_hook=_to_json).encode
"""A struct as JSON bytes; unset and default fields are left out, quantities keep their text. No function around it:
each new claim is encoded, to find those that ask for the same."""


class RawList(msgspec.Struct, rename="camel"):
    """The envelope of a Kubernetes list; the items stay bytes until each is decoded on its own.

    ``is_cut``: some items nest too deep, and ``TOO_DEEP`` stands for what was cut off.
    """

    items: list[msgspec.Raw] | None = None
    metadata: dict[str, Any] = {}
    kind: str = ""
    api_version: str = ""
    is_cut: bool = False


def decode(type_: type[T], data: bytes | str | msgspec.Raw) -> T:
    """One object from JSON bytes. Raises DecodeError, which names the field at fault."""
    try:
        decoded: T = _decoder(cast(Hashable, type_)).decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise DecodeError(str(error)) from error
    except RecursionError as error:
        raise DecodeError(f"it is {TOO_DEEP}") from error
    return decoded


def convert(type_: type[T], value: Any) -> T:
    """One object from parsed JSON (dicts and lists). Raises DecodeError, which names the field at fault."""
    try:
        data = msgspec.json.encode(value)
    except (UnicodeEncodeError, RecursionError, TypeError) as error:  # half of a surrogate pair; too deep; odd keys
        raise DecodeError(str(error)) from error
    return decode(type_, data)


def to_dict(value: object) -> Any:
    """A struct as plain dicts and lists, ready to be merged into a patch."""
    return msgspec.json.decode(encode(value))


def raw_list(data: bytes) -> RawList:
    """Read the envelope of a list. Raises DecodeError for what is no list."""
    try:
        try:
            return _raw_lists.decode(data)
        except RecursionError:
            found = _raw_lists.decode(shallow(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # the last: it never closes
        raise DecodeError(str(error)) from error
    found.is_cut = True
    return found


_raw_lists = msgspec.json.Decoder(RawList)


def brief(raw: bytes) -> bytes:
    """Return a malformed object as it is if it is short, else its identity and the devices that it has allocated.

    Users decide how many objects are malformed, and how large they are.
    """
    if len(raw) <= _SHORT_BYTES:
        return raw
    try:
        obj = msgspec.json.decode(raw)
        meta, status = obj["metadata"], obj.get("status")
        kept: dict[str, Any] = {"metadata": {name: meta[name] for name in _IDENTITY if name in meta}}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, AttributeError):
        return b"{}"
    if obj.get("spec") == TOO_DEEP:
        kept["spec"] = TOO_DEEP
    if status is not None:
        kept["status"] = {"allocation": _brief_allocation(status)}
    short = msgspec.json.encode(kept)
    return short if len(short) <= _BRIEF_BYTES else msgspec.json.encode({"metadata": kept["metadata"]})


def _brief_allocation(status: Any) -> Any:
    """The results of the allocation; None if the status says that there is none."""
    allocation = status.get("allocation") if isinstance(status, dict) else status
    devices = allocation.get("devices") if isinstance(allocation, dict) else None
    results = devices.get("results") if isinstance(devices, dict) else None
    if isinstance(results, list):
        return {"devices": {"results": results}}
    return None if allocation is None else {}


_SHORT_BYTES = 1 << 10
"""Tenants may store tens of thousands of malformed objects; a list holds all of them."""
_BRIEF_BYTES = 64 << 10
_IDENTITY = ("name", "namespace", "uid", "resourceVersion")


def decode_item(
    type_: type[T],
    raw: msgspec.Raw,
    *,
    is_cut: bool = False,
    reshape: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> T:
    """Decode one item of a list. Raises DecodeError, also for an item that nests too deep."""
    if is_cut and was_cut(bytes(raw)):
        raise DecodeError(f"it is {TOO_DEEP}")
    return decode(type_, raw) if reshape is None else convert(type_, reshape(decode(dict, raw)))
