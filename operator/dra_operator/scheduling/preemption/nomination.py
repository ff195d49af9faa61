"""Nominate nodes and victims for a pod, or a gang, that fits nowhere: post filters (``cycle.attempt``).

**A pod** gets one node, and the victims on it.

Among the nodes on which preemption helps, the best one has

1. the fewest violated PodDisruptionBudgets,
2. the lowest "highest level of a victim": its priority, then whether it terminates within ``patience`` (``terms``),
3. the smallest sum of the victims' priorities,
4. the fewest victims,
5. the victims that terminate soonest,
6. the youngest most important victim,
7. the fewest freed devices that the pod does not take,

and the first name. Criteria 1 to 4 and 6 are kube-scheduler's. A node where terminating pods free enough is better than
all nodes with victims; among such nodes the one counts whose pods are gone soonest. The nominated node is tried first
while pods terminate on it, so that no pod is preempted in vain.

Nodes are tried by the lowest level on them. The search stops when no further node can be better, after ``MOST_NODES``
nodes with an answer, or when its steps are used up; then the best node so far counts.

**A gang** without a joint plan gets as few and as unimportant victims as possible (``victims``).

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

import math
from collections import Counter
from collections.abc import Collection, Container, Generator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby
from typing import Final

from dra_api.core import Node, Pod

from dra_operator.allocator import AllocationError, DeviceId, PoolId, Usage
from dra_operator.scheduling.claims.demand import Demands
from dra_operator.scheduling.claims.node_allocatable import shortage
from dra_operator.scheduling.cycle.attempt import Aborted, Unschedulable
from dra_operator.scheduling.cycle.filter import NoPlace, PostFilterResult
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.gang.joint_search import JointPlan, is_of_one_node, look_up
from dra_operator.scheduling.gang.members import Kind, Member, SameValues, domains_of, members_of
from dra_operator.scheduling.gang.planning import searched
from dra_operator.scheduling.nodes import Nodes
from dra_operator.scheduling.pieces import PAUSE_STEPS, Elapsed, InPieces, Pause
from dra_operator.scheduling.state.applicants import is_placeholder
from dra_operator.scheduling.state.node import Amounts, LoadedNode, add, node_requests, served_resources, subtract

from .bundles import BudgetsOfPods, Bundle, Bundles, Meter, PreemptionTerms, StepsSpent
from .victims import STEPS_PER_POD, STEPS_PER_QUESTION, Reprieve, VictimChoice, VictimSearch, VictimsOnNode, Work

NEVER: Final = "Never"
MOST_UNITS: Final = 40
"""Limit of ``proven`` in pieces of work, about a tenth of a second."""
MOST_NODES: Final = 32
"""Nodes with an answer that are compared."""
PODS_PER_STEP: Final = 5
"""Pods visited in the time of one step of the allocator."""
STEPS_PER_BUNDLE: Final = 4
"""Cost of building the bundle of a pod, in steps of the allocator."""


def may_preempt(pod: Pod) -> bool:
    """Return whether the pod may preempt others at all."""
    return not is_placeholder(pod) and not pod.spec.scheduling_gates and pod.spec.preemption_policy != NEVER


def preempt(
    failed: Unschedulable, terms: PreemptionTerms, meter: Meter | None = None
) -> Generator[Pause, Elapsed, PostFilterResult | None]:
    """Return the nomination, or None if preemption does not help. Raises ClaimError."""
    # A pod at the gate gets its node elsewhere, and a placeholder pod is no pod that could run.
    if not may_preempt(failed.cycle_state.pod):
        return None
    search = _Search(failed, terms, meter or Meter())
    with suppress(StepsSpent):
        yield from search.run()
    # Also after the steps are spent: the best node so far is better than none.
    best = search.best
    return PostFilterResult(best.plan, best.victims, best.awaited) if best is not None else None


def proven(
    failed: Unschedulable, terms: PreemptionTerms, nominated: PostFilterResult, usage: Usage
) -> PostFilterResult | None:
    """Return the nomination if it still holds with the devices in use now, or None. Does not pause.

    The search paused, so other pods may have been placed, or victims deleted, in the meantime.
    """
    now = replace(failed, cycle_state=replace(failed.cycle_state, usage=usage))
    state, bundles = now.cycle_state.nodes.get(nominated.nominated_node), Bundles([now.cycle_state], terms)
    ending = (*nominated.victims, *nominated.awaited)
    found = {bundle: None for pod in ending if (bundle := bundles.of(pod)) is not None}
    gone = {pod.metadata.uid for bundle in found for pod in bundle.pods}
    if state is None or gone != {pod.metadata.uid for pod in ending}:
        return None
    search = InPieces(VictimSearch(now, state, list(found), BudgetsOfPods(terms.budgets), Meter()).without_all())
    # Nothing else runs during the proof. If it is not over after MOST_UNITS pieces, the nomination is not proven, and
    # the pod tries again later: better than to stop the whole operator for one pod.
    with suppress(StepsSpent):
        for _ in zip(range(MOST_UNITS), search, strict=False):
            pass
    if not search.is_over or search.answer is None:
        return None
    return replace(nominated, plan=search.answer)


Lowest = tuple[tuple[float, float], float]
_HIGHEST: Final = (math.inf, math.inf)


@dataclass(slots=True)
class _Candidates:
    """Possible victims on one node. ``lowest``: the lowest level among them, with the shortest termination.

    ``leaves_in``: seconds until the first terminating pod is gone; infinity without one.
    """

    lowest: Lowest = (_HIGHEST, math.inf)
    leaves_in: float = math.inf
    pods: list[Pod] = field(default_factory=list)

    def may_have(self, lowest: Lowest, leaves_in: float) -> None:
        """Count a further possible victim."""
        self.lowest, self.leaves_in = min(self.lowest, lowest), min(self.leaves_in, leaves_in)

    @property
    def is_leaving(self) -> bool:
        """Whether one of them is terminating already."""
        return self.leaves_in < math.inf


class _Search:
    def __init__(self, failed: Unschedulable, terms: PreemptionTerms, meter: Meter) -> None:
        self._failed, self._meter = failed, meter
        self._nodes, self._pod = failed.cycle_state.nodes, failed.cycle_state.pod
        self._bundles, self._budgets = Bundles([failed.cycle_state], terms), BudgetsOfPods(terms.budgets)
        self._terms = terms
        self._by_node: dict[str, _Candidates] = {}
        self._anywhere: dict[Bundle, None] = {}
        """Bundles that free devices of several nodes, by any of which the pod may get them."""
        self.best: VictimsOnNode | None = None

    def run(self) -> Work:
        """Try one node after the other, the most promising first."""
        yield from self._gather()
        answered = 0
        for name, candidates in self._in_order():
            if answered >= MOST_NODES or self._is_settled(candidates):
                return
            state = self._nodes.get(name)
            if state is None or not self._failed.is_resolvable(state):
                yield from self._meter.spend(1)
                continue
            found = yield from self._search(state, candidates)
            answered += found is not None
            if found is not None and (self.best is None or found.rank < self.best.rank):
                self.best = found
            # Pods of the nominated node terminate already. Another node may look better now, but to change the
            # nomination would preempt further pods there, and those terminating here would have been preempted in vain.
            if found is not None and candidates.is_leaving and name == self._nominated and self._is_in_time(found):
                return

    def _is_in_time(self, found: VictimsOnNode) -> bool:
        """Whether the victims terminate within ``patience``; asked only once an earlier victim has outlasted it."""
        return not self._terms.is_late or found.seconds <= self._terms.patience

    @property
    def _nominated(self) -> str:
        return self._failed.cycle_state.nominations.node

    def _gather(self) -> Work:
        """Collect the possible victims by node, and the holders of devices that several nodes can use."""
        pods_by_node = self._nodes.pods_by_node
        # Pods come and go while this pauses: a list of UIDs stays valid, and each pod is looked up when its turn comes.
        for number, uid in enumerate([uid for uid, _ in pods_by_node]):
            if number % PODS_PER_STEP == 0:
                yield from self._meter.spend(1)
            place = pods_by_node.at(uid)
            if place is not None and self._bundles.may_matter(place[0]):
                pod, node = place
                candidates = self._by_node.setdefault(node, _Candidates())
                candidates.pods.append(pod)
                weight, leaves = self._terms.weight(pod), pod.metadata.deletion_timestamp is not None
                candidates.may_have((weight.level, weight.seconds), weight.seconds if leaves else math.inf)
        state = self._failed.cycle_state
        # A holder of a network-attached device can be on any node, also on one that does not fit the pending pod.
        for pool in tuple(state.allocator.inventory.shared_pools if state.wanted_classes else ()):
            for device in sorted(state.usage.pool(pool).charged):
                yield from self._meter.spend(STEPS_PER_BUNDLE)
                bundles = self._bundles.with_device(DeviceId(*pool, device))
                self._anywhere.update(dict.fromkeys(bundles))

    def _in_order(self) -> list[tuple[str, _Candidates]]:
        """Return the nominated node, then nodes where waiting may be enough, then the others by lowest level."""
        # Devices of several nodes may help anywhere, so each node may have these victims.
        lowest: Lowest = min(((it.level, it.seconds) for it in self._anywhere), default=(_HIGHEST, math.inf))
        leaves_in = min((it.seconds for it in self._anywhere if not it.victims), default=math.inf)
        for name in self._nodes.names() if self._anywhere else ():
            self._by_node.setdefault(name, _Candidates()).may_have(lowest, leaves_in)
        order = {
            name: (name != self._nominated, not it.is_leaving, it.leaves_in, it.lowest, name)
            for name, it in self._by_node.items()
        }
        return sorted(self._by_node.items(), key=lambda it: order[it[0]])

    def _is_settled(self, candidates: _Candidates) -> bool:
        """Return whether neither this node nor a later one can be better than the best so far."""
        # The order of the nodes says nothing about budgets: any later node may violate fewer.
        if self.best is None or self.best.broken:
            return False
        if not self.best.victims:
            return candidates.leaves_in > self.best.seconds
        return not candidates.is_leaving and candidates.lowest[0] > self.best.highest

    def _search(self, state: LoadedNode, candidates: _Candidates) -> Generator[Pause, Elapsed, VictimsOnNode | None]:
        bundles: dict[Bundle, None] = {}
        for pod in candidates.pods:
            looked = self._bundles.looked
            bundle = self._bundles.of(pod)
            if bundle is not None:
                bundles[bundle] = None
            yield from self._meter.spend(STEPS_PER_BUNDLE + self._bundles.looked - looked)
        # Only if the node can use the devices that they free: otherwise preemption would not help.
        bundles.update((bundle, None) for bundle in self._anywhere if bundle.frees_on(state.node))
        yield from self._meter.spend(1 + len(self._anywhere))
        return (yield from VictimSearch(self._failed, state, list(bundles), self._budgets, self._meter).search())


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
            assert node is not None, "the caller has compared all nodes of the plans"
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
