"""The order of work around the search, and its results (allocator.md sections 2, 4, 7 and 12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dra_api.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dra_api.resource import (
    MOST_RESULTS,
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceSubRequest,
    ExactDeviceRequest,
)

from .pools import Candidate, Pool, candidates, gather, term_matches
from .problem import Fault, Problem
from .search import Grant, Search, Wanted

SHARE = "any"
"""Stands for the share ids, which are random."""


@dataclass
class Answer:
    """``outcome`` is ``allocated``, ``none``, ``nodeError`` or ``error``, as in the corpora."""

    outcome: str
    results: tuple[AllocationResult, ...] = ()
    error: str = ""
    steps: int = 0


def answer(problem: Problem, *, limit: int | None = None) -> Answer:
    """Decides by brute force. Raises OutOfSteps when ``limit`` is given and reached."""
    try:
        pools = gather(problem)
        requests = [_requests(problem, pools, number) for number in range(len(problem.claims))]
        first = Search(problem, pools, requests, admin_exempt=False, limit=limit)
        if first.run():
            return Answer("allocated", _results(first), steps=first.steps)
    except Fault as fault:
        stays = fault.of_node and problem.gates.errors_stay_on_node
        return Answer("nodeError" if stays else "error", error=str(fault))
    is_faulty = any(wanted.fault for claim in requests for wanteds in claim for wanted in wanteds)
    nothing = "nodeError" if is_faulty or any(not pool.valid for pool in pools) else "none"
    wants_admin = any(wanted.admin for claim in requests for wanteds in claim for wanted in wanteds)
    if problem.gates.admin_ignores_allocations and wants_admin:
        return _second_attempt(problem, pools, Answer(nothing, steps=first.steps), limit)
    return Answer(nothing, steps=first.steps)


def _second_attempt(problem: Problem, pools: list[Pool], refused: Answer, limit: int | None) -> Answer:
    """Admin access as documented, where the reference's way found nothing (section 15)."""
    try:
        requests = [_requests(problem, pools, number, exempt=True) for number in range(len(problem.claims))]
        search = Search(problem, pools, requests, admin_exempt=True, limit=limit)
        solved = search.run()
        return Answer("allocated", _results(search), steps=refused.steps + search.steps) if solved else refused
    except Fault:
        return refused


# --- checks before the search -------------------------------------------------------------------


def _requests(problem: Problem, pools: list[Pool], number: int, *, exempt: bool = False) -> list[list[Wanted]]:
    """The alternatives of each request of a claim. Raises Fault (section 4)."""
    claim = problem.claims[number]
    checked = [_request(problem, pools, request, exempt) for request in claim.spec.devices.requests or ()]
    if sum(min(wanted.count for wanted in alternatives) for alternatives in checked) > MOST_RESULTS:
        exact = [[0 if wanted.collected is not None else wanted.count for wanted in one] for one in checked]
        raise Fault("too many devices", of_node=sum(map(min, exact)) <= MOST_RESULTS)
    for constraint in claim.spec.devices.constraints or ():
        if constraint.match_attribute is None and (constraint.distinct_attribute is None or problem.gates.stable):
            raise Fault("empty constraint")
    return checked


def _request(problem: Problem, pools: list[Pool], request: DeviceRequest, exempt: bool) -> list[Wanted]:
    if request.first_available and not problem.gates.prioritized:
        raise Fault("prioritized lists are off")
    if request.first_available:
        return [
            _wanted(problem, pools, f"{request.name}/{sub.name}", request.name, sub, exempt)
            for sub in request.first_available
        ]
    spec = request.exactly or ExactDeviceRequest()
    return [_wanted(problem, pools, request.name, request.name, spec, exempt)]


def _wanted(
    problem: Problem,
    pools: list[Pool],
    name: str,
    request: str,
    spec: ExactDeviceRequest | DeviceSubRequest,
    exempt: bool,
) -> Wanted:
    gates = problem.gates
    if spec.capacity is not None and spec.capacity.requests and not gates.capacity and not gates.stable:
        raise Fault("consumable capacity is off")
    if any(selector.cel is None for selector in spec.selectors or ()):
        raise Fault("a selector without CEL")
    if isinstance(spec, ExactDeviceRequest) and spec.admin_access is not None and not gates.admin:
        raise Fault("admin access is off")
    class_ = next((class_ for class_ in problem.classes if class_.metadata.name == spec.device_class_name), None)
    if class_ is None:
        raise Fault("unknown class")
    if any(selector.cel is None for selector in class_.spec.selectors or ()):
        raise Fault("a class selector without CEL")
    wanted = Wanted(name, request, class_, spec)
    if spec.allocation_mode == "All":
        try:
            wanted.collected = _collect(problem, pools, wanted, exempt)
        except Fault as fault:
            if not (fault.of_node and problem.gates.errors_stay_on_node):
                raise
            wanted.collected, wanted.fault = [], str(fault)
    elif spec.allocation_mode != "ExactCount":
        raise Fault("unknown allocation mode")
    return wanted


