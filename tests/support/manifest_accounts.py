"""The accounts of the manifests on an API server: namespaces, roles and policy, and clients that come as they do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml
from access import Json, account, namespace_of
from bare_client import DRA, NODES, Client
from kubectl import ROOT

FILES = (
    *("operator/namespace", "operator/rbac", "operator/policy", "operator/viewer"),
    *("plugin/namespace", "plugin/rbac", "plugin/policy"),
)
REPORTING = ("components/device-status/rbac", "components/device-status/policy")
"""What a plugin gets whose driver reports devices."""
DRIVER = "simulated.dra.example.com"
SLICES = f"{DRA}/resourceslices"
ON_NODE_1 = {
    "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": "gpu"}]},
    "nodeSelector": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]
    },
}
"""The allocation of a claim whose device is on node-1."""
VIEWER = "vera"
"""A person in the group ``viewers``, to which ``grant`` binds the role for people."""
_PLURALS = {
    "Namespace": "namespaces",
    "ServiceAccount": "serviceaccounts",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
_NODE = "authentication.kubernetes.io/node-name"
_VIEWERS: Json = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "dra-viewers"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "dra-viewer"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "viewers"}],
}


def objects(files: Iterable[str] = FILES) -> list[Json]:
    """Namespaces, accounts, roles, bindings and the policies, as the manifests have them."""
    texts = [(ROOT / "manifests" / f"{file}.yaml").read_text() for file in files]
    return [obj for text in texts for obj in yaml.safe_load_all(text)]


def path_of(obj: Json) -> str:
    """Where to create it."""
    version, namespace = obj["apiVersion"], obj["metadata"].get("namespace")
    place = f"/namespaces/{namespace}" if namespace else ""
    return f"{'/apis/' if '/' in version else '/api/'}{version}{place}/{_PLURALS[obj['kind']]}"


async def grant(client: Client, *more: Json) -> None:
    """Create all of it, and ``more``, as administrator."""
    for obj in [*objects(), _VIEWERS, *more]:
        await client.post(path_of(obj), obj)


def operator(client: Client) -> Client:
    """The operator."""
    return _as_account(client, "dra-operator")


def plugin_on(client: Client, node: str) -> Client:
    """The plugin, with a token that names the node, or with one that names none."""
    return _as_account(client, "dra-plugin", **({_NODE: node} if node else {}))


def viewer(client: Client) -> Client:
    """A person who may view."""
    return client.impersonating(VIEWER, "viewers", "system:authenticated")


def _as_account(client: Client, name: str, **extra: str) -> Client:
    namespace = namespace_of(name)
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return client.impersonating(account(name).name, *groups, **extra)


def slice_of(node: str, name: str = "") -> dict[str, Any]:
    """A slice of a node, or of all nodes."""
    pool = {"name": node or "all", "generation": 1, "resourceSliceCount": 1}
    where = {"nodeName": node} if node else {"allNodes": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"slice-of-{node or 'all'}"},
        "spec": {"driver": DRIVER, "pool": pool, "devices": [{"name": "gpu"}], **where},
    }


async def furnish(client: Client) -> None:
    """Two nodes, a slice of each and one of all nodes, made by the administrator."""
    for node in ("node-1", "node-2"):
        await client.post(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    for node in ("node-1", "node-2", ""):
        await client.post(SLICES, slice_of(node))
