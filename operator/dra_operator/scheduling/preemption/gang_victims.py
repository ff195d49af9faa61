"""Find the victims for a gang without a joint plan: as few and as unimportant pods as possible (``victims``).

The victims are chosen over all nodes at once. All pods of the lowest level are removed, then those of the next one,
until a joint plan exists. Then pods return, the most important ones first, while a joint plan exists. So

1. the fewest PodDisruptionBudgets are violated,
2. as few pods as possible of the highest priority are preempted, then of the next one, and so on,
3. within a priority, pods that terminate within ``patience`` go first (``terms``),
4. then those that terminate soonest, then the youngest.

A victim has a lower priority than every member. A plan waits for terminating pods on its nodes, and for those that
hold devices in its pools.

The search works on a copy of the nodes, made once per attempt, so others never see it when it pauses. A plan stays
valid while the returning pods touch none of its nodes and pools, so most questions need no search. Full nodes are asked
only if a pod was removed from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from typing import Final

from dra_api.core import Node, Pod

from dra_operator.allocator import AllocationError, DeviceId, PoolId, Usage
from dra_operator.scheduling.claims.demand import Demands
from dra_operator.scheduling.claims.node_allocatable import shortage
from dra_operator.scheduling.cycle.attempt import Aborted
from dra_operator.scheduling.cycle.filter import NoPlace
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.gang.joint_search import JointPlan, is_of_one_node, look_up
from dra_operator.scheduling.gang.members import Kind, Member, SameValues, domains_of, members_of
from dra_operator.scheduling.gang.planning import searched
from dra_operator.scheduling.nodes import Nodes
from dra_operator.scheduling.pieces import PAUSE_STEPS, Elapsed, InPieces, Pause
from dra_operator.scheduling.state.node import Amounts, add, node_requests, served_resources, subtract

from .bundles import BudgetsOfPods, Bundle, Bundles, Meter, PreemptionTerms, StepsSpent
from .nomination import PODS_PER_STEP, STEPS_PER_BUNDLE, may_preempt
from .victims import STEPS_PER_POD, STEPS_PER_QUESTION, Reprieve, VictimChoice, Work

MOST_GANG_STEPS: Final = 1_000_000
"""Limit of an attempt in steps of the allocator, about five seconds. Then the gang gets no victims."""


@dataclass(frozen=True, slots=True)
class GangNomination:
    """Victims for a gang, and the place that each member gets when they are gone, in the order of the members."""

    plans: JointPlan
    victims: tuple[Pod, ...]
    awaited: tuple[Pod, ...]
    """Terminating pods on which the plans rely as well."""
    nodes: tuple[Node, ...]
    """The nodes of the plans, as the search saw them."""
    inventory_version: int


@dataclass(frozen=True, slots=True)
class PlannedGang:
    """A joint plan, with its nodes and the pools of its devices."""

    plans: JointPlan
    nodes: frozenset[str]
    pools: frozenset[PoolId]

    @classmethod
    def of(cls, plans: JointPlan) -> PlannedGang:
        """Return the plans with the nodes and pools that they use."""
        results = (result for it in plans for allocation in it.allocations.values() for result in allocation.results)
        return cls(plans, frozenset(it.node for it in plans), frozenset(DeviceId.of(it).pool_id for it in results))

    def may_rely_on(self, bundle: Bundle) -> bool:
        """Return whether the bundle has something on a node or in a pool that the plan uses."""
        return not (self.nodes.isdisjoint(bundle.nodes) and self.pools.isdisjoint(bundle.pools))


def preempt_for_gang(
    states: Sequence[CycleState], same: SameValues, terms: PreemptionTerms, meter: Meter | None = None
) -> Generator[Pause, Elapsed, GangNomination | None]:
    """Return the nomination for a gang without a joint plan, or None if preemption does not help."""
    # One member that may not preempt would leave the whole gang waiting, with the victims gone.
    if not all(may_preempt(state.pod) for state in states):
        return None
    meter = meter or Meter(MOST_GANG_STEPS)
    try:
        bundles = yield from _candidates(Bundles(states, terms), states[0].nodes, meter)
        search = GangVictims(states, same, bundles, BudgetsOfPods(terms.budgets), meter)
        found = yield from search.search()
    except (AllocationError, Aborted, StepsSpent):
        return None
    if found is None:
        return None
    awaited = [pod for bundle in found.bundles if search.relies_on(bundle, found.plan) for pod in bundle.leaving]
    # The gang fits as it is: something has changed since, and the next attempt places it.
    if not awaited and not found.victims:
        return None
    return GangNomination(found.plan.plans, found.victims, tuple(awaited), search.nodes_of(found.plan), search.version)


def is_proven(
    states: Sequence[CycleState], terms: PreemptionTerms, nominated: GangNomination, nodes: Nodes, usage: Usage
) -> bool:
    """Return whether pools, nodes and victims of the nomination are as they were when the search began.

    A second joint search would take seconds in which nothing else runs. So the nomination counts only if nothing that
    it uses has changed, and the gang tries again otherwise.
    """
    then, pools = states[0].usage, PlannedGang.of(nominated.plans).pools
    touched = states[0].allocator.inventory.touched_since(nominated.inventory_version)
    # None if the journal of slices does not reach back so far: then a change is possible.
    if touched is None or not touched.isdisjoint(pools) or any(then.pool(it) != usage.pool(it) for it in pools):
        return False
    if any((now := nodes.get(it.key)) is None or not _is_alike(now.node, it) for it in nominated.nodes):
        return False
    bundles, ending = Bundles(states, terms), (*nominated.victims, *nominated.awaited)
    found = {bundle for pod in ending if (bundle := bundles.of(pod)) is not None}
    # A bundle may have grown meanwhile: its new pods would be preempted without having been weighed.
    gone = {pod.metadata.uid for bundle in found for pod in bundle.pods}
    return gone == {pod.metadata.uid for pod in ending} and _have_room(states, nominated, found, nodes)


def _is_alike(node: Node, then: Node) -> bool:
    """Return whether labels, spec and allocatable are equal. Heartbeats and conditions change all the time."""
    is_labelled_alike = node.metadata.labels == then.metadata.labels and node.spec == then.spec
    return is_labelled_alike and node.status.allocatable == then.status.allocatable


def _have_room(
    states: Sequence[CycleState], nominated: GangNomination, ending: Collection[Bundle], nodes: Nodes
) -> bool:
    """Return whether each member fits on its node without these bundles. Does not pause.

    Other pods may have been placed there during the search.
    """
    left = [pod for bundle in ending for pod in bundle.pods]
    there, used = nodes.pods_by_node, dict[str, Amounts]()
    with there.without(left), ExitStack() as placed:
        # Members are put on their nodes one after the other, since their rules may be about each other.
        for number in nominated.plans.order:
            pod, plan = states[number].pod, nominated.plans[number]
            node = nodes.get(plan.node)
            if node is None:
                return False
            if plan.node not in used:
                # The load of victims is subtracted once for each node, however many members come there.
                own = (node_requests(it, served_resources(it)) for it in left if it.spec.node_name == plan.node)
                used[plan.node] = reduce(subtract, own, node.used)
            loaded = node.with_load(used[plan.node])
            rules = nodes.rules_of(pod, states[number].volumes)
            if rules.obstacle(loaded, plan.served) or shortage(pod, loaded, plan.node_use):
                return False
            used[plan.node] = add(used[plan.node], plan.requests_of(pod))
            there.put(pod, plan.node)
            placed.callback(there.remove, pod.metadata.uid)
    return True


def _candidates(bundles: Bundles, nodes: Nodes, meter: Meter) -> Generator[Pause, Elapsed, list[Bundle]]:
    """Return all bundles of the cluster that may be preempted."""
    found: dict[Bundle, None] = {}
    for number, uid in enumerate([uid for uid, _ in nodes.pods_by_node]):
        if number % PODS_PER_STEP == 0:
            yield from meter.spend(1)
        place = nodes.pods_by_node.at(uid)
        # The pod may have left at a pause.
        if place is None or not bundles.may_matter(place[0]):
            continue
        looked = bundles.looked
        bundle = bundles.of(place[0])
        if bundle is not None:
            found[bundle] = None
            bundle.rank  # noqa: B018 - worked out here, in pieces, and then known
        yield from meter.spend(STEPS_PER_BUNDLE + bundles.looked - looked)
    return list(found)


class GangVictims(Reprieve[PlannedGang]):
    """The search for a gang, among ``bundles`` of all nodes."""

    def __init__(
        self,
        states: Sequence[CycleState],
        same: SameValues,
        bundles: Sequence[Bundle],
        budgets: BudgetsOfPods,
        meter: Meter,
    ) -> None:
        super().__init__(bundles, budgets, meter)
        self._live, self._same = states[0].nodes, same
        self.version = states[0].allocator.inventory.version
        """The version of the inventory when the search began."""
        self._nodes, self._usage = Nodes(strategy=self._live.strategy), states[0].usage.snapshot()
        self._states = [replace(state, nodes=self._nodes, usage=self._usage) for state in states]
        self._originals = states
        self._minds_pods = any(self._live.rules_between(state.pod) for state in states)
        self._members: list[Member] = []
        self._base: dict[Kind, frozenset[str]] = {}
        """The nodes that may take a member without victims."""
        self._opened: Counter[str] = Counter()
        """Number of removed bundles with pods on a node."""
        self._opened_anywhere = 0
        """Number of removed bundles with devices that several nodes can use."""
        self._room: dict[Bundle, dict[str, Amounts]] = {}
        """The node resources of each bundle, by node."""

    def search(self) -> Generator[Pause, Elapsed, VictimChoice[PlannedGang] | None]:
        """Return the victims, or None if the gang does not fit even without all of them.

        Raises StepsSpent, AllocationError and Aborted.
        """
        yield from self._copy()
        # Terminating pods go in any case: without them the gang may fit without a victim.
        yield from self._take_away([bundle for bundle in self._bundles if not bundle.victims])
        victims = [bundle for bundle in reversed(self._bundles) if bundle.victims]
        fits = yield from self._ask()
        # Level by level: an important pod is not even considered while less important ones are enough. A joint search
        # is costly, so all pods of a level go at once, and return later.
        for _, level in groupby(victims, lambda bundle: bundle.level):
            if fits:
                break
            yield from self._take_away(list(level))
            fits = yield from self._ask()
        return (yield from self._chosen()) if fits else None

    def nodes_of(self, found: PlannedGang) -> tuple[Node, ...]:
        """Return the nodes of the plan, as they were when the search began."""
        states = (self._nodes.get(name) for name in sorted(found.nodes))
        return tuple(state.node for state in states if state is not None)

    def relies_on(self, bundle: Bundle, found: PlannedGang) -> bool:
        """Return whether the plan may depend on the bundle being gone."""
        # Rules between pods reach across nodes, so any removed pod may have been in the way.
        return self._minds_pods or found.may_rely_on(bundle)

    def _copy(self) -> Work:
        """Copy the nodes, and the pods on them if a member has rules between pods."""
        for name in self._live.names():
            yield from self._meter.spend(1)
            state = self._live.get(name)
            if state is not None:
                self._nodes.put(state)
        pods = self._nodes.pods_by_node
        # Shared and not copied: a victim never changes the labels of a namespace.
        pods.namespaces = self._live.pods_by_node.namespaces
        for number, uid in enumerate([uid for uid, _ in self._live.pods_by_node] if self._minds_pods else ()):
            if number % PODS_PER_STEP == 0:
                yield from self._meter.spend(1)
            place = self._live.pods_by_node.at(uid)
            if place is not None:
                pods.put(*place)
        self._members = members_of(self._states)
        for member in self._members:
            if member.kind not in self._base:
                self._base[member.kind] = yield from self._fitting(self._originals[member.number])

    def _fitting(self, state: CycleState) -> Generator[Pause, Elapsed, frozenset[str]]:
        """Return the nodes that may take a member in the cluster as it is, by the allocator's index."""
        demands = Demands(state.resource_claims, state.extended, self._live, state.allocator)
        for demand in demands.all():
            yield from look_up(demand, state.allocator, state.usage)
        return frozenset(filter(demands.may_fit, self._live.names()))

    def _end(self, bundle: Bundle) -> Work:
        yield from self._change(bundle, is_away=True)

    def _return(self, bundle: Bundle) -> Work:
        yield from self._change(bundle, is_away=False)

    def _change(self, bundle: Bundle, *, is_away: bool) -> Work:
        yield from self._meter.spend(1 + len(bundle.freed))
        for allocation in bundle.freed:
            if is_away:
                self._usage.remove(allocation)
            else:
                self._usage.add(allocation)
        for name, amounts in (yield from self._room_of(bundle)).items():
            state = self._nodes.get(name)
            self._opened[name] += 1 if is_away else -1
            if state is not None:
                used = subtract(state.used, amounts) if is_away else add(state.used, amounts)
                self._nodes.put(state.with_load(used))
        # Its devices may serve members on nodes that none of its pods was on.
        if not all(is_of_one_node(allocation) for allocation in bundle.freed):
            self._opened_anywhere += 1 if is_away else -1
        for pod in bundle.pods if self._minds_pods else ():
            if is_away:
                self._nodes.pods_by_node.remove(pod.metadata.uid)
            else:
                self._nodes.pods_by_node.put(pod, pod.spec.node_name)

    def _room_of(self, bundle: Bundle) -> Generator[Pause, Elapsed, dict[str, Amounts]]:
        """Return the node resources of its pods, by node."""
        known = self._room.get(bundle)
        if known is None:
            yield from self._meter.spend(STEPS_PER_POD * len(bundle.pods))
            known = self._room[bundle] = {}
            for pod in bundle.pods:
                amounts = node_requests(pod, served_resources(pod))
                known[pod.spec.node_name] = add(known.get(pod.spec.node_name, {}), amounts)
        return known

    def _planned(self) -> Generator[Pause, Elapsed, PlannedGang | None]:
        # The last plan still holds if every bundle that has returned since touches none of its nodes and pools.
        if self._fits is not None:
            found, away = self._fits
            if not any(self.relies_on(bundle, found) for bundle in away if bundle not in self._away):
                return found
        yield from self._meter.spend(STEPS_PER_QUESTION * len(self._members))
        work = InPieces(self._joint_plan())
        for pause in work:
            self._meter.charge(PAUSE_STEPS)
            work.elapsed = yield pause
        return None if work.answer is None else PlannedGang.of(work.answer)

    def _joint_plan(self) -> Generator[Pause, Elapsed, JointPlan | None]:
        domains = yield from domains_of(self._states, self._same)
        if isinstance(domains, NoPlace):
            return None
        # A full node from which nothing was removed is still full: a search there would cost steps for nothing. After a
        # removal of devices that several nodes can use, any node may fit.
        opened = frozenset(name for name, number in self._opened.items() if number)
        worth: dict[Kind, Container[str]] = {
            kind: self._nodes if self._opened_anywhere else base | opened for kind, base in self._base.items()
        }
        found, _ = yield from searched(self._members, domains, worth=lambda member: worth[member.kind])
        return found
