"""The pod-resources API over its socket (KM-28)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from dra_devcluster.agent import AgentSettings, KubeletDefect
from dra_proto.podresources.v1 import api_pb2 as messages
from dra_proto.podresources.v1 import api_pb2_grpc
from fake_plugin import FakePlugin
from google.protobuf.json_format import MessageToDict
from one_node import OneNode


@pytest.fixture
def defects() -> frozenset[KubeletDefect]:
    return frozenset()


@pytest.fixture
def fast(fast: AgentSettings, defects: frozenset[KubeletDefect]) -> AgentSettings:
    return replace(fast, defects=defects)


@pytest.fixture
async def lister(node: OneNode) -> AsyncIterator[api_pb2_grpc.PodResourcesListerAsyncStub]:
    socket = node.root / "pod-resources" / "kubelet.sock"
    options = [("grpc.default_authority", "localhost")]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        yield api_pb2_grpc.PodResourcesListerStub(channel)  # type: ignore[misc]  # one class serves both kinds of channel


def device(name: str, *ids: str, **fields: Any) -> dict[str, Any]:
    return {"pool_name": "pool", "device_name": name, "cdi_device_ids": ids} | fields


def shown(name: str, *ids: str, **fields: Any) -> dict[str, Any]:
    cdi = {"cdi_devices": [{"name": one} for one in ids]} if ids else {}
    return {"driver_name": "gpu.example.com", "pool_name": "pool", "device_name": name} | cdi | fields


def content(message: Any) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True)


async def run_pod(node: OneNode, **spec: Any) -> None:
    await node.pod("pod-a", claims=("gpu",), **spec)
    await node.claim("gpu", "pod-a")
    await node.phase("pod-a", "Running")


DEVICES = [
    device("a", "example.com/gpu=a", request_names=["req-0"]),
    device("b", "example.com/gpu=b", share_id="share"),
    device("c"),
]


@pytest.mark.rule("KM-28")
@pytest.mark.parametrize(
    ("defects", "of_b", "of_c"),
    [
        (frozenset(), ["example.com/gpu=b"], []),
        (
            frozenset({KubeletDefect.ACCUMULATED_CDI_IDS}),
            ["example.com/gpu=a", "example.com/gpu=b"],
            ["example.com/gpu=a", "example.com/gpu=b"],
        ),
    ],
    ids=["as it should be", "as the kubelet does it"],
)
async def test_prj015_a_container_shows_each_device_with_its_own_cdi_ids(
    node: OneNode,
    plugin: FakePlugin,
    lister: api_pb2_grpc.PodResourcesListerAsyncStub,
    of_b: list[str],
    of_c: list[str],
) -> None:
    plugin.cdi_root = None
    plugin.devices["gpu"] = DEVICES
    container = {"name": "c", "image": "busybox", "resources": {"claims": [{"name": "gpu", "request": "req-0"}]}}
    idle = {"name": "plain", "image": "busybox"}
    sidecar = {"name": "side", "image": "busybox", "restartPolicy": "Always"}
    init = {"name": "init", "image": "busybox", "command": ["true"]}
    await node.pod("pod-a", claims=("gpu",), containers=[container, idle], initContainers=[init, sidecar])
    await node.claim("gpu", "pod-a")
    devices = [{"name": name, "containerEdits": {"env": ["A=b"]}} for name in ("a", "b")]
    spec = {"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": devices}
    (node.cdi_root / "spec.json").write_text(json.dumps(spec))
    await node.phase("pod-a", "Running")
    claim = {
        "claim_name": "gpu",
        "claim_namespace": "default",
        "claim_resources": [shown("a", "example.com/gpu=a"), shown("b", *of_b, share_id="share"), shown("c", *of_c)],
    }
    containers = [{"name": "side"}, {"name": "c", "dynamic_resources": [claim]}, {"name": "plain"}]
    pod = {"name": "pod-a", "namespace": "default", "containers": containers}
    assert content(await lister.List(messages.ListPodResourcesRequest())) == {"pod_resources": [pod]}
    request = messages.GetPodResourcesRequest(pod_name="pod-a", pod_namespace="default")
    assert content(await lister.Get(request)) == {"pod_resources": pod}


@pytest.mark.rule("KM-28")
async def test_a_container_with_a_claim_that_is_not_held_shows_none(
    node: OneNode, plugin: FakePlugin, lister: api_pb2_grpc.PodResourcesListerAsyncStub
) -> None:
    plugin.prepare_error = "injected"
    await node.pod("pod-a", claims=("gpu", "other"))
    await node.claim("gpu", "pod-a")
    await node.event("pod-a", "FailedPrepareDynamicResources", "other")
    found = content(await lister.List(messages.ListPodResourcesRequest()))
    assert found["pod_resources"][0]["containers"] == [{"name": "c"}]


async def test_a_pod_that_has_ended_is_not_listed(
    node: OneNode, plugin: FakePlugin, lister: api_pb2_grpc.PodResourcesListerAsyncStub
) -> None:
    await node.pod("pod-a", "true")
    await node.phase("pod-a", "Succeeded")
    assert content(await lister.List(messages.ListPodResourcesRequest())) == {}


async def test_an_unknown_pod_is_an_error_and_nothing_is_allocatable(
    node: OneNode, lister: api_pb2_grpc.PodResourcesListerAsyncStub
) -> None:
    assert content(await lister.GetAllocatableResources(messages.AllocatableResourcesRequest())) == {}
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await lister.Get(messages.GetPodResourcesRequest(pod_name="x", pod_namespace="y"))
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNKNOWN, "pod x in namespace y not found")


async def test_more_calls_than_the_limit_are_rejected(
    node: OneNode, lister: api_pb2_grpc.PodResourcesListerAsyncStub
) -> None:
    codes = set()
    for _ in range(2000):
        try:
            await lister.GetAllocatableResources(messages.AllocatableResourcesRequest())
        except grpc.aio.AioRpcError as error:
            codes.add((error.code(), error.details()))
            break
    assert codes == {(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")}
