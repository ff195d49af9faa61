"""Answer the questions of ``fit --serve``, for both protocols, over one cluster that was read once.

Each is tried in an overlay, and leaves it as it was. Most questions bring pods with their templates and claims. They
share one overlay, so the allocator indexes the cluster once. A question with other nodes, classes or quotas gets an
overlay of its own. Each question does if the operator learns from the pods that it sees.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, Final, Self

import msgspec
from dra_api.resource import ResourceClaim, ResourceClaimTemplate
from dra_api.values import format_time

from dra_operator.commands.file_items import BadInput
from dra_operator.commands.object_files import items_in
from dra_operator.kubectl.answer import ExitCode, Fact, Problem
from dra_operator.kubectl.fit import JSON, wanted_of
from dra_operator.kubectl.observed import Observed, notes_on, require
from dra_operator.kubectl.pipeline import Abandoned, pipeline
from dra_operator.kubectl.serving import NewestView
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.whatif.fitting import MOST_PLACED_PODS, Fitting, Wanted, fitted, overlay_of
from dra_operator.kubectl.whatif.overlay import Overlay

MOST_ASKED_PODS: Final = 1_000
"""Pods of one question."""


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What the options of ``kubectl dra fit`` ask. ``left``: also what could be had afterwards."""

    manifests: list[Any]
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    max: bool = False
    drain: str | None = None
    without: list[str] = []
    add_nodes: list[Any] = []
    namespace: str = ""
    left: bool = False

    @property
    def size(self) -> int:
        """About how many pods there are to place; what changes nodes has the whole cluster looked at."""
        pods = MOST_PLACED_PODS if self.max else self.count * max(1, len(self.manifests))
        return pods + (MOST_ASKED_PODS if self.drain or self.without or self.add_nodes else 0)

    @property
    def copies(self) -> int | None:
        """None: as many as fit."""
        return None if self.max else self.count

    def wanted(self, namespace: str) -> Wanted:
        """The pods; ``namespace`` is that of manifests that name none, unless the question has one. Raises Problem."""
        if self.max and self.count != 1:
            raise Problem("count and max exclude each other: leave one out", ExitCode.USAGE)
        found = wanted_of(
            _items("manifests", self.manifests), _items("addNodes", self.add_nodes), self.namespace or namespace
        )
        number = found.size * (self.copies or 1)
        if not 1 <= number <= MOST_ASKED_PODS:
            raise Problem(f"the manifests ask for {number} pods: expected 1 to {MOST_ASKED_PODS}", ExitCode.USAGE)
        return found


class Reply(Fact, frozen=True):
    """``taken``: when the cluster was read. ``answer`` is what ``kubectl dra fit -o json`` prints."""

    taken: str
    answer: Fitting
    notes: Sequence[str] = ()


def question_of(body: bytes) -> Question:
    """Raises Problem."""
    try:
        return msgspec.json.decode(body, type=Question)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem(f"not a question: {error or type(error).__name__}", ExitCode.USAGE) from error


def _items(field: str, documents: Sequence[object]) -> Iterator[tuple[str, JSON]]:
    try:
        yield from chain.from_iterable(items_in(f"{field}[{at}]", one) for at, one in enumerate(documents))
    except BadInput as error:
        raise Problem(str(error), ExitCode.USAGE) from error


MOST_ANSWER_SECONDS: Final = 5.0
"""What an answer may take once it is begun."""
PLACING_SHARE: Final = 0.8
"""Of it, until pods are placed no more: taking them back again takes a seventh of the time of placing them."""


class AnswerTookTooLong(Exception):
    """The message says what to do."""


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
        """Raises Problem, AnswerTookTooLong, and Abandoned if the client is gone."""
        self._due = self._clock() + PLACING_SHARE * self._seconds
        wanted = question.wanted(self._seen.namespace)
        addable = self._addable(question, wanted)
        overlay = self._standing
        if addable is None:
            overlay, addable = overlay_of(self._seen, self._settings, wanted, self._pause), []
        with overlay.attempt():
            overlay.add(addable)
            drain, without = question.drain, question.without
            found = fitted(overlay, wanted, question.copies, drain=drain, without=without, tells_left=question.left)
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
            raise AnswerTookTooLong(f"the answer takes longer than {self._seconds:g}s: ask for fewer pods")


MOST_QUESTION_BYTES: Final = 1 << 20
MOST_WAITING_QUESTIONS: Final = 64
IDLE_SECONDS: Final = 30.0
"""For which a connection may be silent between two questions."""


class Busy(Exception):
    """The question may be asked again."""


class Clerk:
    """One for all protocols of a service."""

    def __init__(self, newest: NewestView[Desk]) -> None:
        self._newest = newest

    async def answer(self, question: Question, client: str) -> Reply:
        """Return the answer to a question of the client at this address.

        Raises Problem, AnswerTookTooLong, Crowded, and Busy if the cluster could not be read.
        """
        if (problem := await self._newest.fresh()) is not None:
            raise Busy(f"the cluster could not be read: {problem}")
        return await self._newest.ask(
            lambda desk, is_gone: desk.asked_by(is_gone).answer(question), client, question.size, MOST_WAITING_QUESTIONS
        )
