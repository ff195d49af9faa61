"""A plugin of pytest: writes the id of each test that fails, as it is, to a file that the environment names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PLACE = "MUTATION_FAILED"
"""The environment variable with the path of the file."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test, or what it needs, was run."""
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file was read."""
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed:
        with Path(os.environ[PLACE]).open("a") as file:
            file.write(f"{report.nodeid}\n")