def _collect(problem: Problem, pools: list[Pool], wanted: Wanted, exempt: bool) -> list[Candidate]:
    """Which devices a request for all of them means (section 7). Raises Fault."""
    if any(not pool.complete or not pool.valid for pool in pools if _may_mean(problem, wanted, pool)):
        raise Fault("all devices are wanted, but a pool is incomplete or invalid", of_node=True)
    empty = Search(problem, pools, [], admin_exempt=exempt)
    return [
        candidate
        for candidate in candidates(pools)
        if empty.selectable(wanted, candidate)
        and (not problem.gates.capacity or empty.capacity(wanted, candidate) is not None)
    ]


def _may_mean(problem: Problem, wanted: Wanted, pool: Pool) -> bool:
    """Whether a pool in trouble may have devices for the node that the request means (section 15)."""
    if not problem.gates.errors_stay_on_node:
        return True
    if pool.complete and not any(slice_.spec.devices for slice_ in pool.slices):
        return False
    return wanted.may_mean(pool.driver)


# --- results (section 12) -----------------------------------------------------------------------


def _results(search: Search) -> tuple[AllocationResult, ...]:
    return tuple(_result(search, number) for number in range(len(search.problem.claims)))


def _result(search: Search, number: int) -> AllocationResult:
    grants = [grant for grant in search.grants if grant.claim == number]
    devices = tuple(_device(search, grant) for grant in grants)
    return AllocationResult(
        devices=DeviceAllocationResult(results=devices or None, config=_config(search, number) or None),
        node_selector=_node_selector(search.problem, grants),
    )


def _device(search: Search, grant: Grant) -> DeviceRequestAllocationResult:
    driver, pool, name = grant.candidate.id
    device = grant.candidate.device
    binding = search.problem.gates.binding
    return DeviceRequestAllocationResult(
        request=grant.wanted.name,
        driver=driver,
        pool=pool,
        device=name,
        admin_access=grant.wanted.admin or None,
        tolerations=grant.wanted.spec.tolerations or None,
        binding_conditions=(device.binding_conditions or None) if binding else None,
        binding_failure_conditions=(device.binding_failure_conditions or None) if binding else None,
        share_id=SHARE if grant.share is not None else None,
        consumed_capacity=grant.share or None,
    )


def _config(search: Search, number: int) -> tuple[DeviceAllocationConfiguration, ...]:
    """Class entries list the requests that use the class; a claim's entry comes once (section 15)."""
    used = [alternatives[search.chosen[number, place]] for place, alternatives in enumerate(search.requests[number])]
    entries = []
    met: list[str] = []
    for wanted in used:
        if wanted.class_.metadata.name not in met:
            met.append(wanted.class_.metadata.name)
            names = tuple(w.name for w in used if w.class_.metadata.name == wanted.class_.metadata.name)
            for config in wanted.class_.spec.config or ():
                entries.append(DeviceAllocationConfiguration(source="FromClass", requests=names, opaque=config.opaque))
    for own in search.problem.claims[number].spec.devices.config or ():
        if not own.requests or any(w.request in own.requests or w.name in own.requests for w in used):
            entries.append(
                DeviceAllocationConfiguration(source="FromClaim", requests=own.requests or None, opaque=own.opaque)
            )
    return tuple(entries)


def _node_selector(problem: Problem, grants: Sequence[Grant]) -> NodeSelector | None:
    fields: list[NodeSelectorRequirement] = []
    labels: list[NodeSelectorRequirement] = []
    for grant in grants:
        slice_, device = grant.candidate.slice_, grant.candidate.device
        per_device = slice_.spec.per_device_node_selection
        where = device if per_device else slice_.spec
        if where.node_name or device.binds_to_node:
            this = NodeSelectorRequirement(key="metadata.name", operator="In", values=(problem.node.metadata.name,))
            return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(this,)),))
        terms = (where.node_selector.node_selector_terms or ()) if where.node_selector else ()
        if per_device and len(terms) > 1:
            terms = tuple(term for term in terms if term_matches(problem.node, term))[:1]
        if len(terms) > 1:
            raise Fault("a node selector with several terms", of_node=True)
        for term in terms:
            _add(fields, term.match_fields)
            _add(labels, term.match_expressions)
    if not fields and not labels:
        return None
    merged = NodeSelectorTerm(match_fields=tuple(fields) or None, match_expressions=tuple(labels) or None)
    return NodeSelector(node_selector_terms=(merged,))


def _add(into: list[NodeSelectorRequirement], more: Sequence[NodeSelectorRequirement] | None) -> None:
    for new in more or ():
        known = [(old.key, old.operator, set(old.values or ())) for old in into]
        if (new.key, new.operator, set(new.values or ())) not in known:
            into.append(new)
