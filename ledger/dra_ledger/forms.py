"""Take apart the forms in which programs have objects: each object alone, with its kind and version.

See ``sources`` for the forms. Nothing is passed over in silence that may be meant: an object without a kind is an
error, since its devices would count as free. Kinds of other groups may have the name of one of the ledger's kinds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from dra_api.codec import DecodeError, RawList, decode, raw_list, shallow
from dra_api.conversion import GROUP
from dra_api.meta import Object, Part
from dra_api.resource import NULL
from msgspec import Raw

from .errors import shortened


class Document(NamedTuple):
    """The JSON of one object; ``is_gone``: an event says that it was deleted."""

    kind: str
    version: str
    data: Any
    is_gone: bool = False


class Malformed(NamedTuple):
    """An object that could not be read: ``KIND namespace/name``, and its fault."""

    object: str
    fault: str


class Listed(NamedTuple):
    """The start of a list. It may be empty; its objects follow. ``goes_on``: the server has further pages of it."""

    kind: str
    goes_on: bool = False


class _Status(Part, frozen=True):
    status: str = ""
    message: str = ""


class _Head(msgspec.Struct, rename="camel"):
    """What tells a list, an event and an object apart. ``type`` of other objects may be anything."""

    kind: str | None = ""
    api_version: str | None = ""
    items: Raw = NULL
    type: Any = None
    object: Raw = NULL
    pythonic: Any = msgspec.field(default=NULL, name="api_version")
    """Only ``to_dict()`` of the ``kubernetes`` package writes this name."""

    def refusal(self) -> str:
        """Return why this is no object of Kubernetes, although it may stand for one; else an empty text."""
        if self.pythonic is not NULL:
            # Most of its fields would be passed over, and admin access would count as a holder.
            return "its fields have the names of to_dict() of the kubernetes package: give the object itself"
        if (self.api_version or "").startswith("meta.k8s.io/"):
            return f"a {self.kind} has no spec and no status: ask the API server for application/json alone"
        return ""


_heads: Final = msgspec.json.Decoder(_Head)
_values: Final = json.JSONDecoder()
_space: Final = re.compile(r"\s*")
_EVENTS: Final = (None, "ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")
"""Kopf's handlers of events get None for objects that were there before."""
KINDS: Final = ("ResourceSlice", "ResourceClaim", "DeviceClass", "DeviceTaintRule", "Node", "Pod")
_KINDS: Final = frozenset(KINDS)
_GROUPS: Final = dict.fromkeys(KINDS[:4], GROUP)
_MODEL: Final = re.compile(rf"(V1(?:(?:alpha|beta)[0-9]+)?)({'|'.join(KINDS)})(List)?$")
"""The name of a class of the ``kubernetes`` package: ``ResourceV1ResourceClaim``, ``V1beta1ResourceSliceList``."""


def documents(source: object, kind: str = "") -> Iterator[Document | Object | Malformed | Listed]:
    """Yield the objects of a source, and objects of ``dra_api`` as they are. An object without a kind is of ``kind``.

    Raises DecodeError for other values, for objects without a kind, and for an event of the type ERROR.
    """
    if isinstance(source, Object):
        yield source
    elif isinstance(source, bytes | bytearray | memoryview | str | Raw):
        yield from _json(source, kind)
    elif isinstance(source, Mapping):
        if "object" in source and source.get("type") in _EVENTS:
            source = {"type": source.get("type"), "object": plain(source.get("raw_object") or source["object"])}
        yield from _json(_encoded(source), kind)
    elif isinstance(source, tuple) and len(source) == 2 and source[0] in _EVENTS[1:]:
        yield from documents({"type": source[0], "object": source[1]}, kind)
    elif not isinstance(source, list | tuple) and (found := plain(source)) is not source:
        yield from documents(found, kind)
    elif callable(text := getattr(source, "read", None)):
        yield from documents(text(), kind)
    elif isinstance(source, Iterable):
        for one in source:
            if one is not None:  # an empty document of YAML
                yield from documents(one, kind)
    else:
        raise DecodeError(f"a {type(source).__name__} is no object of Kubernetes: give JSON, a dictionary or an object")


def plain(value: object) -> Any:
    """An object of a client as its dictionary, with the names of the API; anything else as it is.

    The objects of the ``kubernetes`` package know these names (``attribute_map``), but its ``to_dict()`` does not use
    them. Items of its lists have no kind but the name of their class.
    """
    if isinstance(value, Mapping | str | bytes | Object | Raw) or value is None:
        return value
    names = getattr(value, "attribute_map", None)
    if isinstance(names, Mapping):
        its = ((name, _nested(getattr(value, attribute))) for attribute, name in names.items())
        fields = {name: field for name, field in its if field is not None}
        if "kind" in names and "kind" not in fields and (match := _MODEL.search(type(value).__name__)):
            version, kind, is_list = match.groups("")
            group = f"{GROUP}/" if kind in _GROUPS else ""
            fields |= {"kind": f"{kind}{is_list}", "apiVersion": f"{group}{version.lower()}"}
        return fields
    for name in ("raw", "obj", "to_dict"):
        found = getattr(value, name, None)
        found = found() if callable(found) else found
        if isinstance(found, Mapping):
            return found
    return value


