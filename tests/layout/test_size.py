"""Functions that tell one story, and files that are chapters."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 80
MEAN = 170
"""Lines of a file, at least: a module is a chapter, and a file for each function is none."""
PACKAGES = (
    "operator/dra_operator",
    "simulator/dra_simulator",
    "cel/dra_cel",
    "ledger/dra_ledger",
    "kube/dra_kube",
    "proto/dra_api",
    "proto/dra_cdi",
    "kubeletplugin/dra_kubeletplugin",
    "devcluster/dra_devcluster",
    "devcluster/dra_driver_test",
)
FILES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


def long_ones(file: Path) -> dict[str, int]:
    return {name: lines for name, lines in lengths(file.read_text()).items() if lines > LONGEST}


def lengths(source: str) -> dict[str, int]:
    """The lines of each function, decorators left out."""
    return {
        f"{node.name} in line {node.lineno}": (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_no_function_is_longer_than_two_screens() -> None:
    found = {f"{file.relative_to(ROOT)}, {name}": lines for file in FILES for name, lines in long_ones(file).items()}
    assert found == {}
    assert FILES


def test_files_are_chapters() -> None:
    lines = sum(file.read_text().count("\n") for file in FILES)
    assert lines / len(FILES) >= MEAN, "merge what has one importer with it"


def test_a_package_has_no_two_public_classes_of_one_name() -> None:
    """A word with two meanings: the reader of an import cannot tell which one it is."""
    found = [
        (package, name) for package in PACKAGES for file in (ROOT / package).rglob("*.py") for name in classes_of(file)
    ]
    assert [(package, name) for (package, name), count in Counter(found).items() if count > 1] == []


def classes_of(file: Path) -> list[str]:
    names = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    return [name for name in names if not name.startswith("_")]


def test_lines_are_counted_from_the_head_to_the_last_line() -> None:
    source = "@decorator\ndef one(\n    a,\n):\n    def inner(): ...\n\n    return a\n\n\nasync def two(): ...\n"
    assert lengths(source) == {"one in line 2": 6, "inner in line 5": 1, "two in line 10": 1}
