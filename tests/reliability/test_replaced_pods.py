"""Pods that are deleted and made anew under the same name, as StatefulSets do."""

from __future__ import annotations

import pytest
from dra_kube import PODS
from faults import BreakStream, DelayEvents, EventFault, Target
from proving_ground import NAMESPACE, ProvingGround
from rounds import LONG

pytestmark = pytest.mark.timeout(300)

POD_EVENTS = Target(verbs=("watch",), resource="pods")

FAULTS: list[object] = [
    pytest.param((), id="nothing goes wrong"),
    pytest.param((DelayEvents(POD_EVENTS, 0.3, seconds=(0.1, 0.5)),), id="events are late"),
    pytest.param((BreakStream(POD_EVENTS, 0.2),), id="the stream breaks again and again", marks=LONG),
]


async def replace(ground: ProvingGround, name: str) -> None:
    """At once: no client waits for the end of the old pod."""
    await ground.api.delete(PODS, name, NAMESPACE, grace_seconds=0)
    await ground.add_pod(name)


@pytest.mark.parametrize("faults", FAULTS)
async def test_replaced_pods_get_the_places_of_their_predecessors(
    ground: ProvingGround, faults: tuple[EventFault, ...]
) -> None:
    """Devices and room are just enough, so that a phantom of any predecessor keeps a pod waiting."""
    await ground.furnish(nodes=3, devices=5, pods=5)
    async with ground.operator() as operator:
        await operator.becomes_ready()
        names = await ground.add_pods(15)
        await ground.bound(15)
        with ground.proxy.suffering(*faults):
            for _ in range(3):
                for name in names:
                    await replace(ground, name)
                await ground.bound(15)
        await ground.emptied()
    await ground.sound()
