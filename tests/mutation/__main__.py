"""Plants small faults, one at a time, and says which of them no test finds. It takes Python 3.12 or later.

.venv-3.13/bin/python tests/mutation --count 120 --jobs 2    faults drawn at random over the lines of all packages
.venv-3.13/bin/python tests/mutation --seed 7 --only 3,18    two of those again
.venv-3.13/bin/python tests/mutation --count 0 --bare        the lines that no test runs
.venv-3.13/bin/python tests/mutation --count 20 --under cel  only of files whose path begins so

The first time all tests are played, and the lines that each runs are noted in build/reach. Then each job plants a fault
in a copy of the checkout and plays the tests that run its line until one fails. A test counts if it
fails a second time by itself, and not without the fault. Faults that change nothing a user can see stand in
``equivalent.txt`` with their reason, and do not count. The exit status is 1 below the share that ``--least`` says.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

from first_failure import PLACE
from reached import Reach, kept, read
from small_faults import Fault, faults_of, statement_lines

ROOT: Final = Path(__file__).resolve().parents[2]
EQUIVALENT: Final = Path(__file__).with_name("equivalent.txt")
KEPT: Final = ROOT / "build" / "reach"
PACKAGES: Final = ("proto", "kube", "cel", "ledger", "operator", "simulator", "kubeletplugin", "devcluster")
GENERATED: Final = "proto/dra_proto"
TEST_SHARE: Final = 0.2
"""Of the time for a fault; a test that takes longer is stuck by the fault."""
NO_END: Final = "a test that does not end"
STARTED_BY: Final = {
    "devcluster/dra_devcluster/agent/processes/sandbox_entry.py": "devcluster/dra_devcluster/agent/processes/process.py"
}
"""Files that Python runs without its environment (``-I``), so that they note nothing; and the file that names them."""
FIRST: Final = 6
"""Files of tests that are asked before all others."""


class Verdict(NamedTuple):
    """``by``: the test that failed; empty if none did. ``note``: why the fault does not count.

    ``is_late``: not all tests were played: the time was over, or they do not end without the fault either.
    """

    number: int
    fault: Fault
    by: str
    seconds: float
    note: str = ""
    is_late: bool = False
    is_bare: bool = False


class Worker:
    """A copy of the checkout in a temporary folder."""

    def __init__(self, root: Path, limit: float, seed: int, reach: Reach) -> None:
        self.root, self._limit, self._seed, self._reach = root, limit, seed, reach
        self._fails_anyway: dict[str, bool] = {}
        self._texts: dict[str, str] = {}
        self._noted = root.with_name("failed")

    def judge(self, number: int, fault: Fault) -> Verdict:
        """Ask the tests that run the fault's lines."""
        began = time.monotonic()
        # pytest plays none of them if one is not there.
        tests = [it for it in reaching(self._reach, fault) if self.has(it)]
        if not tests:
            return Verdict(number, fault, "", 0.0, is_bare=True)
        by = self.found_by(fault, tests)
        return Verdict(number, fault, by or "", time.monotonic() - began, is_late=by is None)

    def has(self, test: str) -> bool:
        """Whether the checkout has the test: others are of a former commit, or of a pytest that a test has started."""
        path, _, name = test.partition("::")
        if path not in self._texts:
            file = self.root / path
            self._texts[path] = file.read_text() if file.is_file() else ""
        return f"def {name.rpartition('::')[2]}(" in self._texts[path]

    def found_by(self, fault: Fault, tests: Sequence[str]) -> str | None:
        """The test that fails twice with the fault, and not without it. Empty if there is none.

        None if not all were played: the time was over, or a group does not end without the fault either.
        """
        place, deadline, are_played = self.root / fault.path, time.monotonic() + self._limit, True
        # The cheapest first: pytest needs seconds to read a file of tests.
        few = next(
            (it for it in range(1, len(tests)) if len({t.partition("::")[0] for t in tests[: it + 1]}) > FIRST), 0
        )
        for group in filter(None, (tests[:few], tests[few:])):
            spared = [key for key, fails in self._fails_anyway.items() if fails]
            while (left := deadline - time.monotonic()) > 0:
                with _planted(place, fault.planted):
                    failed = self._failed(group, left, spared)
                    if failed is None:
                        break
                    alone = group if failed == NO_END else [failed]
                    # Once may be by chance, as on a busy machine.
                    fails_again = self._failed(alone, self._limit, spared) is not None
                if fails_again and not self._fails_without(alone, spared):
                    return failed
                if failed == NO_END:
                    are_played = False
                    break
                spared.append(failed)
        return "" if are_played and time.monotonic() < deadline else None

    def _fails_without(self, tests: Sequence[str], spared: Sequence[str]) -> bool:
        key = " ".join(tests)
        if key not in self._fails_anyway:
            self._fails_anyway[key] = self._failed(tests, self._limit, spared) is not None
        return self._fails_anyway[key]

    def _failed(self, tests: Sequence[str], seconds: float, spared: Sequence[str]) -> str | None:
        """The first test that fails, or that does not end; None if all pass, or the time is over."""
        options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "first_failure"]
        options += [f"--timeout={TEST_SHARE * self._limit}", *(f"--deselect={it}" for it in spared if it not in tests)]
        asked = self.root.with_name("tests")
        asked.write_text("\n".join(tests))
        command = [sys.executable, "-m", "pytest", *options, f"@{asked}"]
        environment = _environment(self.root, self._seed, {PLACE: str(self._noted)})
        self._noted.unlink(missing_ok=True)
        try:
            done = subprocess.run(
                command, cwd=self.root, env=environment, stdout=subprocess.DEVNULL, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode in (0, 5):  # 5: there is no such test
            return None
        return self._noted.read_text().splitlines()[0] if self._noted.exists() else NO_END


def reaching(reach: Reach, fault: Fault) -> list[str]:
    """Return the tests that run the fault's lines, or that start its file if that notes nothing."""
    starter = STARTED_BY.get(str(fault.path))
    if starter is None:
        return reach.of(fault.path, statement_lines(fault.source, fault.line))
    lines = (ROOT / starter).read_text().splitlines()
    return reach.of(Path(starter), [at for at, line in enumerate(lines, 1) if f"{fault.path.stem}.__file__" in line])


def noted(root: Path, jobs: int) -> Reach:
    """Return which tests of the checkout run which lines; if no run told it before, play all tests in the copy."""
    changed = subprocess.run(["git", "stash", "create"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    commit = changed.strip() or "HEAD"
    tree = subprocess.run(
        ["git", "rev-parse", f"{commit}^{{tree}}"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    file = KEPT / tree.stdout.strip()
    if file.exists():
        return kept(file)
    print("playing all tests, to see which lines each runs", flush=True)
    folder = root.with_name("reach")
    folder.mkdir()
    extra = {"REACH": str(folder), "REACH_ROOTS": os.pathsep.join(f"{root}/{it}/" for it in PACKAGES)}
    options = ["-q", "-p", "reach_plugin", "-n", str(3 * jobs), "--dist", "loadscope"]
    command = [sys.executable, "-m", "pytest", *options]
    subprocess.run(command, cwd=root, env=_environment(root, 0, extra), check=False)
    reach = read(folder, root)
    shutil.rmtree(folder)
    reach.keep(file)
    return reach


def _environment(root: Path, seed: int, extra: dict[str, str]) -> dict[str, str]:
    shared = Path(os.environ.get("KOPF_DRA_SHARED", ROOT.parent / "shared"))
    return {
        "KOPF_DRA_CONFORMANCE": str(shared / "conformance"),
        "KOPF_DRA_API_SCHEMA": str(shared / "api-schema"),
        **os.environ,
        # All tests and all rows of tables, as in CI.
        "CI": "true",
        "KOPF_DRA_WHOLE_KIT": "1",
        # All processes draw the same seeds, or what failed once would pass again.
        "PYTEST_XDIST_TESTRUNUID": str(seed),
        "KOPF_DRA_SEED": str(seed),
        "PYTHONPATH": os.pathsep.join(str(root / it) for it in (*PACKAGES, "tests/mutation", "tests/mutation/reach")),
        **extra,
    }


def _copy(root: Path) -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, root / name)
            shutil.copymode(ROOT / name, root / name)


@contextmanager
def _planted(place: Path, content: bytes) -> Iterator[None]:
    """The file has other content meanwhile, and what was compiled of it is not used."""
    before = place.read_bytes()
    try:
        _write(place, content)
        yield
    finally:
        _write(place, before)


def _write(place: Path, content: bytes) -> None:
    for compiled in (place.parent / "__pycache__").glob(f"{place.stem}.*.pyc"):
        compiled.unlink()
    place.write_bytes(content)


def every_fault() -> dict[tuple[Path, int], list[Fault]]:
    """By file and line, the faults that the packages can have."""
    lines: dict[tuple[Path, int], list[Fault]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT)
            if not str(name).startswith(GENERATED):
                for fault in faults_of(name, path.read_bytes()):
                    lines.setdefault((name, fault.line), []).append(fault)
    return lines


def drawn(seed: int, count: int, under: str = "") -> list[Fault]:
    """Faults of so many lines, each line as likely as any other that can have one."""
    lines = {place: faults for place, faults in every_fault().items() if str(place[0]).startswith(under)}
    dice = random.Random(seed)
    chosen = dice.sample(sorted(lines), min(count, len(lines)))
    return [dice.choice(lines[place]) for place in chosen]


def equivalents(path: Path) -> dict[str, str]:
    """By what names them, why these faults change nothing that a user can see."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return {key: reason.strip() for key, reason in pairs}


def _judge(workers: SimpleQueue[Worker], number: int, fault: Fault, known: dict[str, str]) -> Verdict:
    reason = known.get(fault.key, "")
    if reason:
        return Verdict(number, fault, "", 0.0, reason)
    worker = workers.get()
    try:
        return worker.judge(number, fault)
    finally:
        workers.put(worker)


def _tell(verdict: Verdict) -> None:
    said = verdict.note and f"equivalent: {verdict.note}"
    alive = "NO TEST RUNS IT" if verdict.is_bare else "NOT FOUND, NOT ALL PLAYED" if verdict.is_late else "SURVIVES"
    said = said or (f"found by {verdict.by}" if verdict.by else alive)
    fault = verdict.fault
    print(f"{verdict.number} {fault.name}, {fault.kind}: {said} ({verdict.seconds:.0f} s)", flush=True)
    if not verdict.by and not verdict.note:
        print(fault.diff, flush=True)


def _tell_bare(reach: Reach, under: str) -> None:
    for (path, line), faults in sorted(every_fault().items()):
        if str(path).startswith(under) and not reaching(reach, faults[0]):
            print(f"{path}:{line} ({'.'.join(faults[0].names)}): no test runs it")


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant, and count."""
    parser = argparse.ArgumentParser(
        prog="mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=120, help="how many faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the choice; default: a fresh one")
    parser.add_argument("--only", default="", metavar="NUMBERS", help="of these faults of the seed, such as 3,18")
    parser.add_argument("--under", default="", metavar="PATH", help="only of files whose path begins so")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one fault (default: %(default)s)")
    parser.add_argument("--least", type=float, default=0.95, help="the share to be found (default: %(default)s)")
    parser.add_argument("--equivalent", type=Path, default=EQUIVALENT, metavar="FILE", help="faults that do not count")
    parser.add_argument("--reach", type=Path, metavar="FILE", help="what tests run, of a former commit's build/reach")
    parser.add_argument("--bare", action="store_true", help="list the lines that no test runs")
    given = parser.parse_args(arguments)
    if sys.version_info < (3, 12):
        parser.error("it takes Python 3.12: make PYTHON=python3.13 VENV=.venv-3.13 install")
    only = {int(it) for it in given.only.split(",") if it}
    print(f"--seed {given.seed}", flush=True)
    faults = [it for it in enumerate(drawn(given.seed, given.count, given.under)) if not only or it[0] in only]
    known = equivalents(given.equivalent)
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        roots = [Path(folder) / str(job) / "checkout" for job in range(given.jobs)]
        for root in roots:
            _copy(root)
        reach = kept(given.reach) if given.reach else noted(roots[0], given.jobs)
        if given.bare:
            _tell_bare(reach, given.under)
        began, workers = time.monotonic(), SimpleQueue[Worker]()
        for root in roots:
            workers.put(Worker(root, given.limit, given.seed, reach))
        with ThreadPoolExecutor(given.jobs) as pool:
            verdicts: list[Verdict] = []
            for waiting in as_completed([pool.submit(_judge, workers, *it, known) for it in faults]):
                verdicts.append(waiting.result())
                _tell(verdicts[-1])
    counting = [it for it in verdicts if not it.note]
    found = sum(bool(it.by) for it in counting)
    share = found / len(counting) if counting else 1.0
    left_out = len(verdicts) - len(counting)
    late = sum(it.is_late for it in counting)
    print(
        f"{found} of {len(counting)} found ({share:.1%}; of {late} others not all tests were played, raise --limit), "
        f"{left_out} equivalent, in {time.monotonic() - began:.0f} s; "
        f"again: --seed {given.seed} --count {given.count}" + (f" --under {given.under}" if given.under else "")
    )
    return int(share < given.least)


if __name__ == "__main__":
    raise SystemExit(main())
