"""Calls that drivers do without: which they are, and what the node does and tells instead (K37-ONO-08 to -14)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from dra_api.codec import convert
from dra_api.gates import FeatureGates
from dra_api.releases import Release
from dra_api.resource import DeviceAllocationResult
from dra_devcluster.agent import AgentSettings
from dra_devcluster.agent.claims import PREPARE, UNPREPARE, DraManager, is_skipped
from dra_devcluster.agent.errors import ClaimError
from dra_devcluster.agent.plugins.plugin import NodeMetrics
from dra_devcluster.agent.settings import declared_features, settings_for
from fake_plugin import MakePlugin
from one_node import DRIVER, OTHER, Claims, pod_with

ON, OFF = {"DRAOptionalNodeOperations": True}, {"DRAOptionalNodeOperations": False}
POD = pod_with("pod-a", "gpu")


def node_of(release: Release, settings: AgentSettings, gates: dict[str, bool] | None = None) -> AgentSettings:
    return settings_for(release, FeatureGates.of(gates or {}, release), settings)


@pytest.fixture
def claims() -> Claims:
    return Claims()


@asynccontextmanager
async def manager_of(
    claims: Claims, root: Path, settings: AgentSettings, metrics: NodeMetrics | None = None
) -> AsyncIterator[DraManager]:
    manager = DraManager(claims, "node-1", root, settings, metrics)  # type: ignore[arg-type]  # reads claims, nothing else
    yield manager
    await manager.close()


@pytest.mark.rule("K37-ONO-09")
@pytest.mark.parametrize(
    ("skips", "skipped"),
    [
        ([["*"]], {PREPARE, UNPREPARE}),
        ([["NodeUnprepareResources"]], {UNPREPARE}),
        ([["NodePrepareResources", "NodeUnprepareResources"]], {PREPARE, UNPREPARE}),
        ([["FutureOperation"]], set()),
        ([["*"], None], set()),
        ([["*"], ["NodeUnprepareResources"]], {UNPREPARE}),
        ([], set()),
    ],
)
def test_a_call_is_skipped_if_every_device_of_the_driver_says_so(
    skips: list[list[str] | None], skipped: set[str]
) -> None:
    others = [{"driver": OTHER, "skipNodeOperations": None}, {"driver": OTHER, "skipNodeOperations": ["*"]}]
    ours = [{"driver": DRIVER, "skipNodeOperations": one} for one in skips]
    allocation = convert(DeviceAllocationResult, {"results": [*others, *ours]})
    assert {one for one in (PREPARE, UNPREPARE) if is_skipped(one, DRIVER, allocation)} == skipped
    assert not is_skipped(PREPARE, DRIVER, None)


@pytest.mark.rule("K37-MET-05", "K37-ONO-10", "K37-ONO-14")
async def test_a_claim_whose_driver_skips_all_calls_needs_no_driver_and_is_counted_as_prepared(
    claims: Claims, tmp_path: Path, fast: AgentSettings
) -> None:
    claims.add("gpu", "pod-a", skips=("*",))
    metrics = NodeMetrics()
    async with manager_of(claims, tmp_path, node_of(Release.V1_37, fast, ON), metrics) as manager:
        await manager.prepare(POD)
        assert [claim.prepared for claim in manager.cache] == [True]
        assert POD.spec.containers is not None
        assert manager.cdi_devices(POD, POD.spec.containers[0]) == []
        await manager.unprepare("uid-pod-a")
        assert not list(manager.cache)
    for name in ("dra_node_prepare_skips_total", "dra_node_unprepare_skips_total"):
        assert metrics.registry.get_sample_value(name, {"driver_name": DRIVER}) == 1


@pytest.mark.rule("K37-ONO-09")
async def test_a_driver_that_skips_the_undoing_alone_is_called_to_prepare(
    claims: Claims, tmp_path: Path, fast: AgentSettings, make_plugin: MakePlugin
) -> None:
    claims.add("gpu", "pod-a", skips=("NodeUnprepareResources",))
    plugin = make_plugin(DRIVER)
    await plugin.serve()
    async with manager_of(claims, tmp_path, node_of(Release.V1_37, fast, ON)) as manager:
        await manager.plugins.register(DRIVER, str(plugin.service_socket), plugin.services)
        await manager.prepare(POD)
        await manager.unprepare("uid-pod-a")
    assert (plugin.prepared, plugin.unprepared) == ([["gpu"]], [])


@pytest.mark.rule("K37-ONO-12")
@pytest.mark.parametrize(
    ("release", "gates", "error"),
    [
        (Release.V1_36, {}, f"DRA driver {DRIVER} is not registered"),
        (Release.V1_37, OFF, "ResourceClaim gpu: DRAOptionalNodeOperations feature gate is disabled on kubelet"),
    ],
)
async def test_without_the_gate_1_37_refuses_such_a_claim_and_1_36_calls_the_driver(
    claims: Claims, tmp_path: Path, fast: AgentSettings, release: Release, gates: dict[str, bool], error: str
) -> None:
    claims.add("gpu", "pod-a", skips=("*",))
    async with manager_of(claims, tmp_path, node_of(release, fast, gates)) as manager:
        with pytest.raises(ClaimError, match=f"^prepare dynamic resources: {error}$"):
            await manager.prepare(POD)
        assert not manager.cache.of_pod("uid-pod-a")


@pytest.mark.rule("K37-ONO-11", "K37-ONO-12")
async def test_a_claim_that_was_prepared_without_calls_is_unprepared_without_them_after_the_gate_was_turned_off(
    claims: Claims, tmp_path: Path, fast: AgentSettings
) -> None:
    claims.add("gpu", "pod-a", skips=("*",))
    async with manager_of(claims, tmp_path, node_of(Release.V1_37, fast, ON)) as manager:
        await manager.prepare(POD)
    async with manager_of(claims, tmp_path, node_of(Release.V1_37, fast, OFF)) as manager:
        assert manager.cache.of_pod("uid-pod-a")
        await manager.unprepare("uid-pod-a")
        assert not list(manager.cache)


@pytest.mark.rule("K37-NA-23", "K37-ONO-08")
def test_a_node_declares_the_features_of_its_gates_from_1_37_on() -> None:
    """A kubelet of 1.36 declares neither, whatever its gates are."""
    both = {**ON, "DRANodeAllocatableResources": True}
    assert declared_features(node_of(Release.V1_37, AgentSettings(), both)) == sorted(both)
    assert declared_features(node_of(Release.V1_37, AgentSettings())) == []
    old = node_of(Release.V1_36, AgentSettings(), {"DRANodeAllocatableResources": True})
    assert declared_features(old) == []
    assert declared_features(replace(old, release=Release.V1_37)) == ["DRANodeAllocatableResources"]
