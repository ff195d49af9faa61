"""Builds AllocationResults from granted devices, with the configuration of the chosen alternatives (allocator.md
section 12).

Configuration follows from the alternatives alone, not from the devices. There is one entry per class configuration with
the requests that use the class, in the order in which the classes are met; then the claim's entries, each once. Up to
1.36 the reference repeats a claim entry for every request it names, which section 15 calls a mistake. From 1.37 on an
entry that covers all requests of the claim names none (section 16).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dra_api.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dra_api.releases.release import Release
from dra_api.resource import (
    AllocationResult,
    Device,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from dra_ledger.errors import NodeSelectionError
from dra_ledger.features import Features
from dra_ledger.node_selectors import first_match, parse
from dra_ledger.slices import Slice
from msgspec.structs import replace

from dra_operator.allocator.claim_program import Alternative, CompiledRequests
from dra_operator.allocator.outcome import ChosenAlternative
from dra_operator.allocator.problem.node_state import Domain
from dra_operator.allocator.problem.problem import NodeProblem
from dra_operator.allocator.search import Grant

Configuration = tuple[DeviceAllocationConfiguration, ...]


def configured(
    claim: ResourceClaim, compiled: CompiledRequests, picks: tuple[int, ...], release: Release
) -> Configuration:
    """The configuration of a claim, ``picks`` being the chosen alternative of each of its stages."""
    # Claims that ask for the same share what their classes configure. Their own entries may differ: those are added to
    # each.
    made = compiled.configurations.get(picks)
    if made is None:
        made = compiled.configurations.put(picks, _from_classes(_picked(compiled, picks)))
    if claim.spec.devices.config:
        names = {
            name
            for stage, pick in zip(compiled.stages, picks, strict=True)
            for name in (stage.request, stage.alternatives[pick].request)
        }
        made += _from_claim(claim, names)  # each entry with all requests that it names
    # From 1.37 on an entry that covers all requests names none (K37-BUG-10).
    if release < Release.V1_37 or not made:
        return made
    all_names = [
        {stage.request, stage.alternatives[pick].request} for stage, pick in zip(compiled.stages, picks, strict=True)
    ]
    return tuple([replace(entry, requests=None) if _covers(entry, all_names) else entry for entry in made])


def _covers(entry: DeviceAllocationConfiguration, all_names: Sequence[set[str]]) -> bool:
    """Whether the entry names each request, or the subrequest that was chosen for it."""
    return all(names.intersection(entry.requests or ()) for names in all_names)


def _picked(compiled: CompiledRequests, picks: tuple[int, ...]) -> list[Alternative]:
    return [stage.alternatives[pick] for stage, pick in zip(compiled.stages, picks, strict=True)]


def _from_classes(used: Sequence[Alternative]) -> Configuration:
    requests: dict[str, list[str]] = {}
    classes = {}
    for alternative in used:
        name = alternative.class_.metadata.name
        classes[name] = alternative.class_
        # A class comes once, where it was met first, with all requests that use it (section 12).
        requests.setdefault(name, []).append(alternative.request)
    return tuple(
        [
            DeviceAllocationConfiguration(source="FromClass", requests=tuple(requests[name]), opaque=config.opaque)
            for name, class_ in classes.items()
            for config in class_.spec.config or ()
        ]
    )


def _from_claim(claim: ResourceClaim, names: set[str]) -> Configuration:
    """``names`` are those of the requests and of the subrequests that were chosen."""
    return tuple(
        [
            DeviceAllocationConfiguration(source="FromClaim", requests=config.requests or None, opaque=config.opaque)
            for config in claim.spec.devices.config or ()
            if not config.requests or names.intersection(config.requests)
        ]
    )


NewShareId = Callable[[], str]


class Results:
    """Builds the results of one solution."""

    def __init__(
        self,
        problem: NodeProblem,
        grants: Sequence[Grant],
        picks: Sequence[int],
        features: Features,
        share: NewShareId,
    ) -> None:
        self._problem = problem
        self._features = features
        self._share = share
        self._picks = tuple(picks)
        # The search grants in the order of requests, which is that of the results (section 12).
        self._grants: list[list[Grant]] = [[] for _ in problem.program.claims]
        for grant in grants:
            self._grants[grant[0].claim].append(grant)

    def all(self) -> tuple[AllocationResult, ...]:
        """One result per claim. Raises NodeSelectionError when node selectors cannot be merged."""
        program, picks, position = self._problem.program, self._picks, 0
        made: list[AllocationResult] = []
        for claim, compiled, grants in zip(program.claims, program.requests, self._grants, strict=True):
            end = position + len(compiled.stages)
            configuration = configured(claim, compiled, picks[position:end], self._features.release)
            made.append(self._claim(claim, grants, configuration))
            position = end
        return tuple(made)

    def chosen(self) -> tuple[ChosenAlternative, ...]:
        """Which subrequests were used."""
        stages = self._problem.program.stages
        return tuple(
            [
                ChosenAlternative(stage.claim, stage.request, pick)
                for stage, pick in zip(stages, self._picks, strict=True)
                if stage.prioritized
            ]
        )

    def _claim(self, claim: ResourceClaim, grants: Sequence[Grant], config: Configuration) -> AllocationResult:
        return AllocationResult(
            devices=DeviceAllocationResult(
                results=tuple([self._device(domain, device) for domain, device, _, _ in grants]) or None,
                config=config or None,
            ),
            node_selector=self._node_selector(claim, grants),
        )

    def _device(self, domain: Domain, number: int) -> DeviceRequestAllocationResult:
        view, alternative = self._problem.view, domain.alternative
        device, pool = view.devices[number], view.pools[view.pool_of[number]].pool
        binding = self._features.binding_conditions
        # Only a device that allows multiple allocations has amounts: it is given in shares (section 9).
        amounts = domain.amounts.get(number)
        return DeviceRequestAllocationResult(
            request=alternative.request,
            driver=pool.driver,
            pool=pool.pool,
            device=device.name,
            admin_access=True if alternative.admin else None,
            # Also where taints are off (section 12).
            tolerations=alternative.tolerations or None,
            binding_conditions=(device.binding_conditions or None) if binding else None,
            binding_failure_conditions=(device.binding_failure_conditions or None) if binding else None,
            share_id=self._share() if amounts is not None else None,
            consumed_capacity=amounts or None,
            skip_node_operations=self._skipped(number) if self._features.optional_node_operations else None,
        )

    def _skipped(self, number: int) -> tuple[str, ...] | None:
        """The calls to the driver that the slice leaves out: later changes of it concern later claims (K37-ONO-02)."""
        return self._problem.view.origin(number).spec.skip_node_operations or None

    def _node_selector(self, claim: ResourceClaim, grants: Sequence[Grant]) -> NodeSelector | None:
        view = self._problem.view
        fields: list[NodeSelectorRequirement] = []
        labels: list[NodeSelectorRequirement] = []
        for _, number, _, _ in grants:
            device, slice_ = view.devices[number], view.origin(number)
            source = device if slice_.spec.per_device_node_selection else slice_.spec
            # One device that only this node has decides for the claim, whatever the others allow.
            if source.node_name is not None or device.binds_to_node:
                return view.only_this_node
            if source.node_selector is not None:
                term = _term(claim, slice_, device, source.node_selector, view.node)
                _merge(fields, term.match_fields)
                _merge(labels, term.match_expressions)
        if not fields and not labels:
            return None
        merged = NodeSelectorTerm(match_fields=tuple(fields) or None, match_expressions=tuple(labels) or None)
        return NodeSelector(node_selector_terms=(merged,))


def _term(claim: ResourceClaim, slice_: Slice, device: Device, selector: NodeSelector, node: Node) -> NodeSelectorTerm:
    """The term to merge. A device may have several, which are ORed: the one that let this node in counts."""
    terms = selector.node_selector_terms or ()
    if len(terms) == 1:
        return terms[0]
    # Several terms are ORed, and cannot be put into the one that the result has: the term that let this node in stands
    # for them (section 15).
    matched = first_match(parse(selector), node) if slice_.spec.per_device_node_selection else None
    if matched is None:
        raise NodeSelectionError.of_node(
            f"claim {claim.key}: slice {slice_.name}, device {device.name}: a node selector with {len(terms)} terms "
            f"is not supported, exactly one is"
        )
    return matched.source


def _merge(into: list[NodeSelectorRequirement], requirements: Sequence[NodeSelectorRequirement] | None) -> None:
    """Appends requirements that are not there yet, by key, operator and set of values."""
    for new in requirements or ():
        if not any(
            old.key == new.key and old.operator == new.operator and set(old.values or ()) == set(new.values or ())
            for old in into
        ):
            into.append(new)
