"""Builds AllocationResults from granted devices (allocator.md section 12).

Configuration: one entry per class configuration with the requests that use the class, in the order in
which the classes are met; then the claim's entries, each once. The reference repeats a claim entry for
every request it names, which section 15 calls a mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dra_api.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dra_api.resource import (
    AllocationResult,
    Device,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)

from .basics.errors import NodeSelectionError
from .basics.features import Features
from .outcome import Chosen
from .problem.problem import Problem
from .published.node_selectors import first_match, parse
from .published.slices import Slice
from .request.claim_program import Alternative
from .search.state import Grant

NewShareId = Callable[[], str]


class Results:
    """Builds the results of one solution."""

    def __init__(
        self, problem: Problem, grants: Sequence[Grant], picks: Sequence[int], features: Features, share: NewShareId
    ) -> None:
        self._problem = problem
        self._grants = grants
        self._features = features
        self._share = share
        self._chosen = [
            (stage, stage.alternatives[pick]) for stage, pick in zip(problem.program.stages, picks, strict=True)
        ]
        self._picks = picks

    def all(self) -> tuple[AllocationResult, ...]:
        """One result per claim. Raises NodeSelectionError when node selectors cannot be merged."""
        return tuple(self._claim(number, claim) for number, claim in enumerate(self._problem.program.claims))

    def chosen(self) -> tuple[Chosen, ...]:
        """Which subrequests were used."""
        return tuple(
            Chosen(stage.claim, stage.request, pick)
            for (stage, _), pick in zip(self._chosen, self._picks, strict=True)
            if stage.prioritized
        )

    def _claim(self, number: int, claim: ResourceClaim) -> AllocationResult:
        grants = [grant for grant in self._grants if grant.domain.claim == number]
        used = [(stage.request, alternative) for stage, alternative in self._chosen if stage.claim == number]
        config = (*_from_classes([alternative for _, alternative in used]), *_from_claim(claim, used))
        return AllocationResult(
            devices=DeviceAllocationResult(
                results=tuple(self._device(grant) for grant in grants) or None, config=config or None
            ),
            node_selector=self._node_selector(claim, [grant.device for grant in grants]),
        )

    def _device(self, grant: Grant) -> DeviceRequestAllocationResult:
        view, alternative = self._problem.view, grant.domain.alternative
        id_, device = view.id(grant.device), view.devices[grant.device]
        binding = self._features.binding_conditions
        amounts = grant.domain.amounts.get(grant.device)
        return DeviceRequestAllocationResult(
            request=alternative.request,
            driver=id_.driver,
            pool=id_.pool,
            device=id_.device,
            admin_access=True if alternative.admin else None,
            tolerations=alternative.tolerations or None,
            binding_conditions=(device.binding_conditions or None) if binding else None,
            binding_failure_conditions=(device.binding_failure_conditions or None) if binding else None,
            share_id=self._share() if amounts is not None else None,
            consumed_capacity=amounts or None,
        )

    def _node_selector(self, claim: ResourceClaim, devices: Sequence[int]) -> NodeSelector | None:
        view = self._problem.view
        fields: list[NodeSelectorRequirement] = []
        labels: list[NodeSelectorRequirement] = []
        for number in devices:
            device, slice_ = view.devices[number], view.origin(number)
            source = device if slice_.spec.per_device_node_selection else slice_.spec
            if source.node_name is not None or device.binds_to_node:
                return _only(view.node)
            if source.node_selector is not None:
                term = _term(claim, slice_, device, source.node_selector, view.node)
                _merge(fields, term.match_fields)
                _merge(labels, term.match_expressions)
        if not fields and not labels:
            return None
        merged = NodeSelectorTerm(match_fields=tuple(fields) or None, match_expressions=tuple(labels) or None)
        return NodeSelector(node_selector_terms=(merged,))


def _only(node: Node) -> NodeSelector:
    name = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node.metadata.name,))
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(name,)),))


def _term(claim: ResourceClaim, slice_: Slice, device: Device, selector: NodeSelector, node: Node) -> NodeSelectorTerm:
    """The term to merge. A device may have several, which are ORed: the one that let this node in counts."""
    terms = selector.node_selector_terms or ()
    if len(terms) == 1:
        return terms[0]
    matched = first_match(parse(selector), node) if slice_.spec.per_device_node_selection else None
    if matched is None:
        raise NodeSelectionError(
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


def _from_classes(used: Sequence[Alternative]) -> list[DeviceAllocationConfiguration]:
    requests: dict[str, list[str]] = {}
    classes = {}
    for alternative in used:
        name = alternative.class_.metadata.name
        classes[name] = alternative.class_
        requests.setdefault(name, []).append(alternative.request)
    return [
        DeviceAllocationConfiguration(source="FromClass", requests=tuple(requests[name]), opaque=config.opaque)
        for name, class_ in classes.items()
        for config in class_.spec.config or ()
    ]


def _from_claim(claim: ResourceClaim, used: Sequence[tuple[str, Alternative]]) -> list[DeviceAllocationConfiguration]:
    names = {name for request, alternative in used for name in (request, alternative.request)}
    return [
        DeviceAllocationConfiguration(source="FromClaim", requests=config.requests or None, opaque=config.opaque)
        for config in claim.spec.devices.config or ()
        if not config.requests or names.intersection(config.requests)
    ]
