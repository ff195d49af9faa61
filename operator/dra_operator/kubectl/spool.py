"""``kubectl dra snapshot``: objects go to a file as they are read, so that none of them is in memory.

A snapshot is one JSON document, with an object on each line.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TextIO, TypeVar

import msgspec
from dra_api.codec import to_dict
from dra_api.command_line import path_word, shell
from dra_api.meta import Object, ObjectMeta

from dra_operator.commands.object_files import KINDS
from dra_operator.kubectl.answer import Answer, Problem
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.room import ObjectRoom, without_bulk
from dra_operator.kubectl.sanitized import without_secrets
from dra_operator.kubectl.snapshot import Header, header_of

T = TypeVar("T", bound=Object)

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


class _Lines(Sequence[str]):
    """The lines of a snapshot, read when they are printed."""

    def __init__(self, spool: Spool, header: Header) -> None:
        self._spool, self._header = spool, header

    def __iter__(self) -> Iterator[str]:
        return self._spool.lines(self._header)

    def __len__(self) -> int:
        return self._spool.number + 2

    def __getitem__(self, place: Any) -> Any:
        return list(self)[place]


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """Return the snapshot, or where it was written to. Raises Problem."""
    spool: Spool = options.room
    if options.source is not None:  # the room was not asked for the objects of a file
        for obj in seen.objects:
            spool.kept(obj)
    lines = _Lines(spool, header_of(seen))
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
