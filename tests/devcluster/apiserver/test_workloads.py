"""DaemonSets, Deployments and ReplicaSets: pods as asked for. No node runs them here: the tests say which are ready."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from typing import Any, Self

import pytest
from bare_client import EVENTS, NODES, PODS, Client, Json
from dra_devcluster.apiserver.controllers import jobs, worker, workloads
from dra_devcluster.apiserver.errors import StatusError
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.store import Stored
from dra_devcluster.apiserver.verbs.write import create

APPS = "/apis/apps/v1/namespaces/default"
CONTAINER = {"name": "main", "image": "example.com/app:1"}
Pods = list[Json]


class Later(datetime):
    """The next minute, in which a schedule is due."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + timedelta(minutes=1)


def workload(kind: str, image: str = "example.com/app:1", *, pod: Json | None = None, **spec: Any) -> Json:
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{**CONTAINER, "image": image}], **(pod or {})}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "w"},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }


async def pods(client: Client, condition: Callable[[Pods], bool]) -> Pods:
    answer = await client.until(PODS, lambda answer: condition(answer.json["items"]))
    items: Pods = answer.json["items"]
    return items


async def make_ready(client: Client, items: Pods) -> None:
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for item in items:
        await client.patch(f"{PODS}/{item['metadata']['name']}/status", {"status": status})


