"""Kubernetes objects from YAML and JSON files, as an API server would store them.

A file holds one object, several documents, or a List; a directory stands for the .yaml, .yml and .json files in it,
sorted by name, and ``-`` for standard input. Objects of older API versions are converted, defaults are filled in, and
what is not of a kind that the operator watches is left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from dra_api import conversion
from dra_api.codec import DecodeError, convert
from dra_api.defaults import set_defaults
from dra_api.meta import Object
from dra_api.times import format_time

from dra_operator.intake.kind_table import TABLE

from .documents import documents

T = TypeVar("T", bound=Object)
JSON = dict[str, Any]
KINDS: Final = {resource.kind: (resource, type_) for resource, type_ in TABLE.items()}
"""All that the operator watches."""
SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
STDIN: Final = "-"


class BadInput(Exception):
    """A file cannot be read, or does not hold what it should; the message names file, document, object and field."""


def add_files_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare ``--file``; ``what`` says what the files hold."""
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        metavar="PATH",
        help=f"YAML or JSON with {what}, a directory of such files, or - for standard input; repeatable",
    )


def read_text(path: str) -> str:
    """The text of a file, or of standard input. Raises BadInput."""
    try:
        return sys.stdin.read() if path == STDIN else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}") from error


def read_objects(paths: Iterable[str]) -> list[Object]:
    """All objects of the kinds above, in the order of the files. Raises BadInput, also when one is there twice."""
    found: dict[tuple[str, str], str] = {}
    objects: list[Object] = []
    for path in _files(paths):
        for where, item in _items(path):
            made = _object(where, item)
            if made is None:
                continue
            first = found.setdefault((item["kind"], made.key), where)
            if first != where:
                raise BadInput(f"{where}: {item['kind']} {made.key} is there twice, first in {first}: remove one")
            objects.append(made)
    return objects


def of_kind(kind: type[T], objects: Iterable[Object]) -> list[T]:
    """Those of one kind."""
    return [found for found in objects if isinstance(found, kind)]


def _files(paths: Iterable[str]) -> Iterator[str]:
    """The paths, with its files in the place of a directory."""
    for path in paths:
        if path == STDIN or not Path(path).is_dir():
            yield path
            continue
        files = sorted(str(file) for file in Path(path).iterdir() if file.suffix in SUFFIXES and file.is_file())
        if not files:
            raise BadInput(f"{path}: no .yaml, .yml or .json file in this directory")
        yield from files


def _items(path: str) -> Iterator[tuple[str, JSON]]:
    """Each object, and where it is. Documents and items are counted from 1, empty documents included."""
    try:
        found = documents(read_text(path))
    except ValueError as error:
        raise BadInput(f"{path}: {error}") from error
    for number, document in enumerate(found, 1):
        if document is None:
            continue
        where = f"{path}: document {number}"
        listed = document.get("items") if isinstance(document, dict) else document
        if not isinstance(listed, list):
            yield where, _checked(where, document)
            continue
        for position, item in enumerate(listed, 1):
            yield f"{where}, item {position}", _checked(f"{where}, item {position}", item)


def _checked(where: str, item: object) -> JSON:
    if not isinstance(item, dict) or not isinstance(item.get("kind"), str):
        raise BadInput(f"{where}: expected a Kubernetes object with kind and apiVersion")
    return item


def _object(where: str, item: JSON) -> Object | None:
    if item["kind"] not in KINDS:
        return None
    resource, type_ = KINDS[item["kind"]]
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not name:
        raise BadInput(f"{where}: {item['kind']}: metadata.name is missing")
    if resource.namespaced:
        item = {**item, "metadata": {"namespace": "default", **metadata}}
    try:
        set_defaults(item, now=format_time(datetime.now(UTC)))
        if item["kind"] in conversion.VERSIONS:
            item = conversion.convert(item, resource.api_version())
        return convert(type_, item)
    except (DecodeError, conversion.ConversionError, TypeError, UnicodeError, RecursionError) as error:
        raise BadInput(f"{where}: {item['kind']} {name}: {error or type(error).__name__}") from error
