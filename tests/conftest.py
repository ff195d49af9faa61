"""What holds for every test: how Hypothesis looks for examples, that no log shows a secret, what the summary says."""

from __future__ import annotations

import gc
import logging
import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from browser import BROWSER
from command import Watch, note_tokens
from corpus import CONFORMANCE
from envtest import missing
from hypothesis import HealthCheck, settings
from rounds import FIRST_FRESH_SEED, WHOLE, fewer
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# A busy machine is no fault of an example: properties are about values, not about time. In CI a run says the same
# as the one before, but for campaigns; elsewhere each looks at new examples, fewer of them, and a failure prints what
# repeats it.
settings.register_profile(
    "project",
    deadline=None,
    derandomize="CI" in os.environ,
    max_examples=fewer(100),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("project")

_freeze = gc.freeze
SLOW = (
    "tests/reliability/test_rude_clients.py",
    "tests/reliability/test_zoo.py",
    "tests/drivertest/test_planted_faults.py",
    "tests/docs/test_console.py",
    "tests/reliability/",
    "tests/manifests/test_least_privilege.py",
    "tests/manifests/test_deployment.py",
    "tests/operator/test_leader.py",
    "tests/operator/test_run.py",
    "tests/operator/test_watches.py",
    "tests/devcluster/test_up.py",
)
APART = (
    "tests/drivertest/test_planted_faults.py",
    "tests/docs/test_console.py",
    "tests/reliability/test_fresh_seeds.py",
    "tests/reliability/test_histories.py",
)
"""Modules of minutes whose tests share nothing that takes long to make."""


note_tokens()

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2 * 2**30
"""Least room: no folder of tests left more than 61 MB when nothing was removed."""


def _has_room(folder: Path) -> bool:
    """Return whether files may be written to the folder, and programs in it may be run. In containers it is small."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize > MEMORY_BYTES and not found.f_flag & os.ST_NOEXEC


# On a disk each rename over a file starts a write, and the tests of the plugin take twice the processor time.
if "TMPDIR" not in os.environ and _has_room(MEMORY):
    os.environ["TMPDIR"], tempfile.tempdir = str(MEMORY), None

# No text is translated: argparse would look for a file of translations for each word of each parser.
os.environ["LANGUAGE"] = "C"


@pytest.fixture(autouse=True)
def secrecy() -> Iterator[None]:
    """No log line of the test shows a secret."""
    watch = Watch()
    logging.getLogger().addHandler(watch)
    yield
    logging.getLogger().removeHandler(watch)
    assert not watch.found, watch.found[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that no worker is left with it at the end, when the others have no work.

    The tests of a module run on one worker, one after the other: those of the first two take minutes.
    """
    places = {start: place for place, start in enumerate(SLOW)}
    items.sort(key=lambda item: next((places[it] for it in SLOW if item.nodeid.startswith(it)), len(SLOW)))


class Apart(LoadScopeScheduling):
    """Give the tests of a module to one worker, and those of the modules ``APART`` to whichever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(APART) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Apart | None:
    return Apart(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nearly all that a collection of tests makes is kept: looking for garbage meanwhile takes a fifth of its time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """All tests live as long as the run: a collection need not look at them, and takes milliseconds instead of 0.4 s.

    Nor does one look at them first: it takes each worker 0.6 s.
    What an operator does to its process when it starts, it does not do to that of the tests: it would hide what the
    tests before it left open.
    """
    _freeze()
    for name in ("freeze", "unfreeze"):
        pytest.MonkeyPatch().setattr(gc, name, lambda: None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """After a module, what was left open is found. What remains is memory of modules: answers of the kit, schemas.

    Operators that start and Kopf's that end ask for a collection. It took 0.5 s and more once the kit had been read.
    """
    result = yield
    if nextitem is not None and nextitem.path != item.path:
        _keep_what_there_is()
    return result


def _keep_what_there_is() -> None:
    gc.collect()
    _freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if WHOLE:
        terminalreporter.section("campaigns")
        terminalreporter.line(f"Their fresh seeds began with {FIRST_FRESH_SEED}: KOPF_DRA_SEED repeats them.")
    if not CONFORMANCE.is_dir():
        terminalreporter.section("SKIPPED: cases from tests of other projects")
        terminalreporter.line("None found; set KOPF_DRA_CONFORMANCE to the folder that holds them.")
    if not os.environ.get(BROWSER):
        terminalreporter.section("SKIPPED: the page of kubectl dra ui in a browser")
        terminalreporter.line(f"Nothing was tried in a browser; set {BROWSER} to the binary of Chromium.")
    if missing():
        terminalreporter.section("SKIPPED: everything that needs a stock control plane")
        terminalreporter.line(f"Nothing was tried on a real API server; {missing()}.")
    if not os.environ.get("KUEUE_ASSETS"):
        terminalreporter.section("SKIPPED: the admission check with the real Kueue")
        terminalreporter.line("Nothing was tried with Kueue; set KUEUE_ASSETS as CONTRIBUTING.md says.")
