"""Small clusters in which pods and gangs may preempt others, and the victims by exhaustive search."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain, combinations
from typing import Any, NamedTuple, TypeVar

from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.references import claims_of_pod
from dra_api.resource import ResourceClaim, ResourceSlice
from dra_api.values import format_time
from dra_operator.allocator import Allocator, DeviceId, Usage
from dra_operator.scheduling import CycleState, Fits, Nodes, NoPlace, PodFilter, PostFilterResult, decided, plan
from dra_operator.scheduling.gang import JointPlan, SameValues, joint_plan
from dra_operator.scheduling.gang.members import NOTHING_SAME
from dra_operator.scheduling.preemption import (
    Budget,
    GangNomination,
    PreemptionTerms,
    preempt,
    preempt_for_gang,
    priority,
    seconds_left,
)
from dra_operator.scheduling.preemption.bundles import Meter
from dra_operator.scheduling.state import LoadedNode, add, gang_key, node_requests, served_resources
from msgspec import structs
from objects import on_node, user
from placement_lab import allocator, case, claim, node, pod, wants

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
"""When pods end for others: an hour after the first ones were made."""
PATIENCE = 30
CREATED = "2026-01-01T00:{:02}:00Z"
FINALIZER = "resource.kubernetes.io/delete-protection"


def running(name: str, where: str, rank: int = 0, *claims: str, cpu: str = "0", age: int = 0, **spec: Any) -> Pod:
    """A pod on a node; the higher ``age`` is, the younger it is."""
    meta = {"creationTimestamp": CREATED.format(age)}
    meta |= {kind: spec.pop(kind, {}) for kind in ("labels", "annotations")}
    if (grace := spec.pop("grace", None)) is not None:
        spec["terminationGracePeriodSeconds"] = grace
    if leaves := spec.pop("leaves", None):
        meta["deletionTimestamp"] = leaves
    entries = [{"name": it, "resourceClaimName": it} for it in claims]
    return pod(cpu, entries, name=name, meta=meta, nodeName=where, priority=rank, **spec)


def held(
    name: str,
    where: str,
    devices: Sequence[str],
    *users: str,
    pool: str = "",
    request: dict[str, Any] | None = None,
    **more: Any,
) -> ResourceClaim:
    """An allocated claim; with a pool of its own name its devices can be used from every node."""
    results = [
        {"request": "r", "driver": "gpu.example.com", "pool": pool or where, "device": device, **more}
        for device in devices
    ]
    allocation = {"devices": {"results": results}, **({} if pool else {"nodeSelector": on_node(where)})}
    status = {"allocation": allocation, "reservedFor": list(map(user, users))}
    return claim(name, request or wants(count=len(devices)), status=status, metadata={"finalizers": [FINALIZER]})


@dataclass(frozen=True)
class Scene:
    """``pods`` run, ``claims`` are theirs; ``waiting`` waits with ``wanted``."""

    waiting: Pod
    wanted: Sequence[ResourceClaim]
    nodes: Sequence[LoadedNode]
    devices: Allocator
    pods: Sequence[Pod] = ()
    claims: Sequence[ResourceClaim] = ()
    budgets: Sequence[Budget] = ()
    leaving: frozenset[str] = frozenset()
    may_end: Callable[[Pod], bool] = field(default=lambda _: True)
    nominated: str = ""
    is_late: bool = False

    @cached_property
    def terms(self) -> PreemptionTerms:
        found = {(it.key, it.metadata.uid): it for it in self.pods}
        claims = {it.key: it for it in (*self.wanted, *self.claims)}  # all in the namespace ns
        return PreemptionTerms(
            find_pod=lambda key, uid: found.get((key, uid)),
            claims_of=lambda it: [(use, claims.get(f"ns/{use.name}")) for use in claims_of_pod(it)],
            may_end=self.may_end,
            is_leaving=lambda it: it.metadata.name in self.leaving,
            gang=gang_key,
            placed_with=gang_key,
            members=lambda gang: [it for it in self.pods if gang_key(it) == gang],
            holders=lambda device: [it for it in self.claims if device in map(DeviceId.of, it.results)],
            budgets=lambda _: self.budgets,
            priority=priority,
            seconds_left=self.seconds,
            is_late=self.is_late,
        )

    def leaves(self, it: Pod) -> bool:
        return it.metadata.name in self.leaving

    def victims(self, groups: Sequence[Sequence[Pod]]) -> list[Pod]:
        """The pods of the groups that do not end already."""
        return [it for it in chain(*groups) if not self.leaves(it)]

    def level(self, it: Pod) -> tuple[int, int]:
        """How much the pod matters: by its priority, and by whether it takes longer to end than others wait for it."""
        outlasts = int(self.seconds(it) > PATIENCE)
        return (outlasts, priority(it)) if self.is_late else (priority(it), outlasts)

    def seconds(self, it: Pod) -> float:
        """In how many seconds the pod is gone; that its node cannot be reached is not looked at."""
        return seconds_left(it, None, NOW)

    def without(self, ended: Sequence[Pod]) -> CycleState:
        """The cluster as it is after these have ended, made afresh."""
        nodes, usage = self.cluster_without(ended)
        return case(self.waiting, self.wanted, nodes, self.devices, usage=usage)

    def cluster_without(self, ended: Sequence[Pod]) -> tuple[Nodes, Usage]:
        """Its nodes, and the devices in use."""
        gone = {it.metadata.uid for it in ended}
        left = [it for it in self.pods if it.metadata.uid not in gone]
        used: dict[str, dict[str, int]] = {}
        for it in left:
            requests = node_requests(it, served_resources(it))
            used[it.spec.node_name] = add(used.get(it.spec.node_name, {}), requests)
        nodes = Nodes([it.with_load(used.get(it.name, {})) for it in self.nodes])
        for it in left:
            nodes.pods_by_node.put(it, it.spec.node_name)
        users = {it.metadata.uid for it in left}
        allocations = [
            it.status.allocation
            for it in self.claims
            if it.status.allocation is not None and any(user.uid in users for user in it.status.reserved_for or ())
        ]
        return nodes, Usage(allocations)

    def answer(self) -> PostFilterResult | None:
        made = decided(plan(self.without(()), post_filter=lambda failed: preempt(failed, self.terms)))
        return made.nominated if isinstance(made, NoPlace) else None

    def fits_without(self, ended: Sequence[Pod], where: str) -> bool:
        after = self.without(ended)
        state = after.nodes.get(where)
        return state is not None and isinstance(decided(PodFilter(after).filter(state)), Fits)


class Found(NamedTuple):
    """What exhaustive search says."""

    node: str
    victims: frozenset[str]


def exhaustive(scene: Scene) -> Found | None:
    """The best node with the best set of victims on it."""
    best: list[tuple[tuple[Any, ...], Found]] = []
    for state in scene.nodes:
        there = [group for group in groups(scene) if _matters(scene, group, state.name)]
        sets = [some for some in subsets(scene, there) if scene.fits_without(list(chain(*some)), state.name)]
        if not sets:
            continue
        chosen = min(sets, key=lambda some: importance(scene, there, some))
        found = Found(state.name, frozenset(it.metadata.name for it in scene.victims(chosen)))
        best.append((_rank(scene, chosen, state.name), found))
    return min(best)[1] if best else None


def groups(scene: Scene) -> list[tuple[Pod, ...]]:
    """Gangs and pods that may end; those that share a claim are one, if all that have it reserved may."""
    pods, gangs = {it.metadata.name: it for it in scene.pods}, dict[str, set[str]]()
    for it in scene.pods:
        together = None if scene.leaves(it) else gang_key(it)
        gangs.setdefault(together or it.key, set()).add(it.metadata.name)
    ends = [
        gang
        for gang in gangs.values()
        if all(scene.leaves(pods[name]) or priority(pods[name]) < priority(scene.waiting) for name in gang)
    ]
    group = {name: gang for gang in ends for name in gang}
    for names in ([it.name for it in held.status.reserved_for or ()] for held in scene.claims):
        if all(name in group for name in names):
            merged = set(chain(*(group[name] for name in names)))
            group.update(dict.fromkeys(merged, merged))
    groups = {frozenset(names) for names in group.values()}
    return [tuple(pods[name] for name in sorted(names)) for names in groups]


def _matters(scene: Scene, group: Sequence[Pod], where: str) -> bool:
    names = {it.metadata.name for it in group}
    users = [(it, {user.name for user in it.status.reserved_for or ()}) for it in scene.claims]
    claims = [it for it, having in users if having and having <= names]
    selectors = [it.status.allocation.node_selector for it in claims if it.status.allocation is not None]
    return None in selectors or any(it.spec.node_name == where for it in group)


def subsets(scene: Scene, groups: Sequence[tuple[Pod, ...]]) -> Iterator[tuple[tuple[Pod, ...], ...]]:
    """Sets of groups that end: those that only end already are in each of them."""
    ending = tuple(it for it in groups if all(map(scene.leaves, it)))
    others = [it for it in groups if it not in ending]
    for number in range(len(others) + 1):
        yield from ((*ending, *some) for some in combinations(others, number))


def importance(scene: Scene, groups: Sequence[tuple[Pod, ...]], some: Sequence[tuple[Pod, ...]]) -> list[Any]:
    """Least for the best set: by falling level, how many end, and then that slow and old ones stay."""
    ordered = sorted(groups, key=lambda group: _order(scene, group))
    key: list[Any] = []
    levels = [max(map(scene.level, scene.victims([it]) or it)) for it in ordered]
    for level in sorted(set(levels), reverse=True):
        of_level = [it for it, its in zip(ordered, levels, strict=True) if its == level and scene.victims([it])]
        key.append((len(scene.victims([it for it in of_level if it in some])), [it in some for it in of_level]))
    return key


def _order(scene: Scene, group: Sequence[Pod]) -> tuple[Any, ...]:
    oldest = min(it.metadata.creation_timestamp or "" for it in group)
    return -max(map(scene.seconds, group)), oldest, min(it.key for it in group)


def _rank(scene: Scene, chosen: Sequence[Sequence[Pod]], where: str) -> tuple[Any, ...]:
    victims = scene.victims(chosen)
    ranks = [priority(it) for it in victims]
    highest = max(map(scene.level, victims), default=(-(2**31), 0))
    minutes = [int((it.metadata.creation_timestamp or "")[14:16]) for it in victims if scene.level(it) == highest]
    names = {it.metadata.name for it in chain(*chosen)}
    waited_for = [group for group in chosen if bool(scene.victims([group])) == bool(victims)]
    freed = [
        it for it in scene.claims if (users := {user.name for user in it.status.reserved_for or ()}) and users <= names
    ]
    return (
        highest,
        sum(rank + 2**31 for rank in ranks),
        len(ranks),
        max(map(scene.seconds, chain(*waited_for)), default=0),
        -min(minutes, default=0),
        sum(len(it.results) for it in freed),
        where,
    )


def of_gang(name: str, size: int) -> dict[str, str]:
    return {"dra.kopf.dev/gang": name, "dra.kopf.dev/gang-size": str(size)}


def random_scene(seed: int, *, gangs: bool = False, graces: bool = False) -> Scene:
    """Up to three nodes and seven pods with claims of their own, shared ones, and devices that any node can use.

    With ``gangs`` some of the pods are of two gangs; with ``graces`` they have grace periods, and some end already.
    """
    dice = random.Random(seed)
    names = ["a", "b", "c"][: dice.randint(1, 3)]
    kinds = {name: [dice.choice("xxy") for _ in range(dice.randint(1, 4))] for name in names}
    free = {name: [f"dev-{number}" for number in range(len(kinds[name]))] for name in names}
    devices = allocator(**kinds)
    network = ["net-0", "net-1"][: dice.choice((0, 0, 1, 2))]
    if network:
        spec = {"driver": "gpu.example.com", "allNodes": True}
        pool = {"name": "net", "generation": 1, "resourceSliceCount": 1}
        shown = [{"name": it, "attributes": {"n": {"bool": True}}} for it in network]
        slice_ = {"metadata": {"name": "net-gpu"}, "spec": {**spec, "pool": pool, "devices": shown}}
        devices.inventory.put_slice(convert(ResourceSlice, slice_))
    pods, users = [], dict[str, list[str]]()
    made: dict[str, tuple[str, list[str], str]] = {}
    for number in range(dice.randint(1, 7)):
        name, where = f"p{number}", dice.choice(names)
        claims: list[str] = []
        if free[where] and dice.random() < 0.85:
            count = min(len(free[where]), dice.choice((1, 1, 2)))
            made[f"c{number}"] = where, [free[where].pop(0) for _ in range(count)], ""
            claims.append(f"c{number}")
        if network and dice.random() < 0.3:
            made[f"n{number}"] = where, [network.pop()], "net"
            claims.append(f"n{number}")
        shareable = [it for it, (there, _, pool_) in made.items() if it not in claims and (pool_ or there == where)]
        if shareable and dice.random() < 0.25:
            claims.append(dice.choice(shareable))
        for it in claims:
            users.setdefault(it, []).append(name)
        cpu = dice.choice(("0", "0", "1", "2"))
        rank, age = dice.choice((0, 0, 1, 1, 2, 2, 5)), dice.randint(0, 9)
        wish = of_gang(dice.choice("gh"), 2) if gangs and dice.random() < 0.5 else {}
        pods.append(running(name, where, rank, *claims, cpu=cpu, age=age, annotations=wish))
    if graces:
        pods = [_with_grace(it, random.Random(f"{seed} {it.metadata.name}")) for it in pods]
    held_claims = [held(it, where, got, *users[it], pool=pool_) for it, (where, got, pool_) in made.items()]
    wanted = [
        claim(f"w{number}", wants(count=dice.choice((1, 1, 2, 2, 3)), selector=dice.choice((None, None, "x", "n"))))
        for number in range(dice.choice((0, 1, 1, 1, 1, 2)))
    ]
    waiting = pod(cpu=dice.choice(("1", "3", "4")), priority=dice.choice((2, 3, 3)))
    leaving = frozenset(it.metadata.name for it in pods if it.metadata.deletion_timestamp is not None)
    is_late = graces and dice.random() < 0.4
    nodes = [node(name) for name in names]
    return Scene(waiting, wanted, nodes, devices, pods, held_claims, leaving=leaving, is_late=is_late)


def _with_grace(it: Pod, dice: random.Random) -> Pod:
    """A pod that takes its time to end, or is ending already."""
    if dice.random() < 0.15:
        ends = format_time(NOW + timedelta(seconds=dice.choice((1, 5, 30))))
        return structs.replace(it, metadata=structs.replace(it.metadata, deletion_timestamp=ends))
    grace = dice.choice((None, 0, 1, 1, 30, 31, 3600, 10 * 365 * 86400))
    return structs.replace(it, spec=structs.replace(it.spec, termination_grace_period_seconds=grace))


# --- gang preemption lab ---

T = TypeVar("T")


@dataclass(frozen=True)
class GangScene:
    """``members`` wait together in a cluster; ``scene.waiting`` is the one with the lowest priority."""

    scene: Scene
    members: Sequence[tuple[Pod, Sequence[ResourceClaim]]]
    same: SameValues = NOTHING_SAME

    def without(self, ended: Sequence[Pod]) -> list[CycleState]:
        """The members after these have ended, in a cluster that is made afresh."""
        nodes, usage = self.scene.cluster_without(ended)
        return [case(it, claims, nodes, self.scene.devices, usage=usage) for it, claims in self.members]

    def plan_without(self, ended: Sequence[Pod]) -> JointPlan | NoPlace:
        return decided(joint_plan(self.without(ended), self.same))

    def answer(self, meter: Meter | None = None) -> GangNomination | None:
        return decided(preempt_for_gang(self.without(()), self.same, self.scene.terms, meter))


def exhaustive_for_gang(scene: GangScene) -> frozenset[str] | None:
    """The names of the victims; None if no set of them lets the gang in."""
    found = groups(scene.scene)
    sets = [some for some in subsets(scene.scene, found) if isinstance(scene.plan_without(list(chain(*some))), tuple)]
    if not sets:
        return None
    chosen = min(sets, key=lambda some: importance(scene.scene, found, some))
    return frozenset(it.metadata.name for it in scene.scene.victims(chosen))


def member(
    number: int, count: int = 1, *, selector: str | None = None, cpu: str = "0", rank: int = 10
) -> tuple[Pod, list[ResourceClaim]]:
    """A pod of the gang ``wanting``, with so many devices."""
    claims = [claim(f"m{number}-0", wants(count=count, selector=selector))] if count else []
    return pod(cpu, name=f"m{number}", meta={"annotations": of_gang("wanting", 2)}, priority=rank), claims


def random_gang_scene(seed: int, *, graces: bool = False) -> GangScene:
    """The cluster of ``random_scene``, with gangs in it, and two or three pods that wait together."""
    scene, dice = random_scene(seed, gangs=True, graces=graces), random.Random(-seed)
    members = [
        member(
            number,
            dice.choice((0, 1, 1, 2)),
            selector=dice.choice((None, None, "x")),
            cpu=dice.choice(("0", "1", "2", "3")),
            rank=dice.choice((2, 3, 3, 6)),
        )
        for number in range(dice.choice((2, 2, 3)))
    ]
    lowest, _ = min(members, key=lambda it: it[0].spec.priority or 0)
    return GangScene(replace(scene, waiting=lowest, wanted=[]), members)
