"""A plugin of pytest: the notes of ``sitecustomize`` say which test runs, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Generator

import pytest
from sitecustomize import notes


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test with what it needs. Rows of a table are one test."""
    began = time.monotonic()
    notes.begin(item.nodeid)
    try:
        return (yield)
    finally:
        notes.end(time.monotonic() - began)
