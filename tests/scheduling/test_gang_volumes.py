"""The volumes of a joint plan: each is free when its pod's turn comes, and a plan is found if there is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from random import Random

from dra_api.core import Pod
from dra_operator.scheduling import CycleState, Nodes
from dra_operator.scheduling.gang import JointPlan, SameValues
from dra_operator.scheduling.rules import volumes_of
from dra_operator.scheduling.state import Obstacle
from neighbour_lab import away, term
from objects import Obj
from placement_lab import allocator, case, decided_together, decided_with_pauses, node
from rounds import each_of, fewer
from volume_lab import HOST, Shelf, on_nodes, pod, storage_class, uses, volume, volume_claim

NAMES = ("a", "b", "c")
FAST = "fast"


def stored(random: Random) -> Iterator[Obj]:
    """Volumes of some nodes or of all, and claims of which some get new ones."""
    yield from (storage_class(), storage_class(FAST, "csi.example.com"))
    for number in range(random.randint(0, 5)):
        affinity = on_nodes(*random.sample(NAMES, random.randint(1, 2))) if random.random() < 0.7 else None
        yield volume(f"pv-{number}", size=f"{random.randint(1, 3)}Gi", affinity=affinity)
    for number in range(4):
        class_name = FAST if random.random() < 0.2 else "late"
        yield volume_claim(f"c{number}", size=f"{random.randint(1, 3)}Gi", class_name=class_name)


def pods_of(random: Random) -> list[Pod]:
    made = []
    for number in range(random.randint(2, 3)):
        names = random.sample([f"c{it}" for it in range(4)], random.randint(0, 2))
        made.append(pod(uses(*names), f"m{number}"))
    return made


def states_of(pods: Sequence[Pod], objects: Sequence[Obj]) -> list[CycleState]:
    nodes = Nodes([node(name, labels={HOST: name}) for name in NAMES])
    devices, shelf = allocator(**dict.fromkeys(NAMES, "")), Shelf.of(*objects)
    made = []
    for it in pods:
        volumes = volumes_of(it, shelf)
        assert not isinstance(volumes, Obstacle)
        made.append(replace(case(it, [], nodes, devices), volumes=volumes))
    return made


def fits(pods: Sequence[Pod], where: Sequence[str], objects: Sequence[Obj], states: Sequence[CycleState]) -> bool:
    """Whether the pods get volumes on these nodes, one after the other."""
    shelf = Shelf.of(*objects)
    for it, name in zip(pods, where, strict=True):
        volumes, loaded = volumes_of(it, shelf), states[0].nodes.get(name)
        assert not isinstance(volumes, Obstacle)
        assert loaded is not None
        found = volumes.bindings(loaded.node)
        if isinstance(found, Obstacle):
            return False
        shelf.assume(it.metadata.uid, name, found)
    return True


@each_of(range(fewer(150)))
def test_volumes_are_free_in_the_order_of_the_plan_and_none_is_missed_in_that_of_the_pods(seed: int) -> None:
    random = Random(seed)
    objects, pods = list(stored(random)), pods_of(random)
    states = states_of(pods, objects)
    plans = decided_together(states, SameValues())
    if not isinstance(plans, JointPlan):
        assert not any(fits(pods, where, objects, states) for where in product(NAMES, repeat=len(pods)))
        return
    shelf = Shelf.of(*objects)
    for number in plans.order:
        plan, volumes = plans[number], volumes_of(pods[number], shelf)
        loaded = states[0].nodes.get(plan.node)
        assert loaded is not None
        assert not isinstance(volumes, Obstacle)
        assert volumes.bindings(loaded.node) == plan.volumes
        shelf.assume(pods[number].metadata.uid, plan.node, plan.volumes)


def test_no_volume_is_taken_twice_after_a_pause() -> None:
    """The rules of a pod are made anew then, with the volumes that the members before it leave."""
    there = [volume("pv-0", size="1Gi"), volume("pv-1", size="3Gi", affinity=on_nodes("c"))]
    objects = [storage_class(), *there, *(volume_claim(f"c{number}", size="1Gi") for number in range(2))]
    affinity = away(term({"matchLabels": {"app": "none"}}, HOST))
    made = [pod(uses(f"c{number}"), f"m{number}", affinity=affinity) for number in range(2)]
    plans = decided_with_pauses(states_of(made, objects), SameValues())
    assert isinstance(plans, JointPlan), plans
    assert len({it.metadata.name for plan in plans for _, it in plan.volumes.reserve}) == 2
