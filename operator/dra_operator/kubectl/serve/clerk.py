"""Takes questions to the desk, whatever their protocol, and to no view that is too old."""

from __future__ import annotations

import asyncio
from typing import Final

from dra_operator.kubectl.reading.newest import NewestView

from .desk import Desk
from .question import Question, Reply

MOST_QUESTION_BYTES: Final = 1 << 20
MOST_WAITING_QUESTIONS: Final = 64
IDLE_SECONDS: Final = 30.0
"""For which a connection may be silent between two questions."""
OLDEST_SECONDS: Final = 10.0
"""Age of the view from which on a question waits for the next read."""


class Busy(Exception):
    """The question may be asked again."""


class Clerk:
    """One for all protocols of a service."""

    def __init__(self, newest: NewestView[Desk]) -> None:
        self._newest = newest

    async def answer(self, question: Question, client: str) -> Reply:
        """Return the answer to a question of the client at this address.

        Raises Problem, TookTooLong, Crowded, and Busy if the cluster could not be read.
        """
        reading = self._newest.renew()
        if self._newest.age_seconds > OLDEST_SECONDS:
            if reading is not None:
                await asyncio.shield(reading)
            if (problem := self._newest.problem) is not None:
                raise Busy(f"the cluster could not be read: {problem}")
        return await self._newest.ask(
            lambda desk, is_gone: desk.asked_by(is_gone).answer(question), client, question.size, MOST_WAITING_QUESTIONS
        )
