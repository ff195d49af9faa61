"""Log lines on stderr, for people or as JSON objects, one each; how much is logged depends on the verbosity.

``controllers.logbook`` has the lines about pods and claims, ``requests`` those about requests to the API server.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

from dra_api.console import printable
from msgspec import json

from dra_operator.controllers import LogLine

from .request_metrics import logger as requests

RESERVED = frozenset({"time", "level", "logger", "message", "exception"})
"""Keys of every JSON object; a field of such a name gets an underscore behind it."""


class _Seconds:
    """The time of a record to the second, in words that are made once per second."""

    def __init__(self, form: str, parts: Callable[[float], time.struct_time]) -> None:
        self._form, self._parts = form, parts
        self._known, self._text = -1, ""

    def of(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._known:
            self._known, self._text = second, time.strftime(self._form, self._parts(second))
        return self._text


class TextLines(logging.Formatter):
    """A record as people read it: time, level, where, what."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = _Seconds("%Y-%m-%d %H:%M:%S", time.localtime)

    def format(self, record: logging.LogRecord) -> str:
        """More than one line only where there is a traceback."""
        time_ = f"{self._seconds.of(record)},{int(record.msecs):03d}"
        text = f"{time_} {record.levelname:<7} {record.name}: {printable(record.getMessage())}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonLines(logging.Formatter):
    """A record as a JSON object; the fields of a line are keys of it."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = _Seconds("%Y-%m-%dT%H:%M:%S", time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """Never more than one line."""
        line = record.msg if isinstance(record.msg, LogLine) else None
        content: dict[str, object] = {
            "time": f"{self._seconds.of(record)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage() if line is None else line.what,
        }
        for name, value in (line.fields() if line is not None else {}).items():
            content[name if name not in RESERVED else f"{name}_"] = value
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        try:
            return json.encode(content, enc_hook=str).decode()
        except UnicodeEncodeError:  # half of a surrogate pair
            texts = {key: str(value).encode(errors="backslashreplace").decode() for key, value in content.items()}
            return json.encode(texts).decode()


def configure_logs(verbosity: int, log_format: str) -> None:
    """Log 0: what happens to pods and claims, and all warnings; 1: also the reasons; 2: also requests."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # asked for per record, never shown
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, force=True)
    logging.getLogger().handlers[0].setFormatter(JsonLines() if log_format == "json" else TextLines())
    logging.getLogger("dra_operator").setLevel(logging.DEBUG if verbosity > 0 else logging.INFO)
    requests.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
