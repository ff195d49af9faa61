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
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from dra_devcluster.background import in_thread

from .check import Check, Result, Verdict, chosen, run_check
from .checks import all_checks
from .errors import BenchError
from .target import Target, bench_for

Judge = Callable[[Check], Result]


class Recommended(UserWarning):
    """What a good driver does, and this one does not."""


class Unjudged(UserWarning):
    """Whether the driver is at fault cannot be told: it lacks devices that the check needs."""


def pytest_addoption(parser: pytest.Parser) -> None:
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


@asynccontextmanager
async def _judge(target: Target) -> AsyncIterator[Judge]:
    loop = asyncio.get_running_loop()
    async with bench_for(target) as bench:
        yield lambda check: asyncio.run_coroutine_threadsafe(run_check(check, bench), loop).result()


@pytest.fixture(scope="session")
def dra_bench(dra_target: Target) -> Iterator[Judge]:
    """One bench for all checks, in a loop of its own, so that it does not matter how else the tests run."""
    with in_thread(lambda: _judge(dra_target), "dra-driver-test") as judge:
        yield judge


@pytest.fixture
def dra_check(request: pytest.FixtureRequest, dra_bench: Judge) -> Callable[[], None]:
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
