"""What ``dra-driver-test`` does with its options: list the checks, or run them and write the results."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from dra_api.releases.release import BUILT

from .check import Check, chosen
from .checks import all_checks
from .errors import BenchError, Finding, NotJudged
from .harness.bench import Bench, Parameters
from .harness.limits import QUICK, Limits
from .report import as_json, as_junit, line, listing, summary
from .runner import Result, Verdict, run_beside
from .target import Target, bench_for

FAILED_CODE, USAGE_CODE, NO_BENCH_CODE, NOT_JUDGED_CODE = 1, 2, 3, 4


def execute(options: argparse.Namespace) -> int:
    """Do it; returns the exit code."""
    logging.getLogger("dra_devcluster").addHandler(logging.NullHandler())  # it logs each failed registration
    try:
        checks = chosen(all_checks(), options.checks)
        if options.quick:
            checks = [one for one in checks if not one.waits]
        if options.list:
            print(listing(checks))
            return 0
        target = _target(options)
        target.check()
        if options.jobs > 1 and (target.registry or target.kubeconfig):
            raise BenchError("-j needs the kit's own API server, and a driver that the kit starts")
        _check_files(options)
    except BenchError as error:
        print(f"dra-driver-test: {error}", file=sys.stderr)
        return USAGE_CODE
    began = time.monotonic()
    try:
        driver, results = asyncio.run(_run(target, checks, options))
        _write(options, driver, results)
    except BrokenPipeError:
        raise  # the reader has ended
    except (BenchError, OSError) as error:
        print(f"dra-driver-test: {error}", file=sys.stderr)
        return NO_BENCH_CODE
    print(summary(results, time.monotonic() - began))
    verdicts = {one.verdict for one in results}
    if Verdict.FAILED in verdicts:
        return FAILED_CODE
    return NOT_JUDGED_CODE if Verdict.NOT_JUDGED in verdicts else 0


async def _run(target: Target, checks: list[Check], options: argparse.Namespace) -> tuple[str, list[Result]]:
    """The driver's name, and the results in the order of the checks; each is printed as soon as it is there."""
    limits = QUICK if options.quick else Limits()
    results: list[Result] = []
    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(bench_for(target, limits))
        driver = await _arrived(bench, target)
        print(f"Driver {driver}, {len(checks)} checks.", flush=True)
        others = [await stack.enter_async_context(bench_for(one, limits)) for one in _beside(target, options.jobs)]
        width = len(str(len(checks)))
        async for result in run_beside(checks, [bench, *others], options.timeout):
            results.append(result)
            print(f"{len(results):{width}}/{len(checks)} {line(result)}", flush=True)
    order = {check.name: number for number, check in enumerate(checks)}
    return driver, sorted(results, key=lambda one: order[one.check.name])


def _beside(target: Target, jobs: int) -> list[Target]:
    """The target once more for each further job: with a log of its own, as checks quote the end of it."""
    logs = [target.log and target.log.with_name(f"{target.log.name}.{number}") for number in range(2, jobs + 1)]
    return [replace(target, log=log) for log in logs]


async def _arrived(bench: Bench, target: Target) -> str:
    """The name that the driver registers with, or that its socket has. Raises BenchError when no driver comes."""
    try:
        await bench.ready()
        if target.kubeconfig:
            await bench.check_unused(bench.name)
        return bench.name
    except (Finding, NotJudged) as finding:
        ended = bench.driver.why_ended()
        if not ended and (socket := await bench.socket()):
            return socket.name
        raise BenchError(f"there is no driver to test: {finding}" + (f"; {ended}" if ended else "")) from None


def _check_files(options: argparse.Namespace) -> None:
    """Raises BenchError for a file that could not be written after minutes of checking."""
    for path in filter(None, (options.json, options.junit, options.log)):
        if not Path(path).absolute().parent.is_dir():
            raise BenchError(f"cannot write {path}: make its folder first")


def _write(options: argparse.Namespace, driver: str, results: list[Result]) -> None:
    for path, text in ((options.json, as_json), (options.junit, as_junit)):
        if path:
            Path(path).write_text(text(driver, results))


def _target(options: argparse.Namespace) -> Target:
    kubeconfig = options.kubeconfig or (os.environ.get("KUBECONFIG") if options.registry else None)
    return Target(
        command=tuple(options.command),
        registry=Path(options.registry) if options.registry else None,
        cdi=Path(options.cdi_dir) if options.cdi_dir else None,
        node=options.node_name,
        kubeconfig=Path(kubeconfig) if kubeconfig else None,
        parameters=Parameters(
            options.parameters[0] if options.parameters else None, options.bad_parameters, tuple(options.parameters[1:])
        ),
        log=Path(options.log) if options.log else None,
        release=BUILT[options.kubernetes_version],
        driver=options.driver,
    )
