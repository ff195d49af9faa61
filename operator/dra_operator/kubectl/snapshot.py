"""``kubectl dra snapshot``, and the sources of a command's view: the API server, or the file of ``--from``.

A snapshot is a ``List`` of the objects, one JSON document with an object on each line. Objects go to a file as they are
read, so that none of them is in memory. ``dra-operator simulate -f`` reads a snapshot as well. ``--from`` also takes
the output of ``kubectl get -o yaml``, a file of several documents, or a directory of such files.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, TextIO, TypeVar

import msgspec
from dra_api.codec import to_dict
from dra_api.command_line import path_word, shell
from dra_api.core import Node, Pod
from dra_api.leases import LEASE_NAMESPACE, Lease
from dra_api.meta import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, Object, ObjectMeta
from dra_api.releases import NEWEST, Release, chosen
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_api.values import format_time, parse_time
from msgspec import Struct

from dra_operator.commands.file_items import STDIN, BadInput
from dra_operator.commands.object_files import KINDS, Item, identified, read_objects
from dra_operator.kubectl.answer import Answer, ExitCode, Problem
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.room import ObjectRoom, is_brief, room_of, without_bulk

T = TypeVar("T", bound=Object)


def read(options: argparse.Namespace) -> Observed:
    """What there is. Raises Problem."""
    given = getattr(options, "namespace", None)
    if options.source is not None:
        seen = load(options.source, room_of(options))
        return replace(seen, namespace=given or seen.namespace)
    if getattr(options, "live", None) is False:  # lint: without a cluster unless one is asked for
        return Observed((), datetime.now(UTC), namespace=given or "default")
    from .live import read_server  # the client takes a third of a second to import

    return read_server(options)


EXPECTED: Final[Mapping[str, type[Object]]] = {"nodes": Node, "pods": Pod}
"""Kinds that every cluster has."""


class Header(Struct, rename="camel"):
    """What a snapshot says beside its objects."""

    taken: str = ""
    kubernetes: str = ""
    namespace: str = "default"
    unseen: dict[str, str] = {}
    malformed: dict[str, str] = {}
    gates: dict[str, bool] = {}


class _File(Struct):
    snapshot: Header | None = None


_Document = _File | list[Any] | None  # a list of objects, or nothing, has no header


def load(path: str, room: ObjectRoom | None = None) -> Observed:
    """What a file holds, in brief where there is no room. Raises Problem."""
    if path in (STDIN, ""):
        raise Problem(f"--from {path or repr(path)} is not possible: name a file", ExitCode.USAGE)
    dump = _Dump(path, room or ObjectRoom())
    try:
        # As on a live cluster: a tenant may have a Lease with the name of an operator's in a namespace of its own.
        objects = list(filter(_counts, read_objects([path], dump.kept, dump.begin)))
    except BadInput as error:
        raise Problem(str(error), ExitCode.USAGE) from error
    header = dump.header
    if not objects and header == Header():
        raise Problem(
            f"{path} holds no object of a kind that kubectl dra reads: was it written to its end, by "
            "kubectl dra snapshot?",
            ExitCode.USAGE,
        )
    if not header.taken:
        header.unseen = {name: f"{path} holds no {kind}" for name, kind in dump.absent()} | header.unseen
    return Observed(
        objects,
        parse_time(header.taken) or datetime.now(UTC),
        _release(header.kubernetes),
        header.namespace,
        header.unseen,
        header.malformed,
        header.gates,
        bool(header.taken),
        dump.whole if dump.room.has_brief else None,
        dump.room.pods_cut,
    )


@dataclass
class _Dump:
    """Which kinds a file has, and the texts of the objects of which only the brief form is held."""

    path: str
    room: ObjectRoom
    header: Header = field(default_factory=Header)
    _items: dict[tuple[type[Object], str], Item] = field(default_factory=dict)
    _kinds: set[type[Object]] = field(default_factory=set)
    _has_allocated: bool = False
    _has_users: bool = False

    def begin(self, path: str, top: Any) -> None:
        """Note the header of a file that ``snapshot`` wrote, or a person after its pattern; others have none."""
        if path != self.path:  # it is in a directory
            return
        try:
            found = msgspec.convert(top, _Document)
        except msgspec.ValidationError as error:
            raise BadInput(f"{path}: snapshot: {error}") from error
        said = found.snapshot if isinstance(found, _File) else None
        self.header = said or Header()

    def kept(self, item: Item, obj: Object) -> Object:
        """Note the object. Return the form in which it is held."""
        obj = _identified(obj)
        self._kinds.add(type(obj))
        self._has_allocated |= isinstance(obj, ResourceClaim) and obj.status.allocation is not None
        self._has_users |= isinstance(obj, Pod) and bool(obj.spec.node_name and obj.spec.resource_claims)
        if item.text is None and not isinstance(self.room, Spool):
            return without_bulk(obj)  # it could not be read again
        short = self.room.kept(obj)
        if short is not obj:
            self._items[type(obj), obj.key] = item.without_value()
        return short

    def whole(self, objects: Sequence[T]) -> Sequence[T]:
        """Return the objects as the file has them (``observed.Reread``)."""
        return [self._whole(it) for it in objects]

    def _whole(self, obj: T) -> T:
        item = self._items.get((type(obj), obj.key)) if is_brief(obj) else None
        found = item.read_again() if item is not None else None
        return without_bulk(_identified(found)) if isinstance(found, type(obj)) else obj

    def absent(self) -> Iterator[tuple[str, str]]:
        """Yield the kinds without an object in a dump that are probably missing from the dump only.

        A cluster whose claims have devices has slices and classes. A cluster whose pods run with claims has claims.
        """
        expected = dict(EXPECTED) if self._kinds & {ResourceSlice, ResourceClaim} else {}
        if self._has_allocated:
            expected |= {str(RESOURCE_SLICES): ResourceSlice, str(DEVICE_CLASSES): DeviceClass}
        if self._has_users:
            expected |= {str(RESOURCE_CLAIMS): ResourceClaim}
        return ((name, kind.__name__) for name, kind in expected.items() if kind not in self._kinds)


def _identified(obj: T) -> T:
    return identified(obj) if isinstance(obj, Pod | ResourceClaim) else obj


def _counts(obj: Object) -> bool:
    return not isinstance(obj, Lease) or obj.metadata.namespace in ("", LEASE_NAMESPACE)


def header_of(seen: Observed) -> Header:
    """Return what a snapshot of it says beside the objects."""
    return Header(
        format_time(seen.taken),
        str(seen.release),
        seen.namespace,
        dict(seen.unseen),
        dict(seen.malformed),
        dict(seen.gates),
    )


def _release(text: str) -> Release:
    try:
        return chosen(text) or NEWEST
    except ValueError:
        return NEWEST


_RESOURCES: Final = {kind: resource for resource, kind in KINDS.values()}


class Spool(ObjectRoom):
    """Writes objects as a snapshot has them to a file without a name, so that none of them is in memory.

    Raises Problem if there is no room on the disk.
    """

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file
        self.number = 0

    def kept(self, obj: T) -> T:
        """Write the object, and return its name alone."""
        from .sanitized import without_secrets  # loads the scheduler, which tables of a cluster do without

        resource = _RESOURCES[type(obj)]
        [clean] = without_secrets([without_bulk(obj)])
        item = {"apiVersion": resource.api_version(), "kind": resource.kind} | to_dict(clean)
        try:
            self._file.write(json.dumps(item) + "\n")
        except OSError as error:
            raise Problem(f"cannot write to {tempfile.gettempdir()}: {error.strerror}") from error
        self.number += 1
        meta = obj.metadata
        return type(obj)(metadata=ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid))

    def lines(self, header: Header) -> Iterator[str]:
        """Yield the lines of the snapshot: a JSON document with an object on each line."""
        self._file.seek(0)
        yield f'{{"apiVersion": "v1", "kind": "List", "snapshot": {json.dumps(msgspec.to_builtins(header))}, "items": ['
        for place, line in enumerate(self._file, 1):
            yield line.rstrip("\n") + ("," if place < self.number else "")
        yield "]}"


@contextmanager
def spooling() -> Iterator[Spool]:
    """Yield a spool whose file goes with it."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        yield Spool(file)


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """Return the snapshot, or where it was written to. Raises Problem."""
    spool: Spool = options.room
    lines = spool.lines(header_of(seen))
    notes = [f"not in the snapshot: {kind}: {why}" for kind, why in seen.unseen.items()]
    notes += [f"malformed, and not in the snapshot: {what}: {why}" for what, why in seen.malformed.items()]
    if options.file is None:
        return Answer(lines=lines, notes=notes)
    try:
        _write(options.file, lines)
    except OSError as error:
        raise Problem(f"cannot write {options.file}: {error.strerror}") from error
    option = shell("--from", path_word(options.file))
    return Answer(lines=[f"{options.file}: {spool.number} objects; read it by {option}"], notes=notes)


def _write(path: str, lines: Iterable[str]) -> None:
    """For this user alone: names, labels and messages may be confidential."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
