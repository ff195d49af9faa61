"""Random jobs with and without the check: a small version of ``benchmarks/admission.py``."""

from __future__ import annotations

import pytest
from admission_run import EffortlessLoop, NoEnd, Run
from dra_operator.admission.controller import LATE_WRITE_SECONDS


def test_with_the_check_no_job_is_admitted_that_cannot_start() -> None:
    alone = Run(24, 8, seed=1, is_checked=False).play()
    checked = Run(24, 8, seed=1, is_checked=True).play()
    assert (len(checked.blocked), checked.timeouts, checked.broken) == (0, 0, 0)
    assert alone.blocked, "quota alone would do: the jobs show nothing"
    assert checked.in_vain < alone.in_vain


@pytest.mark.parametrize("seed", [2, 105])
def test_slow_and_lost_answers_break_no_promise(seed: int) -> None:
    """Pods of a job start while others of it have no claim yet, and nobody knows whether a job is Ready."""
    result = Run(20, 8, seed, is_checked=True, slowest=0.05, lost=0.03).play()
    assert (result.timeouts, result.broken) == (0, 0)
    # While it is not known whether a job is Ready, others may wait for its devices. How many answers are lost depends
    # on the time that the processor takes for decisions, so the runs of a seed differ.
    assert max(result.delays) < LATE_WRITE_SECONDS + 10


def test_devices_that_a_promise_leaves_over_end_a_back_off() -> None:
    """The pods of a job go to other nodes than promised, and what it leaves there is enough for one that waits."""
    assert max(Run(12, 2, seed=6, is_checked=True).play().delays) < 20, "nobody looked before its back-off was over"


@pytest.mark.parametrize("seed", [3, 4])
def test_no_pause_keeps_a_job_waiting_whose_devices_are_free(seed: int) -> None:
    """Decisions take no time here: a wait has only pauses, and the turns of others that Kueue gives quota first."""
    result = Run(40, 4, seed, is_checked=True).play(EffortlessLoop)
    assert (len(result.blocked), result.broken) == (0, 0)
    assert max(result.delays) < 0.5


def test_a_run_without_an_end_says_which_jobs_wait() -> None:
    run = Run(2, 1, seed=1, is_checked=True)  # the second job asks for more than the quota
    run.jobs["job-0001"].pods = 100
    with pytest.raises(NoEnd, match=r"these wait: job-0001 \(100 pods of"):
        run.play()
