"""Random jobs with and without the check: a small version of ``benchmarks/admission.py``."""

from __future__ import annotations

from admission_run import Run


async def test_with_the_check_no_job_is_admitted_that_cannot_start() -> None:
    alone = await Run(24, 8, seed=1, is_checked=False).play()
    checked = await Run(24, 8, seed=1, is_checked=True).play()
    assert (len(checked.blocked), checked.timeouts) == (0, 0)
    assert alone.blocked, "quota alone would do: the jobs show nothing"
    assert checked.in_vain < alone.in_vain
