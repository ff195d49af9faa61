"""The work of ``dra-driver-test``: list the checks, or run them and write the results.

Results are for people and machines: lines and a summary, JSON, and JUnit XML.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import textwrap
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from dra_api.releases import BUILT

from dra_driver_test.check import Check, Result, Verdict, chosen, run_beside
from dra_driver_test.checks import all_checks
from dra_driver_test.errors import BenchError, Finding, NotJudged
from dra_driver_test.harness.bench import Bench, Parameters
from dra_driver_test.harness.waiting import QUICK, Limits
from dra_driver_test.target import Target, bench_for

_NAME_WIDTH = 58  # columns of the table
_MARGIN = " " * 11
_UNPRINTABLE = {code: None for code in range(32) if code not in (9, 10, 13)}  # that XML cannot hold


def line(result: Result) -> str:
    """One line of the table, with what the check says below it."""
    head = f"{result.verdict:10} {result.check.name:{_NAME_WIDTH}} {result.seconds:6.2f} s"
    if result.verdict is Verdict.PASSED:
        return head
    text = f"{head}\n{textwrap.indent(result.text, _MARGIN)}"
    if result.verdict in (Verdict.SKIPPED, Verdict.NOT_JUDGED):
        return text
    return f"{text}\n{_MARGIN}rule: {result.check.summary} ({', '.join(result.check.references)})"


def summary(results: Sequence[Result], seconds: float) -> str:
    """The last line: how many checks ended how, and how long all took; several may have run at the same time."""
    counts = Counter(result.verdict for result in results)
    return f"{', '.join(f'{counts[verdict]} {verdict}' for verdict in Verdict)} in {seconds:.1f} s"


def listing(checks: Sequence[Check]) -> str:
    return "\n\n".join(
        f"{one.name} ({one.level}; {', '.join(one.references)})\n    " + one.explanation.replace("\n", "\n    ")
        for one in checks
    )


def as_json(driver: str, results: Sequence[Result]) -> str:
    checks = [
        {
            "name": one.check.name,
            "verdict": one.verdict,
            "level": one.check.level,
            "text": one.text,
            "seconds": round(one.seconds, 3),
            "explanation": one.check.explanation,
            "references": one.check.references,
        }
        for one in results
    ]
    counts = Counter(one.verdict for one in results)
    return json.dumps(
        {
            "driver": driver,
            "version": metadata.version("kopf-dra"),
            "counts": {verdict: counts[verdict] for verdict in Verdict},
            "checks": checks,
        },
        indent=2,
    )


def as_junit(driver: str, results: Sequence[Result]) -> str:
    """As CI systems read it: a warning is a passed test with its text as output, and what is not judged an error."""
    counts = Counter(one.verdict for one in results)
    suite = ElementTree.Element(
        "testsuite",
        name=f"dra-driver-test {driver}",
        tests=str(len(results)),
        failures=str(counts[Verdict.FAILED]),
        skipped=str(counts[Verdict.SKIPPED]),
        errors=str(counts[Verdict.NOT_JUDGED]),
        time=f"{sum(one.seconds for one in results):.3f}",
    )
    for one in results:
        noun, _, name = one.check.name.partition(".")
        case = ElementTree.SubElement(suite, "testcase", classname=noun, name=name, time=f"{one.seconds:.3f}")
        text = one.text.translate(_UNPRINTABLE)
        if one.verdict is Verdict.FAILED:
            ElementTree.SubElement(case, "failure", message=text.partition("\n")[0]).text = text
        elif one.verdict is Verdict.NOT_JUDGED:
            ElementTree.SubElement(case, "error", type=one.verdict, message=text)
        elif one.verdict is Verdict.SKIPPED:
            ElementTree.SubElement(case, "skipped", message=text)
        elif one.verdict is Verdict.WARNED:
            ElementTree.SubElement(case, "system-out").text = f"warning: {text}"
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


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
        driver, results = asyncio.run(_run_until_told(target, checks, options))
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


async def _run_until_told(target: Target, checks: list[Check], options: argparse.Namespace) -> tuple[str, list[Result]]:
    """As ``_run``. Raises SystemExit when a signal has ended it, as Ctrl-C does: with the driver, and without a trace.

    Those who send SIGTERM are CI systems at the end of a time-out, and SIGHUP comes from a terminal that is closed.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    told: list[int] = []

    def end(number: int) -> None:
        told.append(number)
        task.cancel()

    is_main = threading.current_thread() is threading.main_thread()  # others hear no signals
    for number in (signal.SIGTERM, signal.SIGHUP) if is_main else ():
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            loop.add_signal_handler(number, end, number)
    try:
        return await _run(target, checks, options)
    except asyncio.CancelledError:
        if told:
            raise SystemExit(128 + told[0]) from None
        raise


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
