"""What hangs together goes together: owners and dependents, namespaces and their content."""

from __future__ import annotations

from typing import Any

import pytest
from bare_client import CONFIG_MAPS, NAMESPACES, NODES, PODS, Client, Json, config_map, names, pod


def owner(obj: Json, **more: Any) -> Json:
    meta = obj["metadata"]
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": meta["name"], "uid": meta["uid"], **more}


async def family(client: Client, **more: Any) -> None:
    parent = await client.post(CONFIG_MAPS, config_map("parent"))
    child = await client.post(CONFIG_MAPS, config_map("child", ownerReferences=[owner(parent, **more)]))
    await client.post(CONFIG_MAPS, config_map("grandchild", ownerReferences=[owner(child, **more)]))


@pytest.mark.parametrize("policy", ["", "Background", "Foreground"])
async def test_dependents_go_with_their_owner(client: Client, policy: str) -> None:
    await family(client, blockOwnerDeletion=True)
    await client.delete(f"{CONFIG_MAPS}/parent", {"propagationPolicy": policy} if policy else None)
    for name in ("grandchild", "child", "parent"):
        await client.gone(f"{CONFIG_MAPS}/{name}")


async def test_in_foreground_the_owner_waits_for_its_dependents(client: Client) -> None:
    parent = await client.post(CONFIG_MAPS, config_map("parent"))
    owners = [owner(parent, blockOwnerDeletion=True)]
    await client.post(CONFIG_MAPS, config_map("child", ownerReferences=owners, finalizers=["example.com/hold"]))
    marked = await client.delete(f"{CONFIG_MAPS}/parent", {"propagationPolicy": "Foreground"})
    assert marked["metadata"]["finalizers"] == ["foregroundDeletion"]
    await client.until(f"{CONFIG_MAPS}/child", lambda answer: "deletionTimestamp" in answer.json["metadata"])
    assert await client.code(f"{CONFIG_MAPS}/parent") == 200
    await client.patch(f"{CONFIG_MAPS}/child", {"metadata": {"finalizers": None}})
    await client.gone(f"{CONFIG_MAPS}/parent")


async def test_orphans_forget_their_owner_and_stay(client: Client) -> None:
    await family(client)
    await client.delete(f"{CONFIG_MAPS}/parent", {"propagationPolicy": "Orphan"})
    await client.gone(f"{CONFIG_MAPS}/parent")
    child = await client.get(f"{CONFIG_MAPS}/child")
    assert "ownerReferences" not in child["metadata"]
    assert await client.code(f"{CONFIG_MAPS}/grandchild") == 200


async def test_one_owner_left_is_enough(client: Client) -> None:
    owners = [owner(await client.post(CONFIG_MAPS, config_map(name))) for name in ("one", "two")]
    await client.post(CONFIG_MAPS, config_map("child", ownerReferences=owners))
    await client.delete(f"{CONFIG_MAPS}/one")
    await client.until(f"{CONFIG_MAPS}/child", lambda answer: answer.json["metadata"]["ownerReferences"] == owners[1:])
    await client.delete(f"{CONFIG_MAPS}/two")
    await client.gone(f"{CONFIG_MAPS}/child")


async def test_an_owner_that_never_was_is_no_owner(client: Client) -> None:
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "absent"}
    await client.post(CONFIG_MAPS, config_map("child", ownerReferences=[reference]))
    await client.gone(f"{CONFIG_MAPS}/child")


