"""What the controller of a new driver of a network may write, by the policy that is written with it."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from bare_client import Client, path_of
from dra_api import yaml_text
from dra_kubeletplugin.commands.subcommands import create
from manifest_accounts import SLICES
from rbac_cases import RELEASES, rbac_server
from waiting import until

NAME, NAMESPACE, ACCOUNT = "net.example.com", "net-driver", "net-driver-controller"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
KINDS = {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
         "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}  # fmt: skip


@pytest.fixture(params=RELEASES)
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    """An administrator's client of a server with what the command has written."""
    create(NAME, tmp_path / "new", network_attached=True)
    async with rbac_server(request.param, tmp_path) as client:
        for obj in yaml_text.load_all((tmp_path / "new/net_driver.yaml").read_text()):
            if obj["kind"] in KINDS:
                await client.post(path_of(obj), obj)
        probe = controller(client)

        async def in_force() -> bool:
            foreign = slice_of("net", driver="gpu.example.com")
            return (await probe.call("POST", SLICES, foreign, dryRun="All")).code == 422

        await until("the policy is in force", in_force)
        yield client


def controller(client: Client) -> Client:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated")
    return client.impersonating(f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}", *groups)


def slice_of(pool: str, *, driver: str = NAME, **where: Any) -> dict[str, Any]:
    spec = {"driver": driver, "pool": {"name": pool, "generation": 9, "resourceSliceCount": 1},
            "devices": [{"name": "port-0"}], **(where or {"allNodes": True})}  # fmt: skip
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "new"}, "spec": spec}


def lease(name: str) -> dict[str, Any]:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {}}


POOLS = [("net", True), ("net/rack-1", True), ("node-1", False), ("node-1/ports", False), ("net-1", False)]


async def test_a_controller_writes_only_what_its_work_needs(server: Client) -> None:
    own = controller(server)
    for pool, allowed in POOLS:
        answer = await own.call("POST", SLICES, slice_of(pool), dryRun="All")
        assert answer.code == (201 if allowed else 422), (pool, answer.body)
        assert allowed or f"this user may not publish pool '{pool}': a node may have one of that name" in answer.message
    of_a_node = await own.call("POST", SLICES, slice_of("net", nodeName="node-1"), dryRun="All")
    assert "only resourceslices without a node name" in of_a_node.message

    left = await server.post(SLICES, slice_of("node-1"))
    changed = copy.deepcopy(left)
    changed["spec"]["pool"]["generation"] += 1
    assert (await own.call("PUT", f"{SLICES}/new", changed, dryRun="All")).code == 422
    assert (await own.call("DELETE", f"{SLICES}/new")).code == 200, "that of a former version can be removed"


async def test_a_controller_has_its_own_lease_only(server: Client) -> None:
    own = controller(server)
    assert (await own.call("POST", LEASES, lease(f"{NAME}-controller"))).code == 201
    renewed = await own.get(f"{LEASES}/{NAME}-controller")
    assert (await own.call("PUT", f"{LEASES}/{NAME}-controller", renewed)).code == 200
    other = await server.post(LEASES, lease("other"))
    assert (await own.call("GET", f"{LEASES}/other")).code == 403
    assert (await own.call("PUT", f"{LEASES}/other", other)).code == 403
