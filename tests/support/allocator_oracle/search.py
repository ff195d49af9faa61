"""Plain recursion over claims, requests, subrequests and devices (allocator.md sections 5 and 6).

What has been chosen so far is one list. Whether a device may be taken is found out from that list each
time, so there is nothing to undo but the last entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from dra_api.quantity import Quantity
from dra_api.resource import MOST_RESULTS, DeviceClass, DeviceSelector, DeviceSubRequest, ExactDeviceRequest

from allocator_oracle.pools import allows, consumption, tolerated

from .pools import Candidate, Pool, candidates, node_matches
from .problem import Fault, OutOfSteps, Problem

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
        return candidate.id in self.problem.taken.devices

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
