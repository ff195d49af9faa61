"""PodGroups as gangs, on API servers that serve them (INT-034).

PodGroups are behind gates, so each test has a server of its own; the end-to-end tests' own cluster takes no part.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import operator_process
from dra_api.releases import Release
from dra_devcluster.apiserver import serve_in_thread
from dra_kube import (
    DEVICE_CLASSES,
    NAMESPACES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Api,
    Object,
    connection,
)
from proving_ground import bare_node
from waiting import until

RACKS = {"rack-a-0": "a", "rack-a-1": "a", "rack-b-0": "b", "rack-b-1": "b"}
"""Nodes with two devices each, and their racks."""
RACK = "example.com/rack"
ENTRY = {"name": "gpu", "resourceClaimTemplateName": "gpu"}
WORKLOADS = ("GenericWorkload", "DRAWorkloadResourceClaims", "TopologyAwareWorkloadScheduling")


@pytest.fixture
def release() -> Release:
    return Release.V1_37


@pytest.fixture
def kubeconfig(release: Release, tmp_path: Path) -> Iterator[Path]:
    with serve_in_thread(release=release, feature_gates=dict.fromkeys(WORKLOADS, True)) as server:
        yield server.write_kubeconfig(tmp_path / "kubeconfig")


@dataclass
class Stage:
    """A namespace on a server with an operator."""

    api: Api
    namespace: str

    async def group(self, policy: Object, **spec: Any) -> None:
        kind = {"apiVersion": POD_GROUPS.api_version(), "kind": POD_GROUPS.kind}
        await self.api.create(POD_GROUPS, kind | self._named("group", schedulingPolicy=policy, **spec))

    async def pods(self, *names: str, **more: Any) -> None:
        for name in names:
            containers = [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}]
            group = {"schedulerName": "dra-scheduler", "schedulingGroup": {"podGroupName": "group"}}
            await self.api.create(
                PODS, self._named(name, containers=containers, resourceClaims=[ENTRY], **group, **more)
            )

    async def bound(self) -> dict[str, str]:
        """The nodes of the pods that have one."""
        pods = (await self.api.list(PODS, self.namespace))[0]
        return {it["metadata"]["name"]: it["spec"]["nodeName"] for it in pods if it["spec"].get("nodeName")}

    async def all_bound(self, count: int) -> dict[str, str]:
        async def look() -> dict[str, str] | None:
            return nodes if len(nodes := await self.bound()) == count else None

        return await until(f"{count} pods have nodes", look)

    async def allocated(self) -> list[Object]:
        claims = (await self.api.list(RESOURCE_CLAIMS, self.namespace))[0]
        return [it for it in claims if (it.get("status") or {}).get("allocation")]

    async def says(self, pod: str, text: str) -> None:
        async def look() -> bool:
            conditions = (await self.api.get(PODS, pod, self.namespace))["status"].get("conditions") or []
            return any(it["type"] == "PodScheduled" and text in (it.get("message") or "") for it in conditions)

        await until(f"pod {pod} says {text!r}", look)

    async def group_shows(self, kind: str, status: str, text: str) -> None:
        """The group has the condition, and its status was accepted with it."""

        async def look() -> bool:
            conditions = (await self.api.get(POD_GROUPS, "group", self.namespace)).get("status", {}).get("conditions")
            return any(
                (it["type"], it["status"]) == (kind, status) and text in it["message"] for it in conditions or ()
            )

        await until(f"the group shows {kind} {status}", look)

    def _named(self, name: str, **spec: Any) -> Object:
        return {"metadata": {"name": name, "namespace": self.namespace}, "spec": spec}


@pytest.fixture
async def stage(kubeconfig: Path, release: Release, tmp_path: Path) -> AsyncIterator[Stage]:
    """Nodes, devices and an operator; it ends without complaints."""
    gates = [*WORKLOADS, *(["GangScheduling"] if release < Release.V1_37 else [])]
    options = f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}"
    name = f"groups-{secrets.token_hex(4)}"
    async with Api(connection(kubeconfig)) as api:
        await api.create(NAMESPACES, {"metadata": {"name": name}})
        async with AsyncExitStack() as stack:
            for node, rack in RACKS.items():
                await stack.enter_async_context(bare_node(api, node, labels={RACK: rack}))
                await api.create(RESOURCE_SLICES, slice_of(node))
                stack.push_async_callback(api.delete, RESOURCE_SLICES, node)
            selector = [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]
            await api.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": {"selectors": selector}})
            exactly = {"deviceClassName": name, "allocationMode": "ExactCount", "count": 1}
            spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
            meta = {"name": "gpu", "namespace": name}
            await api.create(RESOURCE_CLAIM_TEMPLATES, {"metadata": meta, "spec": spec})
            operator = await stack.enter_async_context(operator_process(kubeconfig, tmp_path / "log", name, options))
            await operator.becomes_ready()
            yield Stage(api, name)
            assert operator.complaints() == []


def slice_of(node: str) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"dev-{number}"} for number in range(2)]
    return {
        "metadata": {"name": node},
        "spec": {"driver": "gpu.example.com", "nodeName": node, "pool": pool, "devices": devices},
    }


@pytest.mark.parametrize("release", [Release.V1_36, Release.V1_37])
async def test_int_034_a_group_starts_when_it_is_complete_in_one_rack_and_others_join(
    stage: Stage, release: Release
) -> None:
    """Template claims; the group comes after its first pods."""
    await stage.pods("a", "b")
    await stage.says("a", 'podgroup "group" not found')
    await stage.group({"gang": {"minCount": 3}}, schedulingConstraints={"topology": [{"key": RACK}]})
    await stage.says("a", "fewer than the 3 pods")
    assert await stage.allocated() == []
    await stage.pods("c")
    nodes = await stage.all_bound(3)
    kind = "PodGroupInitiallyScheduled" if release >= Release.V1_37 else "PodGroupScheduled"
    await stage.group_shows(kind, "True", "")
    [rack] = {RACKS[node] for node in nodes.values()}
    await stage.pods("d", "e")
    racks = [RACKS[node] for node in (await stage.all_bound(4)).values()]
    assert racks == [rack] * 4


async def test_int_034_a_group_that_fits_only_in_part_gets_nothing_until_it_asks_for_less(stage: Stage) -> None:
    names = [f"pod-{number}" for number in range(9)]
    await stage.group({"gang": {"minCount": 9}})
    await stage.pods(*names)

    async def is_told() -> bool:
        pods = (await stage.api.list(PODS, stage.namespace))[0]
        said = [it.get("message") or "" for pod in pods for it in pod["status"].get("conditions") or []]
        return any("only 8 of 9 pods fit together" in text for text in said)

    await until("why the group waits", is_told)
    assert await stage.bound() == {}
    assert await stage.allocated() == []
    await stage.group_shows("PodGroupInitiallyScheduled", "False", "only 8 of 9 pods fit together")
    fewer = {"spec": {"schedulingPolicy": {"gang": {"minCount": 8}}}}
    await stage.api.patch(POD_GROUPS, "group", fewer, stage.namespace)
    await stage.all_bound(8)
    await stage.group_shows("PodGroupInitiallyScheduled", "True", "")


async def test_int_034_pods_wait_whose_group_has_another_priority(stage: Stage) -> None:
    """As admission has resolved both."""
    await stage.group({"gang": {"minCount": 1}})
    await stage.pods("a", priorityClassName="system-node-critical")
    await stage.says("a", 'podgroup "group": the pod has priority 2000001000 and the group 0; ')
    assert await stage.allocated() == []
    await stage.pods("b")
    assert set(await stage.all_bound(1)) == {"b"}


async def test_int_034_pods_of_a_basic_group_are_placed_by_themselves(stage: Stage) -> None:
    await stage.group({"basic": {}})
    await stage.pods(*(f"pod-{number}" for number in range(9)))
    await stage.all_bound(8)


async def test_int_034_the_pods_of_a_gang_share_the_claim_of_their_group(stage: Stage) -> None:
    await stage.group({"gang": {"minCount": 3}}, resourceClaims=[ENTRY])
    await stage.pods("a", "b", "c")
    nodes = await stage.all_bound(3)
    assert len(set(nodes.values())) == 1
    [claim] = await stage.allocated()
    assert [it["resource"] for it in claim["status"]["reservedFor"]] == ["podgroups"]
