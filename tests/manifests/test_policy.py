"""A plugin writes slices of its node and driver only, as the policy in the manifests says; on a real server as well."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from bare_client import PATCH, Client
from manifest_accounts import SLICES, furnish, grant, plugin_on, slice_of
from rbac_cases import RELEASES, rbac_server
from waiting import until

RBAC = "rbac.authorization.k8s.io"
MORE: list[dict[str, Any]] = [
    {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "more"},
        "rules": [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"],
                   "verbs": ["patch", "deletecollection"]}],
    },
    {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "more"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "more"},
        "subjects": [{"kind": "ServiceAccount", "name": "dra-plugin", "namespace": "dra-plugins"}],
    },
]  # fmt: skip
"""More than the role of the manifests allows: the policy holds for every way to write."""
NO_NODE = (
    "no node association found for user, this user must run in a pod on a node and ServiceAccountTokenPodNodeInfo must "
    "be enabled"
)


@pytest.fixture(params=RELEASES)
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    """With the plugin's objects and one slice of each node and of all nodes, made by the administrator."""
    async with rbac_server(request.param, tmp_path) as client:
        await grant(client, *MORE)
        await furnish(client)
        # A real server hears of roles and policies by watches.
        probe = plugin_on(client, "node-1")

        async def in_force() -> bool:
            answer = await probe.call("DELETE", SLICES, fieldSelector="spec.nodeName=node-2", dryRun="All")
            return answer.code == 422

        await until("the policy is in force", in_force)
        yield client


async def refusal(client: Client, method: str, path: str, body: Any = None, **options: Any) -> str:
    """Why it is refused; empty if it is not."""
    answer = await client.call(method, path, body, **options)
    if answer.code < 300:
        return ""
    assert (answer.code, answer.reason) == (422, "Invalid"), answer.body
    policy = "ValidatingAdmissionPolicy 'dra-plugin-resourceslices' with binding 'dra-plugin-resourceslices'"
    _, forbidden, why = answer.message.partition(f" is forbidden: {policy} denied request: ")
    assert forbidden, answer.message
    assert answer.json["details"]["causes"] == [{"message": f"{policy} denied request: {why}"}]
    return why


def expected(plugin_node: str, slice_node: str) -> str:
    """What the policy says to a plugin on one node about a slice of another, or of all."""
    if not plugin_node:
        return NO_NODE
    what = f"resourceslices on node '{slice_node}'" if slice_node else "cluster resourceslices"
    return "" if plugin_node == slice_node else f"this user running on node '{plugin_node}' may not modify {what}"


async def test_e2e_075_a_plugin_writes_the_slices_of_its_own_node_only(client: Client) -> None:
    for own in ("node-1", "node-2", ""):
        plugin = plugin_on(client, own)
        for node in ("node-1", "node-2", ""):
            path, answer = f"{SLICES}/{slice_of(node)['metadata']['name']}", expected(own, node)
            assert await refusal(plugin, "POST", SLICES, slice_of(node, "new"), dryRun="All") == answer, own
            current = await client.get(path)
            current["spec"]["pool"]["generation"] += 1
            assert await refusal(plugin, "PUT", path, current, dryRun="All") == answer, own
            patch = {"metadata": {"labels": {"a": own or "none"}}}
            assert await refusal(plugin, "PATCH", path, patch, kind=PATCH["merge"], dryRun="All") == answer, own
            assert await refusal(plugin, "DELETE", path, dryRun="All") == answer, own


async def test_the_policy_holds_in_every_version_of_the_api(client: Client) -> None:
    plugin = plugin_on(client, "node-1")
    for version in ("v1beta1", "v1beta2"):
        path = f"/apis/resource.k8s.io/{version}/resourceslices"
        for node in ("node-1", "node-2"):
            body = {**slice_of(node, "new"), "apiVersion": f"resource.k8s.io/{version}"}
            if version == "v1beta1":
                body["spec"] = {**body["spec"], "devices": [{"name": "gpu", "basic": {}}]}
            assert await refusal(plugin, "POST", path, body, dryRun="All") == expected("node-1", node)
            assert await refusal(plugin, "DELETE", f"{path}/slice-of-{node}", dryRun="All") == expected("node-1", node)


async def test_a_plugin_writes_for_its_own_driver_only(client: Client) -> None:
    plugin, path, foreign = plugin_on(client, "node-1"), f"{SLICES}/foreign", slice_of("node-1", "foreign")
    foreign["spec"]["driver"] = "gpu.example.com"
    why = "this user may not modify resourceslices of driver 'gpu.example.com'"
    assert await refusal(plugin, "POST", SLICES, foreign, dryRun="All") == why
    current = await client.post(SLICES, foreign)
    current["spec"]["devices"] = []
    assert await refusal(plugin, "PUT", path, current, dryRun="All") == why
    assert await refusal(plugin, "DELETE", path, dryRun="All") == why


POOLS = [("node-1", True), ("node-1/a", True), ("node-2", False), ("node-10", False), ("node-1-a", False), ("a", False)]


async def test_a_plugin_does_not_take_over_the_pool_of_another_node(client: Client) -> None:
    """A higher generation in its own slice would push out all slices of the other node."""
    plugin = plugin_on(client, "node-1")
    for pool, allowed in POOLS:
        wanted = slice_of("node-1", "new")
        wanted["spec"]["pool"] |= {"name": pool, "generation": 9}
        said = await refusal(plugin, "POST", SLICES, wanted, dryRun="All")
        assert said.startswith("" if allowed else f"this user may not publish pool '{pool}'")
        assert bool(said) is not allowed, pool
        left = await client.post(SLICES, {**wanted, "metadata": {"name": "left"}})
        assert await refusal(plugin, "DELETE", f"{SLICES}/{left['metadata']['name']}") == "", pool


async def test_a_deletion_of_many_is_checked_for_each(client: Client) -> None:
    plugin = plugin_on(client, "node-1")
    assert await refusal(plugin, "DELETE", SLICES, fieldSelector="spec.nodeName=node-2") == expected("node-1", "node-2")
    assert await client.code(f"{SLICES}/slice-of-node-2") == 200
    assert await refusal(plugin, "DELETE", SLICES, fieldSelector="spec.nodeName=node-1") == ""
    assert await client.code(f"{SLICES}/slice-of-node-1") == 404


async def test_others_are_not_concerned(client: Client) -> None:
    assert await refusal(client, "POST", SLICES, slice_of("node-9")) == ""
    assert await refusal(client, "DELETE", f"{SLICES}/slice-of-node-9") == ""
