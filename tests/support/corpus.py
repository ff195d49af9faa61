"""Recorded answers: the conformance kit of the project, and what may not be part of it.

The kit (conformance/) is always there. Cases from other projects' tests, and the reference's description of the API,
lie beside the checkout, or nowhere: a test that compares with them is then skipped, and says so; the summary of a run
without any says it once more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import kit_cases
import pytest

Json = dict[str, Any]

_SHARED = Path(__file__).resolve().parents[3] / "shared"
CONFORMANCE = Path(os.environ.get("KOPF_DRA_CONFORMANCE", _SHARED / "conformance"))
"""One folder per part, each with files of cases; in each file a list ``cases``."""
API_SCHEMA = Path(os.environ.get("KOPF_DRA_API_SCHEMA", CONFORMANCE.parent / "api-schema"))
"""OpenAPI components, discovery and printer columns of the reference."""

_REASON = "NOT compared with the reference: no {} on this machine; set {} to the folder that holds it"
needs_api_schema = pytest.mark.skipif(
    not API_SCHEMA.is_dir(), reason=_REASON.format("API description", "KOPF_DRA_API_SCHEMA")
)


@cache
def _kit(file: str) -> tuple[Json, ...]:
    return tuple(kit_cases.read(kit_cases.FOLDER / f"{file}.jsonl.gz"))


def kit(file: str) -> list[Json]:
    """The cases of a file of the kit, such as ``allocator/random``."""
    return list(_kit(file))


@cache
def document(file: str) -> Json:
    """A file below the folder (``tracker/cases.json``), whole; with no cases when it is not on this machine."""
    path = CONFORMANCE / file
    found: Json = json.loads(path.read_text()) if path.is_file() else {"cases": []}
    return found


def cases(file: str) -> list[Json]:
    """The cases of a file, inside a test: skips the test when they are not on this machine."""
    if found := document(file)["cases"]:
        return list(found)
    pytest.skip(_reason(file))


def each_case(file: str, name: Callable[[Json], str] = lambda case: str(case["name"])) -> list[Any]:
    """One parameter per case, for ``parametrize``; a single skipped one when they are not on this machine."""
    parameters = [pytest.param(case, id=name(case)) for case in document(file)["cases"]]
    return parameters or [pytest.param({}, id="corpus", marks=pytest.mark.skip(_reason(file)))]


def _reason(file: str) -> str:
    return _REASON.format(file, "KOPF_DRA_CONFORMANCE")
