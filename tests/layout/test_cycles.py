"""No import cycle between files, in any package; imports for annotations only count as well.

The import contracts in pyproject.toml order rooms, and one of them (acyclic_siblings) finds folders that import each
other in a circle. It compares siblings. So it does not see a file that imports the face of its own room, or of one
above, while that face imports the file: this test does.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import grimp
import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = tuple(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"],
)


def cycles(imports: Mapping[str, frozenset[str]]) -> Iterator[frozenset[str]]:
    """The strongly connected components of more than one file (Tarjan), deepest first."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []

    def visit(module: str) -> Iterator[frozenset[str]]:
        numbers[module] = lowest[module] = len(numbers)
        path.append(module)
        for imported in sorted(imports[module]):
            if imported not in numbers:
                yield from visit(imported)
            if imported in path:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == numbers[module]:
            start = path.index(module)
            members = frozenset(path[start:])
            del path[start:]
            if len(members) > 1:
                yield members

    for module in sorted(imports):
        if module not in numbers:
            yield from visit(module)


@pytest.fixture(scope="module")
def imports() -> dict[str, frozenset[str]]:
    """Each file, and the files of our packages that it imports."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    return {module: frozenset(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def test_no_file_imports_itself_over_others(imports: dict[str, frozenset[str]]) -> None:
    assert [sorted(cycle) for cycle in cycles(imports)] == []


def test_a_cycle_is_found_at_any_depth() -> None:
    made = {"a": frozenset("b"), "b": frozenset("cd"), "c": frozenset("a"), "d": frozenset("e"), "e": frozenset("d")}
    assert set(cycles(made)) == {frozenset("abc"), frozenset("de")}
    assert list(cycles({**made, "c": frozenset(), "e": frozenset()})) == []
