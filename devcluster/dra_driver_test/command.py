"""What ``dra-driver-test`` does with its options: list the checks, or run them and write the results."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from dra_api.releases.release import BUILT

from .check import Check, chosen
from .checks import all_checks
from .errors import BenchError, Finding
from .harness.bench import Bench, Parameters
from .report import as_json, as_junit, line, listing, summary
from .runner import Result, Verdict, run
from .target import Target, bench_for

FAILED_CODE, USAGE_CODE, NO_BENCH_CODE, NOT_JUDGED_CODE = 1, 2, 3, 4


def execute(options: argparse.Namespace) -> int:
    """Do it; returns the exit code."""
    logging.getLogger("dra_devcluster").addHandler(logging.NullHandler())  # it logs each failed registration
    try:
        checks = chosen(all_checks(), options.checks)
        if options.list:
            print(listing(checks))
            return 0
        target = _target(options)
        target.check()
        _check_files(options)
    except BenchError as error:
        print(f"dra-driver-test: {error}", file=sys.stderr)
        return USAGE_CODE
    try:
        driver, results = asyncio.run(_run(target, checks, options.timeout))
        _write(options, driver, results)
    except BrokenPipeError:
        raise  # the reader has ended
    except (BenchError, OSError) as error:
        print(f"dra-driver-test: {error}", file=sys.stderr)
        return NO_BENCH_CODE
    print(summary(results))
    verdicts = {one.verdict for one in results}
    if Verdict.FAILED in verdicts:
        return FAILED_CODE
    return NOT_JUDGED_CODE if Verdict.NOT_JUDGED in verdicts else 0


async def _run(target: Target, checks: list[Check], timeout: float) -> tuple[str, list[Result]]:
    results = []
    async with bench_for(target) as bench:
        driver = await _arrived(bench, target)
        print(f"Driver {driver}, {len(checks)} checks.", flush=True)
        async for result in run(checks, bench, timeout):
            print(line(result), flush=True)
            results.append(result)
    return driver, results


async def _arrived(bench: Bench, target: Target) -> str:
    """The name that the driver registers with, or that its socket has. Raises BenchError when no driver comes."""
    try:
        await bench.ready()
        if target.kubeconfig:
            await bench.check_unused(bench.name)
        return bench.name
    except Finding as finding:
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
        parameters=Parameters(options.parameters, options.bad_parameters),
        log=Path(options.log) if options.log else None,
        release=BUILT[options.kubernetes_version],
        driver=options.driver,
    )
