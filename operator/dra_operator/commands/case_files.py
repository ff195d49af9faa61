"""Files of cases: one JSON object per problem, answered by one JSON line each.

A file is a list of cases, or an object whose ``cases`` they are and whose other fields all cases share; JSON Lines
(``.jsonl``, or ``-`` for standard input) hold one case per line. All may be compressed (``.gz``). A malformed case is
reported, and the others are answered. On standard input every line is answered as soon as it is read, so that a program
can ask one case after the other.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from dra_api.codec import DecodeError, convert

from .object_files import BadInput

T = TypeVar("T")
JSON = Mapping[str, Any]
Answer = Callable[[str, JSON], JSON]
"""From the place of a case (for messages) and the case to its answer. Raises BadInput."""
STDIN: Final = "-"


class Fields:
    """The fields of a case, decoded. Each method raises BadInput that names the case and the field."""

    def __init__(self, where: str, source: JSON) -> None:
        self.where = where
        self.source = source

    def required(self, name: str, type_: type[T]) -> T:
        """One field."""
        value = self.optional(name, type_)
        if value is None:
            raise BadInput(f"{self.where}: {name} is missing")
        return value

    def optional(self, name: str, type_: type[T]) -> T | None:
        """One field; None when it is missing or null."""
        value = self.source.get(name)
        return None if value is None else self._convert(name, type_, value)

    def objects(self, name: str, type_: type[T]) -> tuple[T, ...]:
        """A list of objects; empty when it is missing or null."""
        values = self.optional(name, list[Any]) or ()
        return tuple(self._convert(f"{name}[{number}]", type_, value) for number, value in enumerate(values))

    def _convert(self, name: str, type_: type[T], value: object) -> T:
        try:
            return convert(type_, value)
        except (DecodeError, UnicodeError) as error:
            raise BadInput(f"{self.where}: {name}: {error}") from error


def add_cases_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``cases``."""
    parser.add_argument(
        "cases",
        nargs="?",
        metavar="FILE",
        help="cases to answer, one JSON line each: .json, .jsonl, either with .gz, or - for JSON lines from stdin",
    )


def read_cases(path: str) -> tuple[Iterable[Any], JSON]:
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
