"""Events late, twice, in another order between kinds, or never: the end is the same, and no device is given twice."""

from __future__ import annotations

import random

import pytest
from controllers_world import World
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource
from dra_operator.cache import check
from fake_api import Event
from objects import Make


def shuffled(events: list[Event], chance: random.Random) -> list[Event]:
    """Kinds overtake each other, one kind stays in order; some events come twice."""
    kinds: dict[Resource, list[Event]] = {}
    for event in events:
        kinds.setdefault(event[1], []).extend([event] * chance.choice((1, 1, 2)))
    mixed = []
    while kinds:
        kind = chance.choice(list(kinds))
        mixed.append(kinds[kind].pop(0))
        if not kinds[kind]:
            del kinds[kind]
    return mixed


@pytest.mark.parametrize("seed", range(12))
async def test_pods_come_and_go_under_an_unreliable_watch(seed: int, world: World, make: type[Make]) -> None:
    chance = random.Random(seed)
    world.furnish(nodes=2, devices=2)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.start()
    async with world.running():
        for step in range(12):
            running = [
                pod for pod in world.api.of(PODS) if pod["status"]["phase"] == "Pending" and pod["spec"].get("nodeName")
            ]
            if running and chance.random() < 0.4:
                name = chance.choice(running)["metadata"]["name"]
                world.api.change(PODS, f"ns/{name}", lambda pod: pod["status"].update(phase="Succeeded"))
            else:
                world.api.add(PODS, make.pod(f"pod-{step}", claims=[make.FROM_TEMPLATE]))
            if chance.random() < 0.7:  # otherwise the watch is late
                world.api.events[:] = shuffled(world.api.events, chance)
                world.bring_events()
            for _ in range(chance.randrange(4)):
                await world.tick()
            check(world.cluster)
        await world.quiet()
    await world.settle()  # a fresh start finds nothing that the events left undone
    pods = {pod["metadata"]["uid"]: pod for pod in world.api.of(PODS)}
    done = {uid for uid, pod in pods.items() if pod["status"]["phase"] == "Succeeded"}
    holders = {claim["metadata"]["ownerReferences"][0]["uid"]: claim for claim in world.api.of(RESOURCE_CLAIMS)}
    assert not done & set(holders)
    assert len(holders) == len(world.api.of(RESOURCE_CLAIMS)) == len(pods) - len(done)
    bound = [uid for uid in holders if pods[uid]["spec"].get("nodeName")]
    assert len(bound) == min(4, len(holders))
