"""Logs what happens to pods and claims: a line for each step, with its fields and the id of its attempt.

An attempt is one piece of work on a key, from the first look at a pod or claim to the last write that follows. All its
lines have the same id, including those of its requests, so that one ``grep`` shows its story::

    claim allocated claim=default/gpu pod=default/train node=n1 devices=gpu.example.com/n1/dev-0 attempt=5e1c-2f
    pod bound pod=default/train node=n1 attempt=5e1c-2f

A line that is switched off costs one look at the logger's level. A field that costs something to make is given as a
function, which is called when the line is written.
"""

from __future__ import annotations

import itertools
import logging
import re
import secrets
from collections.abc import Mapping
from contextvars import ContextVar

from dra_api.resource import AllocationResult
from msgspec import json

from dra_operator.allocator import DeviceId

_PROCESS = secrets.token_hex(2)  # distinguishes the attempts of one process from those of the next
_PLAIN = re.compile(r"[!#-<>-~]+").fullmatch  # printable ASCII without blanks, quotes and equal signs
_numbers = itertools.count(1)
_attempt: ContextVar[str] = ContextVar("attempt", default="")


def new_attempt() -> str:
    """Return the id of a new attempt."""
    return f"{_PROCESS}-{next(_numbers):x}"


def enter_attempt(attempt: str) -> None:
    """From here on, log lines of this task and of tasks that it starts belong to the attempt."""
    _attempt.set(attempt)


class LogLine:
    """The message of a log record: what happened, in words that never change, and to what, in fields."""

    __slots__ = ("_fields", "what")

    def __init__(self, what: str, fields: Mapping[str, object]) -> None:
        self.what, self._fields = what, fields

    def fields(self) -> dict[str, object]:
        """Return the fields, each made if it is given as a function."""
        return {name: value() if callable(value) else value for name, value in self._fields.items()}

    def __str__(self) -> str:
        text = self.what
        for name, value in self._fields.items():
            text += f" {name}={_text(value() if callable(value) else value)}"
        return text


def tell(logger: logging.Logger, level: int, what: str, **fields: object) -> None:
    """Log one line of the current attempt. With level ERROR the traceback of a field ``error`` follows."""
    if not logger.isEnabledFor(level):
        return
    if attempt := _attempt.get():
        fields["attempt"] = attempt
    error = fields.get("error")
    trace = None
    if level >= logging.ERROR and isinstance(error, BaseException):
        trace = type(error), error, error.__traceback__
    # Not by ``logger.log``: it searches the stack for the caller, which costs as much as all the rest.
    logger.handle(logging.LogRecord(logger.name, level, __file__, 0, LogLine(what, fields), (), trace))


def devices_in(allocation: AllocationResult | None) -> list[str]:
    """Return the devices of an allocation, as driver/pool/device."""
    return [str(DeviceId.of(result)) for result in allocation.results] if allocation is not None else []


def _text(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if _PLAIN(text) else json.encode(text).decode()
