"""Pods: what the server fills in, refuses and keeps; binding and eviction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bare_client import PATCH, PODS, Client, Json, causes, client_of, pod
from dra_api.releases import Release
from dra_devcluster.apiserver import DevApiServer
from rbac_cases import SERVERS, rbac_server

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
CONTAINER = {"name": "main", "image": "example.com/app:1"}
TERMS = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
FIELD = f"{TERMS}[0].matchFields[0]"
NAMED = {"key": "metadata.name", "operator": "In", "values": ["n"]}
FAST = {"key": "disk", "operator": "Exists"}
BIG = {"key": "big", "operator": "Exists"}


def selects(*terms: Json, **others: Json | None) -> Json:
    """An affinity to nodes."""
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}, **others}


ZONE = {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}
NEAR = {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [ZONE]}}}


async def test_a_pod_is_filled_in(client: Client) -> None:
    made = await client.post(PODS, pod("p"))
    spec = made["spec"]
    expected = {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "enableServiceLinks": True,
        "serviceAccountName": "default",
        "priority": 0,
    }
    assert {key: spec[key] for key in expected} == expected
    assert {toleration["key"] for toleration in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    assert spec["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


async def test_the_status_of_a_new_pod_is_not_the_clients(client: Client) -> None:
    made = await client.post(PODS, {**pod("p"), "status": {"phase": "Running"}})
    assert made["status"]["phase"] == "Pending"


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m"}}, "Guaranteed"),
    ],
)
async def test_quality_of_service(client: Client, resources: Json, expected: str) -> None:
    made = await client.post(PODS, pod("p", containers=[{**CONTAINER, "resources": resources}]))
    assert made["status"]["qosClass"] == expected


POD_LEVEL = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("whole", "container", "requests", "expected"),
    [
        ({"limits": POD_LEVEL}, {}, POD_LEVEL, "Guaranteed"),
        ({"limits": POD_LEVEL}, {"cpu": "250m"}, {"cpu": "250m", "memory": "1Gi"}, "Burstable"),
        ({"limits": POD_LEVEL}, {"cpu": "1000m", "memory": "1Gi"}, POD_LEVEL, "Guaranteed"),
        ({"requests": POD_LEVEL}, {}, POD_LEVEL, "Burstable"),
        ({"limits": {"cpu": "1"}}, {"memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"}, "Burstable"),
        ({"limits": {"hugepages-2Mi": "2Mi"}}, {}, {"hugepages-2Mi": "2Mi"}, "BestEffort"),
    ],
)
async def test_what_the_pod_as_a_whole_asks_for_counts_instead_of_its_containers(
    client: Client, whole: Json, container: Json, requests: Json, expected: str
) -> None:
    made = await client.post(
        PODS, pod("p", containers=[{**CONTAINER, "resources": {"requests": container}}], resources=whole)
    )
    assert made["spec"]["resources"]["requests"] == requests
    assert made["status"]["qosClass"] == expected


async def test_init_containers_run_alone_and_sidecars_beside_all(client: Client) -> None:
    def asking(name: str, cpu: str, **more: Any) -> Json:
        return {**CONTAINER, "name": name, "resources": {"requests": {"cpu": cpu}}, **more}

    init = [asking("early", "900m"), asking("side", "1", restartPolicy="Always"), asking("late", "500m")]
    limits = {"limits": {"cpu": "8"}}
    for containers, most in (([asking("main", "2")], "3"), ([asking("main", "100m")], "1500m")):
        made = await client.post(PODS, pod(f"p{most}", initContainers=init, containers=containers, resources=limits))
        assert made["spec"]["resources"]["requests"] == {"cpu": most}


async def test_pods_as_a_whole_ask_for_nothing_before_1_34() -> None:
    async with DevApiServer(release=Release.V1_33) as server, client_of(server) as client:
        made = await client.post(PODS, pod("p", resources={"limits": POD_LEVEL}))
    assert "resources" not in made["spec"]
    assert made["status"]["qosClass"] == "BestEffort"


@pytest.mark.rule("K37-NA-22")
async def test_what_devices_bring_of_the_node_changes_no_quality_of_service() -> None:
    """Neither when it is recorded nor afterwards."""
    async with DevApiServer(release=Release.V1_37) as server, client_of(server) as client:
        made = await client.post(PODS, pod("p", containers=[{**CONTAINER, "resources": {"limits": POD_LEVEL}}]))
        mapping = [{"name": "cpu", "quantity": "4"}]
        recorded = [{"resourceClaimName": "c", "containers": ["main"], "mapping": mapping}]
        kept = {key: value for key, value in made["status"].items() if key != "qosClass"}
        for status in ({**kept, "nodeAllocatableResourceClaimStatuses": recorded}, kept):
            found = await client.call("PUT", f"{PODS}/p/status", {**made, "metadata": {"name": "p"}, "status": status})
            assert found.json["status"]["nodeAllocatableResourceClaimStatuses"] == recorded
            assert found.json["status"]["qosClass"] == "Guaranteed"
        other = {**kept, "qosClass": "Burstable", "nodeAllocatableResourceClaimStatuses": recorded}
        refused = await client.call("PUT", f"{PODS}/p/status", {**made, "metadata": {"name": "p"}, "status": other})
        assert (refused.code, causes(refused.json)) == (422, [("status.qosClass", "FieldValueInvalid")])


async def test_quality_of_service_stays_as_it_is(client: Client) -> None:
    made = await client.post(PODS, pod("p"))
    del made["metadata"]["resourceVersion"]
    changes = [{**made, "status": status} for status in ({"qosClass": "Guaranteed"}, {"phase": "Running"})]
    refused, kept = [await client.call("PUT", f"{PODS}/p/status", each) for each in changes]
    assert (refused.code, causes(refused.json)) == (422, [("status.qosClass", "FieldValueInvalid")])
    assert kept.json["status"] == {"phase": "Running", "qosClass": "BestEffort"}


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ({"containers": []}, "spec.containers", "FieldValueRequired"),
        ({"containers": [{**CONTAINER, "name": ""}]}, "spec.containers[0].name", "FieldValueRequired"),
        ({"containers": [CONTAINER, CONTAINER]}, "spec.containers[1].name", "FieldValueDuplicate"),
        ({"initContainers": [CONTAINER]}, "spec.containers[0].name", "FieldValueDuplicate"),
        ({"containers": [{"name": "a"}]}, "spec.containers[0].image", "FieldValueRequired"),
        ({"dnsPolicy": "Whatever"}, "spec.dnsPolicy", "FieldValueNotSupported"),
        ({"tolerations": [{"operator": "Equal"}]}, "spec.tolerations[0].operator", "FieldValueInvalid"),
        ({"tolerations": [{"key": "a", "effect": "Never"}]}, "spec.tolerations[0].effect", "FieldValueNotSupported"),
        ({"schedulingGates": [{"name": "a"}], "nodeName": "n"}, "spec.nodeName", "FieldValueForbidden"),
        ({"schedulingGates": [{"name": "a b"}]}, "spec.schedulingGates[0]", "FieldValueInvalid"),
        ({"schedulingGates": [{"name": "a"}, {"name": "a"}]}, "spec.schedulingGates[1]", "FieldValueDuplicate"),
        ({"affinity": selects({"matchFields": [NAMED | {"key": "no"}]})}, f"{FIELD}.key", "FieldValueInvalid"),
        ({"affinity": selects({"matchFields": [NAMED | {"values": []}]})}, f"{FIELD}.values", "FieldValueRequired"),
        (
            {"affinity": selects({"matchFields": [NAMED | {"operator": "Gt"}]})},
            f"{FIELD}.operator",
            "FieldValueInvalid",
        ),
        ({"ephemeralContainers": [{**CONTAINER, "name": "e"}]}, "spec.ephemeralContainers", "FieldValueForbidden"),
        ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds", "FieldValueInvalid"),
        ({"nodeSelector": {"a b": "c"}}, "spec.nodeSelector", "FieldValueInvalid"),
        ({"nodeName": "No"}, "spec.nodeName", "FieldValueInvalid"),
        ({"volumes": [{"name": "v"}, {"name": "v"}]}, "spec.volumes[1].name", "FieldValueDuplicate"),
        (
            {"containers": [{**CONTAINER, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
            "spec.containers[0].volumeMounts[0].name",
            "FieldValueNotFound",
        ),
        (
            {"containers": [{**CONTAINER, "ports": [{"containerPort": 0}]}]},
            "spec.containers[0].ports[0].containerPort",
            "FieldValueRequired",
        ),
        (
            {"containers": [{**CONTAINER, "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]},
            "spec.containers[0].resources.requests",
            "FieldValueInvalid",
        ),
        (
            {"containers": [{**CONTAINER, "imagePullPolicy": "Later"}]},
            "spec.containers[0].imagePullPolicy",
            "FieldValueNotSupported",
        ),
        ({"resourceClaims": [{"name": "c"}]}, "spec.resourceClaims[0]", "FieldValueInvalid"),
        (
            {"containers": [{**CONTAINER, "resources": {"claims": [{"name": "c"}]}}]},
            "spec.containers[0].resources.claims[0]",
            "FieldValueNotFound",
        ),
    ],
)
async def test_pods_that_cannot_be(client: Client, spec: Json, field: str, reason: str) -> None:
    answer = await client.call("POST", PODS, pod("p", **spec))
    assert answer.code == 422, answer.body
    assert causes(answer.json) == [(field, reason)]


GPU, TYPE = "example.com/gpu", "must be a standard resource type or fully qualified"
CONTAINERS, EXTENDED = "must be a standard resource for containers", "doesn't follow extended resource name standard"
RESOURCES: dict[str, tuple[Json, list[tuple[str, str]]]] = {
    "of a device class": ({"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}}, []),
    "an extended resource": ({"limits": {GPU: "1"}}, []),
    "huge pages": ({"limits": {"hugepages-2Mi": "2Mi", "cpu": "1"}}, []),
    "no such name": ({"requests": {"gpu": "1"}}, [("requests[gpu]", TYPE), ("requests[gpu]", CONTAINERS)]),
    "a name for quotas": ({"requests": {"limits.cpu": "1"}}, [("requests[limits.cpu]", CONTAINERS)]),
    "not for containers": ({"limits": {"pods": "1"}}, [("limits[pods]", CONTAINERS), ("requests[pods]", CONTAINERS)]),
    "a name that a quota has for it": (
        {"requests": {f"requests.{GPU}": "1"}, "limits": {f"requests.{GPU}": "1"}},
        [(f"limits[requests.{GPU}]", EXTENDED), (f"requests[requests.{GPU}]", EXTENDED)],
    ),
    "without its limit": (
        {"requests": {GPU: "1"}},
        [("limits", "Required value: Limit must be set for non overcommitable resources")],
    ),
    "more than requested": (
        {"requests": {GPU: "1"}, "limits": {GPU: "2"}},
        [("requests", f"must be equal to {GPU} limit of 2")],
    ),
    "half a device": (
        {"limits": {GPU: "500m"}},
        [(f"limits[{GPU}]", "must be an integer"), (f"requests[{GPU}]", "must be an integer")],
    ),
    "huge pages alone": ({"limits": {"hugepages-2Mi": "2Mi"}}, [("", "Forbidden: HugePages require cpu or memory")]),
}


@pytest.mark.parametrize("case", RESOURCES)
async def test_e2e_101_a_container_asks_for_resources_by_names_and_amounts_that_can_be(
    client: Client, case: str
) -> None:
    resources, faults = RESOURCES[case]
    answer = await client.call("POST", PODS, pod("p", containers=[{**CONTAINER, "resources": resources}]))
    found = answer.json["details"]["causes"] if answer.code == 422 else []
    fields = [f"spec.containers[0].resources.{field}".rstrip(".") for field, _ in faults]
    assert [cause["field"] for cause in found] == fields
    for cause, (_, message) in zip(found, faults, strict=True):
        assert cause["message"].endswith(message)
    assert answer.code == (422 if faults else 201)


@pytest.mark.parametrize("name", ["-bad", "example.com/", "/x", "a/b/c", "Example.com/gpu", f"{GPU}_", GPU + 61 * "x"])
async def test_e2e_101_a_resource_whose_name_is_no_name_is_refused(client: Client, name: str) -> None:
    one = {**CONTAINER, "resources": {"limits": {name: "1"}}}
    answer = await client.call("POST", PODS, pod("p", containers=[one]))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert {cause["field"] for cause in answer.json["details"]["causes"]} == {
        f"spec.containers[0].resources.{kind}[{name}]" for kind in ("limits", "requests")
    }


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"containers": [{"name": "main", "image": "other"}]}, True),
        ({"activeDeadlineSeconds": 5}, True),
        ({"tolerations": [{"key": "more", "operator": "Exists"}]}, True),
        ({"nodeSelector": {"a": "b"}}, False),
        ({"restartPolicy": "Never"}, False),
        ({"containers": [{"name": "main", "command": ["x"]}]}, False),
        ({"nodeName": "other"}, False),
        ({"resourceClaims": [{"name": "c", "resourceClaimName": "d"}]}, False),
    ],
)
async def test_only_parts_of_a_spec_may_change(client: Client, change: Json, allowed: bool) -> None:
    made = await client.post(PODS, pod("p"))
    if "tolerations" in change:
        change = {"tolerations": made["spec"]["tolerations"] + change["tolerations"]}
    answer = await client.call("PATCH", f"{PODS}/p", {"spec": change}, kind=PATCH["strategic"])
    assert answer.code == (200 if allowed else 422), answer.body
    if not allowed:
        assert ("spec", "FieldValueForbidden") in causes(answer.json)


async def test_existing_tolerations_stay(client: Client) -> None:
    mine = {"key": "mine", "operator": "Exists"}
    await client.post(PODS, pod("p", tolerations=[mine]))
    answer = await client.call("PATCH", f"{PODS}/p", {"spec": {"tolerations": []}}, kind=PATCH["merge"])
    assert causes(answer.json) == [("spec.tolerations", "FieldValueForbidden")]
    changed = await client.patch(f"{PODS}/p", {"spec": {"tolerations": [mine]}})
    assert len(changed["spec"]["tolerations"]) == 3  # those that every pod has come back


async def test_a_gated_pod_says_so_and_may_still_choose_its_nodes(client: Client) -> None:
    made = await client.post(PODS, pod("p", schedulingGates=[{"name": "example.com/wait"}]))
    (condition,) = made["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"name": "n"}}
    assert (await client.call("POST", f"{PODS}/p/binding", body)).code == 409
    changed = await client.patch(f"{PODS}/p", {"spec": {"nodeSelector": {"a": "b"}, "schedulingGates": None}})
    assert changed["spec"]["nodeSelector"] == {"a": "b"}


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ({}, {"nodeSelector": {"a": "b"}}, None),
        ({"nodeSelector": {"a": "b"}}, {"nodeSelector": {"a": "b", "c": "d"}}, None),
        ({"nodeSelector": {"a": "b"}}, {"nodeSelector": {"a": "c"}}, "spec.nodeSelector"),
        ({"nodeSelector": {"a": "b"}}, {"nodeSelector": None}, "spec.nodeSelector"),
        ({}, {"affinity": selects({"matchFields": [NAMED]})}, None),
        (NEAR, {"affinity": NEAR["affinity"] | selects({"matchFields": [NAMED]})}, None),
        ({"affinity": selects({"matchExpressions": [FAST]})}, {"affinity": None}, TERMS),
        (
            {"affinity": selects({"matchExpressions": [FAST]})},
            {"affinity": selects({"matchExpressions": [FAST], "matchFields": [NAMED]})},
            None,
        ),
        (
            {"affinity": selects({"matchExpressions": [FAST]})},
            {"affinity": selects({"matchExpressions": [FAST, BIG]})},
            None,
        ),
        (
            {"affinity": selects({"matchExpressions": [FAST]})},
            {"affinity": selects({"matchExpressions": [BIG, FAST]})},
            f"{TERMS}[0]",
        ),
        (
            {"affinity": selects({"matchFields": [NAMED]})},
            {"affinity": selects({"matchFields": [NAMED | {"values": ["other"]}]})},
            f"{TERMS}[0]",
        ),
        (
            {"affinity": selects({"matchExpressions": [FAST]})},
            {"affinity": selects({"matchExpressions": [FAST]}, {"matchFields": [NAMED]})},
            TERMS,
        ),
        (
            {"affinity": selects({}, {"matchExpressions": [FAST]})},
            {"affinity": selects({"matchFields": [NAMED]}, {"matchExpressions": [FAST]})},
            f"{TERMS}[0]",
        ),
        ({}, {"affinity": NEAR["affinity"]}, "spec"),
        (NEAR, {"affinity": selects({"matchFields": [NAMED]}, podAffinity=None)}, "spec"),
        ({}, {"schedulingGates": [{"name": "other"}]}, "spec.schedulingGates[0].name"),
        ({}, {"schedulingGates": [{"name": "example.com/b"}]}, None),
        ({}, {"restartPolicy": "Never"}, "spec"),
    ],
)
@pytest.mark.parametrize("also", [{}, {"schedulingGates": None}], ids=["stays gated", "the last gate goes as well"])
async def test_a_gated_pod_may_be_narrowed_and_not_widened(
    client: Client, old: Json, new: Json, field: str | None, also: Json
) -> None:
    gates = [{"name": "example.com/a"}, {"name": "example.com/b"}]
    await client.post(PODS, pod("p", schedulingGates=gates, **old))
    answer = await client.call("PATCH", f"{PODS}/p", {"spec": {**also, **new}}, kind=PATCH["merge"])
    assert answer.code == (200 if field is None else 422), answer.body
    if field is not None:
        assert field in [found for found, _ in causes(answer.json)]


async def test_a_pod_without_gates_chooses_its_nodes_no_more(client: Client) -> None:
    await client.post(PODS, pod("p", affinity=selects({"matchExpressions": [FAST]})))
    wider = {"affinity": selects({"matchExpressions": [FAST, BIG]})}
    answer = await client.call("PATCH", f"{PODS}/p", {"spec": wider}, kind=PATCH["merge"])
    assert causes(answer.json) == [("spec", "FieldValueForbidden")]


async def test_priority_comes_from_the_class(client: Client) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 7}
    await client.post(classes, body)
    assert (await client.post(PODS, pod("p", priorityClassName="high")))["spec"]["priority"] == 7
    answer = await client.call("POST", PODS, pod("q", priorityClassName="none"))
    assert (answer.code, answer.message) == (403, 'pods "q" is forbidden: no PriorityClass with name none was found')
    answer = await client.call("POST", PODS, pod("q", priorityClassName="high", priority=8))
    assert (answer.code, "the integer value of priority (8) must not be provided" in answer.message) == (403, True)
    assert (await client.post(PODS, pod("s", priorityClassName="system-node-critical")))["spec"][
        "priority"
    ] == 2_000_001_000


async def test_a_pod_without_a_class_gets_the_default_one_with_its_policy(client: Client) -> None:
    async def made(name: str) -> list[Any]:
        spec = (await client.post(PODS, pod(name)))["spec"]
        return [spec.get(key) for key in ("priorityClassName", "priority", "preemptionPolicy")]

    assert await made("p") == [None, 0, "PreemptLowerPriority"]
    body = {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True, "preemptionPolicy": "Never"}
    await client.post("/apis/scheduling.k8s.io/v1/priorityclasses", body)
    assert await made("q") == ["usual", 7, "Never"]
    answer = await client.call("POST", PODS, pod("r", preemptionPolicy="PreemptLowerPriority"))
    assert (answer.code, "computed Never from the given PriorityClass" in answer.message) == (403, True)


def binding(node: str = "n1", **target: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"name": node, **target}}


@pytest.mark.parametrize("path", [f"{PODS}/p/binding", "/api/v1/namespaces/default/bindings"])
async def test_binding_sets_the_node_once(client: Client, path: str) -> None:
    made = await client.post(PODS, pod("p"))
    body = binding(kind="Node")
    body["metadata"]["uid"] = made["metadata"]["uid"]
    assert (await client.post(path, body))["status"] == "Success"
    bound = await client.get(f"{PODS}/p")
    assert bound["spec"]["nodeName"] == "n1"
    (condition,) = bound["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
    assert condition["lastTransitionTime"]
    answer = await client.call("POST", path, binding("n2"))
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert 'pod p is already assigned to node "n1"' in answer.message


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_binding_ends_the_nomination(kind: str, tmp_path: Path) -> None:
    async with rbac_server(kind, tmp_path) as client:
        await client.post(PODS, pod("p", schedulerName="none"))
        nominated = {"status": {"nominatedNodeName": "n1"}}
        assert (await client.patch(f"{PODS}/p/status", nominated))["status"]["nominatedNodeName"] == "n1"
        await client.post(f"{PODS}/p/binding", binding("n1"))
        assert "nominatedNodeName" not in (await client.get(f"{PODS}/p"))["status"]


async def test_a_binding_keeps_the_nomination_before_1_35() -> None:
    async with DevApiServer(release=Release.V1_34) as server, client_of(server) as client:
        await client.post(PODS, pod("p", schedulerName="none"))
        await client.patch(f"{PODS}/p/status", {"status": {"nominatedNodeName": "n1"}})
        await client.post(f"{PODS}/p/binding", binding("n1"))
        assert (await client.get(f"{PODS}/p"))["status"]["nominatedNodeName"] == "n1"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"metadata": {"name": "p"}, "target": {}}, 422),
        ({"metadata": {"name": "p"}, "target": {"kind": "Moon", "name": "n"}}, 422),
        ({"target": {"name": "n"}}, 400),
        ({"metadata": {"name": "q"}, "target": {"name": "n"}}, 400),
        ({"metadata": {"name": "p", "uid": "other"}, "target": {"name": "n"}}, 409),
        ({"target": "n"}, 400),
        ([], 400),
    ],
)
async def test_bindings_that_make_no_sense(client: Client, body: Json | list[Json], code: int) -> None:
    await client.post(PODS, pod("p"))
    answer = await client.call("POST", f"{PODS}/p/binding", body)
    assert answer.code == code, answer.body
    assert (await client.call("POST", f"{PODS}/absent/binding", binding())).code in (400, 404)


async def running(client: Client, name: str) -> None:
    await client.post(PODS, pod(name, meta={"labels": {"app": "x"}}, nodeName="n", terminationGracePeriodSeconds=0))
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(f"{PODS}/{name}/status", {"status": status})


@pytest.mark.parametrize(
    ("limit", "evicted"),
    [
        ({"minAvailable": 1}, [True, False]),
        ({"minAvailable": 2}, [False]),
        ({"minAvailable": "50%"}, [True, False]),
        ({"minAvailable": "half"}, [False]),
        ({"maxUnavailable": 2}, [True, True]),
        ({"maxUnavailable": 0}, [False]),
    ],
)
async def test_evictions_respect_disruption_budgets(client: Client, limit: Json, evicted: list[bool]) -> None:
    for name in ("a", "b"):
        await running(client, name)
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["x"]}]}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}}
    await client.post(BUDGETS, {**body, "spec": {"selector": selector, **limit}})
    of_others = {"selector": {"matchLabels": {"app": "y"}}, "maxUnavailable": 0}
    await client.post(BUDGETS, {**body, "metadata": {"name": "a"}, "spec": of_others})
    for name, expected in zip("ab", evicted, strict=False):
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        answer = await client.call("POST", f"{PODS}/{name}/eviction", eviction)
        assert answer.code == (201 if expected else 429), answer.body
        if not expected:
            assert answer.message == "Cannot evict pod as it would violate the pod's disruption budget."
            assert answer.json["details"]["causes"][0]["reason"] == "DisruptionBudget"


async def test_an_eviction_takes_delete_options(client: Client) -> None:
    await client.post(PODS, pod("p", nodeName="n"))
    eviction = {"metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 3}}
    await client.post(f"{PODS}/p/eviction", eviction)
    assert (await client.get(f"{PODS}/p"))["metadata"]["deletionGracePeriodSeconds"] == 3
    eviction["deleteOptions"] = {"gracePeriodSeconds": 0, "dryRun": ["All"]}
    await client.post(f"{PODS}/p/eviction", eviction)
    assert await client.code(f"{PODS}/p") == 200


async def test_the_status_of_a_pod_names_only_its_own_claims(client: Client) -> None:
    await client.post(PODS, pod("p", resourceClaims=[{"name": "c", "resourceClaimTemplateName": "t"}]))
    statuses = [{"name": "other", "resourceClaimName": "x"}]
    answer = await client.call(
        "PATCH", f"{PODS}/p/status", {"status": {"resourceClaimStatuses": statuses}}, kind=PATCH["merge"]
    )
    assert causes(answer.json) == [("status.resourceClaimStatuses[0].name", "FieldValueInvalid")]
    statuses[0]["name"] = "c"
    changed = await client.patch(f"{PODS}/p/status", {"status": {"resourceClaimStatuses": statuses}}, "strategic")
    assert changed["status"]["resourceClaimStatuses"] == statuses


async def test_debug_containers_come_through_their_own_door(client: Client) -> None:
    await client.post(PODS, pod("p"))
    extra = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "tools"}], "hostNetwork": True}}
    changed = await client.patch(f"{PODS}/p/ephemeralcontainers", extra, "strategic")
    assert [container["name"] for container in changed["spec"]["ephemeralContainers"]] == ["debug"]
    assert "hostNetwork" not in changed["spec"]


async def test_the_resources_of_a_container_come_through_their_own_door(client: Client) -> None:
    requests = {"requests": {"cpu": "1"}}
    containers = [{"name": name, "image": "i", "resources": requests} for name in ("a", "b")]
    await client.post(PODS, pod("p", containers=containers))
    other = [{"name": "b", "image": "other", "resources": {"requests": {"cpu": "2"}}}]
    await client.patch(f"{PODS}/p/resize", {"spec": {"containers": other}}, "strategic")
    found = (await client.get(f"{PODS}/p"))["spec"]["containers"]
    assert [(each["name"], each["image"], each["resources"]["requests"]["cpu"]) for each in found] == [
        ("a", "i", "1"),
        ("b", "i", "2"),
    ]


async def test_a_pod_that_is_being_deleted_is_bound_no_more(client: Client) -> None:
    await client.post(PODS, pod("p", meta={"finalizers": ["example.com/hold"]}))
    await client.delete(f"{PODS}/p")
    answer = await client.call("POST", f"{PODS}/p/binding", binding())
    assert (answer.code, answer.message) == (
        409,
        'Operation cannot be fulfilled on pods/binding "p": pod p is being deleted, cannot be assigned to a host',
    )


async def test_a_container_is_chosen_by_its_name_where_there_are_several(client: Client) -> None:
    await client.post("/api/v1/nodes", {"metadata": {"name": "n"}})
    two, one = ([{"name": name, "image": "i"} for name in names_] for names_ in ("ab", "c"))
    await client.post(PODS, pod("p", nodeName="n", containers=two, initContainers=one))
    for query, said in (
        ({}, "choose one of: [a b] or one of the init containers: [c]"),
        ({"container": "x"}, "container x is not valid for pod p"),
        ({"container": "c"}, "node n does not serve logs and exec: no node agent has registered it"),
    ):
        answer = await client.call("GET", f"{PODS}/p/log", **query)
        assert (answer.code, said in answer.message) == (400, True), answer.message
