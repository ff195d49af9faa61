"""Pods with claims of volumes: what keeps them waiting, and which change wakes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from controllers_world import World
from dra_kube import (
    CSI_NODES,
    DEVICE_CLASSES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    VOLUME_ATTACHMENTS,
    Resource,
)
from objects import Make, Obj
from volume_lab import (
    AT_ONCE,
    BOUND,
    ZONE,
    attachment,
    csi,
    csi_node,
    ephemeral,
    on_nodes,
    resource_of,
    storage_class,
    store,
    uses,
    volume,
    volume_claim,
)

ONCE = {"accessModes": ["ReadWriteOncePod"]}


def why(world: World, pod: str = "pod") -> str:
    return str(world.api[PODS, f"ns/{pod}"]["status"]["conditions"][0]["message"])


def bind(claim: Obj) -> None:
    """As the PV controller does."""
    claim["spec"]["volumeName"] = "pv"
    claim["metadata"].setdefault("annotations", {}).update(BOUND)


async def test_a_pod_goes_where_its_volume_is(world: World, make: type[Make]) -> None:
    for number in range(3):
        world.api.add(NODES, make.node(f"node-{number}", **{"kubernetes.io/hostname": f"node-{number}"}))
    store(world.api, volume_claim(volume="pv"), volume(affinity=on_nodes("node-2")))
    world.api.add(PODS, make.pod(volumes=uses("data")))
    await world.settle()
    assert world.node_of() == "node-2"


async def test_devices_and_a_volume_on_different_nodes_are_kept_apart(world: World, make: type[Make]) -> None:
    for number in range(2):
        world.api.add(NODES, make.node(f"node-{number}", **{"kubernetes.io/hostname": f"node-{number}"}))
    store(world.api, volume_claim(volume="pv"), volume(affinity=on_nodes("node-1")))
    world.api.add(DEVICE_CLASSES, make.device_class())
    world.api.add(RESOURCE_SLICES, make.slice("node-0", 1))
    world.api.add(RESOURCE_CLAIMS, make.claim("gpu"))
    world.api.add(PODS, make.pod(claims=[make.use("gpu")], volumes=uses("data")))
    await world.settle()
    assert "1 node(s) didn't match PersistentVolume's node affinity" in why(world)


Change = Callable[[World], object]


def change(resource: Resource, key: str, edit: Callable[[Obj], object]) -> Change:
    return lambda world: world.api.change(resource, key, edit)


def add(*objects: Obj) -> Change:
    return lambda world: store(world.api, *objects)


WAKING: dict[str, tuple[Sequence[Obj], Sequence[Obj], str, Change]] = {
    "its claim is there": (
        uses("data"),
        [volume()],
        'persistentvolumeclaim "data" not found: create it, or correct claimName',
        add(volume_claim(volume="pv")),
    ),
    "its claim is bound": (
        uses("data"),
        [volume(), volume_claim(class_name=AT_ONCE), storage_class(AT_ONCE)],
        'pod has unbound immediate PersistentVolumeClaim "data"',
        change(PERSISTENT_VOLUME_CLAIMS, "ns/data", bind),
    ),
    "its volume is there": (
        uses("data"),
        [volume_claim(volume="pv")],
        "0/1 nodes are available: 1 node(s) unavailable: claim ns/data is bound to PersistentVolume pv, "
        "which does not exist",
        add(volume()),
    ),
    "its volume is in the zone of a node": (
        uses("data"),
        [volume_claim(volume="pv"), volume(metadata={"labels": {ZONE: "b"}})],
        "0/1 nodes are available: 1 node(s) had no available volume zone",
        change(PERSISTENT_VOLUMES, "pv", lambda pv: pv["metadata"].update(labels={ZONE: "a"})),
    ),
    "another pod leaves its claim": (
        uses("data"),
        [volume_claim(volume="pv", spec=ONCE), volume()],
        'persistentvolumeclaim "data" has the access mode ReadWriteOncePod and is in use by another pod',
        change(PODS, "ns/other", lambda pod: pod["status"].update(phase="Succeeded")),
    ),
}


@pytest.mark.parametrize("case", WAKING)
async def test_a_pod_waits_until(case: str, world: World, make: type[Make]) -> None:
    volumes, objects, expected, event = WAKING[case]
    world.api.add(NODES, make.node("node-0", **{ZONE: "a"}))
    store(world.api, *objects)
    world.api.add(PODS, make.pod("other", node="node-0", volumes=uses("data")))
    world.api.add(PODS, make.pod(volumes=volumes))
    world.start()
    async with world.running():
        await world.quiet()
        assert (world.node_of(), why(world)) == (None, expected)
        event(world)
        await world.quiet()
    assert world.node_of() == "node-0"


async def test_of_two_pods_one_gets_a_claim_for_one_pod(world: World, make: type[Make]) -> None:
    """Both come at once, so the second one meets the first while that is on its way to the node."""
    world.api.add(NODES, make.node("node-0"))
    store(world.api, volume_claim(volume="pv", spec=ONCE), volume())
    for name in ("first", "second"):
        world.api.add(PODS, make.pod(name, volumes=uses("data")))
    await world.settle()
    assert (world.node_of("first"), world.node_of("second")) == ("node-0", None)
    world.api.drop(PODS, "ns/first")
    await world.settle()
    assert world.node_of("second") == "node-0"


async def test_the_claim_of_an_ephemeral_volume_must_be_the_pods_own(world: World, make: type[Make]) -> None:
    world.api.add(NODES, make.node("node-0"))
    pod = world.api.add(PODS, make.pod(volumes=ephemeral()))
    store(world.api, volume_claim("pod-scratch", "pv"), volume())
    world.start()
    async with world.running():
        await world.quiet()
        assert why(world) == (
            'persistentvolumeclaim "pod-scratch" was not created for the pod (the pod is not its owner): delete it'
        )
        world.api.drop(PERSISTENT_VOLUME_CLAIMS, "ns/pod-scratch")
        await world.quiet()
        assert why(world) == (
            'waiting for ephemeral volume controller to create the persistentvolumeclaim "pod-scratch"'
        )
        owner = {"kind": "Pod", "name": "pod", "uid": pod["metadata"]["uid"], "controller": True}
        own: dict[str, Any] = {"uid": "uid-own", "annotations": BOUND, "ownerReferences": [owner]}
        store(world.api, volume_claim("pod-scratch", "pv", metadata=own))
        await world.quiet()
    assert world.node_of() == "node-0"


async def test_a_change_that_only_the_server_keeps_books_of_wakes_no_pod(world: World, make: type[Make]) -> None:
    store(world.api, volume_claim(class_name=AT_ONCE), storage_class(AT_ONCE))
    world.api.add(PODS, make.pod(volumes=uses("data")))
    await world.settle()
    claim = world.api[PERSISTENT_VOLUME_CLAIMS, "ns/data"]
    assert resource_of(claim) == PERSISTENT_VOLUME_CLAIMS
    world.start()
    async with world.running():
        await world.quiet()
        world.api.change(PERSISTENT_VOLUME_CLAIMS, "ns/data", lambda it: it["metadata"].update(managedFields=[{}]))
        world.bring_events()
        assert world.control.queues.is_quiet


async def test_a_node_takes_only_as_many_volumes_as_its_driver_attaches(world: World, make: type[Make]) -> None:
    """Pods on their way count; the next one comes when one of them ends and its volume is detached."""
    world.api.add(NODES, make.node("node-0"))
    store(world.api, csi_node(2, "node-0"))
    for number in range(3):
        store(world.api, volume_claim(f"data-{number}", f"pv-{number}"), volume(f"pv-{number}", spec=csi(str(number))))
        world.api.add(PODS, make.pod(f"pod-{number}", volumes=uses(f"data-{number}")))
    store(world.api, attachment("pv-0", "node-0"))
    world.start()
    async with world.running():
        await world.quiet()
        assert [world.node_of(f"pod-{number}") for number in range(3)] == ["node-0", "node-0", None]
        full = "0/1 nodes are available: 1 node(s) exceed max volume count of driver csi.example.com"
        assert why(world, "pod-2") == full
        world.api.change(PODS, "ns/pod-0", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.quiet()
        assert world.node_of("pod-2") is None
        world.api.drop(VOLUME_ATTACHMENTS, "pv-0-node-0")
        await world.quiet()
        assert world.node_of("pod-2") == "node-0"


async def test_a_pod_waits_for_a_driver_that_attaches_more(world: World, make: type[Make]) -> None:
    world.api.add(NODES, make.node("node-0"))
    store(world.api, csi_node(0, "node-0"), volume_claim("data", "pv"), volume(spec=csi("h")))
    world.api.add(PODS, make.pod(volumes=uses("data")))
    world.start()
    async with world.running():
        await world.quiet()
        assert world.node_of() is None
        more = csi_node(1, "node-0")["spec"]
        world.api.change(CSI_NODES, "node-0", lambda it: it.update(spec=more))
        await world.quiet()
        assert world.node_of() == "node-0"
