"""Pods that wait for quota at Kueue's gates, and then for devices at ours; Kueue takes quota back by deleting them.

The fake does to single pods what Kueue ff69552e was seen to do: it admits a pod in one update that adds the labels and
tolerations of its flavor and removes both gates; it deletes a pod that has to make room for a more important one, which
goes when Kueue drops its finalizer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from controllers_world import World
from dra_kube import NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_operator.scheduling.state import GATE
from fake_api import FakeApi
from objects import Make, Obj

GATES = ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")
FINALIZER = "kueue.x-k8s.io/managed"
TAINT = {"key": "flavor", "value": "b", "effect": "NoSchedule"}


@dataclass
class Kueue:
    """A queue with one flavor, whose nodes are labelled ``zone: b`` and tainted; each pod takes 1 of its quota."""

    quota: int
    admitted: list[str] = field(default_factory=list)

    def __call__(self, api: FakeApi) -> None:
        for pod in api.of(PODS):
            if "deletionTimestamp" in pod["metadata"]:
                api.drop(PODS, f"ns/{pod['metadata']['name']}")
        pods = sorted(api.of(PODS), key=lambda pod: -pod["spec"].get("priority", 0))
        charged = [pod for pod in pods if not _is_suspended(pod)]
        for pod in filter(_is_suspended, pods):
            if len(charged) >= self.quota:
                if charged and charged[-1]["spec"].get("priority", 0) < pod["spec"].get("priority", 0):
                    self._evict(api, charged.pop())
                return
            self._admit(api, pod)
            charged.append(pod)

    def _admit(self, api: FakeApi, pod: Obj) -> None:
        def edit(pod: Obj) -> None:
            spec = pod["spec"]
            spec["schedulingGates"] = [gate for gate in spec["schedulingGates"] if gate["name"] not in GATES]
            spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), "zone": "b"}
            spec["tolerations"] = [*(spec.get("tolerations") or ()), {**TAINT, "operator": "Equal"}]

        self.admitted.append(pod["metadata"]["name"])
        api.change(PODS, f"ns/{pod['metadata']['name']}", edit)

    def _evict(self, api: FakeApi, pod: Obj) -> None:
        def edit(pod: Obj) -> None:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

        api.change(PODS, f"ns/{pod['metadata']['name']}", edit)


def _is_suspended(pod: Obj) -> bool:
    return any(gate["name"] in GATES for gate in pod["spec"].get("schedulingGates") or ())


def furnish(world: World, make: type[Make], quota: int, devices: int) -> Kueue:
    """Nodes a1 and a2 are of another flavor, and come first in the order of names; b is of Kueue's."""
    world.furnish(("a1", "a2", "b"), devices)
    world.api.change(NODES, "b", lambda node: node["metadata"]["labels"].update(zone="b"))
    world.api.change(NODES, "b", lambda node: node.update(spec={"taints": [TAINT]}))
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    kueue = Kueue(quota)
    world.others.append(kueue)
    return kueue


def add_queued(world: World, make: type[Make], name: str, gates: tuple[str, ...] = (GATE, *GATES), **spec: Any) -> None:
    """A pod behind Kueue, as its webhook makes it."""
    body = {"schedulerName": "default-scheduler", "schedulingGates": [{"name": gate} for gate in gates], **spec}
    pod = make.pod(name, [make.FROM_TEMPLATE], **body)
    pod["metadata"]["finalizers"] = [FINALIZER]
    world.api.add(PODS, pod)


def devices_of(world: World) -> dict[str, str]:
    """Which pod has which device; each device once, each with a consumer."""
    found: dict[str, str] = {}
    for claim in world.api.of(RESOURCE_CLAIMS):
        status = claim.get("status") or {}
        for result in (status.get("allocation") or {"devices": {"results": []}})["devices"]["results"]:
            (consumer,) = status["reservedFor"]
            assert consumer["name"] not in found
            found[consumer["name"]] = f"{result['pool']}/{result['device']}"
    assert len(set(found.values())) == len(found)
    return found


def gates_of(world: World, name: str) -> list[str]:
    return [gate["name"] for gate in world.api[PODS, f"ns/{name}"]["spec"].get("schedulingGates") or ()]


@pytest.mark.parametrize("gates", [(GATE, *GATES), (*GATES, GATE), (GATES[0], GATE, GATES[1])])
async def test_pods_that_wait_for_quota_hold_no_devices_and_get_them_on_their_flavors_nodes(
    gates: tuple[str, ...], world: World, make: type[Make]
) -> None:
    kueue = furnish(world, make, quota=2, devices=3)
    for number in range(4):
        add_queued(world, make, f"pod-{number}", gates)
    world.start()
    async with world.running():
        for ended in ("pod-0", "pod-1", "pod-2"):
            await world.quiet()
            held = devices_of(world)
            assert set(held) == set(kueue.admitted) & {pod["metadata"]["name"] for pod in world.api.of(PODS)}
            assert {device.split("/")[0] for device in held.values()} == {"b"}
            assert [gates_of(world, name) for name in held] == [[]] * len(held)
            world.api.drop(PODS, f"ns/{ended}")
        await world.quiet()
    assert kueue.admitted == ["pod-0", "pod-1", "pod-2", "pod-3"]
    assert set(devices_of(world)) == {"pod-3"}


@pytest.mark.parametrize("writes", range(6))
async def test_a_pod_that_kueue_evicts_at_any_moment_leaves_its_device_to_the_next(
    writes: int, world: World, make: type[Make]
) -> None:
    """The pod has quota, a claim, the only device, or an open gate when the more important one comes."""
    kueue = furnish(world, make, quota=1, devices=1)
    add_queued(world, make, "low")
    world.start()
    async with world.running():
        while len(world.api.writes) < writes and (gates_of(world, "low") or world.api.events):
            world.bring_events()
            await world.tick()
        add_queued(world, make, "high", priority=10)
        await world.quiet()
    assert kueue.admitted in (["low", "high"], ["high"])
    assert devices_of(world) == {"high": "b/dev-0"}
    assert gates_of(world, "high") == []


async def test_a_pod_of_ours_needs_no_gate_behind_kueue(world: World, make: type[Make]) -> None:
    furnish(world, make, quota=1, devices=1)
    for name in ("first", "second"):
        add_queued(world, make, name, GATES, schedulerName="dra-scheduler")
    await world.settle()
    nodes = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in world.api.of(PODS)}
    assert nodes == {"first": "b", "second": None}
    assert devices_of(world) == {"first": "b/dev-0"}
