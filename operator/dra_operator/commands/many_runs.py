"""Runs of a simulation: in one process or several, with a line on a terminal that says how far they are."""

from __future__ import annotations

import argparse
import math
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from .object_files import BadInput

T = TypeVar("T")
R = TypeVar("R")
MOST_JOBS: Final = 256


def jobs_of(options: argparse.Namespace) -> int:
    """How many processes play. Raises BadInput."""
    jobs = 1 if options.jobs is None else int(options.jobs)
    if not 1 <= jobs <= MOST_JOBS:
        raise BadInput(f"--jobs: expected a number from 1 to {MOST_JOBS}, got {jobs}")
    return jobs


def results(play: Callable[[T], R], wanted: Sequence[T], jobs: int, noun: str) -> Iterator[R]:
    """One for each that is wanted, as they come; ``noun``: the word for several of them."""
    is_terminal = sys.stderr.isatty()
    width = 1 + int(math.log10(len(wanted)))
    try:
        for number, it in enumerate(_played(play, wanted, jobs), start=1):
            if is_terminal:
                print(f"\r\033[K{number:{width}} of {len(wanted)} {noun}", end="", file=sys.stderr, flush=True)
            yield it
    finally:
        if is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _played(play: Callable[[T], R], wanted: Sequence[T], jobs: int) -> Iterator[R]:
    if jobs == 1 or len(wanted) == 1:
        yield from map(play, wanted)
        return
    # Ctrl-C reaches the parent alone, which ends the others on its way out.
    ignored = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(wanted)), ignored) as pool:
        yield from pool.imap_unordered(play, wanted)


def save_plot(path: str, text: str) -> None:
    """Write a picture. Raises BadInput."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--plot: {path}: {error.strerror}") from None
