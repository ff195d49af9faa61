"""What all commands that print do alike: a reader that has seen enough, and Ctrl-C, are no errors of theirs."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Final

CLOSED: Final = 141
"""Exit code, that of a process which SIGPIPE ended: nobody reads the output any more."""
INTERRUPTED: Final = 130
"""Exit code, that of a process which SIGINT ended."""


def finish(command: Callable[[], int]) -> int:
    """Run a command to its end; its exit code, or one of those above, without a word.

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
