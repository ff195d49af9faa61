#!/usr/bin/env python3
"""Compares an allocator, or an implementation of CEL, with the kit's answers. Needs Python 3.11 and nothing else.

    python conformance/run.py [options] -- PROGRAM [ARGUMENT ...]
    python conformance/run.py -- dra-operator simulate - --semantics documented
    python conformance/run.py --part cel -- dra-operator cel -

README.md describes what the program reads and writes. The exit code is 0 when all answers agree, 1 when some do
not, and 2 when nothing could be compared.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kit_cases import SEMANTICS, expectations, expected, family, files, problem, read
from kit_cel import CEL_DEPTHS, cel_difference
from kit_compare import DEPTHS, Unreadable, difference
from kit_program import NoAnswer, Program

Json = dict[str, Any]
VERDICTS = ("agrees", "known deviation", "differs", "no answer")


class Part(NamedTuple):
    """What a program is tested for: how much of an answer can be compared, and what tells two answers apart."""

    depths: tuple[str, ...]
    difference: Callable[[Any, Json, str], str | None]


PARTS = {"allocator": Part(DEPTHS, difference), "cel": Part(CEL_DEPTHS, cel_difference)}


@dataclass(frozen=True)
class Verdict:
    """``what`` is one of VERDICTS; ``why`` says more unless the answer agrees."""

    name: str
    family: str
    what: str
    why: str = ""


@dataclass
class Report:
    """What came out, by family and in all."""

    program: list[str]
    semantics: str
    compare: str
    families: dict[str, Counter[str]] = field(default_factory=dict)
    others: list[Verdict] = field(default_factory=list)
    """All verdicts but those that agree."""

    def add(self, verdict: Verdict) -> None:
        """Count a verdict."""
        self.families.setdefault(verdict.family, Counter())[verdict.what] += 1
        if verdict.what != "agrees":
            self.others.append(verdict)

    @property
    def total(self) -> Counter[str]:
        """All families together."""
        return sum(self.families.values(), Counter())

    def table(self) -> Iterator[str]:
        """A line per family, and one for all."""
        width = max(map(len, ("family", *self.families))) + 2
        yield f"{'family':{width}}{'cases':>7}" + "".join(f"{what:>17}" for what in VERDICTS)
        for name, counts in [*sorted(self.families.items()), ("all", self.total)]:
            yield f"{name:{width}}{counts.total():7}" + "".join(f"{counts[what]:17}" for what in VERDICTS)

    def summary(self) -> Json:
        """Everything, for other programs."""
        return {
            "program": self.program,
            "semantics": self.semantics,
            "compare": self.compare,
            "cases": self.total.total(),
            "total": {what: self.total[what] for what in VERDICTS},
            "families": {name: {what: counts[what] for what in VERDICTS} for name, counts in self.families.items()},
            "not agreeing": [asdict(verdict) for verdict in self.others],
        }


def judge(program: Program, part: Part, case: Json, semantics: str, depth: str) -> Verdict | None:
    """The verdict on one case; None when the kit does not know the answer under these semantics."""
    wanted = expected(case, semantics)
    if wanted is None:
        return None
    about = case["name"], family(case)
    try:
        answer = program.ask(problem(case))
        different = part.difference(wanted, answer, depth)
        if different is None:
            return Verdict(*about, "agrees")
        for other in expectations(case):
            if part.difference(other["answers"], answer, depth) is None:
                return Verdict(*about, "known deviation", f"as in {other['origin']}: {different}")
        return Verdict(*about, "differs", different)
    except (NoAnswer, Unreadable) as error:
        return Verdict(*about, "no answer", str(error))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("program", nargs="+", help="command that answers cases, after --")
    made.add_argument("--part", choices=PARTS, default="allocator", help="what is tested (default: %(default)s)")
    made.add_argument(
        "--semantics",
        choices=SEMANTICS,
        default=SEMANTICS[0],
        help="which answers an allocator should give where Kubernetes and its documentation differ (%(default)s)",
    )
    made.add_argument(
        "--compare",
        choices=list(dict.fromkeys(DEPTHS + CEL_DEPTHS)),
        default="all",
        help="how much of an answer; devices: of an allocator, errors: of CEL (default: %(default)s)",
    )
    made.add_argument("--only", metavar="PATTERN", default="*", help="cases whose names match, such as 'random/*'")
    made.add_argument("--file", type=Path, action="append", help="file of cases; repeatable (default: all of the part)")
    made.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help="per case (default: %(default)s)")
    made.add_argument("--show", type=int, default=10, metavar="N", help="print N answers that differ (%(default)s)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write a summary with everything that does not agree")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, compare, report."""
    options = parser().parse_args(arguments)
    part = PARTS[options.part]
    if options.compare not in part.depths:
        parser().error(f"--compare: {options.compare} is not for --part {options.part}, but {', '.join(part.depths)}")
    program = Program(options.program, options.timeout)
    report = Report(options.program, options.semantics, options.compare)
    try:
        for case in (case for path in options.file or files(options.part) for case in read(path)):
            if fnmatch.fnmatch(case["name"], options.only):
                verdict = judge(program, part, case, options.semantics, options.compare)
                if verdict is not None:
                    report.add(verdict)
    except OSError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    finally:
        program.close()
    if options.json:
        options.json.write_text(json.dumps(report.summary(), indent=1) + "\n")
    print(*report.table(), sep="\n")
    for verdict in report.others[: options.show]:
        print(f"{verdict.name}: {verdict.what}: {verdict.why}")
    if not report.families:
        print("run.py: no case to compare", file=sys.stderr)
        return 2
    return 1 if report.others else 0


if __name__ == "__main__":
    raise SystemExit(main())
