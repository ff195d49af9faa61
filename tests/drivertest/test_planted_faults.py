"""The proof that the kit can fail: each fault of the bad driver is found by the check that is for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from bad_benches import LIMITS, PATIENT, OpenBench
from dra_driver_test.kit import Verdict, all_checks, chosen, run, run_check
from planted_faults import FAULTS, VARIANTS, Planted, table
from rounds import LONG, a_third

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
PAGE = Path(__file__).resolve().parents[2] / "docs/driver-test.md"
AT_ONCE = 6
"""Benches at the same time: most of the time is spent waiting for what a bad driver does not do."""
EACH = 200
"""Seconds for a fault, its bench included; 2 to 6 on a busy machine, 34 on one with a load of 18 a core."""
TIMEOUT = 1200


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("noun", NOUNS)
async def test_each_fault_is_found_by_its_check(noun: str, bad_bench: OpenBench) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def found(planted: Planted) -> str:
        """What the check says, if that is not what the table says."""
        for limits in (LIMITS, PATIENT) if planted.waits else (PATIENT,):  # the machine may have stalled
            options = {"limits": limits, "is_a_process": planted.is_a_process, "release": planted.release}
            async with bad_bench(planted.fault, **options) as bench:
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
        async with room, bad_bench() as bench:
            results = [one async for one in run(chosen(all_checks(), [f"{noun}.*"]), bench, timeout=60)]
        if missed := [one.check for one in results if one.verdict is not Verdict.PASSED]:
            async with room, bad_bench(limits=PATIENT) as bench:  # the machine may have stalled
                results = [await run_check(check, bench, timeout=60) for check in missed]
        return [f"{one.check.name}: {one.text}" for one in results if one.verdict is not Verdict.PASSED]

    assert [line for lines in await asyncio.gather(*map(passed, NOUNS)) for line in lines] == []


async def test_a_driver_may_share_all_its_devices(bad_bench: OpenBench) -> None:
    async with bad_bench("it shares all devices") as bench:
        results = [one async for one in run(chosen(all_checks(), ["prepare.*", "claims.*", "unprepare.*"]), bench)]
    assert [one.check.name for one in results if one.verdict is not Verdict.PASSED] == [
        "claims.do-not-take-a-device-in-use"
    ]


@LONG
async def test_no_check_accuses_a_driver_that_differs_rightly(bad_bench: OpenBench) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def accused(variant: str, but: tuple[str, ...]) -> list[str]:
        """What the checks say against a driver, other than that."""
        checks = chosen(all_checks(), [*ABOUT_CONTENT, *but])
        async with room, bad_bench(variant) as bench:
            results = [one async for one in run(checks, bench, timeout=60)]
        bad = [one for one in results if one.verdict in (Verdict.FAILED, Verdict.WARNED)]
        unexpected = [f"{variant}: {one.check.name}: {one.text}" for one in bad if one.check.name not in but]
        missing = set(but) - {one.check.name for one in bad}
        return [*unexpected, *(f"{variant}: {name} found nothing" for name in missing)]

    said = await asyncio.gather(*(accused(variant, but) for variant, but in VARIANTS.items()))
    assert [line for lines in said for line in lines] == []


def test_every_check_has_a_fault() -> None:
    assert CHECKS.keys() - {planted.check for planted in FAULTS} == set()


def test_the_page_counts_checks_and_faults() -> None:
    page = PAGE.read_text()
    assert f"has {len(CHECKS)} checks" in page
    assert f"for each of {len({planted.fault for planted in FAULTS})} faults" in page


def test_the_page_says_what_finds_each_fault() -> None:
    assert table() in PAGE.read_text(), "python tests/support/planted_faults.py prints the table"
