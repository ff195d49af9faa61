"""A question as JSON, and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, Final

import msgspec

from dra_operator.commands.object_files import BadInput, items_in
from dra_operator.kubectl.answer import ExitCode, Fact, Problem
from dra_operator.kubectl.reading.wanted_pods import JSON, wanted_of
from dra_operator.kubectl.whatif.fitting import MOST_PLACED_PODS, Assumption, Fitting
from dra_operator.kubectl.whatif.wanted import Wanted

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
    def assumption(self) -> Assumption:
        """What is different from the cluster as it is."""
        return Assumption(self.drain, self.without)

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
