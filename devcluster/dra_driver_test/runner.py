"""Runs checks, one after the other on each bench, each with a time-out.

A check begins with a registered driver and ends with its claims unprepared and deleted. After a check that did not
pass, or that left a claim which cannot be unprepared, the node is made fresh, so that one fault is not reported twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dra_kube import ApiError, KubeError

from .check import Check, Level
from .errors import BenchError, Finding, NotJudged, Skipped
from .harness.bench import Bench
from .harness.limits import CHECK_SECONDS


class Verdict(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    WARNED = "warned"  # failed, and the check is no more than a recommendation
    NOT_JUDGED = "not judged"  # the driver lacks what the check needs
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """What one check said."""

    check: Check
    verdict: Verdict
    text: str
    seconds: float


async def run(checks: Iterable[Check], bench: Bench, timeout: float = CHECK_SECONDS) -> AsyncIterator[Result]:
    """The results, each as soon as it is there. Raises BenchError when the bench itself breaks."""
    for one in checks:
        yield await run_check(one, bench, timeout)


async def run_beside(
    checks: Sequence[Check], benches: Sequence[Bench], timeout: float = CHECK_SECONDS
) -> AsyncIterator[Result]:
    """Run checks on several benches at once, long ones first. Results come in the order in which checks finish."""
    left = deque(sorted(checks, key=lambda one: not one.waits) if len(benches) > 1 else checks)
    running: dict[asyncio.Task[Result], Bench] = {}
    free = list(benches)
    try:
        while left or running:
            while left and free:
                bench = free.pop(0)
                running[asyncio.create_task(run_check(left.popleft(), bench, timeout))] = bench
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                free.append(running.pop(task))
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def run_check(check: Check, bench: Bench, timeout: float = CHECK_SECONDS) -> Result:
    """Run one check."""
    start = time.monotonic()
    verdict, text = await _judged(check, bench, timeout)
    if ended := bench.driver.why_ended():
        text = f"{text}; {ended}" if verdict is Verdict.FAILED else ended
        verdict = Verdict.FAILED
    if not await bench.tidy() or verdict is Verdict.FAILED or check.spoils:
        await bench.reset()
    if verdict is Verdict.FAILED:
        verdict = Verdict.FAILED if check.level is Level.MUST else Verdict.WARNED
    # The name of a driver's file may be no UTF-8, and a report is.
    text = text.encode("utf-8", "backslashreplace").decode()
    return Result(check, verdict, text, time.monotonic() - start)


async def _judged(check: Check, bench: Bench, timeout: float) -> tuple[Verdict, str]:
    """The verdict with its text; a recommendation that is not followed is a failure here."""
    try:
        async with asyncio.timeout(timeout):
            await _run(check, bench)
    except Finding as finding:
        return Verdict.FAILED, str(finding)
    except NotJudged as unknown:
        return Verdict.NOT_JUDGED, str(unknown)
    except Skipped as skip:
        return Verdict.SKIPPED, str(skip)
    except TimeoutError:
        return Verdict.FAILED, f"not done after {timeout:g} s"
    except OSError as error:
        gone = bench.place.missing()
        cause = f"the driver removed {', '.join(gone)}" if gone else "the check could not go on"
        return Verdict.FAILED, f"{cause}: {error}"
    except ApiError as error:
        if left := await bench.server.strange():
            return Verdict.FAILED, f"the driver left {left}, and the API server says: {error}"
        return Verdict.NOT_JUDGED, f"the API server refused what the check needs: {error}"
    except KubeError as error:
        raise BenchError(f"{check.name}: the API server does not answer: {error}") from error
    return Verdict.PASSED, ""


async def _run(check: Check, bench: Bench) -> None:
    if check.restarts:
        bench.driver.needs_restart()
    if check.overlaps:
        bench.driver.needs_overlap()
    if check.registered:
        await bench.ready()
    else:
        await bench.started()
    await check.run(bench)
