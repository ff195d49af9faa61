"""What drivers say of allocated devices, and pods that wait for it (INT-024, INT-026 to INT-030)."""

from __future__ import annotations

import pytest
from command import OperatorProcess
from dra_kube import RESOURCE_CLAIMS, RESOURCE_SLICES, Object
from scene import SECOND, Scene, control_plane
from waiting import stays, until

ATTACHED, BROKEN = "attached", "broken"
CONDITIONS = {"bindingConditions": [ATTACHED], "bindingFailureConditions": [BROKEN]}


def pool(name: str, slices: int = 1) -> Object:
    return {"name": name, "generation": 1, "resourceSliceCount": slices}


async def publish(scene: Scene, *devices: str, **fields: list[str]) -> Object:
    """A pool on the first node, named like its first device."""
    made = [{"name": name, **fields} for name in devices]
    return await scene.create_slice(nodeName=scene.node_names[0], pool=pool(devices[0]), devices=made)


def devices_of(claim: Object) -> list[Object]:
    results: list[Object] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return results


async def allocated(scene: Scene, other_than: str = "") -> Object:
    """The result of the claim, once it has a device."""

    async def look() -> Object | None:
        results = devices_of(await scene.get_claim())
        return results[0] if results and results[0]["device"] != other_than else None

    return await until("the claim has a device", look)


async def report(scene: Scene, result: Object, condition: str) -> None:
    """The driver says it of the device, as all drivers do: by an apply of its own."""
    said = {
        "type": condition,
        "status": "True",
        "reason": "R",
        "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await apply(scene, result["driver"], device_of(result) | {"conditions": [said]})


def device_of(result: Object) -> Object:
    return {key: result[key] for key in ("driver", "pool", "device")}


async def apply(scene: Scene, manager: str, *devices: Object) -> Object:
    """``status.devices`` as this manager wants it."""
    body = {"metadata": {"name": "external-claim"}, "status": {"devices": list(devices)}}
    return await scene.api.patch(
        RESOURCE_CLAIMS, "external-claim", body, scene.namespace,
        kind="apply", subresource="status", field_manager=manager,
    )  # fmt: skip


async def waits_for_its_device(scene: Scene) -> None:
    await scene.event("tester", "BindingConditionsPending")

    async def unbound() -> bool:
        return "nodeName" not in (await scene.get_pod())["spec"]

    await stays("the pod is not bound", unbound, 1.0)


@control_plane
async def test_int_024_several_drivers_say_what_they_know_until_the_claim_has_no_devices(scene: Scene) -> None:
    other = f"other-{scene.driver_name}"
    await scene.create_class()
    await scene.create_class(f'device.driver == "{other}"', name=f"{scene.class_name}-other")
    node = scene.node_names[0]
    await scene.create_slice(nodeName=node, pool=pool("mine"), devices=[{"name": "dev"}])
    await scene.create_slice(driver=other, nodeName=node, pool=pool("theirs"), devices=[{"name": "dev"}])
    requests = [
        {"name": name, "exactly": {"deviceClassName": kind}}
        for name, kind in (("mine", scene.class_name), ("theirs", f"{scene.class_name}-other"))
    ]
    await scene.create_claim(spec={"devices": {"requests": requests}})
    await scene.create_pod(scene.pod())
    await scene.runs()
    mine, theirs = map(device_of, devices_of(await scene.get_claim()))
    await apply(scene, "mine", mine | {"data": {"round": 1}})
    await apply(scene, "theirs", theirs | {"networkData": {"interfaceName": "eth1"}})
    claim = await apply(scene, "mine", mine | {"data": {"round": 2}})
    said = {device["driver"]: device for device in claim["status"]["devices"]}
    assert said[scene.driver_name]["data"] == {"round": 2}
    assert said[other]["networkData"] == {"interfaceName": "eth1"}
    claim = await apply(scene, "mine")
    assert [device["driver"] for device in claim["status"]["devices"]] == [other]
    await scene.delete_pod("tester")
    assert not (await scene.deallocated()).get("status", {}).get("devices")


@control_plane
async def test_int_026_a_device_without_conditions_is_preferred_and_another_one_has_to_get_ready(scene: Scene) -> None:
    await scene.create_class()
    await publish(scene, "a-slow", **CONDITIONS)
    await publish(scene, "b-ready")
    await scene.create_claim("first")
    await scene.create_pod(scene.pod("first", [{"name": "my-claim", "resourceClaimName": "first"}]))
    await scene.runs("first")
    assert [result["device"] for result in devices_of(await scene.get_claim("first"))] == ["b-ready"]
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    result = await allocated(scene)
    assert (result["device"], result["bindingConditions"]) == ("a-slow", [ATTACHED])
    await waits_for_its_device(scene)
    await report(scene, result, ATTACHED)
    await scene.runs()


@control_plane
@pytest.mark.parametrize("end", ["int027 the driver taints the device", "int028 the driver removes the device"])
async def test_a_device_that_cannot_get_ready_is_given_back_and_another_one_used(scene: Scene, end: str) -> None:
    await scene.create_class()
    slice_ = await publish(scene, "a", "b", **CONDITIONS)
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    failed = await allocated(scene)
    await waits_for_its_device(scene)
    devices = slice_["spec"]["devices"]
    if "taints" in end:
        (broken,) = [device for device in devices if device["name"] == failed["device"]]
        broken["taints"] = [{"key": "example.com/broken", "effect": "NoSchedule"}]
    else:
        slice_["spec"]["devices"] = [device for device in devices if device["name"] != failed["device"]]
    await scene.api.update(RESOURCE_SLICES, slice_)
    await report(scene, failed, BROKEN)
    result = await allocated(scene, other_than=failed["device"])
    await report(scene, result, ATTACHED)
    await scene.runs()


# --- time-outs: ten minutes are the default, two seconds those of the second operator ---


async def place_with_little_patience(scene: Scene) -> None:
    """A pod of the second operator, and a slow device."""
    await scene.create_class()
    await publish(scene, "a-slow", **CONDITIONS)
    await scene.create_claim()
    await scene.create_pod(scene.pod(schedulerName=SECOND))


@control_plane
async def test_int_029_a_device_that_takes_too_long_is_given_back_and_another_one_used(
    scene: Scene, second: OperatorProcess
) -> None:
    await place_with_little_patience(scene)
    assert (await allocated(scene))["device"] == "a-slow"
    await publish(scene, "b-ready")
    await scene.runs()
    assert (await allocated(scene))["device"] == "b-ready"


@control_plane
async def test_int_030_a_driver_that_recovers_after_the_time_out_gets_the_pod_bound(
    scene: Scene, second: OperatorProcess
) -> None:
    await place_with_little_patience(scene)
    first = await allocated(scene)
    since = (await scene.get_claim())["status"]["allocation"]["allocationTimestamp"]

    async def allocated_again() -> bool:
        allocation = (await scene.get_claim()).get("status", {}).get("allocation")
        return bool(allocation) and allocation["allocationTimestamp"] != since

    await until("the device was given back and is tried again", allocated_again)

    async def bound() -> bool:
        """The device may be given back once more before the driver's word is heard."""
        if devices_of(await scene.get_claim()):
            await report(scene, first, ATTACHED)
        return bool((await scene.get_pod())["spec"].get("nodeName"))

    await until("the pod is bound", bound)
