"""Many pods at once, as after an outage or when a large job starts."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from types import FrameType

from controllers_world import World
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from fake_api import Call
from objects import Make

PODS_AT_ONCE = 300


async def turn_of_the_loop() -> None:
    """Requests take time, so that others work meanwhile."""
    await asyncio.sleep(0)


def furnish(world: World, make: type[Make]) -> None:
    world.api.way = turn_of_the_loop
    world.furnish(nodes=PODS_AT_ONCE // 10, devices=10)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    for number in range(PODS_AT_ONCE):
        world.api.add(PODS, make.pod(f"pod-{number}", claims=[make.FROM_TEMPLATE]))


async def test_the_first_pods_are_bound_while_claims_of_others_are_still_to_be_made(
    world: World, make: type[Make]
) -> None:
    furnish(world, make)
    claims_at_binding: list[int] = []

    def look(call: Call) -> None:
        if call.sub == "binding":
            claims_at_binding.append(len(world.api.of(RESOURCE_CLAIMS)))

    world.api.after = look
    await world.settle()
    assert len(claims_at_binding) == PODS_AT_ONCE
    assert claims_at_binding[PODS_AT_ONCE // 10] < PODS_AT_ONCE // 2


async def test_each_pod_of_a_burst_gets_one_claim_and_four_writes(world: World, make: type[Make]) -> None:
    furnish(world, make)
    await world.settle()
    owners = Counter(claim["metadata"]["ownerReferences"][0]["name"] for claim in world.api.of(RESOURCE_CLAIMS))
    assert owners == {f"pod-{number}": 1 for number in range(PODS_AT_ONCE)}
    assert all(pod["spec"].get("nodeName") for pod in world.api.of(PODS))
    assert world.api.conflicts == 0
    assert len(world.api.writes) == 4 * PODS_AT_ONCE


ROOMS = {
    "/controllers/scheduling/gang/": 6,
    "/scheduling/gang/": 0,
    "/controllers/scheduling/preemption/": 0,
    "/scheduling/preemption/": 0,
    "/scheduling/state/inter_pod/terms.py": 0,
    "/scheduling/state/inter_pod/domain_query.py": 0,
}
"""Calls that a pod may cost in a room that is not for it."""


async def test_a_pod_in_no_gang_and_without_rules_pays_for_neither(world: World, make: type[Make]) -> None:
    furnish(world, make)
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code.co_filename] += 1

    sys.setprofile(count)
    try:
        await world.settle()
    finally:
        sys.setprofile(None)
    assert all(pod["spec"].get("nodeName") for pod in world.api.of(PODS))
    found = {
        room: sum(number for file, number in calls.items() if f"/dra_operator{room}" in file) / PODS_AT_ONCE
        for room in ROOMS
    }
    assert all(found[room] <= most for room, most in ROOMS.items()), found
