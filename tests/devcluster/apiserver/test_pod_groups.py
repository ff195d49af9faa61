"""PodGroups and Workloads: what is stored, refused and changed (kubernetes-1.37.md section 8)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from bare_client import Answer, Client, client_of, pod
from dra_api.releases import Release
from dra_devcluster.apiserver import DevApiServer

Json = dict[str, Any]
ALL = ("GenericWorkload", "DRAWorkloadResourceClaims")
AWARE = ("GangScheduling", "WorkloadAwarePreemption")
GROUPS = "/apis/scheduling.k8s.io/{}/namespaces/default/podgroups"
BETA, ALPHA = GROUPS.format("v1beta1"), GROUPS.format("v1alpha2")
WORKLOADS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/workloads"
CLAIM = {"name": "gpu", "resourceClaimTemplateName": "tmpl"}


@asynccontextmanager
async def serving(release: Release = Release.V1_37, gates: tuple[str, ...] = ALL) -> AsyncIterator[Client]:
    chosen = dict.fromkeys(gates, True)
    async with DevApiServer(release=release, feature_gates=chosen) as server, client_of(server) as client:
        yield client


def group(**spec: Any) -> Json:
    return {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"basic": {}}, **spec}}


def gang(count: int) -> Json:
    return {"gang": {"minCount": count}}


def fields(answer: Answer) -> list[str]:
    """What the server found wrong."""
    return [cause["field"] for cause in answer.json.get("details", {}).get("causes", ())]


async def test_a_group_is_stored_with_its_claims_and_its_default() -> None:
    async with serving() as client:
        made = await client.post(BETA, group(resourceClaims=[CLAIM]))
        assert made["spec"] == {
            "schedulingPolicy": {"basic": {}},
            "resourceClaims": [CLAIM],
            "disruptionMode": {"single": {}},
            "priority": 0,
        }
        assert made["metadata"]["generation"] == 1
        recorded = [{"name": "gpu", "resourceClaimName": "c"}]
        written = await client.put(f"{BETA}/g/status", {**made, "status": {"resourceClaimStatuses": recorded}})
        assert written["status"] == {"resourceClaimStatuses": recorded}


async def test_the_alpha_says_the_same_in_other_words() -> None:
    reference = {"workload": {"workloadName": "w", "podGroupTemplateName": "t"}}
    async with serving(Release.V1_36, (*ALL, *AWARE)) as client:
        made = await client.post(ALPHA, group(podGroupTemplateRef=reference, disruptionMode="PodGroup"))
        assert made["spec"]["podGroupTemplateRef"] == reference
        assert made["spec"]["disruptionMode"] == "PodGroup"
        plain = await client.post(ALPHA, {**group(), "metadata": {"name": "plain"}})
        assert plain["spec"]["disruptionMode"] == "Pod"


async def test_without_its_gate_a_field_is_dropped() -> None:
    constraints = {"topology": [{"key": "rack"}]}
    async with serving(gates=ALL[:1]) as client:
        made = await client.post(BETA, group(resourceClaims=[CLAIM], schedulingConstraints=constraints))
        assert made["spec"].keys() == {"schedulingPolicy", "disruptionMode", "priority"}
        pods = "/api/v1/namespaces/default/pods"
        grouped = {**pod("p")["spec"], "schedulingGroup": {"podGroupName": "g"}}
        member = await client.post(pods, {**pod("p"), "spec": grouped})
        assert member["spec"]["schedulingGroup"] == {"podGroupName": "g"}
    async with serving(gates=()) as client:
        assert (await client.call("GET", BETA)).code == 404
        member = await client.post(pods, {**pod("p"), "spec": grouped})
        assert "schedulingGroup" not in member["spec"]


CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
ENDS = {"disruptionMode": "PodGroup", "priorityClassName": "high"}


def priority_class(name: str, value: int, **more: Any) -> Json:
    return {"metadata": {"name": name}, "value": value, **more}


@pytest.mark.parametrize(
    ("gates", "kept"),
    [((), {}), (AWARE, {**ENDS, "priority": 100})],
    ids=["without WorkloadAwarePreemption", "with it"],
)
async def test_in_1_36_how_a_group_ends_and_its_priority_need_their_gate(gates: tuple[str, ...], kept: Json) -> None:
    """An update cannot bring them either; templates of a Workload are treated alike."""
    workloads = WORKLOADS.replace("v1beta1", "v1alpha2")
    async with serving(Release.V1_36, (*ALL, *gates)) as client:
        await client.post(CLASSES, priority_class("high", 100))
        made = await client.post(ALPHA, group(**ENDS, preemptionPolicy="Never"))
        assert made["spec"] == {"schedulingPolicy": {"basic": {}}, **kept}
        template = {"name": "t", "schedulingPolicy": gang(1), **ENDS, "priority": 7}
        workload = {"metadata": {"name": "w"}, "spec": {"podGroupTemplates": [template]}}
        templates = (await client.post(workloads, workload))["spec"]["podGroupTemplates"]
        assert templates == [template if kept else {"name": "t", "schedulingPolicy": gang(1)}]
        changed = {**made, "spec": {**made["spec"], **ENDS, "priority": 100}}
        assert (await client.put(f"{ALPHA}/g", changed))["spec"] == made["spec"]


@pytest.mark.rule("K37-GATE-03")
async def test_in_1_37_they_come_with_pod_groups_but_a_policy_of_preemption_has_a_gate() -> None:
    ends = {"disruptionMode": {"all": {}}, "priorityClassName": "high"}
    for gates, policy in ((ALL, {}), ((*ALL, "PodGroupPreemptionPolicy"), {"preemptionPolicy": "Never"})):
        async with serving(gates=gates) as client:
            await client.post(CLASSES, priority_class("high", 100, preemptionPolicy="Never"))
            made = await client.post(BETA, group(**ends, parentCompositePodGroupName="parent"))
            assert made["spec"] == {"schedulingPolicy": {"basic": {}}, **ends, **policy, "priority": 100}


async def test_the_class_of_a_group_says_its_priority() -> None:
    async with serving(gates=(*ALL, "PodGroupPreemptionPolicy")) as client:

        async def made(name: str, **spec: Any) -> Any:
            answer = await client.call("POST", BETA, {**group(**spec), "metadata": {"name": name}})
            if answer.code != 201:
                return answer.code, answer.json["message"]
            return [answer.json["spec"].get(key) for key in ("priorityClassName", "priority", "preemptionPolicy")]

        refused = 'podgroups.scheduling.k8s.io "g" is forbidden: '
        assert await made("none") == [None, 0, "PreemptLowerPriority"]
        assert await made("g", priorityClassName="high") == (403, f"{refused}no PriorityClass with name high was found")
        await client.post(CLASSES, priority_class("high", 100, preemptionPolicy="Never"))
        await client.post(CLASSES, priority_class("usual", 20, globalDefault=True))
        await client.post(CLASSES, priority_class("lower", 10, globalDefault=True))
        assert await made("high", priorityClassName="high", priority=100) == ["high", 100, "Never"]
        assert await made("default") == ["lower", 10, "PreemptLowerPriority"]
        computed = "priority admission controller computed {} from the given PriorityClass name"
        assert await made("g", priorityClassName="high", priority=7) == (
            403,
            f"{refused}the integer value of priority (7) must not be provided in pod group spec; "
            + computed.format(100),
        )
        assert await made("g", priorityClassName="high", preemptionPolicy="PreemptLowerPriority") == (
            403,
            f"{refused}the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod group "
            f"spec; {computed.format('Never')}",
        )
        changed = await client.call("PUT", f"{BETA}/default", {**await client.get(f"{BETA}/default"), "spec": {}})
        assert "spec.priority" in fields(changed)


REFUSED = {
    "no policy": (group(schedulingPolicy={}), "spec.schedulingPolicy"),
    "two policies": (group(schedulingPolicy={"basic": {}, **gang(1)}), "spec.schedulingPolicy"),
    "a gang of none": (group(schedulingPolicy=gang(0)), "spec.schedulingPolicy.gang.minCount"),
    "five claims": (group(resourceClaims=[{**CLAIM, "name": f"c{n}"} for n in range(5)]), "spec.resourceClaims"),
    "a name twice": (group(resourceClaims=[CLAIM, CLAIM]), "spec.resourceClaims[1].name"),
    "no source": (group(resourceClaims=[{"name": "gpu"}]), "spec.resourceClaims[0]"),
    "two sources": (group(resourceClaims=[{**CLAIM, "resourceClaimName": "c"}]), "spec.resourceClaims[0]"),
    "no mode": (group(disruptionMode={}), "spec.disruptionMode"),
    "half a reference": (group(workloadRef={"workloadName": "w", "templateName": ""}), "spec.workloadRef.templateName"),
}


@pytest.mark.rule("K37-WL-01")
async def test_what_is_refused_in_a_new_group() -> None:
    """A reference to a workload that does not exist is none of it."""
    async with serving() as client:
        for case, (body, field) in REFUSED.items():
            answer = await client.call("POST", BETA, body)
            assert answer.code == 422, case
            assert fields(answer) == [field], case
        await client.post(BETA, group(workloadRef={"workloadName": "none", "templateName": "t"}))


@pytest.mark.parametrize("release", [Release.V1_36, Release.V1_37], ids=str)
async def test_only_the_size_of_a_gang_may_change_and_only_from_1_37_on(release: Release) -> None:
    at = BETA if release >= Release.V1_37 else ALPHA
    async with serving(release) as client:
        made = await client.post(at, group(schedulingPolicy=gang(3)))

        async def changed(**spec: Any) -> list[str]:
            answer = await client.call("PUT", f"{at}/g", {**made, "spec": {**made["spec"], **spec}})
            return fields(answer)

        assert await changed(schedulingPolicy=gang(2)) == (
            [] if release >= Release.V1_37 else ["spec.schedulingPolicy"]
        )
        made = await client.get(f"{at}/g")
        assert await changed(schedulingPolicy={"basic": {}}) == ["spec.schedulingPolicy"]
        assert await changed(resourceClaims=[CLAIM]) == ["spec.resourceClaims"]
        if release >= Release.V1_37:
            assert await changed(schedulingPolicy=gang(0)) == ["spec.schedulingPolicy.gang.minCount"]


async def test_the_status_names_only_claims_of_the_group() -> None:
    async with serving() as client:
        made = await client.post(BETA, group(resourceClaims=[CLAIM]))
        wrong = [{"name": "other", "resourceClaimName": "c"}]
        answer = await client.call("PUT", f"{BETA}/g/status", {**made, "status": {"resourceClaimStatuses": wrong}})
        assert fields(answer) == ["status.resourceClaimStatuses[0].name"]


async def test_the_templates_of_a_workload_stay() -> None:
    def workload(*names: str, count: int = 1) -> Json:
        templates = [{"name": name, "schedulingPolicy": gang(count)} for name in names]
        return {"metadata": {"name": "w"}, "spec": {"podGroupTemplates": templates}}

    async with serving() as client:
        assert (await client.call("POST", WORKLOADS, workload())).code == 422
        assert (await client.call("POST", WORKLOADS, workload(*[f"t{n}" for n in range(9)]))).code == 422
        of_the_system = workload("a")
        of_the_system["spec"]["podGroupTemplates"][0]["priority"] = 1_000_000_001
        assert fields(await client.call("POST", WORKLOADS, of_the_system)) == ["spec.podGroupTemplates[0].priority"]
        made = await client.post(WORKLOADS, workload("a", "b"))
        more = await client.call("PUT", f"{WORKLOADS}/w", {**made, "spec": workload("a", "b", "c")["spec"]})
        assert fields(more) == ["spec.podGroupTemplates"]
        await client.put(f"{WORKLOADS}/w", {**made, "spec": workload("a", "b", count=2)["spec"]})


async def test_the_claim_of_a_group_is_deleted_with_it() -> None:
    claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    async with serving() as client:
        made = await client.post(BETA, group())
        owner = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": "g"}
        owned = {"name": "c", "ownerReferences": [{**owner, "uid": made["metadata"]["uid"], "controller": True}]}
        await client.post(claims, {"metadata": owned, "spec": {}})
        await client.call("DELETE", f"{BETA}/g")
        await client.gone(f"{claims}/c")


FINALIZER = "scheduling.k8s.io/podgroup-protection"
PODS = "/api/v1/namespaces/default/pods"


async def add_members(client: Client, *names: str) -> None:
    for name in names:
        made = pod(name)
        await client.post(PODS, {**made, "spec": {**made["spec"], "schedulingGroup": {"podGroupName": "g"}}})


@pytest.mark.rule("K37-WL-06")
@pytest.mark.parametrize("end", ["Succeeded", "deleted"])
async def test_a_group_that_is_deleted_stays_until_all_its_pods_have_ended(end: str) -> None:
    """Whether or not it had the finalizer from birth. Pods of no group, and of others, are none of it."""
    async with serving() as client:
        await client.post(PODS, pod("stranger"))
        made = await client.post(BETA, group())
        assert made["metadata"]["finalizers"] == [FINALIZER]
        await client.patch(f"{BETA}/g", {"metadata": {"finalizers": None}})
        await add_members(client, "a", "b")
        await client.until(f"{BETA}/g", lambda answer: answer.json["metadata"].get("finalizers") == [FINALIZER])
        await client.call("DELETE", f"{BETA}/g")
        for name in ("a", "b"):
            assert "deletionTimestamp" in (await client.get(f"{BETA}/g"))["metadata"]
            if end == "deleted":
                await client.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})
            else:
                await client.patch(f"{PODS}/{name}/status", {"status": {"phase": end}})
        await client.gone(f"{BETA}/g")


@pytest.mark.rule("K37-WL-06")
async def test_a_group_without_pods_goes_at_once_and_before_1_37_with_them() -> None:
    async with serving() as client:
        await client.post(BETA, group())
        await client.call("DELETE", f"{BETA}/g")
        await client.gone(f"{BETA}/g")
    async with serving(Release.V1_36) as client:
        made = await client.post(ALPHA, group())
        assert "finalizers" not in made["metadata"]
        await add_members(client, "a")
        await client.call("DELETE", f"{ALPHA}/g")
        await client.gone(f"{ALPHA}/g")
