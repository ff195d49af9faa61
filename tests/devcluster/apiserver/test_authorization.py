"""RBAC as a real server enforces it: the same questions, on both if there is a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bare_client import CONFIG_MAPS, PATCH, PODS, Client, client_of, names, pod
from dra_devcluster.apiserver import DevApiServer
from rbac_cases import (
    ACCESS,
    GRANTS,
    NODES,
    OBJECTS,
    POD_ON_NODE_1,
    RBAC,
    SERVERS,
    ask,
    binding,
    create,
    new_account,
    rbac_server,
    role,
    rule,
    token_of,
    urls,
    whoami,
)


@pytest.fixture(params=SERVERS)
async def server_with_roles(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    """An administrator's client of a server that has the roles and bindings of the tables."""
    async with rbac_server(request.param, tmp_path) as client:
        for obj in OBJECTS:
            assert (await create(client, obj)).code == 201
        # A real server hears of roles by watches: it knows all when it knows the last binding.
        await client.impersonating("mary", "devs").until(PODS, lambda answer: answer.code == 200)
        yield client


async def test_requests_are_answered_as_the_real_server_does(server_with_roles: Client) -> None:
    client = server_with_roles
    await client.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}})
    await client.post(PODS, POD_ON_NODE_1)
    for asked in [*ACCESS, *NODES]:
        answer = await ask(client, asked)
        if asked.refusal:
            assert (answer.code, answer.message) == (403, asked.refusal.replace("{}", asked.user)), asked
            assert answer.reason == "Forbidden"
        else:
            assert answer.code != 403, (asked, answer.body)


async def test_users_hand_on_no_more_than_they_have(server_with_roles: Client) -> None:
    for granted in GRANTS:
        client = server_with_roles.impersonating(granted.user) if granted.user else server_with_roles
        answer = await create(client, granted.obj)
        assert (answer.json.get("message", ""), answer.code < 300) == (granted.refusal, not granted.refusal), granted
    dave = server_with_roles.impersonating("dave")
    path = f"{RBAC}/clusterroles/d1"
    assert (await dave.call("PUT", path, role("d1", rule("get list watch", "pods")))).code == 403
    assert (await dave.call("PUT", path, role("d1", rule("get", "pods")))).code == 200


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Client]:
    async with rbac_server("development", tmp_path) as client:
        yield client


