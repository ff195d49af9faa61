"""Common to all commands that print: the end of their reader and Ctrl-C are no errors."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Final

CLOSED: Final = 141
"""Exit code of a process that SIGPIPE ended, because its reader has ended."""
INTERRUPTED: Final = 130
"""Exit code of a process that SIGINT ended."""


def finish(command: Callable[[], int]) -> int:
    """Run a command; returns its exit code, or silently one of those above.

    Text that the output cannot show, such as half of a surrogate pair in a name, is printed escaped.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes again at its end
        return CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    return code
