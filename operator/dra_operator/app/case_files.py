"""Files of cases: one JSON object per problem, answered by one JSON line each.

A file is a list of cases, or an object whose ``cases`` they are and whose other fields all cases share. A case that
cannot be read costs only its own answer: it is reported, and the others are answered.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .object_files import BadInput, read_text

JSON = Mapping[str, Any]
Answer = Callable[[str, JSON], JSON]
"""Where a case stands, for messages, and the case -> its answer. Raises BadInput."""


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
