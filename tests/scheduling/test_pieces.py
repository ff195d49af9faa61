"""Work in pieces: what it is told, what it returns, and how an error ends it."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from dra_operator.scheduling import Elapsed, InPieces, Pause, decided


def adding(numbers: int) -> Generator[Pause, Elapsed, list[Elapsed]]:
    """Pauses so often, and returns what it was told."""
    told = []
    for _ in range(numbers):
        told.append((yield Pause.SEARCHING))
    return told


def failing() -> Generator[Pause, Elapsed, None]:
    yield Pause.INDEXING
    raise ValueError("no")


def test_work_is_told_the_time_at_each_pause_and_has_its_answer_at_the_end() -> None:
    work = InPieces(adding(2))
    for number, pause in enumerate(work):
        assert pause is Pause.SEARCHING
        work.elapsed = float(number)
    assert (work.is_over, work.answer) == (True, [0.0, 1.0])


def test_work_that_is_not_over_has_no_answer() -> None:
    work = InPieces(adding(2))
    next(work)
    with pytest.raises(RuntimeError, match="iterate to its end"):
        _ = work.answer
    assert not work.is_over


def test_an_answer_of_none_is_an_answer() -> None:
    def silent() -> Generator[int, None, None]:
        yield 1

    work = InPieces(silent())
    assert list(work) == [1]
    assert (work.is_over, work.answer) == (True, None)


def test_one_go_calls_the_pause_at_each_and_an_error_of_either_ends_it() -> None:
    pauses: list[None] = []
    assert decided(adding(3), lambda: pauses.append(None)) == [None, None, None]
    assert len(pauses) == 3
    with pytest.raises(ValueError, match="no"):
        decided(failing())

    def stopping() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        decided(adding(3), stopping)
