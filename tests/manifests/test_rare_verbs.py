"""Verbs that the story of test_least_privilege.py does not need: the code that needs each, and that it fails without.

The code runs under the account of the manifests, first with the role as it is, then without that verb.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from bare_client import CLAIMS, NAMESPACES, Client, claim, client_of, path_of, pod
from dra_devcluster.apiserver import DevApiServer
from dra_devcluster.apiserver.rbac import Rule
from dra_kube import Api, Forbidden, connection
from manifest_accounts import (
    ON_NODE_1,
    REPORTING,
    REPORTING_USES,
    USES,
    Json,
    furnish,
    grant,
    namespace_of,
    objects,
)


def without(role: Json, verb: str, resource: str) -> Json:
    """The role, with nothing but that verb for that resource taken from it."""
    parts = [part for rule in role["rules"] for part in Rule.of(rule).parts()]
    kept = [part for part in parts if (part.verbs, part.resources) != ((verb,), (resource,))]
    assert len(kept) == len(parts) - 1
    rules = [
        {"apiGroups": list(part.groups), "resources": list(part.resources), "verbs": list(part.verbs),
         **({"resourceNames": list(part.names)} if part.names else {})}
        for part in kept
    ]  # fmt: skip
    return {**role, "rules": rules}


def role_with(account: str, verb: str, resource: str) -> Json:
    """The account's role that allows the verb."""
    (found,) = (
        obj
        for obj in [*objects(), *objects(REPORTING)]
        if obj["kind"] in ("ClusterRole", "Role") and obj["metadata"]["name"].startswith(account)
        for rule in obj["rules"]
        if verb in rule["verbs"] and resource in rule["resources"]
    )
    return found


@pytest.fixture
async def server() -> AsyncIterator[DevApiServer]:
    async with DevApiServer(authorization="rbac") as running:
        yield running


async def test_each_is_needed(server: DevApiServer, tmp_path: Path) -> None:
    where = connection(server.write_kubeconfig(tmp_path / "kubeconfig"))
    async with client_of(server) as client, Api(where) as administrator:
        await grant(client, *objects(REPORTING))
        await furnish(client)
        await client.post(CLAIMS, claim("here"))
        await client.patch(f"{CLAIMS}/here/status", {"status": {"allocation": ON_NODE_1}})
        for (name, verb, resource), use in (USES | REPORTING_USES).items():
            role = role_with(name, verb, resource)
            async with Api(replace(where, authorization=partial(str, f"Bearer {await token_of(client, name)}"))) as api:
                await use(api, administrator)
                async with role_in_force(client, without(role, verb, resource), role):
                    with pytest.raises(Forbidden):
                        await use(api, administrator)


@asynccontextmanager
async def role_in_force(client: Client, role: Json, afterwards: Json) -> AsyncIterator[None]:
    path = f"{path_of(role)}/{role['metadata']['name']}"
    await client.patch(path, {"rules": role["rules"]})
    yield
    await client.patch(path, {"rules": afterwards["rules"]})


async def token_of(client: Client, name: str) -> str:
    """A token of the account, bound to a pod on node-1."""
    place = f"{NAMESPACES}/{namespace_of(name)}"
    await client.call("POST", f"{place}/pods", pod(name, nodeName="node-1", serviceAccountName=name))
    bound = {"kind": "Pod", "apiVersion": "v1", "name": name}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
    return str((await client.post(f"{place}/serviceaccounts/{name}/token", request))["status"]["token"])


def test_each_right_of_the_component_for_device_status_is_among_them() -> None:
    rules = [part for obj in objects(REPORTING) for rule in obj.get("rules", ()) for part in Rule.of(rule).parts()]
    assert {("dra-plugin", rule.verbs[0], rule.resources[0]) for rule in rules} == REPORTING_USES.keys()
