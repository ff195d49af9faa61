"""Two operators with two scheduler names on one full cluster: what they place, with and without nodes of their own.

``KOPF_DRA_ROUNDS=3 pytest -s tests/reliability/test_two_scheduler_names.py`` measures all ways three times and prints
that. Without it only the way is tried that promises something: nodes of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from contextlib import AsyncExitStack
from typing import Final

import pytest
from dra_kube import NODES
from proving_ground import RUNS_SECONDS, ProvingGround
from rounds import LONG, rounds

NODES_OF_ALL: Final = 8
DEVICES_OF_A_NODE: Final = 8
WAITING: Final = 40
"""So many pods wait at any time, beyond those that have a device; each scheduler has its part of them."""
SECONDS: Final = 15.0 if "KOPF_DRA_ROUNDS" in os.environ else 6.0
RUN_SECONDS: Final = 1.0
NAMES: Final = ("dra-scheduler", "dra-scheduler-b")
WAYS: Final = ("one", "two on all nodes", "two with nodes of their own")


async def placed(ground: ProvingGround, names: tuple[str, ...], seconds: float) -> int:
    """How many pods get a device in that time from a queue of each scheduler that never ends."""
    loop, numbers = asyncio.get_running_loop(), itertools.count()
    end, done = loop.time() + seconds, set[str]()
    while loop.time() < end:
        pods = await ground.pods()
        done |= {pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName")}
        finished = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Succeeded"]
        waiting = Counter(pod["spec"]["schedulerName"] for pod in pods if not pod["spec"].get("nodeName"))
        wanted = [name for name in names for _ in range(WAITING // len(names) - waiting[name])]
        annotations = {RUNS_SECONDS: str(RUN_SECONDS)}
        add = (ground.add_pod(f"pod-{next(numbers)}", schedulerName=it, annotations=annotations) for it in wanted)
        await asyncio.gather(ground.delete_pods(finished), *add)
        await asyncio.sleep(0.2)
    return len(done)


async def measured(ground: ProvingGround, way: str) -> tuple[int, int]:
    """Pods that were placed, and contests: allocations that one operator gave up for the other."""
    names = NAMES[:1] if way == "one" else NAMES
    has_own = way == WAYS[2]
    for number in range(NODES_OF_ALL):
        taint = {"key": "dra.kopf.dev/scheduler", "value": NAMES[number % 2], "effect": "NoSchedule"}
        await ground.api.patch(NODES, f"node-{number}", {"spec": {"taints": [taint] if has_own else []}})
    async with AsyncExitStack() as stack:
        operators = []
        for name in names:
            controllers = ["--controllers", "placement"] if name != NAMES[0] else []
            options = ["--scheduler-name", name, *controllers, *(["--own-devices-only"] if has_own else [])]
            operators.append(await stack.enter_async_context(ground.operator(*options)))
        for operator in operators:
            await operator.becomes_ready()
        await asyncio.sleep(11)  # nodes that were marked just now are relied on after ten seconds
        number = await placed(ground, names, SECONDS)
        contests = sum(it.text.count("a device was also allocated to another claim") for it in operators)
        await ground.delete_pods([pod["metadata"]["name"] for pod in await ground.pods()])
        await ground.emptied()
    return number, contests


@LONG
@pytest.mark.timeout(1800)
async def test_operators_with_nodes_of_their_own_never_take_the_same_device(ground: ProvingGround) -> None:
    await ground.furnish(nodes=NODES_OF_ALL, devices=DEVICES_OF_A_NODE)
    found: dict[str, list[tuple[int, int]]] = {
        way: [] for way in (WAYS if "KOPF_DRA_ROUNDS" in os.environ else WAYS[2:])
    }
    for _ in rounds(1):
        for way in found:
            found[way].append(await measured(ground, way))
    for way, numbers in found.items():
        print(f"{way}: " + ", ".join(f"{number} pods, {contests} contests" for number, contests in numbers))
    assert not any(contests for _, contests in found[WAYS[2]])
    await ground.witness.caught_up()
    twice = [it.what for it in ground.witness.findings() if it.what.endswith("of running pods")]
    assert not twice, twice[:5]
