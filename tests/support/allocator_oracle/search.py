"""Brute force: the allocation that an exhaustive search in the reference order finds (allocator.md).

Slow on purpose: every rule is written down as the specification says it, selectors are evaluated anew on
every device in every attempt, nothing is indexed, remembered or skipped. What the real allocator decides is
compared with this, and timed against it. It shares no code with the allocator.

``Search`` is plain recursion over claims, requests, subrequests and devices (allocator.md sections 5 and 6); around it
lies the order of work, and behind it the results (sections 2, 4, 7 and 12). What has been chosen so far is one list.
Whether a device may be taken is found out from that list each time, so there is nothing to undo but the last entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from allocator_oracle.pools import (
    Candidate,
    Fault,
    OutOfSteps,
    Pool,
    Problem,
    allows,
    candidates,
    consumption,
    gather,
    node_matches,
    term_matches,
    tolerated,
)
from dra_api.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dra_api.resource import (
    MOST_RESULTS,
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceClass,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
)
from dra_api.values import Quantity

NAMED = re.compile(r'device\.driver == "([^"]*)"')
"""A selector that is about the driver alone."""


@dataclass
class Wanted:
    """A request, or one subrequest of it."""

    name: str
    request: str
    class_: DeviceClass
    spec: ExactDeviceRequest | DeviceSubRequest
    collected: list[Candidate] | None = None
    """Mode All: what has to be taken."""
    fault: str = ""
    """Mode All: why that is not known."""

    def may_mean(self, driver: str) -> bool:
        """Whether no selector rules out all devices of a driver, as far as the problems have such selectors."""
        named = [NAMED.fullmatch(selector.cel.expression) for selector in self.selectors if selector.cel]
        return all(one is None or one[1] == driver for one in named)

    @property
    def count(self) -> int:
        return self.spec.count if self.collected is None else len(self.collected)

    @property
    def admin(self) -> bool:
        return isinstance(self.spec, ExactDeviceRequest) and bool(self.spec.admin_access)

    @property
    def capacity(self) -> Mapping[str, Quantity]:
        return (self.spec.capacity.requests or {}) if self.spec.capacity else {}

    @property
    def selectors(self) -> tuple[DeviceSelector, ...]:
        return (*(self.class_.spec.selectors or ()), *(self.spec.selectors or ()))


@dataclass
class Grant:
    """One device of the solution."""

    claim: int
    wanted: Wanted
    candidate: Candidate
    share: dict[str, Quantity] | None
    """What a share consumes; None for a device that is held alone."""


class End(Enum):
    """How a branch ended."""

    SOLVED = "solved"
    FAILED = "failed"
    LIMIT = "limit exceeded"


class Search:
    """One search. ``requests``: per claim, per request, its alternatives."""

    def __init__(
        self,
        problem: Problem,
        pools: Sequence[Pool],
        requests: list[list[list[Wanted]]],
        *,
        admin_exempt: bool,
        limit: int | None = None,
    ) -> None:
        self.problem = problem
        self.requests = requests
        self.grants: list[Grant] = []
        self.chosen: dict[tuple[int, int], int] = {}
        self.steps = 0
        self._pools = list(pools)
        self._exempt = admin_exempt
        self._limit = limit

    def run(self) -> bool:
        """The first solution is in ``grants``, or there is none. Raises Fault and OutOfSteps."""
        return self._request(0, 0) is End.SOLVED

    def _request(self, claim: int, request: int) -> End:
        if claim == len(self.requests):
            return End.SOLVED
        if request == len(self.requests[claim]):
            end = self._request(claim + 1, 0)
            return End.SOLVED if end is End.SOLVED else End.FAILED
        ends = set()
        met: Fault | None = None
        before = len(self.grants)
        for index, wanted in enumerate(self.requests[claim][request]):
            try:
                end = self._devices(claim, request, wanted, 0, -1)
            except Fault as fault:
                if not (fault.of_node and self.problem.gates.errors_stay_on_node):
                    raise
                met = met or fault
                del self.grants[before:]
                continue
            if end is End.SOLVED:
                self.chosen[claim, request] = index
                return end
            ends.add(end)
        if met is not None:
            raise met
        return End.LIMIT if ends == {End.LIMIT} else End.FAILED

    def _devices(self, claim: int, request: int, wanted: Wanted, have: int, behind: int) -> End:
        self.steps += 1
        if self._limit is not None and self.steps > self._limit:
            raise OutOfSteps
        if wanted.collected == [] and (wanted.fault or not self.problem.gates.nothing_is_all):
            return End.FAILED
        if have == wanted.count:
            return self._request(claim, request + 1)
        if sum(grant.claim == claim for grant in self.grants) + wanted.count - have > MOST_RESULTS:
            return End.LIMIT
        for place, candidate in self._offered(wanted, have, behind):
            if self._take(claim, wanted, candidate):
                end = self._devices(claim, request, wanted, have + 1, place)
                if end is End.SOLVED:
                    return end
                self.grants.pop()
                if end is End.LIMIT:
                    return end
        return End.FAILED

    def _offered(self, wanted: Wanted, have: int, behind: int) -> Iterator[tuple[int, Candidate]]:
        if wanted.collected is not None:
            yield have, wanted.collected[have]
            return
        for place, candidate in enumerate(candidates(self._pools)):
            if place > behind:
                yield place, candidate

    # --- may a device be taken? (section 6) ---

    def _take(self, claim: int, wanted: Wanted, candidate: Candidate) -> bool:
        if self._in_use(claim, wanted, candidate) or not self.selectable(wanted, candidate):
            return False
        share = self.capacity(wanted, candidate) if self.problem.gates.capacity else {}
        if share is None and wanted.collected is None:
            return False
        if not (self._counters(wanted, candidate) and self._taints(wanted, candidate)):
            return False
        if not self._constraints(claim, wanted, candidate):
            if wanted.collected is not None:
                raise Fault(f"request {wanted.name}: device {candidate.id} violates a constraint", of_node=True)
            return False
        if share is None:
            return False  # for all devices, capacity is the last thing to look at
        if not self._shareable(candidate):
            share = None
        self.grants.append(Grant(claim, wanted, candidate, share))
        return True

    def _shareable(self, candidate: Candidate) -> bool:
        return self.problem.gates.capacity and bool(candidate.device.allow_multiple_allocations)

    def _in_use(self, claim: int, wanted: Wanted, candidate: Candidate) -> bool:
        holders = [
            grant for grant in self.grants if grant.candidate.id == candidate.id and not self._shareable(candidate)
        ]
        if any(grant.claim == claim for grant in holders):
            return True
        if wanted.admin:
            return False
        if any(not (self._exempt and grant.wanted.admin) for grant in holders):
            return True
        taken = self.problem.taken
        is_shared = any(held == candidate.id for held, _ in taken.shares)
        stays = is_shared and not self._shareable(candidate) and self.problem.gates.shares_stay_held
        return candidate.id in taken.devices or stays

    def selectable(self, wanted: Wanted, candidate: Candidate) -> bool:
        """Binding conditions, selectors, node. Raises Fault when a selector does."""
        device = candidate.device
        if device.binding_conditions and not self.problem.gates.binding:
            return False
        if self.problem.gates.errors_stay_on_node and not wanted.may_mean(candidate.pool.driver):
            return False
        for selector in wanted.selectors:
            expression = selector.cel.expression if selector.cel else ""
            try:
                selected = self.problem.selects(expression, candidate.pool.driver, device)
            except Exception as error:
                of_node = self.problem.compiles(expression)
                text = f"request {wanted.name}: {expression} on {candidate.id}: {error}"
                raise Fault(text, of_node=of_node) from error
            if not selected:
                return False
        if candidate.slice_.spec.per_device_node_selection:
            return node_matches(self.problem, device.node_name, device.all_nodes, device.node_selector)
        return True

    def capacity(self, wanted: Wanted, candidate: Candidate) -> dict[str, Quantity] | None:
        """What would be consumed, if that much is left (section 9)."""
        amounts = consumption(wanted.capacity, candidate.device)
        exempt = self._exempt and wanted.admin
        for name, amount in (amounts or {}).items():
            used = 0 if exempt else self.problem.taken.capacity.get(candidate.id, {}).get(name, 0)
            for grant in self.grants:
                ignored = exempt or (self._exempt and grant.wanted.admin)
                if grant.candidate.id == candidate.id and grant.share is not None and not ignored:
                    used += grant.share[name].nanos
            if used + amount.nanos > (candidate.device.capacity or {})[name].value.nanos:
                return None
        return amounts

    def _counters(self, wanted: Wanted, candidate: Candidate) -> bool:
        """Whether no counter of the pool would be overdrawn; shares of one device pay once (section 10)."""
        if not candidate.device.consumes_counters:
            return True
        if not self.problem.gates.partitionable:
            return False
        if self._exempt and wanted.admin:
            return True
        payers = [grant for grant in self.grants if not (self._exempt and grant.wanted.admin)]
        if self._shareable(candidate) and (
            self.problem.taken.charged(candidate.id) or any(grant.candidate.id == candidate.id for grant in payers)
        ):
            return True
        left = _counter_values(candidate.pool)
        for slice_ in candidate.pool.all:
            for device in slice_.spec.devices or ():
                other = Candidate(candidate.pool, slice_, device)
                if self.problem.taken.charged(other.id):
                    _charge(left, other)
        paid = {candidate.id}
        for grant in payers:
            if grant.candidate.pool is candidate.pool:
                shared = self._shareable(grant.candidate)
                if not shared or not (grant.candidate.id in paid or self.problem.taken.charged(grant.candidate.id)):
                    _charge(left, grant.candidate)
                if shared:
                    paid.add(grant.candidate.id)
        _charge(left, candidate)
        return all(amount >= 0 for amount in left.values())

    def _taints(self, wanted: Wanted, candidate: Candidate) -> bool:
        if not self.problem.gates.taints:
            return True
        return tolerated(candidate.device.taints or (), wanted.spec.tolerations or ())

    def _constraints(self, claim: int, wanted: Wanted, candidate: Candidate) -> bool:
        for constraint in self.problem.claims[claim].spec.devices.constraints or ():

            def concerned(other: Wanted, scope: tuple[str, ...] | None = constraint.requests) -> bool:
                return not scope or other.request in scope or other.name in scope

            if not concerned(wanted):
                continue
            chosen = [
                (grant.candidate.pool.driver, grant.candidate.device)
                for grant in self.grants
                if grant.claim == claim and concerned(grant.wanted)
            ]
            newcomer = (candidate.pool.driver, candidate.device)
            if not allows(constraint, [*chosen, newcomer], lists=self.problem.gates.lists):
                return False
        return True


def _counter_values(pool: Pool) -> dict[tuple[str, str], int]:
    return {
        (counters.name, name): counter.value.nanos
        for slice_ in pool.all
        for counters in slice_.spec.shared_counters or ()
        for name, counter in (counters.counters or {}).items()
    }


def _charge(left: dict[tuple[str, str], int], candidate: Candidate) -> None:
    for consumed in candidate.device.consumes_counters or ():
        for name, counter in (consumed.counters or {}).items():
            left[consumed.counter_set, name] -= counter.value.nanos


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
