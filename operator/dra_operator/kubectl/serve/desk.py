"""Answers questions over one cluster that was read once: each is tried in an overlay, and leaves it as it was.

Most questions bring pods with their templates and claims, and are asked of one overlay, so that what the allocator
knows of the cluster is worked out once. One with other nodes, classes or quotas gets an overlay of its own, and so does
each where the operator learns from the pods that it sees.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Self

from dra_api.resource import ResourceClaim, ResourceClaimTemplate
from dra_api.values.times import format_time

from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Abandoned, Settings, TookTooLong, pipeline
from dra_operator.kubectl.tables.notes import notes_on, require
from dra_operator.kubectl.whatif.fitting import fitted, overlay_of
from dra_operator.kubectl.whatif.overlay import Overlay
from dra_operator.kubectl.whatif.wanted import Wanted

from .question import Question, Reply

MOST_ANSWER_SECONDS: Final = 5.0
"""What an answer may take once it is begun."""
PLACING_SHARE: Final = 0.8
"""Of it, until pods are placed no more: taking them back again takes a seventh of the time of placing them."""


class Desk:
    """``seconds``: what an answer may take. Raises Problem if too little of the cluster could be read."""

    def __init__(
        self,
        seen: Observed,
        settings: Settings,
        seconds: float = MOST_ANSWER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require(seen, "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io", "nodes")
        self._seen, self._settings, self._seconds, self._clock = seen, settings, seconds, clock
        self._due = 0.0
        self._is_gone: Callable[[], bool] = lambda: False
        self._standing = Overlay(pipeline(seen, settings), self._pause)
        self._learns = self._standing.made.allocator.looks_at_mix
        self._taken, self._notes = format_time(seen.taken), notes_on(seen)

    def asked_by(self, is_gone: Callable[[], bool]) -> Self:
        """The next question is asked by a client that may go meanwhile."""
        self._is_gone = is_gone
        return self

    def answer(self, question: Question) -> Reply:
        """Raises Problem, TookTooLong, and Abandoned if the client is gone."""
        self._due = self._clock() + PLACING_SHARE * self._seconds
        wanted = question.wanted(self._seen.namespace)
        addable = self._addable(question, wanted)
        overlay = self._standing
        if addable is None:
            overlay, addable = overlay_of(self._seen, self._settings, wanted, self._pause), []
        with overlay.attempt():
            overlay.add(addable)
            found = fitted(overlay, wanted, question.assumption, question.copies, tells_left=question.left)
        return Reply(taken=self._taken, answer=found, notes=[*wanted.notes, *self._notes])

    def _addable(self, question: Question, wanted: Wanted) -> list[ResourceClaimTemplate | ResourceClaim] | None:
        """What the pods bring along; None if the overlay cannot be what the question assumes."""
        found = [obj for obj in wanted.objects if isinstance(obj, ResourceClaimTemplate | ResourceClaim)]
        is_charged = self._standing.has_quotas and any(isinstance(obj, ResourceClaim) for obj in found)
        is_other = question.without or wanted.added or len(found) < len(wanted.objects)
        return None if is_charged or is_other or self._learns else found

    def _pause(self) -> None:
        if self._is_gone():
            raise Abandoned
        if self._clock() > self._due:
            raise TookTooLong(f"the answer takes longer than {self._seconds:g}s: ask for fewer pods")
