"""How long small problems take, family by family, and how that compares with other programs in the same run.

    python benchmarks/small_problems.py                          # this checkout alone
    python benchmarks/small_problems.py --against main           # beside another commit
    python benchmarks/small_problems.py --against './program'    # beside another allocator

The problems are the random ones of the conformance kit, each node a decision of its own. Selectors are evaluated
before, as in the operator. ``again`` decides about the same claims as before; ``new`` about equal claims decoded
anew, which have to be checked and compiled. Each time is the processor time of one decision. The sides take turns at
each decision, so that what else the machine does concerns all of them; a ratio is the median over decisions of the
ratio of medians, above 1 where this checkout is slower.

Another allocator is a program that reads JSON lines. One with ``problem`` (a case of the kit) starts a new problem; one
with ``node`` (a position), ``repeat`` (how often) and ``new`` (whether the claims have to be new) decides, and is
answered by a line with ``nanos``, a list of times. A commit is tried this way as well, in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("proto", "kube", "cel", "ledger", "operator", "tests/support", "conformance", "benchmarks")
"""What a decision needs of a checkout."""
WARM_UP = 4
"""Decisions before the first that counts."""
Json = dict[str, Any]


class Side:
    """A program that decides and takes the time."""

    def __init__(self, name: str, command: list[str], folder: Path | None = None) -> None:
        self.name = name
        path = os.pathsep.join(str(folder / package) for package in PACKAGES) if folder else ""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
        )

    def begin(self, case: Json) -> None:
        """The problem of the decisions that follow."""
        self._send({"problem": case})

    def times(self, node: int, repeat: int, *, new: bool) -> list[int]:
        """Nanoseconds of so many decisions."""
        self._send({"node": node, "repeat": repeat, "new": new})
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended instead of answering")
        times: list[int] = json.loads(line)["nanos"]
        return times

    def end(self) -> None:
        """No more questions."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _send(self, message: Json) -> None:
        stdin: IO[str] | None = self._process.stdin
        assert stdin is not None
        stdin.write(json.dumps(message) + "\n")
        stdin.flush()


def serve() -> None:
    """Answers the questions of a ``Side`` with the allocator that can be imported."""
    from allocator_problems import laboratory
    from dra_api.codec import convert
    from dra_api.core import Node
    from dra_api.resource import ResourceClaim
    from dra_operator.allocator import Semantics

    gc.disable()
    for line in sys.stdin:
        question = json.loads(line)
        if "problem" in question:
            case = question["problem"]
            lab, nodes = laboratory(case, Semantics.reference()), [convert(Node, node) for node in case["nodes"]]
            gc.collect()
            continue
        claims, times = lab.claims, []
        for _ in range(question["repeat"]):
            if question["new"]:
                claims = [convert(ResourceClaim, claim) for claim in case["claims"]]
            start = time.thread_time_ns()
            lab.allocator.allocate(nodes[question["node"]], claims, lab.usage)
            times.append(time.thread_time_ns() - start)
        print(json.dumps({"nanos": times}), flush=True)


@contextmanager
def checkout(ref: str) -> Iterator[Path]:
    """The files of a commit."""
    with TemporaryDirectory() as folder:
        archive = subprocess.Popen(["git", "-C", str(ROOT), "archive", ref], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], stdin=archive.stdout, check=True)
        archive.wait()
        yield Path(folder)


def is_commit(text: str) -> bool:
    """Git knows it as a commit."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "--quiet", "--verify", f"{text}^{{commit}}"]
    return subprocess.run(asked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def measure(sides: list[Side], cases: list[Json], rounds: int, *, new: bool) -> dict[str, list[list[float]]]:
    """By family, for each decision the microseconds of each side."""
    found: dict[str, list[list[float]]] = defaultdict(list)
    for case in cases:
        for side in sides:
            side.begin(case)
        for node in range(len(case["nodes"])):
            times: list[list[int]] = [[] for _ in sides]
            for side in sides:
                side.times(node, WARM_UP, new=new)
            for _ in range(rounds):
                for side, mine in zip(sides, times, strict=True):
                    mine += side.times(node, 12, new=new)[2:]
            found[case["family"]].append([statistics.median(mine) / 1000 for mine in times])
    return found


def rows(sides: list[Side], found: dict[str, list[list[float]]]) -> Iterator[str]:
    """A line per family, and one for all decisions."""
    others = [f"{part} {side.name}" for side in sides[1:] for part in ("us", "ratio to")]
    yield f"{'family':24}{'decisions':>10}{'us':>8}" + "".join(f"  {other}" for other in others)
    everything = [times for family in found.values() for times in family]
    for name, decisions in [*sorted(found.items()), ("all", everything)]:
        ours, *theirs = (statistics.median(column) for column in zip(*decisions, strict=True))
        line = f"{name:24}{len(decisions):10}{ours:8.1f}"
        for position, median in enumerate(theirs, 1):
            ratio = statistics.median(times[0] / times[position] for times in decisions)
            line += f"  {median:{len(others[2 * position - 2])}.1f}  {ratio:{len(others[2 * position - 1])}.2f}"
        yield line


def main() -> None:
    """Starts the sides, lets them take turns, prints a table for each kind of decision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", action="append", default=[], metavar="COMMIT|PROGRAM", help="repeatable")
    parser.add_argument("--rounds", type=int, default=3, help="turns at each decision (default: %(default)s)")
    parser.add_argument("--only", metavar="FAMILY", help="one family")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve()
    sys.path.append(str(ROOT / "conformance"))
    from kit_cases import FOLDER, read

    cases = [case for case in read(FOLDER / "allocator/random.jsonl.gz") if options.only in (None, case["family"])]
    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    with ExitStack() as stack:
        sides = [Side("this checkout", command, ROOT)]
        for other in options.against:
            commit = is_commit(other)
            folder = stack.enter_context(checkout(other)) if commit else None
            # The commit's own script knows its names: they move.
            theirs = [sys.executable, f"{folder}/benchmarks/small_problems.py", "--serve"]
            sides.append(Side(other, theirs, folder) if commit else Side(Path(other).name, shlex.split(other)))
        for new in (False, True):
            print("new claims" if new else "the same claims again")
            print(*rows(sides, measure(sides, cases, options.rounds, new=new)), sep="\n", flush=True)
        for side in sides:
            side.end()
    return None


if __name__ == "__main__":
    main()
