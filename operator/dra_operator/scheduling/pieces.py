"""Decisions in pieces: generators that pause every few milliseconds, and what drives them.

One process serves all tenants, so a search over thousands of nodes must let other work run. It yields at each pause,
describes its work by the value, and returns its answer at the end. A caller with a clock tells it the seconds of
search so far: a search with a time limit needs them.

``yield from`` passes all of that on. A caller that has to do something at the pauses, such as counting them or awaiting
others, iterates over ``InPieces``; a caller that has no other work takes the answer by ``decided``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from enum import Enum
from typing import Any, Final, Generic, TypeVar, cast

Elapsed = float | None
"""The seconds of search so far, as a caller with a clock sends them at a pause."""

PAUSE_STEPS: Final = 500
"""Steps of the allocator between two pauses: a few milliseconds."""

Y = TypeVar("Y")
T = TypeVar("T")


class Pause(Enum):
    """What a decision is doing when it pauses."""

    INDEXING = "bringing the index up to date, which other decisions gain from"
    SEARCHING = "looking for devices on nodes, for this pod alone"


class InPieces(Generic[Y, T]):
    """Work as an iterator over its pauses, with its answer afterwards.

    Each step does one piece. An error of the work is raised by the step, and ends the work::

        work = InPieces(search())
        for pause in work:
            work.elapsed = yield pause
        return work.answer
    """

    __slots__ = ("_answer", "_work", "elapsed", "is_over")

    def __init__(self, work: Generator[Y, Any, T]) -> None:
        self._work = work
        self._answer: T | None = None
        self.elapsed: Elapsed = None
        """Told to the work at its next piece. None before the first one, as generators require."""
        self.is_over = False
        """Whether the work has returned its answer."""

    def __iter__(self) -> Iterator[Y]:
        return self

    def __next__(self) -> Y:
        try:
            return self._work.send(self.elapsed)
        # The answer of a generator is in the exception that ends it. Raised on, so that a ``for`` over the pieces ends
        # as well.
        except StopIteration as end:
            self._answer, self.is_over = end.value, True
            raise

    @property
    def answer(self) -> T:
        """Return the result of the work. Raises RuntimeError before the end."""
        # The answer may be None, so None cannot stand for "not yet".
        if not self.is_over:
            raise RuntimeError("the work goes on: iterate to its end first")
        return cast("T", self._answer)


def decided(work: Generator[Any, Any, T], pause: Callable[[], None] | None = None) -> T:
    """Return the answer of the work, done in one go; ``pause`` is called at each pause, and may raise."""
    pieces = InPieces(work)
    for _ in pieces:
        # Such as a deadline of a caller without an event loop.
        if pause is not None:
            pause()
    return pieces.answer
