"""Plants small faults, one at a time, and says which of them no test finds.

.venv/bin/python tests/mutation --count 120 --jobs 2     faults drawn at random over the lines of all packages
.venv/bin/python tests/mutation --seed 7 --only 3,18     two of those again

Each worker has a copy of the checkout, plants a fault in it and runs tests until one fails (``chosen_tests``). A test
counts if it fails a second time by itself, and not without the fault. Faults that change nothing a user can see stand
in ``equivalent.txt`` with their reason, and do not count. The exit status is 1 below the share that ``--least`` says.
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

from chosen_tests import GENERATED, PACKAGES, Selection
from first_failure import PLACE
from small_faults import Fault, faults_of

ROOT: Final = Path(__file__).resolve().parents[2]
EQUIVALENT: Final = Path(__file__).with_name("equivalent.txt")
TEST_SHARE: Final = 0.2
"""Of the time for a fault; a test that takes longer is stuck by the fault."""
NO_END: Final = "a test that does not end"


class Verdict(NamedTuple):
    """``by``: the test that failed; empty if none did. ``note``: why the fault does not count.

    ``is_late``: the time was over before all tests had run, as on a busy machine.
    """

    number: int
    fault: Fault
    by: str
    seconds: float
    note: str = ""
    is_late: bool = False


class Worker:
    """A copy of the checkout in a temporary folder."""

    def __init__(self, root: Path, limit: float, seed: int) -> None:
        self.root, self._limit, self._seed = root, limit, seed
        self._fails_anyway: dict[tuple[bool, str], bool] = {}
        self._is_whole = False
        _copy(root)
        self._selection, self._noted = Selection(root), root.with_name("failed")

    def found_by(self, fault: Fault) -> str | None:
        """The test that fails with the fault, and not without it. Empty if there is none, None if the time is over."""
        place, deadline = self.root / fault.path, time.monotonic() + self._limit
        groups = self._selection.of(fault)
        # The likeliest once more as in CI: elsewhere they take some rows of long tables, and leave out long tests.
        for group, self._is_whole in [*((group, False) for group in groups), (groups[0], True)]:
            spared = [key for (whole, key), fails in self._fails_anyway.items() if fails and whole is self._is_whole]
            while (left := deadline - time.monotonic()) > 0:
                with _planted(place, fault.planted):
                    failed = self._failed(group, left, spared)
                    if failed is None:
                        break
                    tests = group if failed == NO_END else [failed]
                    # Once may be by chance, as on a busy machine.
                    fails_again = self._failed(tests, self._limit, spared) is not None
                if fails_again and not self._fails_without(tests, spared):
                    return failed
                if failed == NO_END:
                    break
                spared.append(failed)
        return "" if time.monotonic() < deadline else None

    def _fails_without(self, tests: Sequence[str], spared: Sequence[str]) -> bool:
        key = self._is_whole, " ".join(tests)
        if key not in self._fails_anyway:
            self._fails_anyway[key] = self._failed(tests, self._limit, spared) is not None
        return self._fails_anyway[key]

    def _failed(self, tests: Sequence[str], seconds: float, spared: Sequence[str]) -> str | None:
        """The first test that fails, or that does not end; None if all pass, or the time is over."""
        options = [
            "-x",
            "-q",
            "--tb=no",
            "-p",
            "no:cacheprovider",
            "-p",
            "first_failure",
            f"--timeout={TEST_SHARE * self._limit}",
        ]
        options += [f"--{'deselect' if '::' in it else 'ignore'}={it}" for it in spared]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        self._noted.unlink(missing_ok=True)
        try:
            done = subprocess.run(
                command, cwd=self.root, env=self._environment(), stdout=subprocess.DEVNULL, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode in (0, 5):  # 5: there is no such test
            return None
        return self._noted.read_text().splitlines()[0] if self._noted.exists() else NO_END

    def _environment(self) -> dict[str, str]:
        shared = Path(os.environ.get("KOPF_DRA_SHARED", ROOT.parent / "shared"))
        return {
            "KOPF_DRA_CONFORMANCE": str(shared / "conformance"),
            "KOPF_DRA_API_SCHEMA": str(shared / "api-schema"),
            **os.environ,
            **({"CI": "true", "KOPF_DRA_WHOLE_KIT": "1"} if self._is_whole else {}),
            # All processes draw the same rows of tables and the same seeds, or what failed once would pass again.
            "PYTEST_XDIST_TESTRUNUID": str(self._seed),
            "KOPF_DRA_SEED": str(self._seed),
            "PYTHONPATH": os.pathsep.join(str(self.root / it) for it in (*PACKAGES, "tests/mutation")),
            PLACE: str(self._noted),
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


def drawn(seed: int, count: int) -> list[Fault]:
    """Faults of so many lines, each line as likely as any other that can have one."""
    lines: dict[tuple[Path, int], list[Fault]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT)
            if not str(name).startswith(GENERATED):
                for fault in faults_of(name, path.read_bytes()):
                    lines.setdefault((name, fault.line), []).append(fault)
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
    worker, began = workers.get(), time.monotonic()
    try:
        by = worker.found_by(fault)
        return Verdict(number, fault, by or "", time.monotonic() - began, is_late=by is None)
    finally:
        workers.put(worker)


def _tell(verdict: Verdict) -> None:
    said = verdict.note and f"equivalent: {verdict.note}"
    alive = "NOT FOUND IN TIME" if verdict.is_late else "SURVIVES"
    said = said or (f"found by {verdict.by}" if verdict.by else alive)
    fault = verdict.fault
    print(f"{verdict.number} {fault.name}, {fault.kind}: {said} ({verdict.seconds:.0f} s)", flush=True)
    if not verdict.by and not verdict.note:
        print(fault.diff, flush=True)


def main() -> int:
    """Plant, and count."""
    parser = argparse.ArgumentParser(
        prog="mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=120, help="how many faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the choice; default: a fresh one")
    parser.add_argument("--only", default="", metavar="NUMBERS", help="of these faults of the seed, such as 3,18")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=900, help="seconds for one fault (default: %(default)s)")
    parser.add_argument("--least", type=float, default=0.95, help="the share to be found (default: %(default)s)")
    parser.add_argument("--equivalent", type=Path, default=EQUIVALENT, metavar="FILE", help="faults that do not count")
    given = parser.parse_args()
    only = {int(it) for it in given.only.split(",") if it}
    print(f"--seed {given.seed}", flush=True)
    faults = [it for it in enumerate(drawn(given.seed, given.count)) if not only or it[0] in only]
    known, began = equivalents(given.equivalent), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        workers: SimpleQueue[Worker] = SimpleQueue()
        for job in range(given.jobs):
            workers.put(Worker(Path(folder) / str(job) / "checkout", given.limit, given.seed))
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
        f"{found} of {len(counting)} found ({share:.1%}; {late} others were out of time, raise --limit), "
        f"{left_out} equivalent, in {time.monotonic() - began:.0f} s; "
        f"again: --seed {given.seed} --count {given.count}"
    )
    return int(share < given.least)


if __name__ == "__main__":
    raise SystemExit(main())
