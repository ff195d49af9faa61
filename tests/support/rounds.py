"""How many rounds a random scenario runs, how many examples a sweep looks at, and what runs in CI only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final, TypeVar

import pytest

T = TypeVar("T")

WHOLE: Final = "CI" in os.environ
_WHICH: Final = Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).randrange(12)
FIRST_FRESH_SEED: Final = int(os.environ.setdefault("KOPF_DRA_SEED", str(Random().randrange(10**6, 10**9))))
"""The workers of a run find it in their environment; the summary of a run in CI says it."""
LONG: Final = pytest.mark.skipif(not WHOLE, reason="it takes long: CI runs it, and CI=true make test")
"""For a test that needs 5 s of processor time or more, and whose parts others test as well."""


def rounds(few: int) -> range:
    """The numbers of the rounds, which are also their seeds: a few, or as many as ``KOPF_DRA_ROUNDS`` says."""
    return range(int(os.environ.get("KOPF_DRA_ROUNDS", few)))


def fewer(full: int) -> int:
    """The size of a sweep over random examples or seeds: all of them in CI (``CI=true``), elsewhere a third."""
    return full if WHOLE else -(-full // 3)


def fresh(number: int) -> range:
    """So many seeds that no run in CI had before; elsewhere none. ``KOPF_DRA_SEED`` is the first one, if it is set."""
    return range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + number) if WHOLE else range(0)


def each_of(
    cases: Iterable[T], name: Callable[[T], str] = str, lot: int = 25
) -> Callable[[Callable[[T], None]], Callable[[Sequence[T]], None]]:
    """Ask a test about each of many short cases, a lot of them at a time. All that fail are told, by name.

    A test of pytest takes 7 ms beside what it asks: each worker collects it, and three reports of it are sent.
    """
    every = list(cases)
    lots = [every[start : start + lot] for start in range(0, len(every), lot)]

    def decorate(test: Callable[[T], None]) -> Callable[[Sequence[T]], None]:
        @pytest.mark.parametrize("some", lots, ids=lambda some: f"{name(some[0])[:40]} to {name(some[-1])[:40]}")
        def asked(some: Sequence[T]) -> None:
            failures = []
            for case in some:
                try:
                    test(case)
                except Exception as error:
                    error.add_note(f"case: {name(case)}")
                    failures.append(error)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(some)} cases fail", failures)

        asked.__name__, asked.__doc__ = test.__name__, test.__doc__
        return asked

    return decorate


def a_third(full: Sequence[T]) -> Sequence[T]:
    """All rows of a table in CI, elsewhere a third of them: in each run another, in all workers of a run the same."""
    return full if WHOLE else full[_WHICH % 3 :: 3]


def a_half(full: Sequence[T]) -> Sequence[T]:
    """Return every other row of a table, in each run others; all of them with ``KOPF_DRA_WHOLE_KIT``.

    For rows at which other tests look as well.
    """
    return full if "KOPF_DRA_WHOLE_KIT" in os.environ else full[_WHICH % 2 :: 2]


def one_of(full: Sequence[T]) -> Sequence[T]:
    """Return one of up to twelve rows, in each run another; all of them with ``KOPF_DRA_WHOLE_KIT``."""
    return full if "KOPF_DRA_WHOLE_KIT" in os.environ else [full[_WHICH % len(full)]]
