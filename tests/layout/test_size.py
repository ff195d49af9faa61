"""Functions that tell one story, and files that are chapters."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

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


class Shape(NamedTuple):
    """The lines of each function of a file, decorators left out, and its public classes."""

    functions: dict[str, int]
    classes: list[str]


def shape_of(source: str) -> Shape:
    tree = ast.parse(source)
    functions = {
        f"{node.name} in line {node.lineno}": (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return Shape(functions, classes)


@pytest.fixture(scope="module")
def shapes() -> dict[Path, Shape]:
    """Of all files: to parse them takes a second."""
    return {file: shape_of(file.read_text()) for file in FILES}


def test_no_function_is_longer_than_two_screens(shapes: dict[Path, Shape]) -> None:
    found = {
        f"{file.relative_to(ROOT)}, {name}": lines
        for file, shape in shapes.items()
        for name, lines in shape.functions.items()
        if lines > LONGEST
    }
    assert found == {}
    assert FILES


def test_files_are_chapters() -> None:
    lines = sum(file.read_text().count("\n") for file in FILES)
    assert lines / len(FILES) >= MEAN, "merge what has one importer with it"


def test_a_package_has_no_two_public_classes_of_one_name(shapes: dict[Path, Shape]) -> None:
    """A word with two meanings: the reader of an import cannot tell which one it is."""
    found = [
        (package, name)
        for package in PACKAGES
        for file, shape in shapes.items()
        if file.is_relative_to(ROOT / package)
        for name in shape.classes
    ]
    assert [(package, name) for (package, name), count in Counter(found).items() if count > 1] == []


def test_lines_are_counted_from_the_head_to_the_last_line() -> None:
    source = "@decorator\ndef one(\n    a,\n):\n    def inner(): ...\n\n    return a\n\n\nasync def two(): ...\n"
    assert shape_of(source).functions == {"one in line 2": 6, "inner in line 5": 1, "two in line 10": 1}
