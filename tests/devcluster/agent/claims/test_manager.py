"""Preparing and unpreparing claims: one DRA manager, plugins over gRPC, claims from a table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_devcluster.agent import AgentSettings
from dra_devcluster.agent.claims import DraManager
from dra_devcluster.agent.errors import ClaimError
from dra_devcluster.agent.plugins.plugin import PreparedDevice
from fake_plugin import FakePlugin, MakePlugin
from one_node import DRIVER, OTHER, Claims, pod_with
from waiting import becomes


@pytest.fixture
def claims() -> Claims:
    return Claims()


@pytest.fixture
async def manager(claims: Claims, tmp_path: Path, fast: AgentSettings) -> AsyncIterator[DraManager]:
    manager = DraManager(claims, "node-1", tmp_path, fast)  # type: ignore[arg-type]  # reads claims, nothing else
    yield manager
    await manager.close()


@pytest.fixture
async def plugin(manager: DraManager, make_plugin: MakePlugin) -> FakePlugin:
    return await _registered(manager, make_plugin(DRIVER))


async def _registered(manager: DraManager, plugin: FakePlugin) -> FakePlugin:
    await plugin.serve()
    await manager.plugins.register(plugin.driver, str(plugin.service_socket), plugin.services)
    return plugin


def restarted(claims: Claims, tmp_path: Path, settings: AgentSettings) -> DraManager:
    return DraManager(claims, "node-1", tmp_path, settings)  # type: ignore[arg-type]  # reads claims, nothing else


async def refused(awaitable: Awaitable[object]) -> str:
    with pytest.raises(ClaimError) as caught:
        await awaitable
    return str(caught.value).removeprefix("prepare dynamic resources: ")


# --- phase 1: checks that touch nothing (KM-12) ---

PHASE_1: dict[str, tuple[Callable[[Claims], object], str]] = {
    "the claim does not exist": (
        lambda claims: None,
        'fetch ResourceClaim gpu: resourceclaims.resource.k8s.io "gpu" not found',
    ),
    "the claim is not reserved for the pod": (
        lambda claims: claims.add("gpu", "other-pod"),
        "pod pod-a (uid-pod-a) is not allowed to use ResourceClaim gpu (uid-of-gpu)",
    ),
    "the claim is not allocated": (
        lambda claims: claims.add("gpu", "pod-a", allocation=None),
        "ResourceClaim gpu: not allocated",
    ),
    "the driver is not registered": (
        lambda claims: claims.add("gpu", "pod-a", drivers=(OTHER,)),
        f"DRA driver {OTHER} is not registered",
    ),
}


@pytest.mark.rule("KM-12")
@pytest.mark.parametrize("case", PHASE_1)
async def test_a_pod_that_fails_the_checks_leaves_no_trace(
    case: str, claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    arrange, message = PHASE_1[case]
    arrange(claims)
    assert await refused(manager.prepare(pod_with("pod-a", "gpu"))) == message
    assert not manager.cache.of_pod("uid-pod-a")
    assert plugin.prepared == []


@pytest.mark.rule("KM-12")
@pytest.mark.parametrize("owner", ["pod-a", "stranger"])
async def test_a_generated_claim_must_be_owned_by_the_pod(
    owner: str, claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    claims.add("pod-a-gpu-x", "pod-a", owner=owner)
    pod = convert(
        Pod,
        {
            "metadata": {"name": "pod-a", "namespace": "default", "uid": "uid-pod-a"},
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "template"}]},
            "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "pod-a-gpu-x"}]},
        },
    )
    if owner == "pod-a":
        await manager.prepare(pod)
        assert plugin.prepared == [["pod-a-gpu-x"]]
    else:
        assert "was not created for Pod" in await refused(manager.prepare(pod))


@pytest.mark.rule("KM-12")
async def test_a_template_entry_without_claim_waits_and_one_that_needs_none_is_skipped(
    manager: DraManager, plugin: FakePlugin
) -> None:
    entry = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "template"}]}
    base = {"metadata": {"name": "pod-a", "namespace": "default", "uid": "uid-pod-a"}, "spec": entry}
    message = await refused(manager.prepare(convert(Pod, base)))
    assert message.endswith("ResourceClaim not created yet")
    await manager.prepare(convert(Pod, base | {"status": {"resourceClaimStatuses": [{"name": "gpu"}]}}))
    assert plugin.prepared == []


@pytest.mark.rule("KM-12")
async def test_an_unregistered_driver_fails_even_a_prepared_claim(
    claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    claims.add("gpu", "pod-a", "pod-b")
    await manager.prepare(pod_with("pod-a", "gpu"))
    await manager.plugins.deregister(DRIVER, str(plugin.service_socket))
    message = await refused(manager.prepare(pod_with("pod-b", "gpu")))
    assert message == f"DRA driver {DRIVER} is not registered"


@pytest.mark.rule("K37-WL-09")
@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("claim", ["shared by name", "made for the group"])
async def test_e2e067_e2e068_a_claim_that_is_reserved_for_the_podgroup_of_the_pod(
    gate: bool, claim: str, claims: Claims, tmp_path: Path, fast: AgentSettings, make_plugin: MakePlugin
) -> None:
    settings = replace(fast, workload_resource_claims=gate)
    manager = restarted(claims, tmp_path, settings)
    plugin = await _registered(manager, make_plugin(DRIVER))
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "group", "uid": "uid-group"}
    claims.add("gpu", reservedFor=[group])
    owner = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "name": "group", "controller": True}
    claims.objects["gpu"]["metadata"]["ownerReferences"] = [owner | {"uid": "uid-group"}]
    entry = {"name": "gpu"} | (
        {"resourceClaimName": "gpu"} if claim == "shared by name" else {"resourceClaimTemplateName": "template"}
    )
    pod = convert(
        Pod,
        {
            "metadata": {"name": "pod-a", "namespace": "default", "uid": "uid-pod-a"},
            "spec": {"resourceClaims": [entry], "schedulingGroup": {"podGroupName": "group"}},
            "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "gpu"}]},
        },
    )
    if gate:
        await manager.prepare(pod)
        assert plugin.prepared == [["gpu"]]
    else:
        wanted = "is not allowed to use" if claim == "shared by name" else "was not created for Pod"
        assert wanted in await refused(manager.prepare(pod))
    await manager.close()


# --- phases 2 to 4 ---


@pytest.mark.rule("K37-MISC-05", "KM-14")
async def test_devices_are_kept_as_the_driver_reports_them(
    claims: Claims, manager: DraManager, plugin: FakePlugin, tmp_path: Path, fast: AgentSettings
) -> None:
    plugin.devices["gpu"] = [
        {
            "pool_name": "p",
            "device_name": "d",
            "request_names": ["a", "b"],
            "cdi_device_ids": ["x/y=1", "x/y=2"],
            "share_id": "share",
        }
    ]
    claims.add("gpu", "pod-a")
    await manager.prepare(pod_with("pod-a", "gpu"))
    again = restarted(claims, tmp_path, fast)
    for known in (manager, again):
        claim = known.cache.get("default", "gpu")
        assert claim is not None
        assert claim.drivers[DRIVER] == (PreparedDevice("p", "d", "share", ("a", "b"), ("x/y=1", "x/y=2")),)
    await again.close()


@pytest.mark.rule("KM-15")
@pytest.mark.parametrize("devices", [[], [{"pool_name": "p", "device_name": "d"}]])
async def test_a_device_list_may_be_empty(
    devices: list[dict[str, Any]], claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    plugin.devices["gpu"] = devices
    claims.add("gpu", "pod-a")
    pod = pod_with("pod-a", "gpu")
    await manager.prepare(pod)
    assert pod.spec.containers is not None
    assert manager.cdi_devices(pod, pod.spec.containers[0]) == []


def _only(uid: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda results: {uid: next(iter(results.values()))}


def timeout_of(case: str) -> float:
    return 0.5 if case == "the driver does not answer in time" else 20.0


FAILURES: dict[str, tuple[Callable[[FakePlugin], object], str]] = {
    "the driver reports an error": (
        lambda plugin: setattr(plugin, "prepare_error", "no such device"),
        "NodePrepareResources failed for ResourceClaim gpu: no such device",
    ),
    "the call fails": (
        lambda plugin: setattr(plugin, "prepare_aborts", True),
        "NodePrepareResources: rpc error: code = Internal desc = injected",
    ),
    "the driver skips the claim": (
        lambda plugin: setattr(plugin, "results", lambda results: {}),
        "NodePrepareResources skipped 1 ResourceClaims",
    ),
    "the driver answers for another claim": (
        lambda plugin: setattr(plugin, "results", _only("stranger")),
        "NodePrepareResources returned result for unknown claim UID stranger",
    ),
    "the driver does not answer in time": (
        lambda plugin: plugin.gate.clear(),
        "NodePrepareResources: rpc error: code = DeadlineExceeded desc = Deadline Exceeded",
    ),
}


@pytest.mark.rule("KM-14")
@pytest.mark.parametrize(("case", "call_timeout"), [(case, timeout_of(case)) for case in FAILURES], ids=FAILURES)
async def test_a_failed_prepare_is_retried_and_then_unprepared(
    case: str, claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    arrange, message = FAILURES[case]
    arrange(plugin)
    claims.add("gpu", "pod-a")
    assert await refused(manager.prepare(pod_with("pod-a", "gpu"))) == message
    assert manager.cache.of_pod("uid-pod-a")

    plugin.prepare_error, plugin.prepare_aborts, plugin.results = "", False, lambda results: results
    plugin.gate.set()
    await manager.prepare(pod_with("pod-a", "gpu"))
    await manager.unprepare("uid-pod-a")
    assert (len(plugin.prepared), plugin.unprepared) == (2, [["gpu"]])
    assert not manager.cache.of_pod("uid-pod-a")


@pytest.mark.rule("KM-16")
async def test_only_the_new_claim_of_a_second_pod_is_sent_and_nothing_for_a_shared_one(
    claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    claims.add("shared", "pod-a", "pod-b", "pod-c")
    claims.add("new", "pod-b")
    await manager.prepare(pod_with("pod-a", "shared"))
    await manager.prepare(pod_with("pod-b", "shared", "new"))
    await manager.prepare(pod_with("pod-c", "shared"))
    assert plugin.prepared == [["shared"], ["new"]]


@pytest.mark.rule("KM-14")
async def test_one_call_per_driver_carries_all_its_claims(
    claims: Claims, manager: DraManager, plugin: FakePlugin, make_plugin: MakePlugin
) -> None:
    other = await _registered(manager, make_plugin(OTHER))
    claims.add("one", "pod-a", drivers=(DRIVER, OTHER))
    claims.add("two", "pod-a")
    await manager.prepare(pod_with("pod-a", "one", "two"))
    assert (plugin.prepared, other.prepared) == ([["one", "two"]], [["one"]])
    await manager.unprepare("uid-pod-a")
    assert (plugin.unprepared, other.unprepared) == ([["one", "two"]], [["one"]])


@pytest.mark.rule("KM-15")
async def test_prj012_prepare_retried_after_a_partial_failure_gives_no_duplicate_ids(
    claims: Claims, manager: DraManager, plugin: FakePlugin, make_plugin: MakePlugin
) -> None:
    other = await _registered(manager, make_plugin(OTHER))
    other.prepare_error = "injected"
    claims.add("gpu", "pod-a", drivers=(DRIVER, OTHER))
    pod = pod_with("pod-a", "gpu")
    for _ in range(3):
        await refused(manager.prepare(pod))
    other.prepare_error = ""
    await manager.prepare(pod)
    assert pod.spec.containers is not None
    assert manager.cdi_devices(pod, pod.spec.containers[0]) == [f"{DRIVER}/claim=gpu", f"{OTHER}/claim=gpu"]


@pytest.mark.rule("KM-15")
async def test_two_pods_preparing_one_claim_at_the_same_time_cause_one_call(
    claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    claims.add("gpu", "pod-a", "pod-b")
    plugin.gate.clear()
    both = asyncio.gather(manager.prepare(pod_with("pod-a", "gpu")), manager.prepare(pod_with("pod-b", "gpu")))
    await becomes(lambda: plugin.prepared)
    plugin.gate.set()
    await both
    assert plugin.prepared == [["gpu"]]


@pytest.mark.rule("K37-MISC-06", "KM-15")
async def test_a_claim_that_is_being_unprepared_is_prepared_after_it(
    claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    claims.add("gpu", "pod-a", "pod-b")
    await manager.prepare(pod_with("pod-a", "gpu"))
    plugin.gate.clear()
    ending = asyncio.create_task(manager.unprepare("uid-pod-a"))
    await becomes(lambda: plugin.unprepared)
    coming = asyncio.create_task(manager.prepare(pod_with("pod-b", "gpu")))
    await asyncio.sleep(0.1)
    assert not coming.done()
    plugin.gate.set()
    await asyncio.gather(ending, coming)
    assert plugin.prepared == [["gpu"], ["gpu"]]


@pytest.mark.rule("KM-13")
async def test_many_pods_prepare_and_unprepare_in_parallel(
    claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    names = [f"pod-{index}" for index in range(20)]
    claims.add("shared", *names)
    for name in names:
        claims.add(f"claim-{name}", name)

    async def live(name: str) -> None:
        await manager.prepare(pod_with(name, "shared", f"claim-{name}"))
        await manager.unprepare(f"uid-{name}")

    await asyncio.gather(*map(live, names))
    prepared = sorted(claim for call in plugin.prepared for claim in call)
    unprepared = sorted(claim for call in plugin.unprepared for claim in call)
    assert prepared == unprepared
    assert list(manager.cache) == []


@pytest.mark.rule("KM-06")
@pytest.mark.parametrize("services", [("v1.DRAPlugin",), ("v1beta1.DRAPlugin",)])
async def test_both_wire_versions_work(
    services: tuple[str, ...], claims: Claims, manager: DraManager, make_plugin: MakePlugin
) -> None:
    plugin = await _registered(manager, make_plugin(OTHER, services=services))
    claims.add("nic", "pod-a", drivers=(OTHER,))
    await manager.prepare(pod_with("pod-a", "nic"))
    await manager.unprepare("uid-pod-a")
    assert (plugin.prepared, plugin.unprepared) == ([["nic"]], [["nic"]])


@pytest.mark.rule("KM-14")
async def test_a_server_without_the_service_gives_a_clear_error(
    claims: Claims, manager: DraManager, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin(OTHER, services=("v1beta1.DRAPlugin",))
    await plugin.serve()
    await manager.plugins.register(OTHER, str(plugin.service_socket), ("v1.DRAPlugin",))
    claims.add("nic", "pod-a", drivers=(OTHER,))
    message = await refused(manager.prepare(pod_with("pod-a", "nic")))
    assert message.startswith("NodePrepareResources: rpc error: code = Unimplemented")


async def test_the_claim_for_extended_resources_is_prepared_and_mapped(
    claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    plugin.devices["ext"] = [
        {"pool_name": "p", "device_name": "a", "request_names": ["container-0-request-0"], "cdi_device_ids": ["x/y=a"]},
        {"pool_name": "p", "device_name": "b", "request_names": ["container-1-request-0"], "cdi_device_ids": ["x/y=b"]},
    ]
    claims.add("ext", "pod-a", owner="pod-a")
    mappings = [
        {"containerName": f"c{index}", "resourceName": "example.com/gpu", "requestName": f"container-{index}-request-0"}
        for index in range(3)
    ]
    pod = convert(
        Pod,
        {
            "metadata": {"name": "pod-a", "namespace": "default", "uid": "uid-pod-a"},
            "spec": {
                "containers": [
                    {"name": f"c{index}", "resources": {"requests": {"example.com/gpu": str(count)}}}
                    for index, count in enumerate((1, 1, 0))
                ]
            },
            "status": {"extendedResourceClaimStatus": {"resourceClaimName": "ext", "requestMappings": mappings}},
        },
    )
    await manager.prepare(pod)
    ids = [manager.cdi_devices(pod, container) for container in pod.spec.containers or ()]
    assert ids == [["x/y=a"], ["x/y=b"], []]


# --- the same name again (KM-21) ---


@pytest.mark.rule("KM-13", "KM-21")
async def test_a_new_claim_of_the_same_name_waits_until_the_old_one_is_unprepared(
    claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    claims.add("gpu", "pod-a", uid="old")
    await manager.prepare(pod_with("pod-a", "gpu"))
    claims.add("gpu", "pod-b", uid="new")
    message = await refused(manager.prepare(pod_with("pod-b", "gpu")))
    assert message == (
        "old ResourceClaim with same name gpu and different UID old still exists (previous pod force-deleted?!)"
    )
    await manager.unprepare("uid-pod-a")
    await manager.prepare(pod_with("pod-b", "gpu"))
    assert plugin.prepared == [["gpu"], ["gpu"]]


@pytest.mark.rule("K37-MISC-04", "KM-18")
async def test_prj013_a_pod_that_never_prepared_a_claim_does_not_unprepare_it(
    claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    claims.add("gpu", "pod-a", uid="old")
    await manager.prepare(pod_with("pod-a", "gpu"))
    claims.add("gpu", "pod-b", uid="new")
    await refused(manager.prepare(pod_with("pod-b", "gpu")))
    await manager.unprepare("uid-pod-b")
    assert plugin.unprepared == []
    assert manager.cache.of_pod("uid-pod-a")


# --- the same claim, allocated anew ---


REFUSED = (
    f"ResourceClaim gpu was allocated anew ({DRIVER}/pool/other-0), but this node still holds {DRIVER}/pool/device-0: "
    "waiting for the pods that use them to end"
)


@pytest.mark.rule("KM-16")
@pytest.mark.parametrize("restarts", [False, True])
async def test_prj019_a_claim_allocated_anew_waits_until_its_earlier_devices_are_unprepared(
    restarts: bool, claims: Claims, manager: DraManager, plugin: FakePlugin, tmp_path: Path, fast: AgentSettings
) -> None:
    claims.add("gpu", "pod-a")
    await manager.prepare(pod_with("pod-a", "gpu"))
    claims.add("gpu", "pod-b", device="other")
    if restarts:
        manager = restarted(claims, tmp_path, fast)
        await manager.plugins.register(DRIVER, str(plugin.service_socket), plugin.services)
    for _ in range(2):
        assert await refused(manager.prepare(pod_with("pod-b", "gpu"))) == REFUSED
    assert not manager.cache.of_pod("uid-pod-b")
    await manager.unprepare("uid-pod-a")
    await manager.prepare(pod_with("pod-b", "gpu"))
    assert (plugin.prepared, plugin.unprepared) == ([["gpu"]] * 2, [["gpu"]])
    if restarts:
        await manager.close()


async def test_a_claim_with_the_same_devices_but_another_configuration_was_allocated_anew(
    claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    claims.add("gpu", "pod-a", "pod-b")
    await manager.prepare(pod_with("pod-a", "gpu"))
    config = {"source": "FromClass", "opaque": {"driver": DRIVER, "parameters": {"mode": "shared"}}}
    claims.objects["gpu"]["status"]["allocation"]["devices"]["config"] = [config]
    assert "was allocated anew" in await refused(manager.prepare(pod_with("pod-b", "gpu")))


async def test_a_pod_whose_claim_is_allocated_anew_between_two_attempts_unprepares_the_earlier_devices_itself(
    claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    claims.add("gpu", "pod-a")
    plugin.prepare_error = "injected"
    await refused(manager.prepare(pod_with("pod-a", "gpu")))
    claims.add("gpu", "pod-a", device="other")
    plugin.prepare_error = ""
    plugin.unprepare_error = "busy"
    message = await refused(manager.prepare(pod_with("pod-a", "gpu")))
    assert message == "NodeUnprepareResources failed for ResourceClaim gpu: busy"
    plugin.unprepare_error = ""
    await manager.prepare(pod_with("pod-a", "gpu"))
    assert (plugin.prepared, plugin.unprepared) == ([["gpu"]] * 2, [["gpu"]] * 2)


# --- unprepare (KM-18, KM-19) ---


@pytest.mark.rule("KM-18")
async def test_a_claim_used_by_another_pod_stays(claims: Claims, manager: DraManager, plugin: FakePlugin) -> None:
    claims.add("gpu", "pod-a", "pod-b")
    for name in ("pod-a", "pod-b"):
        await manager.prepare(pod_with(name, "gpu"))
    await manager.unprepare("uid-pod-a")
    assert plugin.unprepared == []
    await manager.unprepare("uid-pod-b")
    assert plugin.unprepared == [["gpu"]]


UNPREPARE_FAILURES: dict[str, tuple[Callable[[FakePlugin], object], str]] = {
    "the driver reports an error": (
        lambda plugin: setattr(plugin, "unprepare_error", "busy"),
        "NodeUnprepareResources failed for ResourceClaim gpu: busy",
    ),
    "the driver skips the claim": (
        lambda plugin: setattr(plugin, "results", lambda results: {}),
        "NodeUnprepareResources skipped 1 ResourceClaims",
    ),
    "the driver does not answer in time": (
        lambda plugin: plugin.gate.clear(),
        "NodeUnprepareResources: rpc error: code = DeadlineExceeded desc = Deadline Exceeded",
    ),
}


@pytest.mark.rule("KM-19")
@pytest.mark.parametrize(
    ("case", "call_timeout"), [(case, timeout_of(case)) for case in UNPREPARE_FAILURES], ids=UNPREPARE_FAILURES
)
async def test_a_failed_unprepare_keeps_the_claim_for_the_next_try(
    case: str, claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    arrange, message = UNPREPARE_FAILURES[case]
    claims.add("gpu", "pod-a")
    await manager.prepare(pod_with("pod-a", "gpu"))
    arrange(plugin)
    assert await refused(manager.unprepare("uid-pod-a")) == message
    assert manager.cache.of_pod("uid-pod-a")
    plugin.unprepare_error, plugin.results = "", lambda results: results
    plugin.gate.set()
    await manager.unprepare("uid-pod-a")
    assert not manager.cache.of_pod("uid-pod-a")


@pytest.mark.rule("KM-19")
async def test_an_unregistered_driver_blocks_unprepare(claims: Claims, manager: DraManager, plugin: FakePlugin) -> None:
    claims.add("gpu", "pod-a")
    await manager.prepare(pod_with("pod-a", "gpu"))
    await manager.plugins.deregister(DRIVER, str(plugin.service_socket))
    assert await refused(manager.unprepare("uid-pod-a")) == f"DRA driver {DRIVER} is not registered"
    await manager.plugins.register(DRIVER, str(plugin.service_socket), plugin.services)
    await manager.unprepare("uid-pod-a")


@pytest.mark.rule("KM-19")
async def test_unprepare_needs_no_claim_object(claims: Claims, manager: DraManager, plugin: FakePlugin) -> None:
    claims.add("gpu", "pod-a")
    await manager.prepare(pod_with("pod-a", "gpu"))
    claims.objects.clear()
    await manager.unprepare("uid-pod-a")
    assert plugin.unprepared == [["gpu"]]


@pytest.mark.rule("KM-20")
async def test_claims_of_pods_that_are_not_active_are_given_back(
    claims: Claims, manager: DraManager, plugin: FakePlugin
) -> None:
    for name in ("here", "gone"):
        claims.add(name, name)
        await manager.prepare(pod_with(name, name))
    await manager.reconcile(lambda: {"uid-here"})
    assert plugin.unprepared == [["gone"]]
    assert manager.cache.of_pod("uid-here")


# --- restart ---


async def test_a_restart_prepares_again_because_prepared_is_in_memory_only(
    claims: Claims, manager: DraManager, plugin: FakePlugin, tmp_path: Path, fast: AgentSettings
) -> None:
    claims.add("gpu", "pod-a")
    await manager.prepare(pod_with("pod-a", "gpu"))
    again = restarted(claims, tmp_path, fast)
    await again.plugins.register(DRIVER, str(plugin.service_socket), plugin.services)
    await again.prepare(pod_with("pod-a", "gpu"))
    await again.unprepare("uid-pod-a")
    await again.close()
    assert (plugin.prepared, plugin.unprepared) == ([["gpu"], ["gpu"]], [["gpu"]])


# --- choosing an instance over real connections (KM-09) ---


@pytest.mark.rule("KM-09")
async def test_calls_go_to_the_latest_connected_instance(
    claims: Claims, manager: DraManager, plugin: FakePlugin, make_plugin: MakePlugin
) -> None:
    newer = await _registered(manager, make_plugin(DRIVER, instance="-new"))
    await becomes(lambda: all(instance.connected for instance in manager.plugins.instances()))
    claims.add("one", "pod-a")
    await manager.prepare(pod_with("pod-a", "one"))
    await newer.stop_serving()
    await becomes(lambda: not all(instance.connected for instance in manager.plugins.instances()))
    claims.add("two", "pod-b")
    await manager.prepare(pod_with("pod-b", "two"))
    assert (newer.prepared, plugin.prepared) == ([["one"]], [["two"]])


@pytest.mark.rule("KM-07")
async def test_a_plugin_whose_service_comes_later_is_called_once_it_is_there(
    claims: Claims, manager: DraManager, make_plugin: MakePlugin
) -> None:
    late = make_plugin(OTHER)
    await manager.plugins.register(OTHER, str(late.service_socket), late.services)
    claims.add("nic", "pod-a", drivers=(OTHER,))
    assert "code = Unavailable" in await refused(manager.prepare(pod_with("pod-a", "nic")))
    await late.serve()
    await becomes(lambda: manager.plugins.is_usable(OTHER))
    await manager.prepare(pod_with("pod-a", "nic"))
    assert late.prepared == [["nic"]]
