"""A pod with the name of another one that is not quite gone: placed like any other."""

from __future__ import annotations

import pytest
from dra_kube import NODES, PODS, RESOURCE_CLAIM_TEMPLATES
from dra_operator.cluster import check
from objects import Make
from reconcile_world import World


@pytest.mark.parametrize("deletion", ["comes late", "never comes"])
@pytest.mark.parametrize("templates", [True, False], ids=["with claims", "without claims"])
async def test_fifteen_pods_are_replaced_by_others_of_the_same_name(
    templates: bool, deletion: str, world: World, make: type[Make]
) -> None:
    """Events of a pod and of its successor come in any order, and a list tells of no deletion at all."""
    world.furnish(devices=15)
    world.api.change(NODES, "node-0", lambda node: node["status"]["allocatable"].update(pods="15"))
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    claims = [make.FROM_TEMPLATE] if templates else []
    names = [f"pod-{number}" for number in range(15)]
    for name in names:
        world.api.add(PODS, make.pod(name, claims=claims))
    world.start()
    async with world.running():
        await world.quiet()
        for name in names:
            world.api.drop(PODS, f"ns/{name}")
            (gone,) = [event for event in world.api.events if event[0] == "DELETED" and event[1] == PODS]
            world.api.events.remove(gone)
            world.api.add(PODS, make.pod(name, claims=claims))
            if deletion == "comes late":
                world.bring_events()
                world.api.events.append(gone)
            await world.quiet()
        check(world.cluster)
    assert [world.api[PODS, f"ns/{name}"]["spec"].get("nodeName") for name in names] == ["node-0"] * 15
    assert world.cluster.loads.used("node-0")["pods"] == 15 * 10**9
