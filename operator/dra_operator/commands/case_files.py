"""Files of cases: one JSON object per problem, answered by one JSON line each.

A file is a list of cases, or an object whose ``cases`` they are and whose other fields all cases share. A case that
cannot be read costs only its own answer: it is reported, and the others are answered.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dra_api.codec import DecodeError, convert

from .object_files import BadInput, read_text

T = TypeVar("T")
JSON = Mapping[str, Any]
Answer = Callable[[str, JSON], JSON]
"""Where a case stands, for messages, and the case -> its answer. Raises BadInput."""


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


def read_cases(path: str) -> tuple[list[Any], JSON]:
    """The cases of a file, and what they share. Raises BadInput."""
    try:
        document = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON: {error}; for Kubernetes objects in YAML use -f") from error
    shared = document if isinstance(document, dict) else {}
    cases = shared.get("cases") if shared else document
    if not isinstance(cases, list):
        raise BadInput(f"{path}: expected a list of cases, or an object with cases; for Kubernetes objects use -f")
    return cases, shared


def answer_all(command: str, path: str, cases: list[Any], answer: Answer) -> int:
    """Print the answers; 0, or 2 when a case could not be read."""
    status = 0
    for number, case in enumerate(cases):
        name = case.get("name") if isinstance(case, dict) else None
        where = f"{path}: case {name if isinstance(name, str) else number}"
        try:
            if not isinstance(case, dict):
                raise BadInput(f"{where}: expected an object, got {type(case).__name__}")
            print(json.dumps(answer(where, case)), flush=True)
        except BadInput as error:
            print(f"dra-operator {command}: {error}", file=sys.stderr)
            status = 2
    return status