async def test_a_cluster_scoped_owner_counts_everywhere(client: Client) -> None:
    node = await client.post(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    await client.post(CONFIG_MAPS, config_map("child", ownerReferences=[owner(node)]))
    await client.post(CONFIG_MAPS, config_map("other", ownerReferences=[owner(node)], finalizers=["example.com/x"]))
    await client.delete(f"{NODES}/n")
    await client.gone(f"{CONFIG_MAPS}/child")
    assert "deletionTimestamp" in (await client.get(f"{CONFIG_MAPS}/other"))["metadata"]


async def test_a_fresh_cluster_has_its_namespaces_and_accounts(client: Client) -> None:
    assert names(await client.get(NAMESPACES)) == ["default", "kube-node-lease", "kube-public", "kube-system"]
    accounts = "/api/v1/namespaces/default/serviceaccounts/default"
    await client.until(accounts, lambda answer: answer.code == 200)


async def test_a_namespace_is_emptied_before_it_goes(client: Client) -> None:
    await client.post(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}})
    mine = {"type": "example.com/Mine", "status": "True"}
    await client.patch(f"{NAMESPACES}/n/status", {"status": {"conditions": [mine]}})
    inside = "/api/v1/namespaces/n/configmaps"
    await client.post(inside, config_map("a"))
    await client.post(inside, config_map("b", finalizers=["example.com/hold"]))
    marked = await client.delete(f"{NAMESPACES}/n")
    assert marked["status"]["phase"] == "Terminating"
    await client.gone(f"{inside}/a")
    waiting = await client.until(f"{NAMESPACES}/n", lambda answer: "configmaps has 1 resource" in answer.body.decode())
    other, condition = waiting.json["status"]["conditions"]
    assert (other["type"], condition["type"]) == (mine["type"], "NamespaceContentRemaining")
    assert condition["message"] == "Some resources are remaining: configmaps has 1 resource instances"
    answer = await client.call("POST", inside, config_map("c"))
    assert answer.code == 403
    assert answer.message == (
        'configmaps "c" is forbidden: unable to create new content in namespace n because it is being terminated'
    )
    assert answer.json["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    await client.patch(f"{inside}/b", {"metadata": {"finalizers": None}})
    await client.gone(f"{NAMESPACES}/n")


async def test_all_of_a_namespace_and_of_a_definition_go_though_only_some_go_at_a_time(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_devcluster.apiserver.verbs.write._BATCH_OBJECTS", 1)
    await client.post(NAMESPACES, {"metadata": {"name": "n"}})
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names_ = {"plural": "toys", "kind": "Toy"}
    spec = {"group": "example.com", "scope": "Cluster", "names": names_, "versions": [version]}
    definitions, held = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", ["example.com/hold"]
    await client.post(definitions, {"metadata": {"name": "toys.example.com"}, "spec": spec})
    toys, inside = "/apis/example.com/v1/toys", "/api/v1/namespaces/n/configmaps"
    for number in range(3):
        await client.post(toys, {"metadata": {"name": f"t{number}", "finalizers": held}})
        await client.post(inside, config_map(f"c{number}", finalizers=held))
    await client.delete(f"{definitions}/toys.example.com")
    await client.delete(f"{NAMESPACES}/n")
    for path in (f"{toys}/t2", f"{inside}/c2"):
        await client.until(path, lambda answer: "deletionTimestamp" in answer.json["metadata"])


async def test_pods_leave_a_namespace_gracefully(client: Client) -> None:
    await client.post(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}})
    pods = PODS.replace("default", "n")
    await client.post(pods, pod("p", nodeName="somewhere"))
    await client.delete(f"{NAMESPACES}/n")
    await client.until(f"{pods}/p", lambda answer: "deletionTimestamp" in answer.json["metadata"])
    assert await client.code(f"{NAMESPACES}/n") == 200
    await client.delete(f"{pods}/p", {"gracePeriodSeconds": 0})
    await client.gone(f"{NAMESPACES}/n")


async def test_some_namespaces_cannot_be_deleted(client: Client) -> None:
    answer = await client.call("DELETE", f"{NAMESPACES}/default")
    assert (answer.code, answer.message) == (
        403,
        'namespaces "default" is forbidden: this namespace may not be deleted',
    )


async def test_namespaces_are_labelled_with_their_name(client: Client) -> None:
    made = await client.post(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}})
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "n"}
    assert made["spec"] == {"finalizers": ["kubernetes"]}
    assert made["status"] == {"phase": "Active"}


@pytest.mark.parametrize(("orphan", "is_left"), [("true", True), ("false", False)])
async def test_the_old_word_for_orphans_is_understood(client: Client, orphan: str, is_left: bool) -> None:
    await family(client)
    await client.delete(f"{CONFIG_MAPS}/parent", orphanDependents=orphan)
    await client.gone(f"{CONFIG_MAPS}/parent")
    if is_left:
        assert "ownerReferences" not in (await client.get(f"{CONFIG_MAPS}/child"))["metadata"]
    else:
        await client.gone(f"{CONFIG_MAPS}/child")
