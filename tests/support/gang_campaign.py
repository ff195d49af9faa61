"""Compares the joint plans of gangs with exhaustive search, in small random clusters: a plan is found where one exists.

A cluster has up to four nodes with up to six devices each; some devices and some room are in use. A gang has up to
eight pods, with devices of their own, claims that they share, devices with a value in common, and rules between pods;
racks and values may be asked of the whole gang. Where a rule depends on the order in which pods are placed, a gang has
up to five.

The exhaustive search places one pod after the other, in every such order, on every node, with every choice of devices.
It has the rules in words of its own, and saves work only by looking once at states in which equal devices are free.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, product
from typing import Any, Final, NamedTuple

from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import AllocationResult, ResourceClaim
from dra_operator.allocator import DeviceId, Usage
from dra_operator.scheduling import CycleState, Nodes, NoPlace, Plan
from dra_operator.scheduling.gang import SameValues
from history_kit.game import Game, Outcome
from neighbour_lab import HOST, away, near, spread, term
from placement_lab import case, decided_together, node, pod, prefers, publishing, wants

DOMAIN: Final = "nvlink.example.com/domain"
RACK: Final = "example.com/rack"
CPUS: Final = 6
"""Of each node."""
LABELS: Final = {"app": "db"}
"""Of some pods; rules are about them."""
OTHERS: Final = {"matchLabels": LABELS}
RULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "": {},
    "away": {"affinity": away(term(OTHERS, HOST))},
    "near": {"affinity": near(term(OTHERS, HOST))},
    "spread": {"topologySpreadConstraints": [spread(OTHERS, HOST)]},
}


class Type(NamedTuple):
    """What makes devices different. ``kind``: a selector that they match; ``value``: of the attribute ``DOMAIN``."""

    kind: str
    value: str


class Claim(NamedTuple):
    """``kinds``: selectors, of which a request takes the first one that can be had; none: any device will do.

    ``number`` devices; ``is_matched``: they have the same value of ``DOMAIN``.
    """

    number: int
    kinds: tuple[str, ...] = ()
    is_matched: bool = False


class Wish(NamedTuple):
    """What one pod asks for. ``shared``: the number of a claim that others use as well. ``rule``: of ``RULES``."""

    cpu: int
    own: Claim | None = None
    shared: int | None = None
    has_labels: bool = False
    rule: str = ""


@dataclass(frozen=True)
class Small:
    """A cluster and a gang. ``used`` is cpu by node; ``taken`` are numbers of devices."""

    devices: Mapping[str, Sequence[Type]]
    racks: Mapping[str, str]
    used: Mapping[str, int]
    taken: Mapping[str, frozenset[int]]
    wishes: Sequence[Wish]
    shared: Sequence[Claim] = ()
    same: SameValues = field(default_factory=SameValues)

    @property
    def has_order(self) -> bool:
        """Whether a pod may be placed or not depending on which others are there before."""
        return any(wish.rule in ("near", "spread") for wish in self.wishes)

    def free(self, name: str) -> list[Type]:
        """The devices of a node that are not in use."""
        return [it for number, it in enumerate(self.devices[name]) if number not in self.taken[name]]


def small(seed: int) -> Small:
    dice = random.Random(seed)
    rules = dice.choice(((), (), (), ("away",), ("near", ""), ("spread", ""), tuple(RULES)))
    size = dice.randint(2, 5 if len(rules) > 1 else 8)
    names = "abcd"[: dice.randint(1 + size // 4, 4)]
    values = dice.choice(("p", "pq", "ppq", "pqr"))
    most = 4 + size // 4
    devices = {
        name: [Type(dice.choice("xxy"), dice.choice(values)) for _ in range(dice.randint(0, most))] for name in names
    }
    taken = {
        name: frozenset(number for number in range(len(own)) if dice.random() < 0.1) for name, own in devices.items()
    }
    shared = [_claim(dice) for _ in range(dice.choice((0, 0, 0, 1, 2)))]
    kinds = [_wish(dice, len(shared), rules) for _ in range(size)]
    wishes = sorted(dice.choices(kinds, k=size), key=repr) if dice.random() < 0.5 else kinds
    same = SameValues(RACK if dice.random() < 0.2 else "", attribute=DOMAIN if dice.random() < 0.25 else "")
    racks = {name: dice.choice("12") for name in names}
    used = {name: dice.choice((0, 0, 0, 1, 3)) for name in names}
    return Small(devices, racks, used, taken, wishes, shared, same)


def _claim(dice: random.Random) -> Claim:
    count = dice.choice((1, 1, 1, 1, 1, 2, 2, 3))
    return Claim(count, dice.choice(((), (), ("x",), ("y",), ("x", "y"), ("y", "x"))), dice.random() < 0.3)


def _wish(dice: random.Random, shared: int, rules: Sequence[str]) -> Wish:
    own = _claim(dice) if dice.random() < 0.7 else None
    number = dice.randrange(shared) if shared and dice.random() < 0.4 else None
    rule = dice.choice(rules) if rules and dice.random() < 0.5 else ""
    has_labels = rule == "away" or bool(rules and dice.random() < 0.6)
    return Wish(dice.choice((0, 0, 1, 1, 2, 3)), own, number, has_labels, rule)


# --- the plan ---


def planned(it: Small) -> tuple[Plan, ...] | NoPlace:
    return decided_together(_states(it), it.same)


def _states(it: Small) -> list[CycleState]:
    published = {
        name: [{each.kind: {"bool": True}, DOMAIN: {"string": each.value}} for each in own]
        for name, own in it.devices.items()
    }
    devices, usage = publishing(published), Usage(_in_use(it))
    nodes = Nodes([_node(it, name) for name in it.devices])
    shared = [_made(f"shared-{number}", claim) for number, claim in enumerate(it.shared)]
    made: list[CycleState] = []
    for number, wish in enumerate(it.wishes):
        claims = [_made(f"own-{number}", wish.own)] if wish.own is not None else []
        claims += [shared[wish.shared]] if wish.shared is not None else []
        made.append(case(_pod(number, wish), claims, nodes, devices, usage=usage))
    return made


def _node(it: Small, name: str) -> Any:
    room = {"cpu": str(CPUS), "memory": "8Gi", "pods": "20"}
    return node(name, labels={HOST: name, RACK: it.racks[name]}, used={"cpu": str(it.used[name])}, allocatable=room)


def _in_use(it: Small) -> Iterator[AllocationResult]:
    for name, numbers in it.taken.items():
        results = [{"request": "r", "driver": "gpu.example.com", "pool": name, "device": f"dev-{n}"} for n in numbers]
        yield convert(AllocationResult, {"devices": {"results": results}})


def _made(name: str, wish: Claim) -> ResourceClaim:
    request = wants(count=wish.number, selector=wish.kinds[0] if wish.kinds else None)
    if len(wish.kinds) > 1:
        request = prefers(*wish.kinds)
        for alternative in request["firstAvailable"]:
            alternative["count"] = wish.number
    devices: dict[str, Any] = {"requests": [request]}
    if wish.is_matched:
        devices["constraints"] = [{"requests": ["r"], "matchAttribute": DOMAIN}]
    return convert(
        ResourceClaim, {"metadata": {"namespace": "ns", "name": name, "uid": name}, "spec": {"devices": devices}}
    )


def _pod(number: int, wish: Wish) -> Pod:
    labels = LABELS if wish.has_labels else {}
    return pod(str(wish.cpu), name=f"m{number}", meta={"labels": labels}, **RULES[wish.rule])


def faults(it: Small, plans: Sequence[Plan]) -> Iterator[str]:
    results = [result for each in plans for allocation in each.allocations.values() for result in allocation.results]
    taken = [DeviceId.of(result) for result in results]
    if len(taken) != len(set(taken)) or any(int(each.device[4:]) in it.taken[each.pool] for each in taken):
        yield "a device is given twice"
    types = [it.devices[each.pool][int(each.device[4:])] for each in taken]
    if it.same.attribute and len({each.value for each in types}) > 1:
        yield "the devices have no common value"
    where = [each.node for each in plans]
    if it.same.topology and len({it.racks[name] for name in where}) > 1:
        yield "the nodes have no common value"
    for name in it.devices:
        here = [wish for wish, place in zip(it.wishes, where, strict=True) if place == name]
        if it.used[name] + sum(wish.cpu for wish in here) > CPUS:
            yield f"{name} has not enough cpu"
        with_labels = sum(wish.has_labels for wish in here)
        if with_labels > 1 and any(wish.rule == "away" for wish in here):
            yield f"{name} has two pods that have to be apart"
        if not with_labels and any(wish.rule == "near" for wish in here):
            yield f"{name} has a pod that has to be near others"
    found = {uid: allocation for each in plans for uid, allocation in each.allocations.items()}
    for number, (wish, place) in enumerate(zip(it.wishes, where, strict=True)):
        claims = [(f"own-{number}", wish.own)] if wish.own is not None else []
        claims += [(f"shared-{wish.shared}", it.shared[wish.shared])] if wish.shared is not None else []
        for uid, claim in claims:
            got = [DeviceId.of(result) for result in found[uid].results]
            its = [it.devices[each.pool][int(each.device[4:])] for each in got]
            if {each.pool for each in got} != {place} or not _serves(claim, its):
                yield f"claim {uid} has {got}"


def _serves(claim: Claim, its: Sequence[Type]) -> bool:
    is_kind = not claim.kinds or any(all(each.kind == kind for each in its) for kind in claim.kinds)
    return len(its) == claim.number and is_kind and not (claim.is_matched and len({each.value for each in its}) > 1)


# --- exhaustive search ---


class Place(NamedTuple):
    """What is left of a node: ``free`` are the devices, in order. ``labelled``: how many pods with labels are there.

    ``is_shut``: one of them does not want another one there.
    """

    cpu: int
    free: tuple[Type, ...]
    is_allowed: bool
    labelled: int = 0
    is_shut: bool = False


class State(NamedTuple):
    """The nodes; on which of them each shared claim has its devices (-1: on none yet); and which pods are left."""

    places: tuple[Place, ...]
    shared: tuple[int, ...]
    left: tuple[Wish, ...]


def exists(it: Small) -> bool:
    """Whether all pods have places and devices together, by trying everything."""
    racks = sorted(set(it.racks.values())) if it.same.topology else [""]
    values = sorted({each.value for own in it.devices.values() for each in own}) if it.same.attribute else [""]
    return any(_exists(it, rack, value) for rack, value in product(racks, values))


def _exists(it: Small, rack: str, value: str) -> bool:
    places = tuple(
        Place(
            CPUS - it.used[name],
            tuple(sorted(each for each in it.free(name) if value in ("", each.value))),
            rack in ("", it.racks[name]),
        )
        for name in it.devices
    )
    ahead = [State(places, (-1,) * len(it.shared), tuple(it.wishes))]
    seen: set[State] = set()
    while ahead:
        state = ahead.pop()
        if not state.left:
            return True
        for number in range(len(state.left) if it.has_order else 1):
            new = set(_after(it, state, number)) - seen
            seen |= new
            ahead += new
    return False


def _after(it: Small, state: State, turn: int) -> Iterator[State]:
    """All states after the pod has a place whose turn it is."""
    wish, left = state.left[turn], (*state.left[:turn], *state.left[turn + 1 :])
    for number, place in enumerate(state.places):
        if place.cpu < wish.cpu or not place.is_allowed or not _keeps_rules(state, wish, place):
            continue
        claims, shared = [wish.own] if wish.own is not None else [], state.shared
        if wish.shared is not None:
            if shared[wish.shared] not in (-1, number):
                continue
            if shared[wish.shared] == -1:
                claims.append(it.shared[wish.shared])
                shared = (*shared[: wish.shared], number, *shared[wish.shared + 1 :])
        labelled, is_shut = place.labelled + wish.has_labels, place.is_shut or wish.rule == "away"
        for free in _left(place.free, claims):
            then = Place(place.cpu - wish.cpu, free, place.is_allowed, labelled, is_shut)
            yield State((*state.places[:number], then, *state.places[number + 1 :]), shared, left)


def _keeps_rules(state: State, wish: Wish, place: Place) -> bool:
    numbers = [each.labelled for each in state.places]
    if wish.has_labels and (place.is_shut or (wish.rule == "away" and place.labelled)):
        return False
    if wish.rule == "near":
        return bool(place.labelled) or (wish.has_labels and not any(numbers))
    return wish.rule != "spread" or place.labelled + wish.has_labels - min(numbers) <= 1


def _left(free: tuple[Type, ...], claims: Sequence[Claim]) -> Iterator[tuple[Type, ...]]:
    """The devices that are free after each choice for the claims."""
    if not claims:
        yield free
        return
    first, *others = claims
    counts = Counter(free)
    for some in combinations_with_replacement(sorted(counts), first.number):
        rest = counts - Counter(some)
        if rest.total() == len(free) - first.number and _serves(first, some):
            yield from _left(tuple(sorted(rest.elements())), others)


# --- both ---


def compared(seed: int) -> tuple[str, bool, str]:
    """What the operator says, whether a plan exists, and what is wrong."""
    it = small(seed)
    found, is_possible = planned(it), exists(it)
    if isinstance(found, tuple):
        wrong = "; ".join(faults(it, found))
        return "plan", is_possible, wrong or ("" if is_possible else "a plan that exhaustive search does not know")
    said = "gave up" if found.is_error else "none"
    return said, is_possible, f"{found.message}" if is_possible or found.is_error else ""


def played(seed: int) -> Outcome:
    said, is_possible, fault = compared(seed)
    wrong = (f"{said}, possible: {is_possible}: {fault}",) if fault else ()
    return Outcome(wrong, kinds=(f"with {len(small(seed).wishes)} pods: {said}",))


CAMPAIGN: Final = Game(played)
