"""Which faults a line of Python can have, and which it cannot."""

from __future__ import annotations

import subprocess
from pathlib import Path
from textwrap import indent

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
