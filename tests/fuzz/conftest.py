"""Log lines about odd input are made as ever, and escaped where pytest's reports could not hold them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


class _Escaped(logging.LogRecord):
    def getMessage(self) -> str:  # noqa: N802  # logging's name
        return super().getMessage().encode(errors="backslashreplace").decode()


@pytest.fixture(autouse=True)
def escaped_lines() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(_Escaped)
    yield
    logging.setLogRecordFactory(before)
