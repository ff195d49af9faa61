"""Scenarios of one node and two plugins (e2e-scenarios.md section 2.2)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fake_plugin import FakePlugin, MakePlugin
from one_node import OneNode
from prometheus_client.parser import text_string_to_metric_families
from waiting import becomes, until

GPU, NIC = "gpu.example.com", "nic.example.com"
PREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
UNPREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
async def other(node: OneNode, make_plugin: MakePlugin) -> AsyncIterator[FakePlugin]:
    """The second plugin; the first one is ``plugin``."""
    other = make_plugin(NIC, root=node.root)
    other.cdi_root = node.cdi_root
    async with other:
        await becomes(lambda: other.statuses == [(True, "")])
        yield other


async def make_pod(node: OneNode, script: str = "true") -> None:
    await node.pod("pod-a", script, claims=("both",))
    await node.claim("both", "pod-a", drivers=(GPU, NIC))


async def metrics(node: OneNode) -> Samples:
    """What the node exposes, by name and labels."""
    text = await node.metrics()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def calls(method: str, driver: str, code: str = "OK") -> tuple[str, frozenset[tuple[str, str]]]:
    return key(
        "dra_grpc_operations_duration_seconds_count", driver_name=driver, method_name=method, grpc_status_code=code
    )


def operations(name: str, is_error: str = "false") -> tuple[str, frozenset[tuple[str, str]]]:
    return key("dra_operations_duration_seconds_count", operation_name=name, is_error=is_error)


async def in_use(node: OneNode) -> dict[str, float]:
    samples = await metrics(node)
    return {
        dict(labels)["driver_name"]: count
        for (name, labels), count in samples.items()
        if name == "dra_resource_claims_in_use"
    }


async def test_nod031_the_metrics_tell_of_operations_calls_and_claims(
    node: OneNode, plugin: FakePlugin, other: FakePlugin
) -> None:
    assert await in_use(node) == {"<any>": 0}
    await make_pod(node, "")
    await node.phase("pod-a", "Running")
    assert await in_use(node) == {"<any>": 1, GPU: 1, NIC: 1}
    await node.delete("pod-a")
    await node.gone("pod-a")
    assert await in_use(node) == {"<any>": 0}
    samples = await metrics(node)
    assert [samples[calls(method, driver)] for method in (PREPARE, UNPREPARE) for driver in (GPU, NIC)] == [1] * 4
    assert (samples[operations("PrepareResources")], samples[operations("UnprepareResources")]) == (1, 1)
    bounds = [dict(labels)["le"] for name, labels in samples if name == "dra_operations_duration_seconds_bucket"]
    assert sorted({float(bound) for bound in bounds})[:2] == pytest.approx([0.1, 0.1534], abs=1e-4)
    assert len(set(bounds)) == 16


async def test_the_metrics_tell_of_failures_and_pods_without_claims(node: OneNode, plugin: FakePlugin) -> None:
    await node.pod("plain", "true")
    await node.phase("plain", "Succeeded")
    plugin.prepare_aborts = True
    await node.pod("pod-a", "true", claims=("gpu",))
    await node.claim("gpu", "pod-a")
    await becomes(lambda: plugin.prepared)
    plugin.prepare_aborts = False
    await node.phase("pod-a", "Succeeded")
    samples = await metrics(node)
    assert samples[operations("PrepareResources")] == 2
    assert samples[operations("PrepareResources", "true")] >= 1
    assert samples[calls(PREPARE, GPU, "Internal")] >= 1


@pytest.mark.rule("KM-05")
async def test_the_metrics_tell_which_plugin_sockets_are_registered(node: OneNode, plugin: FakePlugin) -> None:
    path = str(plugin.registration_socket)
    states = ("actual_state_of_world", "desired_state_of_world")
    keys = [key("plugin_manager_total_plugins", socket_path=path, state=state) for state in states]
    samples = await metrics(node)
    assert [samples[one] for one in keys] == [1, 1]
    await plugin.unregister()

    async def is_gone() -> bool:
        return not set(keys) & (await metrics(node)).keys()

    await until("the socket is gone", is_gone)


async def test_nod032_a_prepare_that_fails_in_one_plugin_is_repeated(
    node: OneNode, plugin: FakePlugin, other: FakePlugin
) -> None:
    other.prepare_error = "injected"
    await make_pod(node)
    await becomes(lambda: len(other.prepared) >= 2)
    assert (await node.get("pod-a"))["status"]["phase"] == "Pending"
    other.prepare_error = ""
    await node.phase("pod-a", "Succeeded")


async def test_nod033_an_unprepare_that_fails_in_one_plugin_is_repeated(
    node: OneNode, plugin: FakePlugin, other: FakePlugin
) -> None:
    other.unprepare_error = "injected"
    await make_pod(node)
    await becomes(lambda: len(other.unprepared) >= 2)
    assert (await node.get("pod-a"))["status"]["phase"] != "Succeeded"
    other.unprepare_error = ""
    await node.phase("pod-a", "Succeeded")


async def test_nod034_a_prepare_in_progress_while_the_agent_restarts_is_called_again(
    node: OneNode, plugin: FakePlugin, other: FakePlugin
) -> None:
    other.gate.clear()
    await make_pod(node)
    await becomes(lambda: other.prepared)
    await node.stop()
    other.gate.set()
    await node.start()
    await node.phase("pod-a", "Succeeded")
    assert (other.prepared, plugin.prepared) == ([["both"]] * 2, [["both"]] * 2)


async def test_nod035_an_unprepare_in_progress_while_the_agent_restarts_is_called_again(
    node: OneNode, plugin: FakePlugin, other: FakePlugin
) -> None:
    await make_pod(node, "")
    await node.phase("pod-a", "Running")
    other.gate.clear()
    await node.delete("pod-a")
    await becomes(lambda: other.unprepared)
    await node.stop()
    other.gate.set()
    await node.start()
    await node.gone("pod-a")
    assert other.unprepared == [["both"]] * 2
