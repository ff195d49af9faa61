"""The proof that the kit can fail: each fault of the bad driver is found by the check that is for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from bad_driver_node import KINDS, NETWORK, PARTITIONS, SHARED_ONLY, TWO_POOLS
from dra_driver_test.kit import Check, Result, Verdict, all_checks, chosen, run, run_check
from planted_faults import FAULTS, LIMITS, PATIENT, VARIANTS, OpenBench, Planted
from rounds import LONG, a_half, a_third, one_of

CHECKS = {check.name: check for check in all_checks()}
NOUNS = sorted({check.partition(".")[0] for check in CHECKS})
ABOUT_CONTENT = [
    "edits.*",
    "claims.that-*",
    "configuration.of-one-*",
    "cdi.files-of-*",
    "restart.rem*",
    "slices.come-*",
]
LEAKS = ("unprepare.leaks-*", "unprepare.leaves-no-files", "claims.that-failed-leak-*")
"""Dozens of claims come and go for each: the plain driver is asked, and one that differs in devices or edits is not."""
PAGE = Path(__file__).resolve().parents[2] / "docs/driver-test.md"
AT_ONCE = 6
"""Benches at the same time: most of the time is spent waiting for what a bad driver does not do."""
EACH = 200
"""Seconds for a fault, its bench included; 2 to 6 on a busy machine, 34 on one with a load of 18 a core."""
TIMEOUT = 1200
ELSEWHERE: dict[str, dict[str, Any]] = {
    "prepare.tells-pools-apart": {"faults": ["kind: two pools"]},
    "unprepare.leaks-no-memory": {"is_a_process": True},
    "cdi.files-outlast-failed-writes": {"is_a_process": True},
}
"""Checks that the plain driver cannot have inside of the process of the tests."""
FEWEST_JUDGED = {SHARED_ONLY: 176, PARTITIONS: 186, NETWORK: 186, TWO_POOLS: 186}
"""Least number of checks that pass; the others do not apply."""


def quick(*patterns: str) -> list[Check]:
    """The checks that fit, except ``LEAKS``."""
    slow = chosen(all_checks(), list(LEAKS))
    return [check for check in chosen(all_checks(), list(patterns)) if check not in slow]


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("noun", NOUNS)
async def test_each_fault_is_found_by_its_check(noun: str, bad_bench: OpenBench) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def found(planted: Planted) -> str:
        """What the check says, if that is not what the table says."""
        for limits in (LIMITS, PATIENT) if planted.waits else (PATIENT,):  # the machine may have stalled
            options = {"limits": limits, "is_a_process": planted.is_a_process, "release": planted.release}
            async with bad_bench(*planted.faults, **options) as bench:
                result = await run_check(CHECKS[planted.check], bench, timeout=60)
            if result.verdict in (Verdict.FAILED, Verdict.WARNED) and planted.text in result.text:
                return ""
        return f"{planted.fault}: {planted.check} {result.verdict}: {result.text!r} without {planted.text!r}"

    async def found_in_time(planted: Planted) -> str:
        try:
            async with room, asyncio.timeout(EACH):
                return await found(planted)
        except TimeoutError:
            return f"{planted.fault}: {planted.check} and its bench took longer than {EACH} s"

    rows = a_third([planted for planted in FAULTS if planted.check.startswith(f"{noun}.")])
    assert -(-len(rows) // AT_ONCE) * EACH < TIMEOUT, "what takes too long has to be named before pytest ends the test"
    said = await asyncio.gather(*map(found_in_time, rows))
    assert [line for line in said if line] == []


@LONG
async def test_a_driver_without_faults_passes_every_check(bad_bench: OpenBench) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def passed(noun: str) -> list[str]:
        """What the checks of a noun say, if that is not that they passed."""
        checks = [one for one in chosen(all_checks(), [f"{noun}.*"]) if one.name not in ELSEWHERE]
        async with room, bad_bench() as bench:
            results = [one async for one in run(checks, bench, timeout=60)]
        if missed := [one.check for one in results if one.verdict is not Verdict.PASSED]:
            async with room, bad_bench(limits=PATIENT) as bench:  # the machine may have stalled
                results = [await run_check(check, bench, timeout=60) for check in missed]
        return [f"{one.check.name}: {one.text}" for one in results if one.verdict is not Verdict.PASSED]

    assert [line for lines in await asyncio.gather(*map(passed, NOUNS)) for line in lines] == []


@pytest.mark.parametrize(("name", "options"), ELSEWHERE.items())
async def test_a_driver_without_faults_passes_the_checks_that_need_another_one(
    name: str, options: dict[str, Any], bad_bench: OpenBench
) -> None:
    async with bad_bench(*options.get("faults", ()), is_a_process="is_a_process" in options) as bench:
        result = await run_check(CHECKS[name], bench, timeout=60)
    assert result.verdict is Verdict.PASSED, result.text


@LONG
@pytest.mark.parametrize("kind", one_of(KINDS))
async def test_no_check_accuses_a_sound_driver(kind: str, bad_bench: OpenBench) -> None:
    """The plain kind has a test above; as processes, test_our_drivers.py asks all kinds."""
    room = asyncio.Semaphore(AT_ONCE)

    async def judged(noun: str) -> list[Result]:
        async with room, bad_bench(kind) as bench:
            return [one async for one in run(quick(f"{noun}.*"), bench, timeout=60)]

    results = [one for many in await asyncio.gather(*map(judged, NOUNS)) for one in many]
    bad = [one for one in results if one.verdict in (Verdict.FAILED, Verdict.WARNED)]
    if bad:  # alone: open files are those of the process, and so of all drivers in it
        async with bad_bench(kind, limits=PATIENT) as bench:
            again = [await run_check(one.check, bench, timeout=60) for one in bad]
        bad = [one for one in again if one.verdict in (Verdict.FAILED, Verdict.WARNED)]
    assert [f"{one.check.name}: {one.text}" for one in bad] == []
    assert sum(one.verdict is Verdict.PASSED for one in results) >= FEWEST_JUDGED[kind]


async def test_a_driver_may_share_all_its_devices(bad_bench: OpenBench) -> None:
    async with bad_bench("it shares all devices") as bench:
        results = [one async for one in run(quick("prepare.*", "claims.*", "unprepare.*"), bench)]
    bad = [one for one in results if one.verdict in (Verdict.FAILED, Verdict.WARNED)]
    assert [f"{one.check.name}: {one.text}" for one in bad] == []


@LONG
async def test_no_check_accuses_a_driver_that_differs_rightly(bad_bench: OpenBench) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def accused(variant: str, but: tuple[str, ...]) -> list[str]:
        """What the checks say against a driver, other than that."""
        checks = quick(*ABOUT_CONTENT, *but)
        async with room, bad_bench(variant) as bench:
            results = [one async for one in run(checks, bench, timeout=60)]
        bad = [one for one in results if one.verdict in (Verdict.FAILED, Verdict.WARNED)]
        unexpected = [f"{variant}: {one.check.name}: {one.text}" for one in bad if one.check.name not in but]
        missing = set(but) - {one.check.name for one in bad}
        return [*unexpected, *(f"{variant}: {name} found nothing" for name in missing)]

    said = await asyncio.gather(*(accused(variant, but) for variant, but in a_half([*VARIANTS.items()])))
    assert [line for lines in said for line in lines] == []


def test_every_check_has_a_fault() -> None:
    assert CHECKS.keys() - {planted.check for planted in FAULTS} == set()


def test_the_page_counts_checks_and_faults() -> None:
    page = PAGE.read_text()
    assert f"has {len(CHECKS)} checks" in page
    assert f"for each of {len({planted.fault for planted in FAULTS})} faults" in page
