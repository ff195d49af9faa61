"""The kit for programs::

    async with open_bench(Place.below(folder, "node-1", kubeconfig), launcher) as bench:
        async for result in run(all_checks(), bench):
            print(result.check.name, result.verdict, result.text)

``bench_for`` opens a bench for a target, as the command does.
"""

from dra_driver_test.check import Result, Verdict, run, run_beside, run_check
from dra_driver_test.harness.driver import Place
from dra_driver_test.harness.waiting import Limits
from dra_driver_test.target import open_bench

from .check import Check, Level, chosen
from .checks import all_checks
from .errors import BenchError, Finding, NotJudged, Skipped
from .harness.bench import Bench, Parameters, Watches
from .harness.driver import CommandLauncher, Launcher, Running
from .target import Target, bench_for

__all__ = [
    "Bench",
    "BenchError",
    "Check",
    "CommandLauncher",
    "Finding",
    "Launcher",
    "Level",
    "Limits",
    "NotJudged",
    "Parameters",
    "Place",
    "Result",
    "Running",
    "Skipped",
    "Target",
    "Verdict",
    "Watches",
    "all_checks",
    "bench_for",
    "chosen",
    "open_bench",
    "run",
    "run_beside",
    "run_check",
]
