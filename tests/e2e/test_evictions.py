"""Tainted devices: which pods are placed, and which have to go (E2E-081 to 083, 087, 088; PRJ-010, PRJ-011)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from command import OperatorProcess
from dra_api.resource import Device, DeviceTaint
from dra_kube import DEVICE_TAINT_RULES, NAMESPACES, RESOURCE_SLICES, NotFound, NotServed, Object
from dra_kubeletplugin import Pool, device
from scene import Scene, both
from waiting import until

KEY = "dra.example.com/unhealthy"
ADMIN = {"resource.kubernetes.io/admin-access": "true"}


def tainted(effect: str) -> Device:
    """The test's only device, with a taint that its driver publishes."""
    return device("device-00", taints=(DeviceTaint(key=KEY, value="Down", effect=effect),))


async def start_driver(scene: Scene, effect: str = "") -> None:
    """One device on one node."""
    await scene.create_class()
    pool = Pool.of([tainted(effect) if effect else device("device-00")])
    await scene.start_plugin(0, {scene.node_names[0]: pool})


async def taint(scene: Scene, effect: str = "NoExecute") -> None:
    """The driver finds that its device is broken."""
    if scene.kubelet:
        await scene.plugins[0].plugin.publish({scene.node_names[0]: Pool.of([tainted(effect)])})
        return
    [slice_], _ = await scene.api.list(RESOURCE_SLICES, fieldSelector=f"spec.driver={scene.driver_name}")
    slice_["spec"]["devices"][0]["taints"] = [{"key": KEY, "value": "Down", "effect": effect}]
    await scene.api.update(RESOURCE_SLICES, slice_)


def tolerating(scene: Scene, effect: str = "", seconds: int | None = None) -> Object:
    """A claim that accepts the taint."""
    limit = {} if seconds is None else {"tolerationSeconds": seconds}
    toleration = {"key": KEY, "operator": "Exists", **({"effect": effect} if effect else {}), **limit}
    exactly = {"deviceClassName": scene.class_name, "tolerations": [toleration]}
    return scene.claim_spec({"name": "req", "exactly": exactly})


async def evicted(scene: Scene, name: str = "tester") -> Object:
    """The pod while it is being deleted; without metadata if it went before that could be seen."""

    async def look() -> Object | None:
        try:
            pod = await scene.get_pod(name)
        except NotFound:
            return {"metadata": {}}
        return pod if "deletionTimestamp" in pod["metadata"] else None

    return await until(f"pod {name} evicted", look)


async def is_marked(scene: Scene, pod: Object) -> None:
    """Condition and event say why; a pod may be gone before its condition can be seen."""
    await scene.event("tester", "DeviceTaintManagerEviction", "Marking for deletion")
    if "deletionTimestamp" in pod["metadata"]:
        [condition] = [entry for entry in pod["status"]["conditions"] if entry["type"] == "DisruptionTarget"]
        assert (condition["status"], condition["reason"]) == ("True", "DeletionByDeviceTaintManager")


@both
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
async def test_e2e_081_087_a_pod_is_not_placed_on_tainted_devices(scene: Scene, effect: str) -> None:
    await start_driver(scene, effect)
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    await scene.pending(says="taint")


@both
async def test_e2e_082_a_pod_that_tolerates_the_taint_runs(scene: Scene) -> None:
    await start_driver(scene, "NoSchedule")
    await scene.create_claim(spec=tolerating(scene))
    await scene.create_pod(scene.pod())
    await scene.runs()


@both
async def test_e2e_088_a_pod_that_tolerates_no_execute_runs_and_stays(scene: Scene) -> None:
    await scene.api.patch(NAMESPACES, scene.namespace, {"metadata": {"labels": ADMIN}})
    await start_driver(scene)
    await scene.create_claim(spec=tolerating(scene, "NoExecute"))
    await scene.create_pod(scene.pod())
    await scene.runs()
    await taint_until_another_pod_goes(scene)
    assert "deletionTimestamp" not in (await scene.get_pod())["metadata"]


async def taint_until_another_pod_goes(scene: Scene) -> None:
    """The taint has come to the operator: it evicts a pod that uses the device as well, and does not tolerate it."""
    await scene.create_claim("not-at-all", admin(scene, scene.claim_spec()))
    await scene.create_pod(scene.pod("not-at-all", [{"name": "my-claim", "resourceClaimName": "not-at-all"}]))
    await scene.runs("not-at-all")
    await taint(scene)
    await evicted(scene, "not-at-all")


def admin(scene: Scene, spec: Object) -> Object:
    """The same with admin access, which takes no device from others."""
    [request] = spec["devices"]["requests"]
    request["exactly"] = {"deviceClassName": scene.class_name, **request["exactly"], "adminAccess": True}
    return spec


