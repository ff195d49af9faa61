"""A check, the list of all checks, and their run: one after the other, each with a time-out.

A check is a function with a docstring; the decorator enters it under the name of its file and its own::

    @check("KM-14", "PH-08")
    async def answers_each_claim(bench: Bench) -> None:
        \"\"\"What a user reads in the report: the rule, and what happens to pods otherwise.\"\"\"

It returns if the driver is fine and raises Finding if not, NotJudged if the driver has too few devices for it, and
Skipped if it does not apply.

A check begins with a registered driver and ends with its claims unprepared and deleted. After a check that did not
pass, or that left a claim which cannot be unprepared, the node is made fresh, so that one fault is not reported twice.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from dra_devcluster.background import cancelled
from dra_kube import ApiError, KubeError

from dra_driver_test.errors import CHECK_SECONDS, BenchError, Finding, NotJudged, Skipped
from dra_driver_test.harness.bench import Bench

Function = Callable[[Bench], Awaitable[None]]


class Level(StrEnum):
    MUST = "must"  # pods fail, get a wrong device, or leave something behind
    SHOULD = "should"  # nothing breaks at once; good drivers do it


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    explanation: str
    references: tuple[str, ...]
    level: Level
    registered: bool
    restarts: bool
    overlaps: bool
    spoils: bool
    waits: bool
    run: Function

    @property
    def summary(self) -> str:
        """The first sentence of the explanation."""
        return self.explanation.partition("\n")[0]


_CHECKS: dict[str, Check] = {}


def check(
    *references: str,
    level: Level = Level.MUST,
    registered: bool = True,
    restarts: bool = False,
    overlaps: bool = False,
    spoils: bool = False,
    waits: bool = False,
) -> Callable[[Function], Function]:
    """Enter a check.

    ``registered``: the driver is registered when the check begins. ``restarts``: it is skipped for a driver that the
    bench did not start. ``overlaps``: it needs two instances side by side. ``spoils``: it damages the driver's
    records, and the next check needs a fresh node. ``waits``: it takes long, and a quick run leaves it out.
    """

    def enter(function: Function) -> Function:
        noun = function.__module__.rpartition(".")[2]
        name = f"{noun}.{function.__name__}".replace("_", "-")
        explanation, starts_anew = inspect.cleandoc(function.__doc__ or ""), restarts or overlaps or spoils
        flags = (registered, starts_anew, overlaps, spoils, waits)
        _CHECKS[name] = Check(name, explanation, references, level, *flags, function)
        return function

    return enter


def entered() -> list[Check]:
    return list(_CHECKS.values())


def chosen(checks: list[Check], patterns: list[str]) -> list[Check]:
    """The checks whose name a pattern such as ``prepare.*`` fits; all without patterns. Raises BenchError."""
    for pattern in patterns:
        if not any(fnmatchcase(one.name, pattern) for one in checks):
            raise BenchError(f"no check fits {pattern!r}; --list shows the names")
    return [one for one in checks if not patterns or any(fnmatchcase(one.name, pattern) for pattern in patterns)]


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    WARNED = "warned"  # failed, and the check is no more than a recommendation
    NOT_JUDGED = "not judged"  # the driver lacks what the check needs
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
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
        await cancelled(*running)


async def run_check(check: Check, bench: Bench, timeout: float = CHECK_SECONDS) -> Result:
    start = time.monotonic()
    verdict, text = await _judged(check, bench, timeout)
    if ended := bench.driver.why_ended():
        text = f"{text}; {ended}" if verdict is Verdict.FAILED else ended
        verdict = Verdict.FAILED
    if not await bench.tidy() or verdict is Verdict.FAILED or check.spoils:
        await bench.reset()
    if verdict is Verdict.FAILED and check.level is Level.SHOULD:
        verdict = Verdict.WARNED
    # The name of a driver's file may be no UTF-8, and a report is.
    text = text.encode("utf-8", "backslashreplace").decode()
    return Result(check, verdict, text, time.monotonic() - start)


async def _judged(check: Check, bench: Bench, timeout: float) -> tuple[Verdict, str]:
    """The verdict with its text; a recommendation that is not followed is a failure here."""
    try:
        async with asyncio.timeout(timeout):
            if check.restarts:
                bench.driver.needs_restart()
            if check.overlaps:
                bench.driver.needs_overlap()
            await (bench.ready() if check.registered else bench.started())
            await check.run(bench)
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
