"""The cases of the kit: compressed JSON Lines below this folder, one problem with its expected answers per line.

README.md describes the fields, ``allocator.schema.json`` defines them.
"""

from __future__ import annotations

import fnmatch
import gzip
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]
FOLDER = Path(__file__).resolve().parent
SEMANTICS = ("documented", "reference")
KEPT_BACK = ("expect", "why")
"""Fields that a program under test does not see."""


def files(part: str) -> list[Path]:
    """The files of a part, ``allocator`` or ``cel``."""
    return sorted((FOLDER / part).glob("*.jsonl.gz"))


def read(path: Path, only: str = "*") -> Iterator[Json]:
    """The cases of a file, compressed or not, whose names match the pattern."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            if line.strip() and _may_match(line, only):
                case = json.loads(line)
                if fnmatch.fnmatch(case["name"], only):
                    yield case


_NAME = re.compile(r'\{"name":"([^"\\]*)"')


def _may_match(line: str, only: str) -> bool:
    """Return False for a case whose name does not match. To read all of a case takes a hundred times as long."""
    found = _NAME.match(line)
    return found is None or fnmatch.fnmatch(found[1], only)


def write(path: Path, cases: Iterable[Json]) -> None:
    """Write a compressed file; the same cases give the same bytes."""
    lines = "".join(json.dumps(case, separators=(",", ":")) + "\n" for case in cases)
    path.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))


def problem(case: Json) -> Json:
    """What a program under test is given."""
    return {name: value for name, value in case.items() if name not in KEPT_BACK}


def expectations(case: Json) -> list[Json]:
    """All known answers, each with its semantics and origin. A CEL case has one answer, whatever the semantics."""
    expect = case["expect"]
    if isinstance(expect, list):
        return expect
    return [{"semantics": SEMANTICS, "origin": "Kubernetes 1.36", "answers": expect}]


def expected(case: Json, semantics: str) -> Any:
    """The answer under these semantics: per node, or about one selector; None when it is not known."""
    for expectation in expectations(case):
        if semantics in expectation["semantics"]:
            return expectation["answers"]
    return None


def family(case: Json) -> str:
    """The line of the table in which a case is counted."""
    return case["group"] if "group" in case else f"{case['name'].partition('/')[0]}/{case['family']}"