async def node(client: Client, name: str, *, labels: Json | None = None, taints: list[Json] | None = None) -> None:
    meta = {"name": name, "labels": labels or {}}
    await client.post(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": taints or []}})
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await client.patch(f"{NODES}/{name}/status", ready)


def nodes_of(items: Pods) -> list[str]:
    return sorted(item["spec"].get("nodeName", "") for item in items)


async def test_a_replica_set_keeps_its_number_of_pods(client: Client) -> None:
    await client.post(f"{APPS}/replicasets", workload("ReplicaSet", replicas=3))
    made = await pods(client, lambda items: len(items) == 3)
    owner = made[0]["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("ReplicaSet", "w", True)
    assert "annotations" not in made[0]["metadata"], "a client that writes the pod back leaves empty ones out"
    await client.delete(f"{PODS}/{made[0]['metadata']['name']}")
    await pods(client, lambda items: len(items) == 3)
    await make_ready(client, made[1:2])
    await client.patch(f"{APPS}/replicasets/w", {"spec": {"replicas": 1}})
    (left,) = await pods(client, lambda items: len(items) == 1)
    assert left["metadata"]["name"] == made[1]["metadata"]["name"]
    answer = await client.until(f"{APPS}/replicasets/w", lambda answer: answer.json["status"].get("readyReplicas") == 1)
    assert answer.json["status"]["replicas"] == 1


async def test_a_pod_that_ended_is_replaced(client: Client) -> None:
    await client.post(f"{APPS}/replicasets", workload("ReplicaSet", replicas=1))
    (first,) = await pods(client, lambda items: len(items) == 1)
    await client.patch(f"{PODS}/{first['metadata']['name']}/status", {"status": {"phase": "Failed"}})
    await pods(client, lambda items: len(items) == 2)


async def test_pods_that_cannot_be_made_are_reported(client: Client) -> None:
    pod = {"priorityClassName": "none"}
    await client.post(f"{APPS}/replicasets", workload("ReplicaSet", replicas=1, pod=pod))
    answer = await client.until(EVENTS, lambda answer: bool(answer.json["items"]))
    event = answer.json["items"][0]
    assert (event["reason"], event["type"], event["involvedObject"]["name"]) == ("FailedCreate", "Warning", "w")
    assert "no PriorityClass with name none was found" in event["message"]


async def test_replicas_without_end_keep_nobody_waiting(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "BATCH_PODS", 2)
    await client.post(f"{APPS}/replicasets", workload("ReplicaSet", replicas=2**31 - 1))
    await pods(client, lambda items: len(items) >= 6)
    await client.patch(f"{APPS}/replicasets/w", {"spec": {"replicas": 0}})
    await pods(client, lambda items: not items)


BATCH = "/apis/batch/v1/namespaces/default"
_JOB = {"template": {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}}
_CRON_JOB = {"schedule": "* * * * *", "jobTemplate": {"spec": _JOB}}
OWNERS: list[tuple[str, Json, str]] = [
    (f"{APPS}/replicasets", workload("ReplicaSet", replicas=1), PODS),
    (f"{APPS}/deployments", workload("Deployment", replicas=1), f"{APPS}/replicasets"),
    (f"{APPS}/daemonsets", workload("DaemonSet"), PODS),
    (f"{BATCH}/jobs", {"metadata": {"name": "w"}, "spec": _JOB}, PODS),
    (f"{BATCH}/cronjobs", {"metadata": {"name": "w"}, "spec": _CRON_JOB}, f"{BATCH}/jobs"),
]


@pytest.mark.parametrize(("path", "owner", "made"), OWNERS, ids=[path.rpartition("/")[2] for path, *_ in OWNERS])
async def test_what_was_refused_is_made_when_nothing_refuses_it_any_more(
    client: Client, monkeypatch: pytest.MonkeyPatch, path: str, owner: Json, made: str
) -> None:
    """Neither the object nor what it owns changes then."""
    refused = 0

    def refuse(write: Write, body: Json) -> Stored:
        nonlocal refused
        if made.endswith(write.resource.plural) and refused < 3:
            refused += 1
            raise StatusError(403, "Forbidden", "not yet")
        return create(write, body)

    for module in (workloads, jobs):
        monkeypatch.setattr(module, "create", refuse)
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "datetime", Later)
    await node(client, "n")
    await client.post(path, owner)
    await client.until(made, lambda answer: bool(answer.json["items"]))
    said = [event for event in (await client.get(EVENTS))["items"] if event["reason"] == "FailedCreate"]
    assert [event["count"] for event in said] in ([3], []), "events that say the same are counted"


async def test_one_refused_pod_speaks_for_all(client: Client) -> None:
    await client.post(f"{APPS}/replicasets", workload("ReplicaSet", replicas=100, pod={"priorityClassName": "none"}))
    await client.until(f"{APPS}/replicasets/w", lambda answer: bool(answer.json.get("status")))
    events = (await client.get(EVENTS))["items"]
    assert 1 <= len(events) < 10
    assert {event["reason"] for event in events} == {"FailedCreate"}


async def test_a_rolling_update_takes_an_old_pod_for_each_new_one_that_is_ready(client: Client) -> None:
    await client.post(f"{APPS}/deployments", workload("Deployment", replicas=2))
    old = await pods(client, lambda items: len(items) == 2)
    await make_ready(client, old)
    await client.until(f"{APPS}/deployments/w", lambda answer: answer.json["status"].get("availableReplicas") == 2)
    await client.patch(
        f"{APPS}/deployments/w", {"spec": {"template": {"spec": {"containers": [{**CONTAINER, "image": "new"}]}}}}
    )
    both = await pods(client, lambda items: len(items) == 4)
    new = [item for item in both if item["spec"]["containers"][0]["image"] == "new"]
    await make_ready(client, new[:1])
    await pods(client, lambda items: len(items) == 3)
    await make_ready(client, new[1:])
    left = await pods(client, lambda items: len(items) == 2)
    assert {item["metadata"]["name"] for item in left} == {item["metadata"]["name"] for item in new}
    answer = await client.until(
        f"{APPS}/deployments/w", lambda answer: answer.json["status"].get("updatedReplicas") == 2
    )
    conditions = {entry["type"]: entry["status"] for entry in answer.json["status"]["conditions"]}
    assert conditions == {"Available": "True", "Progressing": "True"}


async def test_recreate_takes_all_old_pods_away_first(client: Client) -> None:
    await client.post(
        f"{APPS}/deployments", workload("Deployment", replicas=1, strategy={"type": "Recreate"}, revisionHistoryLimit=0)
    )
    (old,) = await pods(client, lambda items: len(items) == 1)
    path = f"{PODS}/{old['metadata']['name']}"
    await client.patch(path, {"metadata": {"finalizers": ["example.com/hold"]}})
    await client.patch(
        f"{APPS}/deployments/w", {"spec": {"template": {"spec": {"containers": [{**CONTAINER, "image": "new"}]}}}}
    )
    await client.until(path, lambda answer: "deletionTimestamp" in answer.json["metadata"])
    await client.patch(path, {"metadata": {"finalizers": None}})
    (new,) = await pods(client, lambda items: len(items) == 1 and items[0]["spec"]["containers"][0]["image"] == "new")
    assert new
    await client.until(
        f"{APPS}/replicasets", lambda answer: len(answer.json["items"]) == 1
    )  # the old one is no history


async def test_with_a_deployment_everything_it_made_goes(client: Client) -> None:
    await client.post(f"{APPS}/deployments", workload("Deployment", replicas=2))
    await pods(client, lambda items: len(items) == 2)
    await client.delete(f"{APPS}/deployments/w", {"propagationPolicy": "Foreground"})
    await client.gone(f"{APPS}/deployments/w")
    assert (await client.get(f"{APPS}/replicasets"))["items"] == []
    assert (await client.get(PODS))["items"] == []


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
IN_ZONE = {"key": "zone", "operator": "In", "values": ["a"]}


def affinity(**term: Any) -> Json:
    required = {"nodeSelectorTerms": [term]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({}, ["a", "b"]),
        ({"nodeSelector": {"zone": "a"}}, ["a"]),
        (affinity(matchExpressions=[IN_ZONE]), ["a"]),
        (affinity(matchFields=[{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}]), ["b"]),
        ({"tolerations": [{"key": "gpu", "operator": "Equal", "value": "yes"}]}, ["a", "b", "tainted"]),
        ({"tolerations": [{"key": "gpu", "operator": "Equal", "value": "no"}]}, ["a", "b"]),
    ],
)
async def test_a_daemon_set_has_a_pod_on_every_node_that_fits(client: Client, pod: Json, expected: list[str]) -> None:
    await node(client, "a", labels={"zone": "a"})
    await node(client, "b")
    await node(client, "tainted", taints=[TAINT])
    await client.post(f"{APPS}/daemonsets", workload("DaemonSet", pod=pod))
    await pods(client, lambda items: nodes_of(items) == expected)
    answer = await client.until(f"{APPS}/daemonsets/w", lambda answer: "status" in answer.json)
    assert answer.json["status"]["desiredNumberScheduled"] == len(expected)


