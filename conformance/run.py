"""Compares an allocator, or an implementation of CEL, with the kit's answers. Needs Python 3.11 and nothing else.

    python conformance/run.py [options] -- PROGRAM [ARGUMENT ...]
    python conformance/run.py -- dra-operator simulate - --semantics documented
    python conformance/run.py --part cel -- dra-operator cel -

README.md describes what the program reads and writes. The exit code is 0 when all answers agree, 1 when some do
not, and 2 when nothing could be compared.

Cases go to the program's standard input, one line each. The next one is sent when the answer is there. A program that
ends, takes too long, or writes something else costs only the case it was asked; it is started again for the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from kit_cases import SEMANTICS, expectations, expected, family, files, problem, read
from kit_compare import CEL_DEPTHS, DEPTHS, Unreadable, cel_difference, difference

Json = dict[str, Any]


class NoAnswer(Exception):
    """The program ended, took too long, or wrote something else than an answer; the message says which."""


class Program:
    """A command that is started when it is first asked. Raises FileNotFoundError if there is no such command."""

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        self._command = list(command)
        self._timeout = timeout
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()

    def ask(self, case: Json) -> Json:
        """The answer to one case. Raises NoAnswer."""
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(case) + "\n")
            process.stdin.flush()
            line = self._lines.get(timeout=self._timeout)
        except queue.Empty:
            self.close()
            raise NoAnswer(f"no answer within {self._timeout:g} s") from None
        except BrokenPipeError:
            line = None
        if line is None:
            code = self.close()
            raise NoAnswer(f"the program ended with code {code}")
        try:
            answer = json.loads(line)
        except ValueError as error:
            self.close()
            raise NoAnswer(f"not JSON: {error}: {line[:200]!r}") from error
        if not isinstance(answer, dict) or answer.get("name") != case["name"]:
            self.close()
            raise NoAnswer(f"not an answer to {case['name']}: {line[:200]!r}")
        return answer

    def close(self) -> int | None:
        """End the program; the code it ended with by itself, if it did."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            code = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        return code

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._lines = queue.Queue()
            threading.Thread(target=_pump, args=(self._process.stdout, self._lines), daemon=True).start()
        return self._process


def _pump(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    """Hand over what the program writes, and its end."""
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)


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
        for case in (case for path in options.file or files(options.part) for case in read(path, options.only)):
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
