"""What the server says of itself, and of who is asking."""

from __future__ import annotations

from typing import Any

import pytest
from bare_client import EVENTS, Client, Json, client_of
from dra_devcluster.apiserver import DevApiServer

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/readyz/ping"])
async def test_probes_answer_without_a_token(server: DevApiServer, path: str) -> None:
    async with client_of(server, token="unknown") as stranger:
        answer = await stranger.call("GET", path)
    assert (answer.code, answer.body) == (200, b"ok")


@pytest.mark.parametrize("path", ["/api", "/api/v1/pods", "/openapi/v2"])
async def test_strangers_see_nothing(server: DevApiServer, path: str) -> None:
    async with client_of(server, token="unknown") as stranger:
        answer = await stranger.call("GET", path)
    assert (answer.code, answer.reason, answer.message) == (401, "Unauthorized", "Unauthorized")


async def test_the_version_is_that_of_the_reference(client: Client) -> None:
    version = await client.get("/version")
    assert await client.get("/version/") == version
    assert (version["major"], version["minor"]) == ("1", "37")
    assert version["gitVersion"].startswith("v1.37.0")


async def test_groups_name_their_preferred_version_first(client: Client) -> None:
    groups = {group["name"]: group for group in (await client.get("/apis"))["groups"]}
    dra = groups["resource.k8s.io"]
    assert [version["version"] for version in dra["versions"]] == ["v1", "v1beta2", "v1beta1", "v1alpha3"]
    assert dra["preferredVersion"] == {"groupVersion": "resource.k8s.io/v1", "version": "v1"}
    assert await client.get("/apis/resource.k8s.io") == {"kind": "APIGroup", "apiVersion": "v1", **dra}
    assert (await client.get("/api"))["versions"] == ["v1"]


async def test_resources_tell_verbs_scopes_and_short_names(client: Client) -> None:
    lines = {line["name"]: line for line in (await client.get("/api/v1"))["resources"]}
    assert lines["pods"]["shortNames"] == ["po"]
    assert lines["pods"]["categories"] == ["all"]
    assert lines["nodes"]["namespaced"] is False
    assert lines["pods/eviction"] == {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "group": "policy",
        "version": "v1",
        "kind": "Eviction",
        "verbs": ["create"],
    }
    assert set(lines["namespaces"]["verbs"]) == {"create", "delete", "get", "list", "patch", "update", "watch"}


async def test_aggregated_discovery_says_the_same(client: Client) -> None:
    answer = await client.call("GET", "/apis", accept=AGGREGATED)
    assert "as=APIGroupDiscoveryList" in answer.headers["Content-Type"]
    found = {}
    for group in answer.json["items"]:
        for version in group["versions"]:
            name = f"/apis/{group['metadata']['name']}/{version['version']}"
            found[name] = {resource["resource"] for resource in version["resources"]}
    assert "resourceclaims" in found["/apis/resource.k8s.io/v1"]
    for path, resources in found.items():
        listed = {line["name"] for line in (await client.get(path))["resources"] if "/" not in line["name"]}
        assert listed == resources


async def test_the_root_lists_the_paths(client: Client) -> None:
    paths = (await client.get("/"))["paths"]
    assert {"/api/v1", "/apis/resource.k8s.io/v1", "/readyz"} <= set(paths)


async def test_unknown_groups_are_not_found(client: Client) -> None:
    for path in ("/apis/absent.example.com", "/apis/apps/v9", "/api/v2", "/openapi/v3/apis/apps/v9", "/metric"):
        assert await client.code(path) == 404


REVIEWS = [
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview", {"resourceAttributes": {"verb": "get"}}, "allowed", True),
    ("authorization.k8s.io/v1", "SubjectAccessReview", {"user": "x", "resourceAttributes": {}}, "allowed", True),
    ("authentication.k8s.io/v1", "TokenReview", {"token": "nonsense"}, "user", {}),
]


