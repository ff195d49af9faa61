"""Notes which lines of the packages each test runs, in its own process and in those that it starts.

Python imports this module at each start if its folder is in ``PYTHONPATH``. ``REACH`` names the folder for the notes,
``REACH_ROOTS`` those of the sources. It takes Python 3.12: there an event is asked for once for each line and test.
"""

from __future__ import annotations

import os
import sys
from types import CodeType
from typing import Any, Final

FOLDER: Final = os.environ.get("REACH")
ROOTS: Final = tuple(filter(None, os.environ.get("REACH_ROOTS", "").split(os.pathsep)))
OPTIMIZED: Final = 1
"""Flag of the code of functions. That of modules and classes runs when they are imported, whatever test does it."""
MONITORING: Final[Any] = getattr(sys, "monitoring", None)


class Notes:
    """Of one process: a line ``= TEST`` begins the lines of sources that this test ran, ``! SECONDS`` ends them."""

    def __init__(self, folder: str) -> None:
        self._file = os.open(f"{folder}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.begin(os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0])

    def begin(self, test: str) -> None:
        """Ask for all lines anew, since another test begins."""
        self._write(f"= {test}")
        MONITORING.restart_events()

    def end(self, seconds: float) -> None:
        """The test took so long."""
        self._write(f"! {seconds:.3f}")

    def ran(self, code: CodeType, line: int) -> object:
        """Note the line, and do not ask for it again. It may be the last one before the process is killed."""
        if code.co_filename.startswith(ROOTS) and code.co_flags & OPTIMIZED:
            self._write(f"{code.co_filename}:{line}")
        return MONITORING.DISABLE

    def _write(self, note: str) -> None:
        os.write(self._file, f"{note}\n".encode())


if FOLDER:
    notes = Notes(FOLDER)
    MONITORING.use_tool_id(MONITORING.COVERAGE_ID, "reach")
    MONITORING.register_callback(MONITORING.COVERAGE_ID, MONITORING.events.LINE, notes.ran)
    MONITORING.set_events(MONITORING.COVERAGE_ID, MONITORING.events.LINE)
