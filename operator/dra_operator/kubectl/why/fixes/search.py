"""Looks for changes with which a pod would get a node, fewest changes first, and proves each.

On a node the search makes one of the remedies that fit its answer, asks again, and goes on from the next answer. Nodes
that answer alike are looked at once. Work is limited: no fix found does not mean that there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from dra_operator.allocator import Rule
from dra_operator.kubectl.pipeline import TookTooLong
from dra_operator.kubectl.why.published import Published
from dra_operator.scheduling import CycleState, Faulty, Fits, Lacking, NodeStatus, Obstructed

from .change import Change, Fix
from .claim_remedies import claim_remedies
from .extended_remedies import extended_remedies
from .holder_remedies import holder_remedies, release_remedies
from .node_remedies import node_remedies
from .selector_remedies import selector_remedies
from .trial import Trial

MOST_CHANGES: Final = 4
MOST_NODE_ANSWERS: Final = 400
"""Answers of nodes that the search may take."""
MOST_REMEDIES: Final = 24
"""Remedies of one answer that are tried."""
MOST_FIXES: Final = 5
MOST_EXTRA_EFFORT: Final = 5
"""A fix that takes more than this beyond the easiest one is not told."""


class FixSearch:
    """``nodes``: which to look at, the most promising first."""

    def __init__(self, trial: Trial, nodes: Sequence[str], published: Published) -> None:
        self._trial, self._nodes, self._published = trial, nodes, published
        self._found: dict[frozenset[str], Fix] = {}
        self.is_cut = False
        """Whether the time was over before all was tried."""

    def fixes(self) -> list[Fix]:
        """The most promising ones; each was tried."""
        with suppress(TookTooLong):
            self._search()
        found = sorted(self._found.values(), key=lambda fix: fix.rank)
        return [fix for fix in found if fix.effort <= found[0].effort + MOST_EXTRA_EFFORT][:MOST_FIXES]

    def _search(self) -> None:
        """Raises TookTooLong, and says so in ``is_cut``."""
        self.is_cut = True
        for most in range(1, MOST_CHANGES + 1):
            for node in self._nodes:
                self._explore(node, (), most, None)
            if self._found:
                break
        self.is_cut = False

    def _explore(self, node: str, made: tuple[Change, ...], most: int, before: NodeStatus | None) -> bool:
        """Whether the changes made so far, with up to ``most`` in all, are a fix; ``before``: without the last one."""
        if self._trial.asked >= MOST_NODE_ANSWERS:
            return False
        answer = self._trial.answer(node)
        if made and (isinstance(answer, Fits) or self._removes_error(made)) and self._trial.fits():
            self._found.setdefault(frozenset(change.text for change in made), Fix(node, made))
            return True
        if answer is None or len(made) == most or _is_same(answer, before):
            return False
        helped: set[str] = set()
        for change in islice(self._remedies(node, answer), MOST_REMEDIES):
            if change.group and change.group in helped:
                continue
            with self._trial.with_(change):
                if self._explore(node, (*made, change), most, answer):
                    helped.add(change.group)
        return bool(helped)

    def _removes_error(self, made: tuple[Change, ...]) -> bool:
        """After a selector that failed here was changed, another node may do."""
        return any("selector" in change.group or "class" in change.group for change in made)

    def _remedies(self, node: str, answer: NodeStatus) -> Iterator[Change]:
        trial = self._trial
        cycle_state = trial.cycle_state()
        state = cycle_state.nodes.get(node) if cycle_state is not None else None
        if cycle_state is None or state is None:
            return
        match answer:
            case Obstructed(obstacle, elsewhere):
                yield from node_remedies(obstacle, trial.pod, state)
                yield from release_remedies(trial.cluster, cycle_state, elsewhere)
            case Faulty():
                yield from selector_remedies(trial.cluster, cycle_state, self._published, failing=True)
            case Lacking():
                yield from self._for_devices(cycle_state, answer, node)
            case _:
                return

    def _for_devices(self, cycle_state: CycleState, answer: Lacking, node: str) -> Iterator[Change]:
        state, refusal = cycle_state.nodes.get(node), answer.refusal
        if state is None:
            return
        none_match = refusal.rule is Rule.SELECTOR and not refusal.matching
        if none_match or refusal.rule is Rule.NO_DEVICES:
            yield from selector_remedies(self._trial.cluster, cycle_state, self._published, failing=False)
        if refusal.rule is Rule.NO_DEVICES:
            return
        yield from extended_remedies(self._trial.pod, refusal)
        yield from claim_remedies(cycle_state, state, refusal)
        if not none_match:
            yield from holder_remedies(self._trial.cluster, cycle_state, state)
            yield from selector_remedies(self._trial.cluster, cycle_state, self._published, failing=False)


def _is_same(answer: NodeStatus, before: NodeStatus | None) -> bool:
    """The last change did nothing."""
    if isinstance(answer, Lacking) and isinstance(before, Lacking):
        return answer.refusal == before.refusal
    return isinstance(answer, Obstructed) and answer == before
