"""Objects from their creation to their end: identity, conflicts, finalizers, grace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bare_client import CONFIG_MAPS, NAMESPACES, NODES, PODS, Client, client_of, config_map, pod
from dra_devcluster.apiserver import DevApiServer
from rbac_cases import SERVERS, new_account, rbac_server, token_of


async def test_a_new_object_gets_its_identity_from_the_server(client: Client) -> None:
    made = await client.post(CONFIG_MAPS, config_map("a", uid="mine", creationTimestamp="2001-01-01T00:00:00Z"))
    meta = made["metadata"]
    assert meta["uid"] != "mine"
    assert meta["creationTimestamp"] > "2020"
    assert meta["namespace"] == "default"
    assert int(meta["resourceVersion"]) > 0
    assert (made["kind"], made["apiVersion"]) == ("ConfigMap", "v1")
    assert await client.get(f"{CONFIG_MAPS}/a") == made


async def test_generate_name_is_cut_to_58_characters_and_gets_five_more(client: Client) -> None:
    body = config_map("")
    body["metadata"] = {"generateName": "x" * 70}
    names = {(await client.post(CONFIG_MAPS, body))["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(len(name) == 63 and name.startswith("x" * 58) for name in names)


async def test_names_are_taken_only_once(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    answer = await client.call("POST", CONFIG_MAPS, config_map("a"))
    assert (answer.code, answer.reason) == (409, "AlreadyExists")
    assert answer.message == 'configmaps "a" already exists'


@pytest.mark.parametrize(
    ("path", "message", "details"),
    [
        (f"{CONFIG_MAPS}/x", 'configmaps "x" not found', {"name": "x", "kind": "configmaps"}),
        (
            "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/x",
            'resourceclaims.resource.k8s.io "x" not found',
            {"name": "x", "group": "resource.k8s.io", "kind": "resourceclaims"},
        ),
        ("/api/v1/namespaces/default/widgets", "the server could not find the requested resource", {}),
        ("/apis/apps/v1/things", "the server could not find the requested resource", {}),
        (f"{PODS}/x/nothing", "the server could not find the requested resource", {}),
    ],
)
async def test_what_is_not_there_is_named(client: Client, path: str, message: str, details: dict[str, str]) -> None:
    answer = await client.call("GET", path)
    assert answer.code == 404
    assert answer.json == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "NotFound",
        "details": details,
        "code": 404,
    }


async def test_an_update_with_an_old_resource_version_conflicts(client: Client) -> None:
    old = await client.post(CONFIG_MAPS, config_map("a"))
    await client.put(f"{CONFIG_MAPS}/a", {**old, "data": {"a": "1"}})
    answer = await client.call("PUT", f"{CONFIG_MAPS}/a", {**old, "data": {"a": "2"}})
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert answer.message == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert answer.json["details"] == {"name": "a", "kind": "configmaps"}


async def test_an_update_without_resource_version_wins_for_most_kinds_but_not_for_leases(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    await client.put(f"{CONFIG_MAPS}/a", config_map("a"))
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {}}
    await client.post(leases, lease)
    answer = await client.call("PUT", f"{leases}/l", lease)
    assert answer.code == 422
    assert "metadata.resourceVersion" in answer.message
    assert "must be specified for an update" in answer.message


@pytest.mark.parametrize("kind", SERVERS)
async def test_an_update_makes_what_is_not_there_of_some_kinds(kind: str, tmp_path: Path) -> None:
    leases, roles = "/apis/coordination.k8s.io/v1/namespaces/default/leases", "/apis/rbac.authorization.k8s.io/v1"
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}, "reason": "R", "type": "Normal"}
    async with rbac_server(kind, tmp_path) as client:
        await client.post(leases, lease)
        former = await client.get(f"{leases}/l")
        await client.call("DELETE", f"{leases}/l")
        answers = [
            await client.call("PUT", f"{leases}/l", former),
            await client.call("PUT", f"{leases}/l", {**former, "metadata": {**former["metadata"], "uid": ""}}),
            await client.call("PUT", f"{NAMESPACES}/default/events/e", event),
            await client.call("PUT", f"{roles}/clusterroles/r", {"metadata": {"name": "r"}, "rules": []}),
            await client.call("PUT", f"{CONFIG_MAPS}/a", config_map("a")),
        ]
        assert [answer.code for answer in answers] == [409, 201, 201, 201, 404]
        assert "Precondition failed: UID in precondition" in answers[0].message
        assert (await client.get(f"{leases}/l"))["metadata"]["uid"] != former["metadata"]["uid"]


async def test_who_may_only_update_makes_nothing_by_an_update() -> None:
    async with DevApiServer(authorization="rbac") as server, client_of(server) as administrator:
        rules = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["update"]}]
        subjects = [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:serviceaccounts"}]
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "renew"}
        made = "/apis/rbac.authorization.k8s.io/v1"
        await administrator.post(f"{made}/clusterroles", {"metadata": {"name": "renew"}, "rules": rules})
        binding = {"metadata": {"name": "renew"}, "subjects": subjects, "roleRef": ref}
        await administrator.post(f"{made}/clusterrolebindings", binding)
        await new_account(administrator, "one")
        one = administrator.with_token(await token_of(administrator, "one"))
        path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l"
        answer = await one.call("PUT", path, {"metadata": {"name": "l"}})
        assert (answer.code, "cannot create resource" in answer.message) == (403, True)


async def test_an_update_that_changes_nothing_writes_nothing(client: Client) -> None:
    made = await client.post(CONFIG_MAPS, config_map("a"))
    assert await client.put(f"{CONFIG_MAPS}/a", made) == made
    assert await client.patch(f"{CONFIG_MAPS}/a", {"data": {"a": "b"}}) == made


async def test_an_update_cannot_change_the_identity(client: Client) -> None:
    made = await client.post(CONFIG_MAPS, config_map("a"))
    meta = {"name": "a", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7}
    changed = await client.put(f"{CONFIG_MAPS}/a", {**made, "metadata": meta, "data": {"x": "y"}})
    for key in ("uid", "creationTimestamp"):
        assert changed["metadata"][key] == made["metadata"][key]
    answer = await client.call("PUT", f"{CONFIG_MAPS}/a", {**made, "metadata": {"name": "a", "uid": "other"}})
    assert answer.code == 409
    assert "Precondition failed: UID in precondition: other, UID in object meta" in answer.message


@pytest.mark.parametrize(
    ("conditions", "refusal"),
    [
        ({"uid": "other"}, "the UID in the precondition (other) does not match the UID in record"),
        ({"resourceVersion": "1"}, "the ResourceVersion in the precondition (1) does not match"),
        ({"uid": "", "resourceVersion": ""}, None),
    ],
)
async def test_a_deletion_can_be_bound_to_a_state(
    client: Client, conditions: dict[str, str], refusal: str | None
) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    answer = await client.call("DELETE", f"{CONFIG_MAPS}/a", {"preconditions": conditions})
    assert answer.code == (409 if refusal else 200)
    if refusal:
        assert refusal in answer.message


async def test_deletion_answers_with_a_status_that_names_the_object(client: Client) -> None:
    made = await client.post(CONFIG_MAPS, config_map("a"))
    status = await client.delete(f"{CONFIG_MAPS}/a")
    assert (status["kind"], status["status"]) == ("Status", "Success")
    assert status["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert await client.code(f"{CONFIG_MAPS}/a") == 404


async def test_finalizers_hold_an_object_until_the_last_is_gone(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a", finalizers=["example.com/one", "example.com/two"]))
    marked = await client.delete(f"{CONFIG_MAPS}/a")
    assert marked["metadata"]["deletionTimestamp"]
    answer = await client.call(
        "PATCH", f"{CONFIG_MAPS}/a", {"metadata": {"finalizers": ["new.com/x"]}}, kind="application/merge-patch+json"
    )
    assert answer.code == 422
    assert "no new finalizers can be added if the object is being deleted" in answer.message
    await client.patch(f"{CONFIG_MAPS}/a", {"metadata": {"finalizers": ["example.com/two"]}})
    assert await client.code(f"{CONFIG_MAPS}/a") == 200
    await client.patch(f"{CONFIG_MAPS}/a", {"metadata": {"finalizers": None}})
    assert await client.code(f"{CONFIG_MAPS}/a") == 404


async def test_a_pod_on_a_node_is_deleted_when_its_node_agent_says_so(client: Client) -> None:
    await client.post(PODS, pod("p", nodeName="n", terminationGracePeriodSeconds=7))
    marked = await client.delete(f"{PODS}/p")
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 7
    again = await client.delete(f"{PODS}/p")
    assert again["metadata"]["deletionTimestamp"] == marked["metadata"]["deletionTimestamp"]
    shorter = await client.delete(f"{PODS}/p", {"gracePeriodSeconds": 1})
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 1
    await client.delete(f"{PODS}/p", {"gracePeriodSeconds": 0})
    assert await client.code(f"{PODS}/p") == 404


@pytest.mark.parametrize("state", ["without a node", "finished"])
async def test_a_pod_that_runs_nowhere_goes_at_once(client: Client, state: str) -> None:
    placed: dict[str, Any] = {"nodeName": "n"} if state == "finished" else {}
    await client.post(PODS, pod("p", **placed))
    if state == "finished":
        await client.patch(f"{PODS}/p/status", {"status": {"phase": "Succeeded"}})
    await client.delete(f"{PODS}/p")
    assert await client.code(f"{PODS}/p") == 404


async def test_generation_counts_changes_of_the_spec_only(client: Client) -> None:
    path = "/apis/resource.k8s.io/v1/deviceclasses"
    made = await client.post(
        path, {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "c"}, "spec": {}}
    )
    assert made["metadata"]["generation"] == 1
    labelled = await client.patch(f"{path}/c", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 1
    changed = await client.patch(f"{path}/c", {"spec": {"extendedResourceName": "example.com/gpu"}})
    assert changed["metadata"]["generation"] == 2


async def test_the_two_doors_of_an_object_keep_to_their_part(client: Client) -> None:
    await client.post(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    both = {"spec": {"unschedulable": True}, "status": {"phase": "Running"}}
    through_main = await client.patch(f"{NODES}/n", both)
    assert through_main["spec"] == {"unschedulable": True}
    assert "status" not in through_main or not through_main["status"]
    through_status = await client.patch(f"{NODES}/n/status", {**both, "spec": {"unschedulable": False}})
    assert through_status["spec"] == {"unschedulable": True}
    assert through_status["status"] == {"phase": "Running"}


@pytest.mark.parametrize("verb", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_dry_run_changes_nothing(client: Client, verb: str) -> None:
    if verb != "POST":
        await client.post(CONFIG_MAPS, config_map("a"))
    before = (await client.get(CONFIG_MAPS))["metadata"]["resourceVersion"]
    path = CONFIG_MAPS if verb == "POST" else f"{CONFIG_MAPS}/a"
    kind = "application/merge-patch+json" if verb == "PATCH" else "application/json"
    body = None if verb == "DELETE" else {**config_map("a"), "data": {"c": "d"}}
    answer = await client.call(verb, path, body, kind=kind, dryRun="All")
    assert answer.code in (200, 201)
    if verb != "DELETE":
        assert answer.json["data"]["c"] == "d"
    after = await client.get(CONFIG_MAPS)
    assert after["metadata"]["resourceVersion"] == before
    assert [item["data"] for item in after["items"]] == ([] if verb == "POST" else [{"a": "b"}])


async def test_deletecollection_deletes_what_is_selected(client: Client) -> None:
    for name, label in (("a", "x"), ("b", "x"), ("c", "y")):
        await client.post(CONFIG_MAPS, config_map(name, labels={"l": label}))
    await client.delete(CONFIG_MAPS, labelSelector="l=x")
    assert [item["metadata"]["name"] for item in (await client.get(CONFIG_MAPS))["items"]] == ["c"]
    assert (await client.call("DELETE", NAMESPACES)).code == 405


async def test_secrets_are_encoded_by_the_server(client: Client) -> None:
    path = "/api/v1/namespaces/default/secrets"
    made = await client.post(path, {"metadata": {"name": "s"}, "stringData": {"a": "b"}, "data": {"c": "ZA=="}})
    assert (made["data"], made["type"]) == ({"a": "Yg==", "c": "ZA=="}, "Opaque")
    assert "stringData" not in made


async def test_what_goes_at_once_goes_as_it_was(client: Client) -> None:
    path = "/api/v1/namespaces/default/serviceaccounts"
    await client.post(path, {"metadata": {"name": "s"}})
    assert "deletionTimestamp" not in (await client.delete(f"{path}/s"))["metadata"]


async def test_a_generated_name_that_is_taken_is_generated_anew(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = iter("aab" + 20 * "a")
    monkeypatch.setattr("dra_devcluster.apiserver.verbs.write.generated_name", lambda base: base + next(letters))
    body = {"metadata": {"generateName": "x-"}}
    made = [(await client.post(CONFIG_MAPS, body))["metadata"]["name"] for _ in range(2)]
    assert made == ["x-a", "x-b"]
    answer = await client.call("POST", CONFIG_MAPS, body)
    assert (answer.code, answer.reason) == (409, "AlreadyExists")
