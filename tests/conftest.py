"""Fixtures that every test folder uses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def conformance_dir() -> Path | None:
    """Where the reference cases lie: ``KOPF_DRA_CONFORMANCE``, or ``../shared/conformance`` beside the checkout."""
    folder = Path(os.environ.get("KOPF_DRA_CONFORMANCE", ROOT.parent / "shared" / "conformance"))
    return folder if folder.is_dir() else None


def conformance_cases(file: str) -> list[dict[str, Any]]:
    """The cases of one corpus file (``cel/cases.json``); empty when the corpus is not on this machine."""
    folder = conformance_dir()
    return json.loads((folder / file).read_text())["cases"] if folder else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if conformance_dir() is None:
        terminalreporter.section("SKIPPED: reference corpora")
        terminalreporter.line("No conformance data found; set KOPF_DRA_CONFORMANCE to the folder that holds it.")
