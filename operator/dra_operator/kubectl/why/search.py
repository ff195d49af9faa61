"""Looks for changes with which a pod would get a node, fewest changes first, and proves each.

On a node the search makes one of the remedies that fit its answer, asks again, and goes on from the next answer. Nodes
that answer alike are looked at once. Work is limited: no fix found does not mean that there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from dra_api.resource import ResourceClaim, ResourceClaimSpec
from msgspec.structs import replace

from dra_operator.allocator import Rule
from dra_operator.kubectl.pipeline import Pipeline, TookTooLong
from dra_operator.kubectl.why.changes import Change, Fix, Patch, Trial
from dra_operator.kubectl.why.holders import Holders, holder_remedies, release_remedies, room_remedies
from dra_operator.kubectl.why.node_changes import is_leaving, node_remedies
from dra_operator.kubectl.why.published import Published
from dra_operator.kubectl.why.request_changes import claim_remedies, extended_remedies, name_remedies
from dra_operator.kubectl.why.selector_changes import selector_remedies
from dra_operator.scheduling import CycleState, Faulty, Fits, Lacking, NodeStatus, Obstructed
from dra_operator.scheduling.rules import NOT_OFFERED
from dra_operator.wording import listed

MOST_CHANGES: Final = 4
MOST_NODE_ANSWERS: Final = 400
"""Answers of nodes that the search may take."""
MOST_REMEDIES: Final = 24
"""Remedies of one answer that are tried."""
MOST_FIXES: Final = 5
MOST_EXTRA_EFFORT: Final = 5
"""A fix that takes more than this beyond the easiest one is not told."""


class FixSearch:
    """``nodes``: which to look at, the most promising first. ``first``: changes that are made already, and part of each
    fix. ``is_bound``: no other node counts, as where others could take the pod only in the view."""

    def __init__(
        self,
        trial: Trial,
        nodes: Sequence[str],
        published: Published,
        first: tuple[Change, ...] = (),
        *,
        is_bound: bool = False,
    ) -> None:
        self._trial, self._nodes, self._published = trial, nodes, published
        self._first, self._is_bound = first, is_bound
        self._found: dict[frozenset[str], Fix] = {}
        self._again = self._made_again()
        self.is_cut = False
        """Whether the time was over before all was tried."""
        self.not_tried: dict[str, None] = {}
        """Who holds devices that match, and was not tried."""

    def fixes(self) -> list[Fix]:
        """The most promising ones; each was tried."""
        with suppress(TookTooLong):
            self._search()
        found = sorted(self._found.values(), key=lambda fix: fix.rank)
        told = [fix for fix in found if fix.effort <= found[0].effort + MOST_EXTRA_EFFORT][:MOST_FIXES]
        with suppress(TookTooLong):
            least = {frozenset(change.text for change in it.changes): it for it in map(self._least, told)}
            told = sorted(least.values(), key=lambda fix: fix.rank)
        return told

    def _least(self, fix: Fix) -> Fix:
        """Without the changes that the others do without: a change may be made before its use is known."""
        made = fix.changes[len(self._first) :]
        for place in range(len(made) if len(made) > 1 else 0):
            if made[place] is self._again:
                continue  # what follows changes the template as it is now
            fewer = made[:place] + made[place + 1 :]
            with self._trial.with_(*fewer):
                node = self._chosen(fix.node)
            if node:
                return self._least(self._fix(node, fewer))
        return fix

    def _search(self) -> None:
        """Raises TookTooLong, and says so in ``is_cut``."""
        self.is_cut = True
        for most in range(1, MOST_CHANGES + 1):
            for node in self._nodes:
                self._explore(node, (), most, None)
                if self._again is not None:
                    with self._trial.with_(self._again):
                        self._explore(node, (self._again,), most, None)
            if self._found:
                break
        self.is_cut = False

    def _chosen(self, node: str) -> str:
        """The node that the pod gets; empty if it gets none."""
        if not self._is_bound:
            return self._trial.node()
        return node if isinstance(self._trial.answer(node), Fits) else ""

    def _fix(self, node: str, made: tuple[Change, ...]) -> Fix:
        every = self._first + made
        return Fix(node, every, self._trial.edits(every))

    def _made_again(self) -> Change | None:
        """Claims that were made before their template was replaced; what they say can be changed no other way."""
        cycle_state = self._trial.cycle_state()
        specs = outdated(self._trial.pipeline, cycle_state) if cycle_state is not None else {}
        if not specs:
            return None

        def made_from(spec: ResourceClaimSpec) -> Callable[[ResourceClaim], ResourceClaim]:
            return lambda claim: replace(claim, spec=spec)

        patches = tuple(Patch(ResourceClaim, key, made_from(spec)) for key, spec in specs.items())
        names = f"claim{'s' * (len(specs) > 1)} {listed(specs)}"
        return Change(f"create the pod again, which makes {names} anew from what the template says now", patches, 1)

    def _is_in_vain(self, change: Change, made: tuple[Change, ...]) -> bool:
        """It changes a claim whose template says something else by now."""
        again = self._again
        if again is None or again in made:
            return False
        keys = {patch.key for patch in again.patches}
        return any(patch.kind is ResourceClaim and patch.key in keys for patch in change.patches)

    def _explore(self, node: str, made: tuple[Change, ...], most: int, before: NodeStatus | None) -> bool:
        """Whether the changes made so far, with up to ``most`` in all, are a fix; ``before``: without the last one."""
        if self._trial.asked >= MOST_NODE_ANSWERS:
            return False
        answer = self._trial.answer(node)
        if made and (isinstance(answer, Fits) or self._may_help_elsewhere(made)) and (chosen := self._chosen(node)):
            self._found.setdefault(frozenset(change.text for change in made), self._fix(chosen, made))
            return True
        if answer is None or len(made) == most or _is_same(answer, before):
            return False
        helped: set[str] = set()
        for change in islice(self._remedies(node, answer), MOST_REMEDIES):
            if (change.group and change.group in helped) or self._is_in_vain(change, made):
                continue
            with self._trial.with_(change):
                if self._explore(node, (*made, change), most, answer):
                    helped.add(change.group)
        return bool(helped)

    def _may_help_elsewhere(self, made: tuple[Change, ...]) -> bool:
        """Another node may do without a selector that failed here, or has more of a capacity left than this one."""
        return any("selector" in change.group or "class" in change.group for change in made) or (
            made[-1].group.startswith("capacity")
        )

    def _remedies(self, node: str, answer: NodeStatus) -> Iterator[Change]:
        trial = self._trial
        cycle_state = trial.cycle_state()
        state = cycle_state.nodes.get(node) if cycle_state is not None else None
        if cycle_state is None or state is None or is_leaving(state.node):
            return
        match answer:
            case Obstructed(obstacle, elsewhere):
                if obstacle.reason is NOT_OFFERED:
                    served = {name for it in trial.cluster.classes if (name := it.spec.extended_resource_name)}
                    yield from name_remedies(trial.pod, obstacle.subject, served | set(state.offered))
                yield from node_remedies(obstacle, trial.pod, state)
                yield from room_remedies(trial.pipeline, cycle_state, state, obstacle)
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
        yield from claim_remedies(cycle_state, state, refusal, self._trial.cluster)
        if not none_match:
            if skipped := Holders(self._trial.cluster, cycle_state, state).not_tried:
                self.not_tried[f"{node}: {skipped}"] = None
            yield from holder_remedies(self._trial.pipeline, cycle_state, state)
            yield from selector_remedies(self._trial.cluster, cycle_state, self._published, failing=False)


def outdated(made: Pipeline, cycle_state: CycleState) -> dict[str, ResourceClaimSpec]:
    """Return the pod's claims that were made before their template was replaced, with the template's spec."""
    entries = {each.name: each.resource_claim_template_name for each in cycle_state.pod.spec.resource_claims or ()}
    found: dict[str, ResourceClaimSpec] = {}
    for entry, claim in cycle_state.claims:
        template = made.template(f"{claim.metadata.namespace}/{entries.get(entry or '')}")
        its = made.observed(ResourceClaim, claim.key)
        if template is None or its is None or claim.status.allocation is not None:
            continue
        if (spec := template.typed().spec) != its.spec:
            found[claim.key] = spec
    return found


def _is_same(answer: NodeStatus, before: NodeStatus | None) -> bool:
    """The last change did nothing."""
    if isinstance(answer, Lacking) and isinstance(before, Lacking):
        return answer.refusal == before.refusal
    return isinstance(answer, Obstructed) and answer == before
