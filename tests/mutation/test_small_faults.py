"""Which faults a line of Python can have, and which it cannot."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from reached import Reach, kept, read
from small_faults import Fault, faults_of, statement_lines

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


def test_what_stands_beside_functions_has_no_faults() -> None:
    source = b"LIMIT = 1\n\n\nclass Kept:\n    most: int = 2\n\n    def __repr__(self) -> str:\n        return 1\n"
    assert faults_of(Path("file.py"), source) == []


def test_a_caught_error_is_not_caught_with_a_fault() -> None:
    source = b"def f():\n    try:\n        g()\n    except ValueError:\n        x = 1\n        y = 2\n"
    planted = [it.planted for it in faults_of(Path("file.py"), source)]
    assert b"def f():\n    try:\n        g()\n    except ValueError:\n        raise\n" in planted


def test_the_lines_of_a_statement_are_those_of_its_head() -> None:
    source = b"def f():\n    if (\n        a\n    ):\n        return g(\n            b\n        )\n    return c\n"
    assert [list(statement_lines(source, it)) for it in (1, 3, 4, 6, 8)] == [[1], [2, 3, 4], [2, 3, 4], [5, 6, 7], [8]]


def test_the_tests_that_run_a_line_are_known(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    slow = "= a.py::slow\n/r/x/y.py:1\n/r/x/y.py:2\n! 9.0\n"
    quick = "".join(f"= b.py::quick[{it}]\n/r/x/y.py:2\n! 0.1\n" for it in range(2))
    (notes / "1").write_text(slow + quick)
    (notes / "2").write_text("= \n/r/x/y.py:7\n= b.py::slower\n/r/x/y.py:3\n")
    (notes / "3").write_text("= b.py::slower\n/r/x/y.py:2\n! 10.5\n")
    reach = read(notes, Path("/r"))
    reach.keep(tmp_path / "build" / "kept")
    for it in (reach, kept(tmp_path / "build" / "kept")):
        assert it.of(Path("x/y.py"), [1, 2]) == ["b.py::quick", "b.py::slower", "a.py::slow"]
        assert it.of(Path("x/y.py"), [3]) == ["b.py::slower"]
        assert it.of(Path("x/y.py"), [7]) == it.of(Path("x/z.py"), [1]) == []


def mutation_run() -> Any:
    spec = spec_from_file_location("mutation_run", ROOT / "tests" / "mutation" / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    run: Any = module_from_spec(spec)
    spec.loader.exec_module(run)
    return run


def test_a_file_that_notes_nothing_is_asked_of_the_tests_that_start_it() -> None:
    run = mutation_run()
    ((alone, starter),) = run.STARTED_BY.items()
    asked: list[tuple[Path, str]] = []

    class Asked(Reach):
        def of(self, path: Path, lines: Iterable[int]) -> list[str]:
            asked.extend((path, (ROOT / path).read_text().splitlines()[line - 1].strip()) for line in lines)
            return []

    for path in (alone, starter):
        run.reaching(Asked([], [], {}), faults_of(Path(path), (ROOT / path).read_bytes())[0])
    (started, _) = asked
    assert started[0] == Path(starter)
    assert started[1].startswith('return [sys.executable, "-I"')


ANYWAY, BY_CHANCE, RIGHT = "a.py::test_anyway", "b.py::test_by_chance", "b.py::test_right"


def test_a_test_that_fails_by_chance_or_anyway_finds_no_fault(tmp_path: Path) -> None:
    """What fails without the fault is not run again for the next one."""
    run: Any = mutation_run()
    (tmp_path / "file.py").write_text("x = 1")
    asked: list[tuple[str, ...]] = []

    class Scripted(run.Worker):  # type: ignore[misc]
        def __init__(self) -> None:
            self.root, self._limit, self._fails_anyway = tmp_path, 60.0, dict[str, bool]()
            self.by_chance = 1

        def _failed(self, tests: Sequence[str], seconds: float, spared: Sequence[str]) -> str | None:
            asked.append(tuple(tests))
            left = [it for it in tests if it not in spared]
            if ANYWAY in left:
                return ANYWAY
            if BY_CHANCE in left and self.by_chance:
                self.by_chance -= 1
                return BY_CHANCE
            return RIGHT if RIGHT in left and (tmp_path / "file.py").read_text() == "x = 2" else None

    worker, every = Scripted(), [ANYWAY, BY_CHANCE, RIGHT]
    assert worker.found_by(Fault(b"x = 1", Path("file.py"), 1, "", 4, 5, "2", ("decide",)), every) == RIGHT
    asked.clear()
    assert worker.found_by(Fault(b"x = 1", Path("file.py"), 1, "", 4, 5, "3", ("decide",)), every) == ""
    assert asked == [tuple(every)]


def test_a_fault_whose_tests_do_not_end_without_it_either_is_not_said_to_survive(tmp_path: Path) -> None:
    """As where pytest itself breaks: it has played none of them, or some."""
    run: Any = mutation_run()
    (tmp_path / "file.py").write_text("x = 1")

    class Broken(run.Worker):  # type: ignore[misc]
        def _failed(self, tests: Sequence[str], seconds: float, spared: Sequence[str]) -> str:
            return str(run.NO_END)

    worker = Broken(tmp_path, 60.0, 0, Reach([], [], {}))
    fault = Fault(b"x = 1", Path("file.py"), 1, "", 4, 5, "2", ("decide",))
    assert worker.found_by(fault, ["a.py::test_a"]) is None


def test_tests_that_are_gone_are_not_asked(tmp_path: Path) -> None:
    """Nor those of a pytest that a test has started: pytest plays none of its tests if one is not there."""
    run: Any = mutation_run()
    (tmp_path / "file.py").write_text("x = 1")
    (tmp_path / "a.py").write_text("def test_there() -> None: ...\n")
    asked: list[tuple[str, ...]] = []

    class Recording(run.Worker):  # type: ignore[misc]
        def found_by(self, fault: Fault, tests: Sequence[str]) -> str:
            asked.append(tuple(tests))
            return ""

    every = ["a.py::test_gone", "a.py::test_there", "inner.py::test"]
    reach = Reach(every, [1.0] * 3, {"file.py": {1: array("H", [0, 1, 2])}})
    Recording(tmp_path, 60.0, 0, reach).judge(0, Fault(b"x = 1", Path("file.py"), 1, "", 4, 5, "2", ("decide",)))
    assert asked == [("a.py::test_there",)]
