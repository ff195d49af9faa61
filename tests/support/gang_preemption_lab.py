"""Small clusters in which a gang may preempt others, and the victims by exhaustive search over all sets of pods."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_operator.scheduling import CycleState, NoPlace, decided
from dra_operator.scheduling.gang import JointPlan, SameValues, joint_plan
from dra_operator.scheduling.gang.domains import NOTHING_SAME
from dra_operator.scheduling.preemption import GangNomination, preempt_for_gang
from dra_operator.scheduling.preemption.terms import Meter
from msgspec import structs
from placement_lab import case, claim, pod, wants
from preemption_lab import Scene, groups, importance, of_gang, random_scene, subsets

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
        others = list(self.scene.claims)
        return [case(it, claims, nodes, self.scene.devices, usage=usage, others=others) for it, claims in self.members]

    def plan_without(self, ended: Sequence[Pod]) -> JointPlan | NoPlace:
        return decided(joint_plan(self.without(ended), self.same))

    def answer(self, meter: Meter | None = None) -> GangNomination | None:
        """What preemption nominates."""
        return decided(preempt_for_gang(self.without(()), self.same, self.scene.terms, meter))


def exhaustive(scene: GangScene) -> frozenset[str] | None:
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
    made, name = pod(cpu, priority=rank), f"m{number}"
    meta = structs.replace(made.metadata, name=name, uid=f"uid-{name}", annotations=of_gang("wanting", 2))
    claims = [claim(f"{name}-0", wants(count=count, selector=selector))] if count else []
    return structs.replace(made, metadata=meta), claims


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
