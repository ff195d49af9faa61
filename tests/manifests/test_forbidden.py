"""What operator, plugin and viewer ask beyond their task is refused; a real server answers in the same words.

Beside every refusal stands something similar that is allowed, so that no row holds because nothing works.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from bare_client import CLAIMS, NODES, PATCH, Client, claim
from manifest_accounts import ON_NODE_1, SLICES, VIEWER, Json, account, furnish, grant, operator, plugin_on, viewer
from rbac_cases import RELEASES, no, rbac_server

DRA_GROUP, COORDINATION, APPS = "resource.k8s.io", "coordination.k8s.io", "apps"
RBAC, STORAGE = "rbac.authorization.k8s.io", "storage.k8s.io"
CLIENTS: dict[str, Callable[[Client], Client]] = {
    "operator": operator,
    "viewer": viewer,
    "plugin": lambda client: plugin_on(client, "node-1"),
}
USERS = {"operator": account("dra-operator").name, "plugin": account("dra-plugin").name, "viewer": VIEWER}
METHODS = {"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "update": "PUT", "patch": "PATCH",
           "delete": "DELETE", "deletecollection": "DELETE"}  # fmt: skip


class Row(NamedTuple):
    """One question; without ``place`` about the cluster, and ``allowed`` rows are there for comparison."""

    who: str
    verb: str
    resource: str
    name: str = ""
    group: str = ""
    place: str = ""
    allowed: bool = False

    @property
    def path(self) -> str:
        version = {"": "/api/v1"}.get(self.group, f"/apis/{self.group}/v1")
        place = f"/namespaces/{self.place}" if self.place else ""
        plural, _, part = self.resource.partition("/")
        return version + place + "/" + "/".join(filter(None, (plural, self.name, part)))

    @property
    def refusal(self) -> str:
        inside = self.name if self.resource == "namespaces" else self.place  # a Namespace is in itself
        return no(self.verb, self.resource, self.name, group=self.group, namespace=inside).format(USERS[self.who])


def rows(who: str, verbs: str, resource: str, *, allowed: str = "", **where: str) -> Iterator[Row]:
    """A row for each verb; named objects only where the verb is about one."""
    name = where.pop("name", "x")
    for verb in [*verbs.split(), *allowed.split()]:
        one = verb in ("get", "update", "patch", "delete") or "/" in resource
        yield Row(who, verb, resource, name if one else "", allowed=verb in allowed.split(), **where)


TABLE = [
    # the operator: no secrets, nothing that runs anything, no objects of others
    *rows("operator", "get list watch create", "secrets", place="default"),
    *rows("operator", "list", "secrets"),
    *rows("operator", "get list", "configmaps", place="default"),
    *rows("operator", "create patch deletecollection", "pods", place="default", allowed="list get"),
    *rows("operator", "create", "pods/exec", place="default"),
    *rows("operator", "get", "pods/log", place="default"),
    *rows("operator", "create", "pods/eviction", place="default"),
    *rows("operator", "update", "pods/ephemeralcontainers", place="default"),
    *rows("operator", "create update patch delete get", "nodes", allowed="list"),
    *rows("operator", "patch", "nodes/status"),
    *rows("operator", "get", "nodes/proxy"),
    *rows("operator", "create delete", "namespaces", allowed="list"),
    *rows("operator", "create delete", "persistentvolumes", allowed="list get"),
    *rows("operator", "create patch delete", "persistentvolumeclaims", place="default", allowed="list"),
    *rows("operator", "create update", "storageclasses", group=STORAGE, allowed="list"),
    *rows("operator", "create", "serviceaccounts/token", place="kube-system", name="default"),
    *rows("operator", "create", "serviceaccounts", place="default"),
    *rows("operator", "create update delete", "resourceslices", group=DRA_GROUP, allowed="list"),
    *rows("operator", "create update delete", "deviceclasses", group=DRA_GROUP, allowed="list"),
    *rows("operator", "create delete", "resourceclaimtemplates", group=DRA_GROUP, place="default"),
    *rows("operator", "deletecollection", "resourceclaims", group=DRA_GROUP, place="default", allowed="list get"),
    *rows("operator", "create", "deployments", group=APPS, place="default"),
    *rows("operator", "create update", "clusterroles", group=RBAC),
    *rows("operator", "create", "clusterrolebindings", group=RBAC),
    *rows("operator", "create get update", "leases", group=COORDINATION, place="default"),
    *rows("operator", "list delete get update", "leases", group=COORDINATION, place="kube-system"),
    *rows("operator", "update delete", "leases", group=COORDINATION, place="kube-system",
          name="kube-controller-manager", allowed="get"),
    *rows("operator", "list delete", "events", place="default"),
    # the plugin: claims by name, slices, its node
    *rows("plugin", "list watch create update patch delete", "resourceclaims", group=DRA_GROUP, place="default",
          allowed="get"),
    *rows("plugin", "list", "resourceclaims", group=DRA_GROUP),
    *rows("plugin", "update patch", "resourceclaims/status", group=DRA_GROUP, place="default"),
    *rows("plugin", "patch deletecollection", "resourceslices", group=DRA_GROUP, allowed="list get"),
    *rows("plugin", "list", "deviceclasses", group=DRA_GROUP),
    *rows("plugin", "get list create", "pods", place="default"),
    *rows("plugin", "get list", "secrets", place="dra-plugins"),
    *rows("plugin", "get list", "configmaps", place="dra-plugins"),
    *rows("plugin", "list update patch delete", "nodes", name="node-1", allowed="get"),
    *rows("plugin", "patch", "nodes/status", name="node-1"),
    *rows("plugin", "create", "events", place="default"),
    *rows("plugin", "create", "serviceaccounts/token", place="dra-system", name="dra-operator"),
    # a person who may view: lists, and nothing that is secret
    *rows("viewer", "get watch create update patch delete", "pods", place="default", allowed="list"),
    *rows("viewer", "get", "pods/log", place="default"),
    *rows("viewer", "create", "pods/exec", place="default"),
    *rows("viewer", "list", "secrets"),
    *rows("viewer", "list", "configmaps"),
    *rows("viewer", "get create delete", "events", place="default", allowed="list"),
    *rows("viewer", "get update", "nodes", allowed="list"),
    *rows("viewer", "get create delete", "resourceclaims", group=DRA_GROUP, place="default", allowed="list"),
    *rows("viewer", "patch", "resourceclaims/status", group=DRA_GROUP, place="default"),
    *rows("viewer", "delete", "resourceslices", group=DRA_GROUP, allowed="list"),
    *rows("viewer", "create", "deviceclasses", group=DRA_GROUP, allowed="list"),
]  # fmt: skip


@pytest.fixture(params=RELEASES)
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    """With what the manifests grant, two nodes with slices, and a claim that is allocated on the first."""
    async with rbac_server(request.param, tmp_path) as client:
        await grant(client)
        await furnish(client)
        await client.post(CLAIMS, claim("here"))
        await client.patch(f"{CLAIMS}/here/status", {"status": {"allocation": ON_NODE_1}})
        # A real server hears of roles and policies by watches.
        await viewer(client).until(NODES, lambda answer: answer.code == 200)
        await plugin_on(client, "").until(SLICES, lambda answer: answer.code == 200)
        yield client


async def test_a_request_beyond_the_role_is_refused(client: Client) -> None:
    wrong = {}
    for row in TABLE:
        method = METHODS[row.verb]
        body: Json | None = {} if method in ("POST", "PUT", "PATCH") else None
        kind = PATCH["merge"] if row.verb == "patch" else "application/json"
        query = {"watch": "true", "timeoutSeconds": "1"} if row.verb == "watch" else {}
        answer = await CLIENTS[row.who](client).call(method, row.path, body, kind=kind, **query)
        refused = answer.message if answer.code == 403 else ""
        if refused != ("" if row.allowed else row.refusal):
            wrong[row] = (answer.code, refused)
    assert wrong == {}


async def test_no_account_acts_in_the_name_of_another(client: Client) -> None:
    for who in CLIENTS:
        caller = CLIENTS[who](client)
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                  "spec": {"resourceAttributes": {"verb": "impersonate", "resource": "users"}}}  # fmt: skip
        answer = await caller.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        assert not answer["status"]["allowed"], who