@both
async def test_a_taint_of_the_driver_evicts_the_running_pod_and_its_successor_waits(scene: Scene) -> None:
    await start_driver(scene)
    await scene.create_template()
    await scene.create_pod(scene.inline_pod())
    uid = (await scene.runs())["metadata"]["uid"]
    await taint(scene)
    pod = await evicted(scene)
    assert pod["metadata"].get("uid", uid) == uid
    await is_marked(scene, pod)
    await scene.delete_pod("tester")
    await scene.create_pod(scene.inline_pod())
    await scene.pending(says="taint")
    assert "deletionTimestamp" not in (await scene.get_pod())["metadata"]


@both
async def test_the_eviction_is_cancelled_when_the_taint_goes_before_its_time(scene: Scene) -> None:
    await scene.api.patch(NAMESPACES, scene.namespace, {"metadata": {"labels": ADMIN}})
    await start_driver(scene)
    await scene.create_claim(spec=tolerating(scene, "NoExecute", seconds=3600))
    await scene.create_pod(scene.pod())
    await scene.runs()
    await taint_until_another_pod_goes(scene)
    assert "deletionTimestamp" not in (await scene.get_pod())["metadata"]
    await taint(scene, "None")
    await scene.event("tester", "DeviceTaintManagerEviction", "Cancelling deletion")
    assert "deletionTimestamp" not in (await scene.get_pod())["metadata"]


@both
async def test_prj_011_a_pod_on_tainted_devices_by_an_extended_resource_is_evicted(scene: Scene) -> None:
    if "KOPF_DRA_STOCK" in os.environ:
        pytest.skip("kube-controller-manager evicts here, and looks at no claims but those that the pod's spec names")
    await scene.create_class(resource=f"{scene.namespace}.example.com/gpu")
    await scene.start_plugin(0, {scene.node_names[0]: Pool.of([device("device-00")])})
    amounts = {f"{scene.namespace}.example.com/gpu": 1}
    await scene.create_pod(scene.pod(claims=(), containers=[scene.container("main", amounts=amounts)]))
    await scene.runs()
    await taint(scene)
    await is_marked(scene, await evicted(scene))


# --- rules: their gate is off by default, so the second operator has them ---


async def needs_rules(scene: Scene) -> None:
    """Skip the test where the API server has none."""
    try:
        await scene.api.version_of(DEVICE_TAINT_RULES)
    except NotServed:
        pytest.skip("this API server does not serve DeviceTaintRules")


@asynccontextmanager
async def rule(scene: Scene, effect: str, *, selects: bool = True) -> AsyncIterator[str]:
    """A rule about the test's driver; without a selector about nothing."""
    selector = {"deviceSelector": {"driver": scene.driver_name}} if selects else {}
    spec: Any = {"taint": {"key": KEY, "value": "Down", "effect": effect}, **selector}
    name = f"{scene.namespace}-rule"
    typed = {"apiVersion": DEVICE_TAINT_RULES.api_version(), "kind": DEVICE_TAINT_RULES.kind}  # 1.36 converts it
    await scene.api.create(DEVICE_TAINT_RULES, {**typed, "metadata": {"name": name}, "spec": spec})
    try:
        yield name
    finally:
        await scene.api.delete(DEVICE_TAINT_RULES, name)


async def reported(scene: Scene, name: str, reason: str) -> Object:
    """Wait for the reason in the rule's condition; the rule."""

    async def look() -> Object | None:
        found = await scene.api.get(DEVICE_TAINT_RULES, name)
        conditions = (found.get("status") or {}).get("conditions") or ()
        return found if any(condition["reason"] == reason for condition in conditions) else None

    return await until(f"rule {name} says {reason}", look)


@both
async def test_e2e_083_a_rule_evicts_the_running_pod(scene: Scene, second: OperatorProcess) -> None:
    await needs_rules(scene)
    await start_driver(scene)
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    await scene.runs()

    async def counts_the_pod() -> bool:
        """A rule is looked at once; the operator may have seen it before it saw that the pod has the device."""
        async with rule(scene, "None") as name:
            [condition] = (await reported(scene, name, "NoEffect"))["status"]["conditions"]
            return str(condition["message"]).startswith(
                "1 published device selected. 1 allocated device selected. 1 pod "
            )

    await until("a rule without effect counts the pod", counts_the_pod)
    assert "deletionTimestamp" not in (await scene.get_pod())["metadata"]
    async with rule(scene, "NoExecute") as name:
        found = await reported(scene, name, "PodsPendingEviction")
        assert found["spec"]["taint"]["timeAdded"]
        await is_marked(scene, await evicted(scene))


@both
async def test_prj_010_a_rule_without_a_selector_evicts_no_pod(scene: Scene, second: OperatorProcess) -> None:
    await needs_rules(scene)
    await start_driver(scene)
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    await scene.runs()
    async with rule(scene, "NoExecute", selects=False) as name:
        await reported(scene, name, "NotStarted")
        assert "deletionTimestamp" not in (await scene.get_pod())["metadata"]
