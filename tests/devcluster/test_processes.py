"""Child processes end in their grace period, or are ended."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

import pytest
from dra_devcluster import processes
from dra_devcluster.processes import ChildProcess, ProcessFailed, seconds_on_queue
from waiting import becomes

STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
SLOW = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(time.sleep(0.5) or 3))"


async def stopped(program: str, folder: Path, *, grace: float) -> int:
    log = folder / "child.log"
    program = f"import signal, sys, time; {program}; print('ready', flush=True); time.sleep(600)"
    child = ChildProcess("the child", [sys.executable, "-c", program], log, grace=grace)
    async with child:
        await becomes(lambda: log.read_text() == "ready\n")
        return await child.stop()


async def test_a_process_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "seconds_on_queue", lambda pid: {"1": 7.0})
    assert await stopped(STUBBORN, tmp_path, grace=0.05) == -signal.SIGKILL


async def test_the_time_in_which_it_waits_for_a_processor_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two threads one waits, and another one ends meanwhile."""
    waited = itertools.count(1)
    monkeypatch.setattr(processes, "seconds_on_queue", lambda pid: {"1": 0.05 * next(waited), "2": 7.0})
    assert await stopped(SLOW, tmp_path, grace=0.05) == 3


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not say what threads wait for")
def test_a_process_has_waited_for_processors() -> None:
    known = seconds_on_queue(os.getpid())
    assert str(os.getpid()) in known
    assert all(seconds >= 0 for seconds in known.values())
    assert seconds_on_queue(2**22) == {}, "no process has that number"


def test_a_process_may_end_while_its_threads_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of a sound driver failed with the words of the operating system."""

    def ended(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    for call in ("os.listdir", "os.scandir"):
        monkeypatch.setattr(call, ended)
    assert seconds_on_queue(os.getpid()) == {}


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailed, match=r"cannot start the child \(/nonexistent\): .*No such file"):
        async with ChildProcess("the child", ["/nonexistent"], tmp_path / "child.log"):
            pass