@pytest.mark.rule("K37-EXT-03")
async def test_a_node_reads_the_claim_that_serves_the_extended_resources_of_its_pods(admin: Client) -> None:
    for number in (1, 2):
        container = {"name": "c", "image": "i", "resources": {"limits": {"example.com/gpu": "1"}}}
        spec = {"nodeName": f"node-{number}", "containers": [container]}
        made = await admin.post(PODS, {**POD_ON_NODE_1, "metadata": {"name": f"p{number}"}, "spec": spec})
        mapping = {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r"}
        special = {"resourceClaimName": f"special-{number}", "requestMappings": [mapping]}
        del made["metadata"]["resourceVersion"]
        made["status"]["extendedResourceClaimStatus"] = special
        assert (await admin.call("PUT", f"{PODS}/p{number}/status", made)).code == 200
    node = admin.impersonating("system:node:node-1", "system:nodes")
    claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    assert await node.code(f"{claims}/special-1") == 404, "it may ask, and there is none"
    assert await node.code(f"{claims}/special-2") == 403


async def test_a_node_reads_the_volumes_that_its_pods_claim(admin: Client) -> None:
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    for number in (1, 2):
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": f"c{number}"}}
        spec = {"nodeName": f"node-{number}", "containers": [{"name": "c", "image": "i"}], "volumes": [volume]}
        await admin.post(PODS, {**POD_ON_NODE_1, "metadata": {"name": f"p{number}"}, "spec": spec})
        await admin.post(claims, {"metadata": {"name": f"c{number}"}, "spec": {}})
        ref = {"namespace": "default", "name": f"c{number}"}
        await admin.post("/api/v1/persistentvolumes", {"metadata": {"name": f"v{number}"}, "spec": {"claimRef": ref}})
    node = admin.impersonating("system:node:node-1", "system:nodes")
    assert [await node.code(f"/api/v1/persistentvolumes/v{number}") for number in (1, 2)] == [200, 403]
    assert [await node.code(f"{claims}/c{number}") for number in (1, 2)] == [200, 403]
    for number, code in ((1, 200), (2, 403)):
        patch = {"status": {"phase": "Bound"}}
        answer = await node.call("PATCH", f"{claims}/c{number}/status", patch, kind=PATCH["merge"])
        assert (number, answer.code) == (number, code), answer.body
    assert await node.code(f"{claims}/c1/status") == 403


async def test_aggregated_roles_follow_the_roles_that_they_choose(admin: Client) -> None:
    chosen = {"labels": {"part-of": "all"}}
    selector = {"matchLabels": {"part-of": "all"}}
    await create(admin, role("all", aggregationRule={"clusterRoleSelectors": [selector]}))
    await create(admin, role("one", rule("get", "nodes"), meta=chosen))
    await create(admin, binding("all", "all", "User:zoe"))
    zoe = admin.impersonating("zoe")
    await zoe.until("/api/v1/nodes/none", lambda answer: answer.code == 404)
    assert await zoe.code("/api/v1/nodes") == 403
    await create(admin, role("two", rule("list", "nodes"), meta=chosen))
    await zoe.until("/api/v1/nodes", lambda answer: answer.code == 200)
    await admin.delete(f"{RBAC}/clusterroles/one")
    await zoe.until("/api/v1/nodes/none", lambda answer: answer.code == 403)


async def test_the_usual_roles_are_there_and_aggregated(admin: Client) -> None:
    await create(admin, binding("v", "view", "User:viewer"))
    await create(admin, binding("e", "edit", "User:editor", namespace="default"))
    viewer, editor = admin.impersonating("viewer"), admin.impersonating("editor")
    await viewer.until(PODS, lambda answer: answer.code == 200)
    await editor.until(PODS, lambda answer: answer.code == 200)
    assert (await viewer.call("POST", PODS, pod("p"))).code == 403
    assert (await editor.call("POST", PODS, pod("p"))).code == 201
    assert (await editor.call("POST", f"{RBAC}/namespaces/default/roles", role("r", namespace="default"))).code == 403


async def test_an_apply_that_creates_needs_the_permission_to_create(admin: Client) -> None:
    await create(admin, role("patcher", rule("patch", "configmaps")))
    await create(admin, binding("patcher", "patcher", "User:pat"))
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    options = {"kind": PATCH["apply"], "fieldManager": "t"}
    refused = await admin.impersonating("pat").call("PATCH", f"{CONFIG_MAPS}/c", config, **options)
    assert refused.code == 403
    assert 'cannot create resource "configmaps"' in refused.message
    await admin.post(CONFIG_MAPS, config)
    assert (await admin.impersonating("pat").call("PATCH", f"{CONFIG_MAPS}/c", config, **options)).code == 200


async def test_impersonation_needs_a_permission_for_each_thing_that_is_taken_over(admin: Client) -> None:
    reviews = "authentication.k8s.io"
    allowed = (rule("impersonate", "users", names="alice"), rule("impersonate", "groups", names="devs"),
               rule("impersonate", "userextras/scopes", reviews, names="dev"))  # fmt: skip
    await create(admin, role("actor", *allowed))
    await create(admin, binding("actor", "actor", "ServiceAccount:default/actor"))
    await new_account(admin, "actor")
    actor = admin.with_token(await token_of(admin, "actor"))
    cases = [
        (("alice",), {}, None),
        (("alice", "devs"), {"scopes": "dev"}, None),
        (("bob",), {}, 'users "bob" is forbidden: User "{}" cannot impersonate resource "users" in API group ""'),
        (("alice", "ops"), {}, 'groups "ops" is forbidden: User "{}" cannot impersonate resource "groups" in'),
        (("alice",), {"scopes": "prod"}, 'userextras.authentication.k8s.io "prod" is forbidden: User "{}" cannot'),
        (("system:serviceaccount:default:default",), {}, 'serviceaccounts "default" is forbidden: User "{}" cannot'),
    ]  # fmt: skip
    for names_, extra, refusal in cases:
        other = actor.impersonating(*names_, **extra)
        if refusal is None:
            info = await whoami(other)
            assert (info["username"], set(info["groups"])) == (names_[0], {*names_[1:], "system:authenticated"})
            assert info.get("extra", {}) == {key: [value] for key, value in extra.items()}
        else:
            answer = await other.call("GET", PODS)
            assert answer.code == 403
            assert answer.message.startswith(refusal.replace("{}", "system:serviceaccount:default:actor"))
    numbered = actor._with([*actor.impersonating("alice")._headers, ("Impersonate-Uid", "7")])
    answer = await numbered.call("GET", PODS)
    assert (answer.code, 'uids.authentication.k8s.io "7" is forbidden' in answer.message) == (403, True), answer.body
    nameless = await admin.impersonating("", "devs").call("GET", PODS)
    assert (nameless.code, "without impersonating a user" in nameless.message) == (400, True)


async def test_without_a_token_the_user_is_anonymous_and_a_wrong_token_is_refused(admin: Client) -> None:
    anonymous, wrong = admin.with_token(""), admin.with_token("wrong")
    assert [await anonymous.code(path) for path in ("/version", "/readyz", "/api", PODS)] == [200, 200, 403, 403]
    assert [await wrong.code(path) for path in ("/version", "/readyz", "/api", PODS)] == [401] * 4
    assert (await wrong.call("GET", PODS)).message == "Unauthorized"


ACCESS_REVIEW = "/apis/authorization.k8s.io/v1"
PODS_OF_DEFAULT = {"verb": "list", "resource": "pods", "namespace": "default"}
REVIEWS = [
    ("selfsubjectaccessreviews", "SelfSubjectAccessReview", {"resourceAttributes": PODS_OF_DEFAULT}, True),
    ("selfsubjectaccessreviews", "SelfSubjectAccessReview", {"resourceAttributes": {**PODS_OF_DEFAULT, "verb": "get"}},
     False),
    ("selfsubjectaccessreviews", "SelfSubjectAccessReview", {"nonResourceAttributes": {"verb": "get", "path": "/api"}},
     True),
    ("subjectaccessreviews", "SubjectAccessReview", {"user": "x", "resourceAttributes": PODS_OF_DEFAULT}, False),
    ("subjectaccessreviews", "SubjectAccessReview", {"user": "x", "groups": ["readers"],
                                                     "resourceAttributes": PODS_OF_DEFAULT}, True),
    ("namespaces/default/localsubjectaccessreviews", "LocalSubjectAccessReview",
     {"groups": ["readers"], "resourceAttributes": PODS_OF_DEFAULT}, True),
    ("subjectaccessreviews", "SubjectAccessReview",
     {"user": "system:node:a", "groups": ["system:nodes"], "resourceAttributes": {
         "verb": "list", "group": "resource.k8s.io", "resource": "resourceslices",
         "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["a"]}]}}}, True),
]  # fmt: skip


@pytest.mark.parametrize(("path", "kind", "spec", "allowed"), REVIEWS)
async def test_reviews_say_what_would_be_allowed(
    admin: Client, path: str, kind: str, spec: dict[str, object], allowed: bool
) -> None:
    await create(admin, role("reader", rule("list", "pods"), rule("create", "*", "authorization.k8s.io")))
    await create(admin, binding("readers", "reader", "Group:readers"))
    reader = admin.impersonating("rita", "readers", "system:authenticated")
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    assert (await reader.post(f"{ACCESS_REVIEW}/{path}", body))["status"]["allowed"] is allowed


async def test_reviews_that_ask_nothing_or_two_things_are_refused(client: Client) -> None:
    url, here = {"verb": "get", "path": "/api"}, {**PODS_OF_DEFAULT, "namespace": "other"}
    own = ("selfsubjectaccessreviews", "SelfSubjectAccessReview")
    other = ("subjectaccessreviews", "SubjectAccessReview")
    local = ("namespaces/default/localsubjectaccessreviews", "LocalSubjectAccessReview")
    rules = ("selfsubjectrulesreviews", "SelfSubjectRulesReview")
    cases: list[tuple[tuple[str, str], dict[str, object], int, str]] = [
        (own, {}, 422, "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or"),
        (own, {"resourceAttributes": PODS_OF_DEFAULT, "nonResourceAttributes": url}, 422, "cannot be specified in"),
        (other, {"resourceAttributes": PODS_OF_DEFAULT}, 422, "at least one of user or group must be specified"),
        (local, {"user": "x", "resourceAttributes": here}, 422, "must match metadata.namespace"),
        (local, {"user": "x", "nonResourceAttributes": url}, 422, "disallowed on this kind of request"),
        (rules, {}, 400, "no namespace on request"),
    ]
    for (path, kind), spec, code, message in cases:
        answer = await client.call("POST", f"{ACCESS_REVIEW}/{path}", {"kind": kind, "spec": spec})
        assert (spec, answer.code, message in answer.message) == (spec, code, True), answer.body
    raw = {"verb": "list", "resource": "pods", "fieldSelector": {"rawSelector": "spec.nodeName=node-1"}}
    spec = {"user": "system:node:node-1", "groups": ["system:nodes"], "resourceAttributes": raw}
    async with DevApiServer(authorization="rbac") as server, client_of(server) as admin:
        made = await admin.post(f"{ACCESS_REVIEW}/subjectaccessreviews", {"kind": "SubjectAccessReview", "spec": spec})
        assert made["status"]["allowed"] is True
    assert await client.code("/api/v1/componentstatuses") == 200
    assert await client.code("/api/v1/componentstatuses/etcd-0") == 405


async def test_the_rules_of_a_user_are_listed(admin: Client) -> None:
    await create(admin, role("reader", rule("list", "pods"), urls("get", "/logs")))
    await create(admin, binding("readers", "reader", "Group:readers"))
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": "default"},
    }
    reader = admin.impersonating("rita", "readers", "system:authenticated")
    status = (await reader.post(f"{ACCESS_REVIEW}/selfsubjectrulesreviews", review))["status"]
    assert {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]} in status["resourceRules"]
    assert {"verbs": ["get"], "nonResourceURLs": ["/logs"]} in status["nonResourceRules"]


async def test_where_everything_is_allowed_there_are_no_roles_to_begin_with() -> None:
    async with DevApiServer() as server, client_of(server) as client:
        assert names(await client.get(f"{RBAC}/clusterroles")) == []
        assert await client.impersonating("bob").code(PODS) == 200
