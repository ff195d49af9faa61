"""Which devices and nodes are chosen, when slices say more than one (INT-011 to 013, 017, 018, 037 to 039)."""

from __future__ import annotations

from typing import Any

import pytest
from dra_kube import NODES, Object
from dra_kubeletplugin import Pool, device
from scene import Scene
from variants import control_plane

DEVICES = 20
"""On each of the four nodes; the scenario has eight nodes with a hundred each."""


def named(*names: str, **fields: Any) -> list[Object]:
    return [{"name": name, **fields} for name in names]


def pool(name: str, slices: int = 1) -> Object:
    return {"name": name, "generation": 1, "resourceSliceCount": slices}


def wants(scene: Scene, attribute: str, value: str) -> list[Object]:
    """A selector for devices of the test's driver."""
    return [{"cel": {"expression": f'device.attributes["{scene.driver_name}"].{attribute} == "{value}"'}}]


async def placed(scene: Scene, name: str, spec: Object) -> tuple[str, set[str]]:
    """A pod with a claim of its own name, once it runs: its node, and its devices."""
    await use(scene, name, spec)
    pod = await scene.runs(name)
    results = (await scene.get_claim(name))["status"]["allocation"]["devices"]["results"]
    return pod["spec"]["nodeName"], {result["device"] for result in results}


async def use(scene: Scene, name: str, spec: Object) -> None:
    """A claim, and a pod with it."""
    await scene.create_claim(name, spec)
    await scene.create_pod(scene.pod(name, [{"name": "my-claim", "resourceClaimName": name}]))


@control_plane
async def test_int_011_with_as_many_pods_as_devices_each_device_is_used_once(scene: Scene) -> None:
    await scene.start_driver(nodes=4, devices=DEVICES)
    await scene.create_template()
    pods = [f"tester-{number}" for number in range(4 * DEVICES)]
    for name in pods:
        await scene.create_pod(scene.inline_pod(name))
    for name in pods:
        await scene.runs(name)
    used = [claim["status"]["allocation"]["devices"]["results"] for claim in await scene.claims()]
    assert len({(result["pool"], result["device"]) for (result,) in used}) == 4 * DEVICES


@control_plane
async def test_int_012_each_device_of_a_slice_has_a_node_of_its_own(scene: Scene) -> None:
    await scene.create_class()
    devices = [
        {"name": f"of-{number}", "nodeName": node, "attributes": {"at": {"string": str(number)}}}
        for number, node in enumerate(scene.node_names)
    ]
    await scene.create_slice(perDeviceNodeSelection=True, pool=pool("spread"), devices=devices)
    for number in (2, 0):
        exactly = {"deviceClassName": scene.class_name, "selectors": wants(scene, "at", str(number))}
        spec = scene.claim_spec({"name": "req", "exactly": exactly})
        assert await placed(scene, f"tester-{number}", spec) == (scene.node_names[number], {f"of-{number}"})


@control_plane
async def test_int_013_a_device_of_several_nodes_and_its_parts_share_counters(scene: Scene) -> None:
    """The whole is for both nodes, each half for one."""
    nodes = scene.node_names[:2]
    hosts = [{"key": scene.namespace, "operator": "Exists"}]
    for node in nodes:
        await scene.api.patch(NODES, node, {"metadata": {"labels": {scene.namespace: "host"}}})
    parts = {node: {f"part-{number}": {"value": "1"}} for number, node in enumerate(nodes)}
    uses = [{"counterSet": "fabric", "counters": counters} for counters in parts.values()]
    whole = {
        "name": "whole",
        "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": hosts}]},
        "consumesCounters": [{"counterSet": "fabric", "counters": parts[nodes[0]] | parts[nodes[1]]}],
        "attributes": {"size": {"string": "whole"}},
    }
    halves = [
        {"name": f"half-{number}", "nodeName": node, "consumesCounters": [uses[number]],
         "attributes": {"size": {"string": "half"}}}
        for number, node in enumerate(nodes)
    ]  # fmt: skip
    counters = [{"name": "fabric", "counters": parts[nodes[0]] | parts[nodes[1]]}]
    await scene.create_class()
    await scene.create_slice(allNodes=True, pool=pool("hosts", 2), sharedCounters=counters)
    await scene.create_slice(perDeviceNodeSelection=True, pool=pool("hosts", 2), devices=[whole, *halves])
    specs = {
        size: scene.claim_spec(
            {"name": "req", "exactly": {"deviceClassName": scene.class_name, "selectors": wants(scene, "size", size)}}
        )
        for size in ("whole", "half")
    }
    node, devices = await placed(scene, "large", specs["whole"])
    assert node in nodes
    assert devices == {"whole"}
    await use(scene, "small", specs["half"])
    await scene.pending("small")
    await scene.delete_pod("large")
    await scene.runs("small")
    await use(scene, "large-again", specs["whole"])
    await scene.pending("large-again")
    node, devices = await placed(scene, "small-2", specs["half"])
    assert node in nodes


