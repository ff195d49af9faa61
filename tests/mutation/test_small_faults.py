"""Which faults a line of Python can have, and which it cannot."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import pytest
from chosen_tests import GENERATED, PACKAGES, ROOMS, Selection
from small_faults import Fault, faults_of

ROOT = Path(__file__).parents[2]

FAULTS = {
    "self.done.add(x)": {"pass"},
    "self.done = x": {"pass"},
    "x = y": set(),
    'logger.info("done", x)': set(),
    "return x == y": {"return (not (x == y))", "return x != y"},
    "return x and y": {"return (not (x and y))", "return (x)", "return (y)", "return (x) or (y)"},
    "x = f(y, limit=z)": set(),
    "x = self.f(y, limit=z)": {"x = self.f(y)"},
    "x = min(y)": {"x = max(y)"},
    "x = not y": {"x = bool((y))"},
    "x = y[1]": {"x = y[2]"},
    "x = y + z": {"x = y - z"},
    "raise x": {"pass"},
    "x = [it for it in y if it]": {"x = [it for it in y if (not (it))]"},
    'x = f"{y + 1}"': set(),
    "import x": set(),
    "assert x": set(),
}


@pytest.mark.parametrize("line", FAULTS)
def test_a_line_has_these_faults(line: str) -> None:
    source = f"def decide() -> bool:\n{indent(line, '    ')}\n".encode()
    found = faults_of(Path("file.py"), source)
    assert {it.planted.decode().splitlines()[1].strip() for it in found} == FAULTS[line]
    for it in found:
        assert (it.line, it.names) == (2, ("decide",))
        assert it.key == f"file.py: {line} => {it.planted.decode().splitlines()[1].strip()}"


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("kubeletplugin/dra_kubeletplugin/slices/plan.py", "tests/kubeletplugin/test_plan.py"),
        ("kube/dra_kube/leases/election.py", "tests/kube/test_lease.py"),
        ("cel/dra_cel/selector.py", "tests/cel/test_deciding_values.py"),
        ("operator/dra_operator/cache/cluster.py", "tests/cache/test_view.py"),
    ],
)
def test_the_tests_of_the_room_are_chosen(path: str, test: str) -> None:
    fault = Fault(b"", Path(path), 1, "", 0, 0, "", ("decide",))
    first, second, *_ = Selection(ROOT).of(fault)
    assert test in (*first, *second)


def test_each_file_that_may_have_a_fault_has_a_room_and_each_room_has_tests() -> None:
    starts = [start for start, *_ in ROOMS]
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    paths = [Path(it) for it in listed.splitlines() if it.endswith(".py") and not it.startswith(GENERATED)]
    assert [it for it in paths if not any(it.is_relative_to(start) for start in starts)] == []
    assert [start for start in starts if not any(it.is_relative_to(start) for it in paths)] == []
    rooms = {room for _, own, others in ROOMS for room in (*own, *others)}
    assert [it for it in rooms if not any((ROOT / "tests" / it).rglob("test_*.py"))] == []


def test_what_stands_beside_functions_has_no_faults() -> None:
    source = b"LIMIT = 1\n\n\nclass Kept:\n    most: int = 2\n\n    def __repr__(self) -> str:\n        return 1\n"
    assert faults_of(Path("file.py"), source) == []


def test_a_caught_error_is_not_caught_with_a_fault() -> None:
    source = b"def f():\n    try:\n        g()\n    except ValueError:\n        x = 1\n        y = 2\n"
    planted = [it.planted for it in faults_of(Path("file.py"), source)]
    assert b"def f():\n    try:\n        g()\n    except ValueError:\n        raise\n" in planted


ANYWAY, BY_CHANCE, RIGHT = "a.py::test_anyway", "b.py::test_by_chance", "b.py::test_right"


def test_a_test_that_fails_by_chance_or_anyway_finds_no_fault(tmp_path: Path) -> None:
    """What fails without the fault is not run again for the next one."""
    spec = spec_from_file_location("mutation_run", ROOT / "tests" / "mutation" / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    run: Any = module_from_spec(spec)
    spec.loader.exec_module(run)
    (tmp_path / "file.py").write_text("x = 1")
    asked: list[tuple[bool | str, ...]] = []

    class Scripted(run.Worker):  # type: ignore[misc]
        def __init__(self) -> None:
            self.root, self._limit, self._fails_anyway = tmp_path, 60.0, dict[tuple[bool, str], bool]()
            self._selection = SimpleNamespace(of=lambda _: [[ANYWAY, BY_CHANCE, RIGHT]])
            self.by_chance = 1

        def _failed(self, tests: Sequence[str], seconds: float, spared: Sequence[str]) -> str | None:
            asked.append((self._is_whole, *tests))
            left = [it for it in tests if it not in spared]
            if ANYWAY in left:
                return ANYWAY
            if BY_CHANCE in left and self.by_chance:
                self.by_chance -= 1
                return BY_CHANCE
            return RIGHT if RIGHT in left and (tmp_path / "file.py").read_text() == "x = 2" else None

    worker = Scripted()
    assert worker.found_by(Fault(b"x = 1", Path("file.py"), 1, "", 4, 5, "2", ("decide",))) == RIGHT
    asked.clear()
    assert worker.found_by(Fault(b"x = 1", Path("file.py"), 1, "", 4, 5, "3", ("decide",))) == ""
    every = (ANYWAY, BY_CHANCE, RIGHT)
    assert asked == [(False, *every), (True, *every), (True, ANYWAY), (True, ANYWAY), (True, *every)]
