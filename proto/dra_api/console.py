"""Common to all commands that print: the end of their reader and Ctrl-C are no errors, and a full disk is one line.

What others wrote is printed in one line, and without what a terminal obeys (``printable``).
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Final

CLOSED_EXIT_CODE: Final = 141
"""Exit code of a process that SIGPIPE ended, because its reader has ended."""
UNWRITTEN_EXIT_CODE: Final = 74
"""Exit code when the answer could not be written, as on a full disk: EX_IOERR of sysexits.h."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
INTERRUPTED_EXIT_CODE: Final = 130
"""Exit code of a process that SIGINT ended."""
INSTALLING: Final = "https://github.com/kopf-dra/kopf-dra#as-a-package"
"""Address of the page about the installation of the distribution and its extras."""
MISSING_EXIT_CODE: Final = 2
"""Exit code when a package is not installed that an extra would bring."""


def finish(command: Callable[[], int]) -> int:
    """Run a command; returns its exit code, or one of those above.

    Text that the output cannot show, such as half of a surrogate pair in a name, is printed escaped.
    """
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_unwritten()
        return CLOSED_EXIT_CODE
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        _leave_unwritten()
        print(f"cannot write the answer: {os.strerror(error.errno)}; it is incomplete", file=sys.stderr)
        return UNWRITTEN_EXIT_CODE
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    return code


def needing(extra: str, program: str, command: Callable[[], int]) -> int:
    """Run a command of a program that needs an extra of this distribution; returns its exit code.

    A package that is not installed is named with the extra that brings it, and the exit code is 2.
    """
    try:
        return command()
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if not name or name.startswith("dra_"):
            raise
        print(f"{program}: {not_installed(name, extra)}", file=sys.stderr)
        return MISSING_EXIT_CODE


def not_installed(package: str, extra: str) -> str:
    """Return a text that a package is missing, with the extra that brings it and the page about installation."""
    return f"{package} is not installed: the extra kopf-dra[{extra}] brings it, see {INSTALLING}"


def sentence(text: str) -> str:
    """Return the short help of a command as the description that its own help begins with."""
    return f"{text[0].upper()}{text[1:]}."


def printable(text: str) -> str:
    """Return the text with control characters escaped: users and drivers write texts that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _open_closed_streams() -> None:
    """Read from and write to nowhere where the caller has closed a stream, as in ``command >&-``.

    Otherwise Python has None in its place, and the next file that is opened gets its number, and the answer.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _leave_unwritten() -> None:
    """The interpreter flushes again at its end: what is left goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