async def test_a_daemon_set_follows_the_nodes(client: Client) -> None:
    await client.post(f"{APPS}/daemonsets", workload("DaemonSet", pod={"terminationGracePeriodSeconds": 0}))
    await node(client, "a")
    await node(client, "b")
    await pods(client, lambda items: nodes_of(items) == ["a", "b"])
    await client.delete(f"{NODES}/a")
    await pods(client, lambda items: nodes_of(items) == ["b"])


async def test_daemons_are_replaced_one_after_the_other(client: Client) -> None:
    await node(client, "a")
    await node(client, "b")
    await client.post(f"{APPS}/daemonsets", workload("DaemonSet", pod={"terminationGracePeriodSeconds": 0}))
    old = await pods(client, lambda items: len(items) == 2)
    await make_ready(client, old)
    await client.patch(
        f"{APPS}/daemonsets/w", {"spec": {"template": {"spec": {"containers": [{**CONTAINER, "image": "new"}]}}}}
    )

    def new(items: Pods) -> Pods:
        return [item for item in items if item["spec"]["containers"][0]["image"] == "new"]

    half = await pods(client, lambda items: len(items) == 2 and len(new(items)) == 1)
    await make_ready(client, new(half))
    await pods(client, lambda items: len(items) == 2 and len(new(items)) == 2)


@pytest.mark.parametrize("surge", [1, "50%"])
async def test_a_daemon_is_replaced_when_the_one_beside_it_is_ready(client: Client, surge: int | str) -> None:
    await node(client, "a")
    await node(client, "b")
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 0}}
    quick = {"terminationGracePeriodSeconds": 0}
    await client.post(f"{APPS}/daemonsets", workload("DaemonSet", pod=quick, updateStrategy=strategy))
    await make_ready(client, await pods(client, lambda items: len(items) == 2))
    for image in ("new", "newer"):
        await client.patch(
            f"{APPS}/daemonsets/w", {"spec": {"template": {"spec": {"containers": [{**CONTAINER, "image": image}]}}}}
        )

    def new(items: Pods) -> list[str]:
        return [item["metadata"]["name"] for item in items if item["spec"]["containers"][0]["image"] == "newer"]

    # The old pods of both nodes stay, and the new one of the first is beside its own until it is ready.
    three = await pods(client, lambda items: len(items) == 3 and len(new(items)) == 1)
    status = (await client.until(f"{APPS}/daemonsets/w", lambda answer: answer.json["status"]["numberReady"] == 2)).json
    assert status["status"]["updatedNumberScheduled"] == 0
    await make_ready(client, [item for item in three if item["metadata"]["name"] in new(three)])
    second = await pods(client, lambda items: len(items) == 3 and len(new(items)) == 2)
    await make_ready(client, [item for item in second if item["metadata"]["name"] in new(second)])
    await pods(client, lambda items: len(items) == len(new(items)) == 2)
    await client.until(f"{APPS}/daemonsets/w", lambda answer: answer.json["status"]["updatedNumberScheduled"] == 2)


