"""Builds AllocationResults from granted devices (allocator.md section 12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dra_api.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dra_api.resource import (
    AllocationResult,
    Device,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from dra_ledger.errors import NodeSelectionError
from dra_ledger.features import Features
from dra_ledger.node_selectors import first_match, parse
from dra_ledger.slices import Slice

from .outcome import Chosen
from .problem.domain import Domain
from .problem.problem import Problem
from .request.configuration import Configuration, configured
from .search.order import Grant

NewShareId = Callable[[], str]


class Results:
    """Builds the results of one solution."""

    def __init__(
        self, problem: Problem, grants: Sequence[Grant], picks: Sequence[int], features: Features, share: NewShareId
    ) -> None:
        self._problem = problem
        self._features = features
        self._share = share
        self._picks = tuple(picks)
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

    def chosen(self) -> tuple[Chosen, ...]:
        """Which subrequests were used."""
        stages = self._problem.program.stages
        return tuple(
            [
                Chosen(stage.claim, stage.request, pick)
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
        amounts = domain.amounts.get(number)
        return DeviceRequestAllocationResult(
            request=alternative.request,
            driver=pool.driver,
            pool=pool.pool,
            device=device.name,
            admin_access=True if alternative.admin else None,
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