@pytest.mark.parametrize(("version", "kind", "spec", "field", "expected"), REVIEWS)
async def test_reviews_are_answered_and_not_kept(
    client: Client, version: str, kind: str, spec: Json, field: str, expected: Any
) -> None:
    path = f"/apis/{version}/{kind.lower()}s"
    answer = await client.call("POST", path, {"apiVersion": version, "kind": kind, "spec": spec})
    assert answer.code == 201
    assert answer.json["status"][field] == expected
    assert (await client.call("GET", path)).code == 405


async def test_whoami(client: Client) -> None:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await client.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    assert answer["status"]["userInfo"]["username"] == "kubernetes-admin"


async def test_service_accounts_get_tokens_that_work(server: DevApiServer, client: Client) -> None:
    await client.until(f"{ACCOUNTS}/default", lambda answer: answer.code == 200)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    issued = await client.post(f"{ACCOUNTS}/default/token", request)
    token = issued["status"]["token"]
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    reviewed = await client.post("/apis/authentication.k8s.io/v1/tokenreviews", review)
    assert reviewed["status"]["authenticated"] is True
    assert reviewed["status"]["user"]["username"] == "system:serviceaccount:default:default"
    async with client_of(server, token) as account:
        assert await account.code("/api/v1/pods") == 200
    request["spec"] = {"expirationSeconds": 5}
    assert (await client.call("POST", f"{ACCOUNTS}/default/token", request)).code == 422


async def test_events_have_two_faces(client: Client) -> None:
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    new = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "regarding": about,
        "note": "text",
        "reason": "Because",
        "type": "Normal",
        "action": "Acting",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "me",
        "reportingInstance": "me-1",
    }
    await client.post("/apis/events.k8s.io/v1/namespaces/default/events", new)
    old = await client.get(f"{EVENTS}/e")
    assert (old["involvedObject"], old["message"], old["reportingComponent"]) == (about, "text", "me")
    await client.patch(f"{EVENTS}/e", {"count": 3})
    again = await client.get("/apis/events.k8s.io/v1/namespaces/default/events/e")
    assert (again["deprecatedCount"], again["note"], again["regarding"]) == (3, "text", about)
    answer = await client.call("POST", EVENTS, {"metadata": {"name": "x"}, "involvedObject": {"namespace": "other"}})
    assert "involvedObject.namespace" in answer.message


async def test_workloads_are_scaled(client: Client) -> None:
    path = "/apis/apps/v1/namespaces/default/deployments"
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "main", "image": "example.com/app"}]},
    }
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    body["spec"] = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
    made = await client.post(path, body)
    assert made["spec"]["replicas"] == 1
    scale = await client.get(f"{path}/d/scale")
    assert (scale["apiVersion"], scale["spec"], scale["status"]["selector"]) == (
        "autoscaling/v1",
        {"replicas": 1},
        "app=x",
    )
    scale["spec"]["replicas"] = 3
    assert (await client.put(f"{path}/d/scale", scale))["spec"] == {"replicas": 3}
    assert (await client.call("PUT", f"{path}/d/scale", scale)).code == 409
    cases: list[tuple[str, str, object, int]] = [
        ("POST", "application/json", scale, 405),
        ("PATCH", "application/json", {}, 415),
        ("PATCH", "application/json-patch+json", [{"op": "remove", "path": "/none"}], 400),
        ("PATCH", "application/merge-patch+json", [], 400),
    ]
    for method, kind, sent, code in cases:
        assert (method, kind, (await client.call(method, f"{path}/d/scale", sent, kind=kind)).code) == (
            method,
            kind,
            code,
        )
    assert (await client.get(f"{path}/d"))["spec"]["replicas"] == 3
    for replicas, code in ((-1, 422), ("many", 400)):
        scale["spec"] = {"replicas": replicas}
        del scale["metadata"]["resourceVersion"]
        answer = await client.call("PUT", f"{path}/d/scale", scale)
        assert answer.code == code
        scale["metadata"]["resourceVersion"] = ""
