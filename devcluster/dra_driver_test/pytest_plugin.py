"""The checks as tests of a driver's own test-suite.

In ``conftest.py``::

    pytest_plugins = ["dra_driver_test.pytest_plugin"]

    @pytest.fixture(scope="session")
    def dra_target():
        return Target(command=("my-driver", "--kubelet", "{kubelet}", "--cdi", "{cdi}"))

and in a test file, which becomes one test per check::

    def test_driver(dra_check):
        dra_check()

``pytest --dra-check 'cdi.*'`` runs a part of them. A check that does not apply is a skipped test, a recommendation that
is not followed is a warning. A check that the driver has too few devices for is both: a skipped test and a warning of
the class ``Unjudged``, which ``-W error::dra_driver_test.pytest_plugin.Unjudged`` makes a failure.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dra_driver_test.check import Verdict, run_check

from .check import Check, chosen
from .checks import all_checks
from .errors import BenchError
from .harness.bench import Bench
from .target import Target, bench_for


class Recommended(UserWarning):
    """What a good driver does, and this one does not."""


class Unjudged(UserWarning):
    """Whether the driver is at fault cannot be told: it lacks devices that the check needs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option."""
    group = parser.getgroup("dra-driver-test")
    group.addoption("--dra-check", action="append", default=[], metavar="PATTERN", help="checks to run (all)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the fixture ``dra_check`` is one test per check."""
    if "dra_check" in metafunc.fixturenames:
        try:
            checks = chosen(all_checks(), metafunc.config.getoption("--dra-check"))
        except BenchError as error:
            raise pytest.UsageError(str(error)) from error
        metafunc.parametrize("dra_check", checks, ids=[check.name for check in checks], indirect=True)


@pytest.fixture(scope="session")
def dra_bench(dra_target: Target) -> Iterator[Callable[[Check], Any]]:
    """One bench for all checks, in a loop of its own, so that it does not matter how else the tests run."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="dra-driver-test", daemon=True)
    thread.start()

    def wait(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    opened = bench_for(dra_target)
    bench: Bench = wait(opened.__aenter__())
    try:
        yield lambda check: wait(run_check(check, bench))
    finally:
        wait(opened.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def dra_check(request: pytest.FixtureRequest, dra_bench: Callable[[Check], Any]) -> Callable[[], None]:
    """Runs one check: fails, skips or warns as it says."""
    check: Check = request.param

    def call() -> None:
        result = dra_bench(check)
        if result.verdict is Verdict.NOT_JUDGED:
            warnings.warn(f"{check.name}: {result.text}", Unjudged, stacklevel=2)
            pytest.skip(f"not judged: {result.text}")
        if result.verdict is Verdict.SKIPPED:
            pytest.skip(result.text)
        if result.verdict is Verdict.WARNED:
            warnings.warn(f"{check.name}: {result.text}", Recommended, stacklevel=2)
        if result.verdict is Verdict.FAILED:
            pytest.fail(f"{result.text}\nrule: {check.explanation}\n({', '.join(check.references)})", pytrace=False)

    return call