async def test_an_old_daemon_that_is_not_ready_does_not_count_towards_the_surge(client: Client) -> None:
    for name in ("a", "b", "c"):
        await node(client, name)
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    quick = {"terminationGracePeriodSeconds": 0}
    await client.post(f"{APPS}/daemonsets", workload("DaemonSet", pod=quick, updateStrategy=strategy))
    old = await pods(client, lambda items: len(items) == 3)
    await make_ready(client, old[:2])
    await client.patch(
        f"{APPS}/daemonsets/w", {"spec": {"template": {"spec": {"containers": [{**CONTAINER, "image": "new"}]}}}}
    )
    items = await pods(client, lambda items: len(items) == 5)
    assert {item["metadata"]["name"] for item in old} <= {item["metadata"]["name"] for item in items}


async def scheduled(client: Client, name: str) -> Json:
    """The pod's PodScheduled condition, once it has one."""

    def condition(pod: Json) -> Json | None:
        found = pod.get("status", {}).get("conditions") or ()
        return next((entry for entry in found if entry["type"] == "PodScheduled"), None)

    answer = await client.until(f"{PODS}/{name}", lambda answer: condition(answer.json) is not None)
    return condition(answer.json) or {}


def lone_pod(name: str, **spec: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [CONTAINER], **spec}}


async def test_a_pod_that_names_no_scheduler_waits_for_a_node_that_is_ready_and_fits(client: Client) -> None:
    await node(client, "tainted", taints=[TAINT])
    await client.post(PODS, lone_pod("plain"))
    condition = await scheduled(client, "plain")
    assert (condition["status"], condition["message"]) == ("False", "0/1 nodes are available")
    await node(client, "a")
    await pods(client, lambda items: nodes_of(items) == ["a"])


async def test_pods_are_spread_over_the_nodes(client: Client) -> None:
    await node(client, "a")
    await node(client, "b")
    for name in ("one", "two", "three", "four"):
        await client.post(PODS, lone_pod(name))
    await pods(client, lambda items: nodes_of(items) == ["a", "a", "b", "b"])


async def test_a_pod_with_claims_is_told_to_name_the_scheduler_that_knows_devices(client: Client) -> None:
    await node(client, "a")
    await client.post(PODS, lone_pod("p", resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}]))
    assert "dra-scheduler" in (await scheduled(client, "p"))["message"]


async def test_a_pod_that_names_another_scheduler_is_left_alone(client: Client) -> None:
    await node(client, "a")
    await client.post(PODS, lone_pod("p", schedulerName="dra-scheduler"))
    await client.post(PODS, lone_pod("placed"))
    await pods(client, lambda items: nodes_of(items) == ["", "a"])


@pytest.mark.parametrize("error", [StatusError(403, "Forbidden", "never"), ZeroDivisionError("a defect")])
async def test_work_that_fails_again_and_again_is_tried_less_and_less_often(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Each failure is a line in the log, and anybody may have thousands of such objects."""
    pauses: list[float] = []

    def refuse(write: Write, body: Json) -> Stored:
        raise error

    def add_later(self: worker.Worker[Any], key: Any, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) < 9:
            self.add(key)

    monkeypatch.setattr(workloads, "create", refuse)
    monkeypatch.setattr(worker.Worker, "add_later", add_later)
    await client.post(f"{APPS}/deployments", workload("Deployment", replicas=1))
    await client.until(NODES, lambda _: len(pauses) == 9)
    assert pauses == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0, 600.0]