def _nested(value: object) -> Any:
    if isinstance(value, list | tuple):
        return [_nested(one) for one in value]
    if isinstance(value, dict):
        return {name: _nested(one) for name, one in value.items()}
    return plain(value)


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=_dictionary)
    except (UnicodeEncodeError, RecursionError, TypeError) as error:
        raise DecodeError(str(error)) from error


def _dictionary(value: object) -> Any:
    found = plain(value)
    if isinstance(found, Mapping):
        return dict(found)
    raise TypeError(f"a {type(value).__name__} is no part of an object of Kubernetes")


def _json(data: Any, kind: str) -> Iterator[Document | Malformed | Listed]:
    try:
        try:
            head, is_gone, data = _opened(data)
        except RecursionError:
            head, is_gone, data = _opened(shallow(_bytes(data)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        parts = _parts(data)
        if parts is None or parts == [data]:
            raise DecodeError(f"it is no JSON of an object of Kubernetes (YAML has to be loaded): {error}") from error
        try:
            for part in parts:
                yield from _json(part, kind)
        except RecursionError as deep:
            raise DecodeError("lists of lists are nested too deep") from deep
        return
    if refusal := head.refusal():
        raise DecodeError(refusal)
    if head.items is not NULL:
        yield from _items(_bytes(data), kind)
    elif head.kind == "Status" and (answer := decode(_Status, data)).status == "Failure":
        raise DecodeError(f"the API server answered: {shortened(answer.message, 300)}")
    elif not (kind := head.kind or kind):
        its = decode(dict[str, Any], data)
        meta = its["metadata"] if isinstance(its.get("metadata"), dict) else {}
        name = shortened(str(meta.get("name", "it")))
        fields = shortened(", ".join(list(its)[:5]) or "nothing")
        raise DecodeError(f"an object without a kind is no object of Kubernetes: {name} has {fields}")
    elif _is_kept(kind, head.api_version or ""):
        yield Document(kind, head.api_version or "", data, is_gone)


def _opened(data: Any) -> tuple[_Head, bool, Any]:
    """Return the start of an object, whether it was deleted, and the object without an event around it."""
    head = _heads.decode(data)
    if head.object is NULL or head.kind or head.type not in _EVENTS:
        return head, False, data
    if head.type == "ERROR":
        raise DecodeError(f"the watch ended: {bytes(head.object).decode(errors='replace')[:300]}")
    if head.type == "BOOKMARK":
        return _Head(kind="Bookmark"), False, b"{}"
    return _heads.decode(head.object), head.type == "DELETED", head.object


def _bytes(data: Any) -> bytes:
    return data if isinstance(data, bytes) else data.encode() if isinstance(data, str) else bytes(data)


def _parts(data: Any) -> list[Any] | None:
    """Return the parts of JSON that is no single object: of an array, or objects one after another, as ``kubectl get
    --watch`` prints them. None if it is no JSON. Windows writes a byte order mark before it, or UTF-16."""
    found, at = [], 0
    try:
        text = data if isinstance(data, str) else _bytes(data).decode(json.detect_encoding(_bytes(data)))
        text = text.removeprefix("\ufeff").strip()
        if text.startswith("["):
            return list(msgspec.json.decode(text, type=list[Raw]))
        while at < len(text):
            _, end = _values.raw_decode(text, at)
            found.append(text[at:end])
            at = _space.match(text, end).end()  # type: ignore[union-attr]  # it may be empty
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return found or None


def _is_kept(kind: str, version: str) -> bool:
    """Return whether it is a kind of the ledger, and no namesake of another group."""
    return kind in _KINDS and (not version or version.rpartition("/")[0] == _GROUPS.get(kind, ""))


def _items(data: bytes, default: str) -> Iterator[Document | Malformed | Listed]:
    """Yield the items of a list in its order, with the items of lists in it.

    Items of one kind may lack their kind; kubectl writes lists of many kinds.
    """
    begun = [_entries(raw_list(data))]
    while begun:
        for number, entry in begun[-1]:
            if not isinstance(entry, Raw):
                yield entry
                continue
            try:
                head = _heads.decode(entry)
                inner = raw_list(bytes(entry)) if head.items is not NULL else None
            except (msgspec.DecodeError, DecodeError, RecursionError, UnicodeDecodeError) as error:
                yield Malformed(f"items[{number}]", str(error))
                continue
            its = head.kind or default
            if refusal := head.refusal() or ("" if its or inner is not None else "it has no kind"):
                yield Malformed(f"items[{number}]", refusal)
            elif inner is not None:
                begun.append(_entries(inner))
                break
            elif _is_kept(its, head.api_version or ""):
                yield Document(its, head.api_version or "", entry)
        else:
            begun.pop()


def _entries(envelope: RawList) -> Iterator[tuple[int, Document | Listed | Raw]]:
    """Yield the entries of a list with their numbers. In a list of one kind all are objects of that kind."""
    kind, version = envelope.kind.removesuffix("List"), envelope.api_version
    is_of_one = bool(kind) and _is_kept(kind, version)
    if is_of_one:
        yield 0, Listed(kind, bool(envelope.metadata.get("continue")))
    if is_of_one or not kind:
        for number, raw in enumerate(envelope.items or ()):
            yield number, Document(kind, version, raw) if is_of_one else raw
