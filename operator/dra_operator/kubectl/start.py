"""The console script ``kubectl-dra``, where Ctrl-C has 130 and one line at any moment, and never a traceback.

Python would print a traceback while modules are loaded and at the very end: there a handler ends the process at once.
In between a command is interrupted as usual, so that it can clean up: it may have cordoned a node, or written
credentials to a file. Its imports are not interrupted, also those in the middle: msgspec crashes if an exception comes
while it makes a class. Importing this module changes how the process takes SIGINT, so nothing else
imports it.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED_EXIT_CODE = 130
LATER_SECONDS = 0.005


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"kubectl dra: interrupted\n")
    os._exit(INTERRUPTED_EXIT_CODE)


signal.signal(signal.SIGINT, _end_at_once)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but a little later while a module is imported."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            signal.setitimer(signal.ITIMER_REAL, LATER_SECONDS)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def main() -> NoReturn:
    """Run the command, and end the process."""
    from .cli import main as run

    sys.unraisablehook = _unraisable
    try:
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        # asyncio takes SIGINT over, and cancels what runs, only where it finds Python's own handler.
        signal.default_int_handler = _interrupt  # type: ignore[assignment]
        signal.signal(signal.SIGINT, _interrupt)
        try:
            code = run()
        finally:
            signal.signal(signal.SIGINT, _end_at_once)
    except BaseException as error:
        if not _is_interrupted(error):
            raise
        code = INTERRUPTED_EXIT_CODE
    if code == INTERRUPTED_EXIT_CODE:
        print("kubectl dra: interrupted", file=sys.stderr)
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # while Python takes itself down, Ctrl-C would end it by the signal, and nothing is left to do


def _is_interrupted(error: BaseException | None) -> bool:
    """Return whether Ctrl-C is behind an error: Python wraps exceptions that come while a class is made."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Take Ctrl-C seriously that came inside of a finalizer, where Python would print it and continue."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _end_at_once(signal.SIGINT, None)
    sys.__unraisablehook__(unraisable)
