"""The bench around a driver: what happens when the driver, or what is known of it, is not as a check needs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_benches import PATIENT, OpenBench
from bad_driver import BadLauncher
from dra_driver_test.kit import Place, Verdict, all_checks, chosen, open_bench, run, run_check

CHECKS = {check.name: check for check in all_checks()}


async def test_a_check_that_restarts_is_skipped_for_a_driver_that_only_has_sockets(
    kubeconfig: Path, short_path: Path
) -> None:
    place = Place.below(short_path, "node-sockets", kubeconfig)
    async with open_bench(place, None, PATIENT) as bench:
        running = await BadLauncher("sockets.example.com").start(place, "")
        results = [one async for one in run(chosen(all_checks(), ["r*.*", "prepare.answers-a-claim"]), bench)]
        await running.stop()
    verdicts = {one.check.name: (one.verdict, one.text) for one in results}
    assert verdicts["prepare.answers-a-claim"][0] is Verdict.PASSED
    for name, (verdict, text) in verdicts.items():
        if CHECKS[name].restarts:
            assert verdict is Verdict.SKIPPED
            assert "only sockets are given" in text


async def test_a_check_has_a_time_out(bad_bench: OpenBench) -> None:
    async with bad_bench("it publishes nothing") as bench:
        result = await run_check(CHECKS["slices.are-published"], bench, timeout=0.5)
    assert (result.verdict, result.text) == (Verdict.FAILED, "not done after 0.5 s")


async def test_after_a_failed_check_the_next_one_finds_a_fresh_node(bad_bench: OpenBench) -> None:
    async with bad_bench("it never gives a device back") as bench:
        first = await run_check(CHECKS["claims.get-a-device-after-it-is-given-back"], bench)
        second = await run_check(CHECKS["prepare.answers-a-claim"], bench)
    assert (first.verdict, second.verdict) == (Verdict.FAILED, Verdict.PASSED)


async def test_a_driver_that_gives_up_during_a_check_fails_it(bad_bench: OpenBench) -> None:
    async with bad_bench("it gives up after a refusal") as bench:
        result = await run_check(CHECKS["registration.survives-a-refusal"], bench)
    assert "the driver ended: not registered" in result.text


async def test_a_recommendation_that_is_not_followed_is_a_warning(bad_bench: OpenBench) -> None:
    async with bad_bench("it writes files in place") as bench:
        result = await run_check(CHECKS["cdi.files-appear-whole"], bench)
    assert result.verdict is Verdict.WARNED


@pytest.mark.parametrize("name", ["prepare.answers-a-big-batch", "claims.follow-a-new-allocation"])
async def test_a_driver_with_too_few_devices_is_not_blamed(name: str, bad_bench: OpenBench) -> None:
    async with bad_bench("it has one device") as bench:
        result = await run_check(CHECKS[name], bench)
    assert result.verdict is Verdict.SKIPPED
    assert "the driver published 1" in result.text
