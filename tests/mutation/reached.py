"""Which tests run a line: read from the notes that ``reach/sitecustomize.py`` makes of a run of all tests."""

from __future__ import annotations

import pickle
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VAGUE_LINES: Final = 2000
"""A test that runs so many lines is asked as if it took twice its time: another one says more about each of them."""


@dataclass(frozen=True)
class Reach:
    """``tests``: functions of tests. ``costs``: seconds for each, and more for a vague one. ``lines``: their places."""

    tests: Sequence[str]
    costs: Sequence[float]
    lines: Mapping[str, Mapping[int, array[int]]]

    def of(self, path: Path, lines: Iterable[int]) -> list[str]:
        """Return the tests that run one of the lines, file by file; the file with the cheapest test is first."""
        of_file = self.lines.get(str(path), {})
        reaching = {test for line in lines for test in of_file.get(line, ())}
        files: dict[str, list[str]] = defaultdict(list)
        for test in sorted(reaching, key=lambda it: (self.costs[it], it)):
            files[self.tests[test].partition("::")[0]].append(self.tests[test])
        return [test for tests in files.values() for test in tests]

    def keep(self, file: Path) -> None:
        """Write it, so that the next run need not play all tests again."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps(self))


def kept(file: Path) -> Reach:
    """Return what ``keep`` wrote."""
    reach = pickle.loads(file.read_bytes())
    assert isinstance(reach, Reach)
    return reach


def read(folder: Path, root: Path) -> Reach:
    """Return what the notes in the folder say: of processes of pytest, and of those that tests started.

    ``root``: the checkout in which they ran.
    """
    numbers: dict[str, int] = {}
    seconds: dict[int, float] = defaultdict(float)
    places: dict[int, int] = defaultdict(int)
    lines: dict[str, dict[int, array[int]]] = defaultdict(lambda: defaultdict(lambda: array("H")))
    for file in sorted(folder.iterdir()):
        test = -1
        with file.open(encoding="utf-8", errors="replace") as notes:
            for note in notes:
                mark, _, rest = note.rstrip().partition(" ")
                if mark == "=":
                    name = rest.partition("[")[0]
                    test = numbers.setdefault(name, len(numbers)) if name else -1
                elif mark == "!":
                    seconds[test] += float(rest)
                elif test >= 0:
                    path, _, line = mark.rpartition(":")
                    reaching = lines[path.removeprefix(f"{root}/")][int(line)]
                    if not reaching or reaching[-1] != test:
                        reaching.append(test)
                        places[test] += 1
    costs = [seconds[it] * (1 + places[it] / VAGUE_LINES) for it in numbers.values()]
    return Reach(list(numbers), costs, {path: dict(its) for path, its in lines.items()})