@control_plane
@pytest.mark.parametrize("claims", [1, 2], ids=["int017 one claim", "int018 two claims"])
async def test_the_node_with_the_first_alternative_is_preferred(scene: Scene, claims: int) -> None:
    """The last node has it; the others only have what comes after it."""
    *others, best = range(len(scene.node_names))
    await scene.create_class()
    for number in [*others, best]:
        kind = "best" if number == best else "other"
        devices = [device(f"{kind}-{index}", attributes={"kind": kind}) for index in range(claims)]
        await scene.publish_objects(number, {f"{scene.namespace}-{number}": Pool.of(devices)})
    options = [
        {"name": kind, "deviceClassName": scene.class_name, "selectors": wants(scene, "kind", kind)}
        for kind in ("best", "other")
    ]
    names = [f"claim-{number}" for number in range(claims)]
    for name in names:
        await scene.create_claim(name, scene.claim_spec({"name": "req", "firstAvailable": options}))
    await scene.create_pod(scene.pod("tester", [{"name": name, "resourceClaimName": name} for name in names]))
    assert (await scene.runs())["spec"]["nodeName"] == scene.node_names[best]
    for name in names:
        (result,) = (await scene.get_claim(name))["status"]["allocation"]["devices"]["results"]
        assert result["request"] == "req/best"


COUNTED: Object = {"name": "memory", "counters": {"amount": {"value": "8Gi"}}}


def consuming(counter_set: str, counter: str) -> list[Object]:
    uses = [{"counterSet": counter_set, "counters": {counter: {"value": "1Gi"}}}]
    return [{"name": "dev", "consumesCounters": uses}]


INVALID: dict[str, tuple[list[Object], str]] = {
    "int037 a device twice": ([{"devices": named("dev")}, {"devices": named("dev")}], "dev"),
    "int038 a counter set twice": (
        [{"sharedCounters": [COUNTED]}, {"sharedCounters": [COUNTED]}, {"devices": consuming("memory", "amount")}],
        "a counter set is defined twice",
    ),
    "int039 an unknown counter set": (
        [{"sharedCounters": [COUNTED]}, {"devices": consuming("cores", "amount")}],
        "cores",
    ),
    "int039 an unknown counter": (
        [{"sharedCounters": [COUNTED]}, {"devices": consuming("memory", "bandwidth")}],
        "counters that are not defined",
    ),
}
"""Slices of one pool, and what of them the reason names."""


@control_plane
@pytest.mark.parametrize(("slices", "named_"), INVALID.values(), ids=list(INVALID))
async def test_an_invalid_pool_is_named_and_other_nodes_are_used(
    scene: Scene, slices: list[Object], named_: str
) -> None:
    bad, good = scene.node_names[:2]
    await scene.create_class()
    for piece in slices:
        await scene.create_slice(nodeName=bad, pool=pool("broken", len(slices)), **piece)
    await use(scene, "tester", scene.claim_spec())
    reason = await scene.pending(says="invalid")
    assert f"{scene.driver_name}/broken" in reason
    assert named_ in reason
    await scene.create_slice(nodeName=good, pool=pool("sound"), devices=named("dev"))
    assert (await scene.runs())["spec"]["nodeName"] == good
