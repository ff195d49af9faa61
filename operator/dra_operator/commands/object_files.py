"""Files that commands read: Kubernetes objects, and cases.

Objects come from YAML and JSON, lists, directories and standard input, and are decoded as the operator does. A case is
a problem as one JSON object, and is answered by one JSON line. A file of cases is a list of cases, or an object whose
``cases`` they are and whose other fields all cases share; JSON Lines (``.jsonl``, or ``-`` for standard input) hold one
case per line. All may be compressed (``.gz``). A malformed case is reported, and the others are answered. On standard
input every line is answered as soon as it is read, so that a program can ask one case after the other.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from dra_api import conversion
from dra_api.codec import DecodeError, convert
from dra_api.conversion import set_defaults
from dra_api.core import Event
from dra_api.leases import Lease
from dra_api.meta import DEVICE_CLASSES, EVENTS, LEASES, RESOURCE_QUOTAS, Object, ObjectMeta, OwnerReference
from dra_api.quota import ResourceQuota
from dra_api.resource import ResourceClaim, ResourceClaimConsumerReference
from dra_api.values import now

from dra_operator.commands.file_items import (
    LONGEST_YAML_BYTES,
    STDIN,
    BadInput,
    Text,
    again,
    as_text,
    documents,
    parts,
    read_bytes,
    read_text,
)
from dra_operator.sources.kind_table import OF_KUEUE, TABLE, Kinds

T = TypeVar("T", bound=Object)
R = TypeVar("R", OwnerReference, ResourceClaimConsumerReference)
JSON = dict[str, Any]
_TABLE: Final[Kinds] = {**TABLE, RESOURCE_QUOTAS: ResourceQuota, EVENTS: Event, LEASES: Lease, **OF_KUEUE}
KINDS: Final = {resource.kind: (resource, type_) for resource, type_ in _TABLE.items()}
"""All that the operator watches, the quotas that its writes would meet, and what `kubectl dra` explains with."""
GROUP: Final = DEVICE_CLASSES.group
GONE: Final = ("v1alpha1", "v1alpha2")
"""Versions of resource.k8s.io that no release serves any more; v1alpha3 serves DeviceTaintRules alone."""
SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


class Item(NamedTuple):
    """An object of a file, and where it is."""

    where: str
    value: JSON
    text: Text | None = None
    """Its own text, or None if it cannot be read alone."""
    kind: Mapping[str, Any] = MappingProxyType({})
    """The kind that its list gives it, unless it names its own."""

    def read_again(self) -> Object | None:
        """Return the object decoded from its text. Raises BadInput."""
        return decoded(self.where, self.value_again())

    def value_again(self) -> JSON:
        """Return the value, of its text if it has one."""
        return self.value if self.text is None else {**self.kind, **again(self.text)}

    def without_value(self) -> Item:
        """Return the item without its value, if it can be read again."""
        return self if self.text is None else self._replace(value={})


Begin = Callable[[str, Any], None]
"""Gets a file, and its first document that is not empty; of a list at least what is beside its items."""


def read_objects(
    paths: Iterable[str],
    keep: Callable[[Item, Object], Object] = lambda _item, obj: obj,
    begin: Begin = lambda _path, _top: None,
    other: Callable[[Item], None] = lambda _item: None,
) -> list[Object]:
    """All objects of the kinds above, in the order of the files; of one that is there twice the newer state.

    ``keep`` returns the form in which each is held, as it is decoded; ``other`` gets each object of another kind.
    Raises BadInput, also if two states of an object cannot be compared.
    """
    found: dict[tuple[str, str], tuple[str, ObjectMeta, Object]] = {}
    for path in files(paths):
        for item in each_item(path, begin=begin):
            made = decoded(item.where, item.value)
            if made is None:
                other(item)
                continue
            key = (item.value["kind"], made.key)
            version = ObjectMeta(uid=made.metadata.uid, resource_version=made.metadata.resource_version)
            first, before, _ = found.get(key, (item.where, None, made))
            if before is not None and not _are_comparable(before, version):
                raise BadInput(f"{item.where}: {key[0]} {made.key} appears twice, first in {first}: remove one")
            if before is None or int(before.resource_version) < int(version.resource_version):
                found[key] = (first, version, keep(item, made))
    return [made for _, _, made in found.values()]


def _are_comparable(one: ObjectMeta, other: ObjectMeta) -> bool:
    """Return whether two states of one object say which of them is the newer one."""
    versions = one.resource_version, other.resource_version
    return bool(one.uid) and one.uid == other.uid and all(map(str.isdecimal, versions))


def _documents(path: str, data: bytes) -> list[Any]:
    if len(data) > LONGEST_YAML_BYTES:
        limit = LONGEST_YAML_BYTES >> 20
        form = "more than the items of one list, as kubectl get -o yaml writes them"
        raise BadInput(
            f"{path}: more than {limit} MiB that are not JSON, with {form}: write JSON (kubectl get -o json)"
        )
    try:
        return documents(as_text(path, data))
    except ValueError as error:
        raise BadInput(f"{path}: {error}") from error


def of_kind(kind: type[T], objects: Iterable[Object]) -> list[T]:
    return [found for found in objects if isinstance(found, kind)]


def identified(obj: T) -> T:
    """Give the object a UID: objects that a person writes seldom have one, and every look-up needs it.

    A claim that names pods without a UID gets the UIDs that these pods have got.
    """
    meta, changes = obj.metadata, dict[str, Any]()
    if not meta.uid:
        changes["metadata"] = meta = msgspec.structs.replace(meta, uid=_made_up(type(obj).__name__, obj.key))
    if isinstance(obj, ResourceClaim):
        users, owners = obj.status.reserved_for or (), meta.owner_references or ()
        if not all(it.uid for it in users):
            named = tuple(_with_uid(it, _KINDS.get(it.resource, it.resource), meta.namespace) for it in users)
            changes["status"] = msgspec.structs.replace(obj.status, reserved_for=named)
        if not all(it.uid for it in owners):
            refs = tuple(_with_uid(it, it.kind, meta.namespace) for it in owners)
            changes["metadata"] = msgspec.structs.replace(meta, owner_references=refs)
    return msgspec.structs.replace(obj, **changes) if changes else obj


_KINDS: Final = {"pods": "Pod", "podgroups": "PodGroup"}


def _with_uid(reference: R, kind: str, namespace: str) -> R:
    uid = reference.uid or _made_up(kind, f"{namespace}/{reference.name}")
    return msgspec.structs.replace(reference, uid=uid)


def _made_up(kind: str, key: str) -> str:
    return f"{kind} {key}"


def is_snapshot(path: str) -> bool:
    """Whether a path is read as Kubernetes objects: a directory, standard input, or a file named so."""
    return path == STDIN or _is_directory(path) or Path(path).suffix in SUFFIXES


def _is_directory(path: str) -> bool:
    """Unlike ``Path.is_dir`` without an error for a name that is too long, or a place that may not be looked at."""
    return os.path.isdir(path)


def files(paths: Iterable[str]) -> Iterator[str]:
    """The paths, with its files in the place of a directory. Raises BadInput."""
    for path in paths:
        if path == STDIN or not _is_directory(path):
            yield path
            continue
        try:
            files = sorted(str(file) for file in Path(path).iterdir() if file.suffix in SUFFIXES and file.is_file())
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from error
        if not files:
            raise BadInput(f"{path}: no .yaml, .yml or .json file in this directory")
        yield from files


def items(path: str, most: float = math.inf) -> Iterator[tuple[str, JSON]]:
    """Each object, and where it is. Documents and items are counted from 1, empty documents included.

    ``most``: bytes that the file may have. Raises BadInput.
    """
    return ((it.where, it.value) for it in each_item(path, most))


def data_of(path: str) -> bytes:
    """The bytes of a file, or of standard input. Raises BadInput."""
    return read_text(STDIN).encode() if path == STDIN else read_bytes(path)


def each_item(
    path: str, most: float = math.inf, begin: Begin = lambda _path, _top: None, data: bytes | None = None
) -> Iterator[Item]:
    """The same with the text of each item; ``data``: what the path has, if it was read. Raises BadInput."""
    data = data_of(path) if data is None else data
    if len(data) > most:
        raise BadInput(
            f"{path}: more than {most / (1 << 20):g} MiB: give what is asked about, and no dump of a cluster"
        )
    found = parts(data)
    if found is None:
        several = _documents(path, data)
        begin(path, next((it for it in several if it is not None), None))
        for number, document in enumerate(several, 1):
            if document is not None:
                yield from (Item(*it) for it in items_in(f"{path}: document {number}", document))
        return
    where = f"{path}: document 1"
    try:
        top = next(found).value
        begin(path, top)
        kind, listed = _listed(top)
        if not isinstance(listed, list):
            yield from (Item(*it) for it in items_in(where, top))
            return
        for position, part in enumerate(found, 1):
            here = f"{where}, item {position}"
            yield Item(
                here,
                _checked(here, {**kind, **part.value} if isinstance(part.value, dict) else part.value),
                part.text,
                kind,
            )
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: {error or type(error).__name__}") from error


def items_in(where: str, document: object) -> Iterator[tuple[str, JSON]]:
    """The object of a document, or each one of a list, and where it is. Raises BadInput."""
    kind, listed = _listed(document)
    if not isinstance(listed, list):
        if listed is not None:
            raise BadInput(f"{where}: items is no list")
        yield where, _checked(where, document)
        return
    for position, item in enumerate(listed, 1):
        typed = {**kind, **item} if isinstance(item, dict) else item
        yield f"{where}, item {position}", _checked(f"{where}, item {position}", typed)


def _listed(document: object) -> tuple[JSON, object]:
    """The items of a list, and the kind of those that do not name their own: a PodList holds Pods."""
    if not isinstance(document, dict):
        return {}, document if isinstance(document, list) else None
    kind = document.get("kind", "List")
    if not isinstance(kind, str) or not kind.endswith("List"):
        return {}, None
    kind = kind.removesuffix("List")
    return {"apiVersion": document.get("apiVersion"), "kind": kind} if kind else {}, document.get("items")


def _checked(where: str, item: object) -> JSON:
    if not isinstance(item, dict) or not isinstance(item.get("kind"), str):
        raise BadInput(f"{where}: expected a Kubernetes object with kind and apiVersion")
    return item


def without_nulls(value: Any) -> Any:
    """Return the value without fields that are null: to the API server they mean the same as absent ones."""
    if isinstance(value, dict):
        return {
            name: inner if name in ("parameters", "data") else without_nulls(inner)
            for name, inner in value.items()
            if inner is not None
        }
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def misspelt(item: JSON) -> tuple[str, str] | None:
    """Return the field by which an object just misses a kind that is read, and the fault; None for another kind.

    Other projects have kinds of the same names, such as the Node of Longhorn or the PodGroup of scheduler-plugins. So
    another group is a mistake only where it is none at all, or nearly ``resource.k8s.io``.
    """
    kind, version = item["kind"], item.get("apiVersion")
    group, _, short = version.rpartition("/") if isinstance(version, str) else ("", "", "")
    if kind not in KINDS:
        its = {name.lower(): name for name, (resource, _) in KINDS.items() if resource.group == group}
        found = get_close_matches(kind.lower(), its, 1, 0.85)
        if not found or short in GONE:
            return None
        return "kind", f'{version or "v1"} has no kind {kind}; did you mean "{its[found[0]]}"?'
    right = KINDS[kind][0]
    if group == right.group:
        is_meant = not group and short not in ("", "v1")
    elif not right.group:
        is_meant = group == "core"
    elif right.group == GROUP:
        is_meant = not group or bool(get_close_matches(group, [GROUP], 1, 0.8))
    else:
        is_meant = not group and bool(short)
    said = f"not {version}" if version else "but it has none"
    return ("apiVersion", f"a {kind} is of {right.api_version()}, {said}") if is_meant else None


def decoded(where: str, item: JSON) -> Object | None:
    """The object as an API server would store it; None if it is of none of the kinds. Raises BadInput."""
    if (fault := misspelt(item)) is not None:
        raise BadInput(f"{where}: {item['kind']}: {': '.join(fault)}")
    if item["kind"] not in KINDS:
        return None
    resource, type_ = KINDS[item["kind"]]
    version = item.get("apiVersion")
    if isinstance(version, str) and version.rpartition("/")[0] != resource.group:
        return None
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not name:
        raise BadInput(f"{where}: {item['kind']}: metadata.name is missing")
    if resource.namespaced:
        item = {**item, "metadata": {"namespace": "default", **metadata}}
    try:
        try:
            return _converted(item, resource.api_version(), type_)
        except (DecodeError, conversion.ConversionError, TypeError, AttributeError):
            return _converted(without_nulls(item), resource.api_version(), type_)
    except (DecodeError, conversion.ConversionError, TypeError, AttributeError, UnicodeError, RecursionError) as error:
        raise BadInput(f"{where}: {item['kind']} {name}: {error or type(error).__name__}") from error


def _converted(item: JSON, version: str, type_: type[Object]) -> Object:
    set_defaults(item, now=now())
    if item["kind"] in conversion.VERSIONS and type_ not in OF_KUEUE.values():
        item = conversion.convert(item, version)
    return convert(type_, item)


V = TypeVar("V")
Case = Mapping[str, Any]
"""A case, or its answer."""
Answer = Callable[[str, Case], Case]
"""From the place of a case (for messages) and the case to its answer. Raises BadInput."""


class Fields:
    """The fields of a case, decoded. Each method raises BadInput that names the case and the field."""

    def __init__(self, where: str, source: Case) -> None:
        self.where = where
        self.source = source

    def required(self, name: str, type_: type[V]) -> V:
        value = self.optional(name, type_)
        if value is None:
            raise BadInput(f"{self.where}: {name} is missing")
        return value

    def optional(self, name: str, type_: type[V]) -> V | None:
        """One field; None when it is missing or null."""
        value = self.source.get(name)
        return None if value is None else self._convert(name, type_, value)

    def objects(self, name: str, type_: type[V]) -> tuple[V, ...]:
        """A list of objects; empty when it is missing or null."""
        values = self.optional(name, list[Any]) or ()
        return tuple(self._convert(f"{name}[{number}]", type_, value) for number, value in enumerate(values))

    def _convert(self, name: str, type_: type[V], value: object) -> V:
        try:
            return convert(type_, value)
        except (DecodeError, UnicodeError) as error:
            raise BadInput(f"{self.where}: {name}: {error}") from error


def add_cases_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "cases",
        nargs="?",
        metavar="FILE",
        help="cases to answer, one JSON line each: .json, .jsonl, either with .gz, or - for JSON lines from stdin",
    )


def read_cases(path: str) -> tuple[Iterable[Any], Case]:
    """The cases of a file, and what they share. Raises BadInput."""
    if path == STDIN:
        return _each_line(sys.stdin.buffer), {}
    data = _read(path)
    if path.removesuffix(".gz").endswith(".jsonl"):
        return _each_line(data.splitlines()), {}
    try:
        document = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON: {error}; for Kubernetes objects in YAML use -f") from error
    shared = document if isinstance(document, dict) else {}
    cases = shared.get("cases") if shared else document
    if not isinstance(cases, list):
        raise BadInput(f"{path}: expected a list of cases, or an object with cases; for Kubernetes objects use -f")
    return cases, shared


def _read(path: str) -> bytes:
    try:
        data = Path(path).read_bytes()
        return gzip.decompress(data) if path.endswith(".gz") else data
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: {error}") from error


def _each_line(lines: Iterable[bytes]) -> Iterator[Any]:
    """The cases of JSON Lines, with BadInput in the place of a line that is no JSON."""
    for line in lines:
        if line.strip():
            try:
                yield json.loads(line.decode())
            except (ValueError, RecursionError) as error:
                yield BadInput(f"not JSON: {error}")


def answer_all(command: str, path: str, cases: Iterable[Any], answer: Answer) -> int:
    """Print the answers; 0, or 2 when a case could not be read. On standard input an error is an answer as well."""
    status = 0
    for number, case in enumerate(cases):
        name = case.get("name") if isinstance(case, dict) else None
        where = f"{path}: case {name if isinstance(name, str) else number}"
        try:
            if isinstance(case, BadInput):
                raise BadInput(f"{where}: {case}")
            if not isinstance(case, dict):
                raise BadInput(f"{where}: expected an object, got {type(case).__name__}")
            print(json.dumps(answer(where, case)), flush=True)
        except BadInput as error:
            print(f"dra-operator {command}: {error}", file=sys.stderr)
            if path == STDIN:
                print(json.dumps({"name": name, "error": str(error)}), flush=True)
            status = 2
    return status
