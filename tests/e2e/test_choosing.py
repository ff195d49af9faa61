"""Which devices and nodes are chosen, when slices say more than one.

INT-011 to INT-013, INT-017, INT-018, INT-037 to INT-039; PRJ-006 to PRJ-009.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import envtest
import pytest
from dra_kube import NODES, RESOURCE_CLAIMS, Object
from dra_kubeletplugin import Pool, device
from proving_ground import bare_node
from scene import NODE_LABEL, Scene, both, control_plane

NODES_HERE, DEVICES = 8, 100 if envtest.assets() else 10
"""Of INT-011, with so many devices on each node."""


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
    await scene.create_class()
    await scene.create_template()
    pods = [f"tester-{number}" for number in range(NODES_HERE * DEVICES)]
    async with AsyncExitStack() as nodes:
        for node in (f"{scene.namespace}-{number}" for number in range(NODES_HERE)):
            await nodes.enter_async_context(bare_node(scene.api, node, labels={NODE_LABEL: "objects"}))
            devices = named(*(f"device-{number:02}" for number in range(DEVICES)))
            await scene.create_slice(nodeName=node, pool=pool(node), devices=devices)
        for name in pods:
            await scene.create_pod(scene.inline_pod(name))
        for name in pods:
            await scene.runs(name)
        used = [claim["status"]["allocation"]["devices"]["results"] for claim in await scene.claims()]
        assert len({(result["pool"], result["device"]) for (result,) in used}) == len(pods)
        for name in pods:
            await scene.delete_pod(name)


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
    """The last node has it; the others only have what comes after it, and the operator hears of them later."""
    *others, best = range(len(scene.node_names))
    await scene.create_class()
    for number in [best, *others]:
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
        "counter set memory is defined twice",
    ),
    "int039 an unknown counter set": (
        [{"sharedCounters": [COUNTED]}, {"devices": consuming("cores", "amount")}],
        "cores",
    ),
    "int039 an unknown counter": (
        [{"sharedCounters": [COUNTED]}, {"devices": consuming("memory", "bandwidth")}],
        "bandwidth",
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


async def results(scene: Scene, claim: str) -> list[tuple[str, str, str]]:
    """Which request got which driver's device."""
    found = (await scene.get_claim(claim))["status"]["allocation"]["devices"]["results"]
    return [(result["request"], result["driver"], result["device"]) for result in found]


@control_plane
async def test_prj_006_three_devices_with_distinct_values_have_three_values(scene: Scene) -> None:
    """Comparing neighbours only would accept the first three."""
    key = f"{scene.driver_name}/k"
    values = {"a": 1, "b": 2, "c": 1, "d": 3}
    await scene.create_class()
    devices = [{"name": name, "attributes": {"k": {"int": value}}} for name, value in values.items()]
    await scene.create_slice(nodeName=scene.node_names[0], pool=pool("p"), devices=devices)
    exactly = {"deviceClassName": scene.class_name, "allocationMode": "ExactCount", "count": 3}
    spec = scene.claim_spec({"name": "req", "exactly": exactly})
    spec["devices"]["constraints"] = [{"requests": ["req"], "distinctAttribute": key}]
    assert (await placed(scene, "tester", spec))[1] == {"a", "b", "d"}


@control_plane
async def test_prj_007_pools_of_one_name_have_counters_of_their_own_for_each_driver(scene: Scene) -> None:
    """In the second claim the first choice has to be taken back, and its counters with it."""
    mine, other = scene.driver_name, f"other-{scene.driver_name}"
    counters = [{"name": "set", "counters": {"slots": {"value": "1"}}}]
    uses = [{"counterSet": "set", "counters": {"slots": {"value": "1"}}}]
    await scene.create_class(f'device.driver in ["{mine}", "{other}"]')
    for driver in (mine, other):
        place = {"driver": driver, "nodeName": scene.node_names[0], "pool": pool("p", 2)}
        await scene.create_slice(**place, sharedCounters=counters)
        await scene.create_slice(**place, devices=named("a", consumesCounters=uses))
    one = {"deviceClassName": scene.class_name}
    two = one | {"allocationMode": "ExactCount", "count": 2}
    await placed(scene, "both", scene.claim_spec({"name": "req", "exactly": two}))
    taken = await results(scene, "both")
    assert sorted(taken) == sorted([("req", mine, "a"), ("req", other, "a")])
    await scene.delete_pod("both")
    await scene.deallocated("both")
    first = taken[0][1]
    narrow = one | {"selectors": [{"cel": {"expression": f'device.driver == "{first}"'}}]}
    spec = scene.claim_spec({"name": "any", "exactly": one}, {"name": "first", "exactly": narrow})
    await placed(scene, "again", spec)
    assert await results(scene, "again") == [("any", other if first == mine else mine, "a"), ("first", first, "a")]


@control_plane
async def test_prj_008_an_allocation_of_an_earlier_attempt_is_kept_and_the_other_claim_allocated_beside_it(
    scene: Scene,
) -> None:
    await scene.start_driver(nodes=2, devices=2)
    node = scene.node_names[1]
    meta = {"name": "old", "namespace": scene.namespace, "finalizers": ["resource.kubernetes.io/delete-protection"]}
    claim = await scene.api.create(RESOURCE_CLAIMS, {"metadata": meta, "spec": scene.claim_spec()})
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    held = {"request": "req", "driver": scene.driver_name, "pool": node, "device": "device-00"}
    claim["status"] = {"allocation": {"devices": {"results": [held]}, "nodeSelector": {"nodeSelectorTerms": [here]}}}
    await scene.api.update(RESOURCE_CLAIMS, claim, "status")
    await scene.create_claim("new")
    await scene.create_pod(scene.pod("tester", [{"name": name, "resourceClaimName": name} for name in ("old", "new")]))
    assert (await scene.runs())["spec"]["nodeName"] == node
    assert await results(scene, "old") == [("req", scene.driver_name, "device-00")]
    (new,) = (await scene.get_claim("new"))["status"]["allocation"]["devices"]["results"]
    assert (new["pool"], new["device"]) == (node, "device-01")


@both
async def test_prj_009_a_pod_that_names_one_claim_twice_gets_one_allocation(scene: Scene) -> None:
    await scene.start_driver()
    await scene.create_claim()
    entries = [{"name": name, "resourceClaimName": "external-claim"} for name in ("one", "other")]
    await scene.create_pod(scene.pod("tester", entries))
    await scene.runs()
    claim = await scene.get_claim()
    assert len(claim["status"]["allocation"]["devices"]["results"]) == len(claim["status"]["reservedFor"]) == 1
