"""``kubectl dra fit`` with Workloads of Kueue: all pods start at the same time on nodes of their flavors, or none."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from dra_operator.commands.object_files import decoded
from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.fit import wanted_of
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.whatif.fitting import Fitting, Wanted, fitted, overlay_of
from rounds import fewer
from told import NOW

JSON = dict[str, Any]
DRIVER = "gpu.example.com"
TAINT = {"key": "pool", "value": "b", "effect": "NoSchedule"}
FLAVORS: list[JSON] = [
    {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}
    for name, spec in (
        ("a", {"nodeLabels": {"pool": "a"}}),
        ("b", {"nodeLabels": {"pool": "b"}, "tolerations": [{**TAINT, "operator": "Equal"}]}),
        ("any", {}),
    )
]


def node(name: str, pool: str, devices: int, cpu: int = 64) -> list[JSON]:
    """A node of a pool with its devices; those of pool b are tainted."""
    labels = {"pool": pool, "kubernetes.io/hostname": name}
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": [TAINT] if pool == "b" else []},
            "status": {"allocatable": {"cpu": str(cpu), "pods": "110"}},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"slice-{name}"},
            "spec": {
                "driver": DRIVER,
                "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": f"gpu-{number}"} for number in range(devices)],
            },
        },
    ]


def in_use(node: str, device: str) -> JSON:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": device}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"held-{node}-{device}", "namespace": "ns", "uid": f"uid-{node}-{device}"},
        "spec": {"devices": {"requests": [request]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "other", "uid": "uid-other"}],
        },
    }


def template(devices: int) -> JSON:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": devices}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"gpus-{devices}", "namespace": "ns"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


DEVICE_CLASS: JSON = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


def pod_set(name: str, count: int, devices: int, cpu: int = 1, **metadata: Any) -> JSON:
    spec: JSON = {"containers": [{"name": "main", "resources": {"requests": {"cpu": str(cpu)}}}]}
    if devices:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": f"gpus-{devices}"}]
    return {"name": name, "count": count, "template": {"metadata": metadata, "spec": spec}}


def workload(name: str, sets: Sequence[tuple[JSON, str]], version: str = "v1beta2", **status: Any) -> JSON:
    """With quota in these flavors; an empty one: without quota."""
    assignments = [{"name": it["name"], "flavors": {"cpu": flavor}, "count": it["count"]} for it, flavor in sets]
    admission = {"clusterQueue": "q", "podSetAssignments": assignments} if all(it[1] for it in sets) else None
    return {
        "apiVersion": f"kueue.x-k8s.io/{version}",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"podSets": [it for it, _ in sets]},
        "status": {"admission": admission, **status},
    }


def wanted(*manifests: JSON) -> Wanted:
    return wanted_of(((f"item {number}", item) for number, item in enumerate(manifests, 1)), (), "ns")


def answered(cluster: Sequence[JSON], *manifests: JSON, copies: int | None = 1) -> Fitting:
    objects = [obj for item in (*cluster, DEVICE_CLASS) if (obj := decoded("cluster", item)) is not None]
    asked = wanted(*FLAVORS, template(1), template(2), *manifests)
    overlay = overlay_of(Observed(objects, NOW, namespace="ns"), Settings(), asked)
    return fitted(overlay, asked, copies, tells_left=False)


def nodes_of(found: Fitting) -> list[str]:
    return [pod.node for pod in found.pods]


def test_all_pods_of_a_workload_have_a_place_or_none_has() -> None:
    cluster = [*node("n1", "a", 2), *node("n2", "a", 1)]
    found = answered(cluster, workload("train", [(pod_set("main", 2, 2), "a")]))
    assert nodes_of(found) == ["", ""]
    assert "only 1 of 2 pods fit together" in found.pods[0].reason
    assert "would not fit even if all nodes and devices were free" in found.pods[0].reason
    assert nodes_of(answered(cluster, workload("train", [(pod_set("main", 3, 1), "a")]))) == ["n1", "n1", "n2"]


def test_a_workload_that_does_not_fit_leaves_its_devices_to_the_next() -> None:
    cluster = node("n1", "a", 3)
    large, small = workload("large", [(pod_set("main", 4, 1), "a")]), workload("small", [(pod_set("main", 3, 1), "a")])
    assert nodes_of(answered(cluster, large, small)) == [""] * 4 + ["n1"] * 3


def test_what_an_earlier_workload_was_given_is_not_given_again() -> None:
    cluster = node("n1", "a", 3)
    found = answered(cluster, *(workload(name, [(pod_set("main", 2, 1), "a")]) for name in ("first", "second")))
    assert nodes_of(found) == ["n1", "n1", "", ""]
    assert "even if all nodes" not in found.pods[-1].reason


def test_pod_sets_are_planned_together_so_the_first_leaves_the_only_node_that_the_second_can_use() -> None:
    cluster = [*node("n1", "a", 2), *node("n2", "a", 1)]
    sets = [(pod_set("worker", 1, 1), "a"), (pod_set("driver", 1, 2), "a")]
    assert nodes_of(answered(cluster, workload("mixed", sets))) == ["n2", "n1"]


@pytest.mark.parametrize("nodes", [3, 24, 100])
def test_small_pods_leave_each_node_room_for_a_large_one(nodes: int) -> None:
    """The small ones first would fill nodes, and there are too many ways to move them away again."""
    cluster = [item for number in range(nodes) for item in node(f"n{number}", "a", 4)]
    sets = [(pod_set("driver", nodes, 1), "a"), (pod_set("worker", nodes, 3), "a")]
    found = answered([*cluster, template(3)], workload("spread", sets))
    assert found.fits
    assert Counter(nodes_of(found)) == {f"n{number}": 2 for number in range(nodes)}


def test_a_pod_that_wants_all_devices_of_a_node_comes_first() -> None:
    cluster = [item for number in range(12) for item in node(f"n{number}", "a", 3)]
    every = template(1)
    every["metadata"]["name"] = "gpus-9"
    every["spec"]["spec"]["devices"]["requests"][0]["exactly"] = {"deviceClassName": "gpu", "allocationMode": "All"}
    sets = [(pod_set("small", 18, 1), "a"), (pod_set("large", 6, 9), "a")]
    assert answered([*cluster, every], workload("whole", sets)).fits


def test_pods_that_share_a_claim_are_where_its_device_is() -> None:
    claim = {**template(1), "kind": "ResourceClaim", "spec": template(1)["spec"]["spec"]}
    made = workload("it", [(pod_set("main", 3, 1), "a")])
    entry = {"name": "gpu", "resourceClaimName": "gpus-1"}
    made["spec"]["podSets"][0]["template"]["spec"]["resourceClaims"] = [entry]
    roomy = [*node("n1", "a", 1, cpu=2), *node("n2", "a", 1, cpu=3)]
    assert nodes_of(answered(roomy, claim, made)) == ["n2"] * 3
    assert nodes_of(answered(node("n1", "a", 1, cpu=2), claim, made)) == [""] * 3


def test_a_quota_that_is_too_small_for_all_pods_gives_devices_to_none() -> None:
    hard = {"gpu.deviceclass.resource.k8s.io/devices": "3"}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "ns"},
        "spec": {"hard": hard},
        "status": {"hard": hard, "used": dict.fromkeys(hard, "0")},
    }
    large, small = (workload(f"of-{pods}", [(pod_set("main", pods, 1), "a")]) for pods in (4, 3))
    found = answered([*node("n1", "a", 8), quota], large, small)
    assert nodes_of(found) == [""] * 4 + ["n1"] * 3
    assert "exceeded quota: q" in found.pods[0].reason


def test_pods_go_only_to_nodes_of_their_flavors_and_tolerate_what_these_tolerate() -> None:
    cluster = [*node("n1", "a", 4), *node("n2", "b", 1)]
    assert nodes_of(answered(cluster, workload("it", [(pod_set("main", 1, 1), "b")]))) == ["n2"]
    assert nodes_of(answered(cluster, workload("it", [(pod_set("main", 2, 1), "b")]))) == ["", ""]


def test_copies_are_counted_whole() -> None:
    found = answered(node("n1", "a", 5), workload("it", [(pod_set("main", 2, 1), "a")]), copies=None)
    assert found.copies == 2
    assert found.next is not None
    assert len(found.pods) == 4


def test_a_gang_of_the_pod_template_keeps_its_topology() -> None:
    annotations = {"dra.kopf.dev/gang": "2", "dra.kopf.dev/gang-topology": "kubernetes.io/hostname"}
    gang = workload("it", [(pod_set("main", 2, 1, annotations=annotations), "a")])
    gang["spec"]["podSets"][0]["template"]["spec"]["schedulerName"] = "dra-scheduler"
    assert nodes_of(answered([*node("n1", "a", 1), *node("n2", "a", 1)], gang)) == ["", ""]
    assert nodes_of(answered([*node("n1", "a", 1), *node("n2", "a", 2)], gang)) == ["n2", "n2"]
    assert answered([*node("n1", "a", 2), *node("n2", "a", 2)], gang, copies=2).fits


LEVELS = ["pool", "kubernetes.io/hostname"]
V1BETA1 = {"levels": LEVELS, "domains": [{"values": ["a", "n-1"], "count": 1}, {"values": ["a", "n-2"], "count": 2}]}
V1BETA2 = {
    "levels": LEVELS,
    "slices": [
        {
            "domainCount": 2,
            "valuesPerLevel": [{"universal": "a"}, {"individual": {"prefix": "n-", "roots": ["1", "2"]}}],
            "podCounts": {"individual": [1, 2]},
        }
    ],
}


@pytest.mark.parametrize(("version", "topology"), [("v1beta1", V1BETA1), ("v1beta2", V1BETA2)])
def test_pods_are_in_the_domains_that_kueue_assigned(version: str, topology: JSON) -> None:
    made = workload("it", [(pod_set("main", 3, 1), "a")], version)
    made["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"] = topology
    found = answered([*node("n-1", "a", 9), *node("n-2", "a", 9)], made)
    assert nodes_of(found) == ["n-1", "n-2", "n-2"]
    topology = {**topology, "levels": [*LEVELS, "rack"]}
    made["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"] = topology
    with pytest.raises(Problem, match="item 1: Workload ns/it: pod set main: topologyAssignment has fewer"):
        wanted(made, *FLAVORS)


def test_what_other_admission_checks_add_counts() -> None:
    update = {"name": "main", "nodeSelector": {"kubernetes.io/hostname": "n2"}}
    checks = [{"name": "other", "state": "Ready", "message": "", "podSetUpdates": [update]}]
    made = workload("it", [(pod_set("main", 1, 1), "a")], admissionChecks=checks)
    assert nodes_of(answered([*node("n1", "a", 4), *node("n2", "a", 1)], made)) == ["n2"]


def test_fewer_pods_start_than_the_set_has_where_kueue_says_so() -> None:
    made = workload("it", [(pod_set("main", 6, 1), "a")], reclaimablePods=[{"name": "main", "count": 2}])
    made["status"]["admission"]["podSetAssignments"][0]["count"] = 5
    assert len(answered(node("n1", "a", 4), made).pods) == 3


def test_gates_of_kueue_are_gone_and_others_stay() -> None:
    made = workload("it", [(pod_set("main", 1, 1), "a")])
    spec = made["spec"]["podSets"][0]["template"]["spec"]
    spec["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    assert nodes_of(answered(node("n1", "a", 1), made)) == ["n1"]
    spec["schedulingGates"].append({"name": "example.com/later"})
    assert nodes_of(answered(node("n1", "a", 1), made)) == [""]


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"conditions": [{"type": "Finished", "status": "True"}]}, "it has finished"),
        (
            {"conditions": [{"type": "Admitted", "status": "True"}, {"type": "PodsReady", "status": "True"}]},
            "are ready",
        ),
    ],
)
def test_a_workload_of_which_no_pods_come_is_left_out(status: JSON, why: str) -> None:
    ended, other = (
        workload("old", [(pod_set("main", 1, 1), "a")], **status),
        workload("new", [(pod_set("m", 1, 1), "a")]),
    )
    found = wanted(ended, other, *FLAVORS)
    assert found.size == 1
    assert why in found.notes[0]
    with pytest.raises(Problem, match=why):
        wanted(ended, *FLAVORS)


ADMITTED: list[JSON] = [{"type": "Admitted", "status": "True"}]


def started(name: str, owner: str, node_name: str = "", **annotations: str) -> JSON:
    """A pod of a job, with its node if it has one."""
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": f"uid-{owner}", "controller": True}]
    meta = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "annotations": annotations,
        "ownerReferences": owners,
    }
    spec = {"nodeName": node_name, "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


@pytest.mark.parametrize("owner", ["job", "other"])
def test_what_was_admitted_and_has_not_started_comes_first(owner: str) -> None:
    """Of 3 pods one has its node: 2 devices are kept for the others, wherever the Workload stands in the files."""
    named = {} if owner == "job" else {"kueue.x-k8s.io/workload": "old"}
    cluster = [*node("n1", "a", 4), in_use("n1", "gpu-0"), started("job-0", owner, "n1", **named)]
    old = workload("old", [(pod_set("main", 3, 1), "a")], conditions=ADMITTED)
    old["metadata"]["ownerReferences"] = started("", "job")["metadata"]["ownerReferences"]
    large, small = (workload(f"of-{pods}", [(pod_set("main", pods, 1), "a")]) for pods in (2, 1))
    found = answered(cluster, large, small, old)
    assert [pod.node for pod in found.promised] == ["n1", "n1"]
    assert nodes_of(found) == ["", "", "n1"]
    assert answered(cluster, large, small).pods[0].node == "n1"
    assert answered(cluster, small, old, copies=None).copies == 1


def test_a_pod_that_was_admitted_and_waits_in_the_cluster_is_placed_as_it_is() -> None:
    cluster = [*node("n1", "a", 4, cpu=3), started("job-0", "job")]
    old = workload("old", [(pod_set("main", 2, 1), "a")], conditions=ADMITTED)
    old["metadata"]["ownerReferences"] = started("", "job")["metadata"]["ownerReferences"]
    found = answered(cluster, workload("new", [(pod_set("main", 2, 1), "a")]), old)
    assert [pod.pod for pod in found.promised] == ["ns/job-0", "ns/old-main-0"]
    assert nodes_of(found) == ["", ""]
    assert "Insufficient cpu" in found.pods[0].reason


def test_the_time_limit_counts_for_what_was_admitted_as_well() -> None:
    old = workload("old", [(pod_set("main", 900, 1), "a")], conditions=ADMITTED)
    objects = [obj for it in (*node("n1", "a", 4), DEVICE_CLASS) if (obj := decoded("it", it)) is not None]
    asked = wanted(*FLAVORS, template(1), old, workload("new", [(pod_set("main", 1, 1), "a")]))
    overlay = overlay_of(Observed(objects, NOW, namespace="ns"), Settings(), asked)
    with pytest.raises(Problem, match="before the pods that Kueue has admitted were placed"):
        fitted(overlay, asked, 1, seconds=1e-9)


def test_pods_of_each_set_are_counted_by_themselves() -> None:
    cluster = [
        *node("n1", "a", 9),
        started("a-0", "job", "n1"),
        started("b-0", "job", "n1"),
        started("b-1", "job", "n1"),
    ]
    for pod, name in zip(cluster[2:], "abb", strict=True):
        pod["metadata"]["labels"] = {"kueue.x-k8s.io/podset": name}
    old = workload("old", [(pod_set("a", 3, 1), "a"), (pod_set("b", 2, 2), "a")], conditions=ADMITTED)
    old["metadata"]["ownerReferences"] = started("", "job")["metadata"]["ownerReferences"]
    found = answered(cluster, workload("new", [(pod_set("main", 1, 1), "a")]), old)
    assert [pod.pod for pod in found.promised] == ["ns/old-a-0", "ns/old-a-1"]


def test_without_quota_any_flavor_may_be_used_and_a_note_says_so() -> None:
    found = wanted(workload("it", [(pod_set("main", 2, 1), "")]))
    assert found.notes == ["item 1: Workload ns/it has no quota yet: its pods may use nodes of any flavor"]


def test_what_is_missing_or_contradicts_is_said_with_its_place() -> None:
    made = workload("it", [(pod_set("main", 1, 1), "a")])
    with pytest.raises(Problem, match=r"its ResourceFlavor a is missing; pass .*kubectl get resourceflavors -o yaml"):
        wanted(made)
    made["spec"]["podSets"][0]["template"]["spec"]["nodeSelector"] = {"pool": "b"}
    with pytest.raises(Problem, match="pod set main: node selector pool is b, and ResourceFlavor a sets a"):
        wanted(made, *FLAVORS)
    made["spec"]["podSets"] = "none"
    with pytest.raises(Problem, match=r"item 1: Workload it: .*podSets"):
        wanted(made, *FLAVORS)
    del made["metadata"]["name"]
    with pytest.raises(Problem, match=r"item 1: Workload: metadata\.name is missing"):
        wanted(made)


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("v1 Pod", {"spec": {"nodeName": "n", "containers": []}}, "Pod ns/it names its node"),
        ("apps/v1 Deployment", {"spec": {"replicas": 1}}, "spec.template with the spec of a pod is missing"),
        ("batch/v1 Job", {"metadata": None, "spec": {"template": {"spec": {"containers": []}}}}, "metadata is missing"),
        ("v1 Node", {}, "pass it as an added node"),
    ],
)
def test_a_manifest_that_no_scheduler_can_place_is_refused(kind: str, fields: JSON, said: str) -> None:
    version, name = kind.split()
    with pytest.raises(Problem, match=said):
        wanted({"apiVersion": version, "kind": name, "metadata": {"name": "it", "namespace": "ns"}, **fields})


def test_a_workload_of_another_group_is_none_of_kueue() -> None:
    made = workload("it", [(pod_set("main", 1, 1), "a")])
    made["apiVersion"] = "scheduling.k8s.io/v1beta1"
    found = wanted(made)
    assert [it.together for it in found.pods] == [""]


# --- gangs without Kueue ---


def job(
    pods: int, devices: int = 1, gang: str = "2", scheduler: str = "dra-scheduler", on_one_node: bool = False
) -> JSON:
    topology = {"dra.kopf.dev/gang-topology": "kubernetes.io/hostname"} if on_one_node else {}
    made = pod_set("main", pods, devices, annotations={"dra.kopf.dev/gang": gang, **topology})["template"]
    made["spec"]["schedulerName"] = scheduler
    spec = {"parallelism": pods, "template": made}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job", "namespace": "ns"}, "spec": spec}


def test_a_job_that_is_a_gang_is_placed_as_a_whole() -> None:
    two_ones = [*node("n1", "a", 1), *node("n2", "a", 1)]
    assert nodes_of(answered(two_ones, job(2))) == ["n1", "n2"]
    assert nodes_of(answered(two_ones, job(2, on_one_node=True))) == ["", ""]
    assert nodes_of(answered(two_ones, job(3, gang="3"))) == [""] * 3
    assert nodes_of(answered([*two_ones, *node("n3", "a", 2)], job(2, on_one_node=True))) == ["n3", "n3"]


def test_each_copy_of_a_job_is_a_gang_of_its_own() -> None:
    cluster = [*node("n1", "a", 2), *node("n2", "a", 2), *node("n3", "a", 1)]
    assert answered(cluster, job(2, on_one_node=True), copies=2).fits
    assert answered(cluster, job(2, on_one_node=True), copies=None).copies == 2


def test_pods_beyond_the_size_of_the_gang_join_it_where_it_is() -> None:
    cluster = [*node("n1", "a", 3), *node("n2", "a", 1)]
    assert nodes_of(answered(cluster, job(3, on_one_node=True))) == ["n1"] * 3
    assert nodes_of(answered(cluster, job(4, on_one_node=True))) == ["n1"] * 3 + [""]
    assert sorted(nodes_of(answered(cluster, job(4)))) == ["n1"] * 3 + ["n2"]


def test_pods_of_another_scheduler_do_not_wait_for_a_gang_of_ours() -> None:
    cluster = [*node("n1", "a", 1), *node("n2", "a", 1)]
    assert nodes_of(answered(cluster, job(2, scheduler="default-scheduler", on_one_node=True))) == ["n1", "n2"]
    assert nodes_of(answered(cluster, job(3, gang="9", scheduler="default-scheduler"))) == ["n1", "n2", ""]


def test_a_gang_that_lacks_pods_says_so() -> None:
    found = answered(node("n1", "a", 4), job(2, gang="3"))
    assert nodes_of(found) == ["", ""]
    assert "has fewer than the 3 pods that it needs" in found.pods[0].reason


# --- random workloads on random clusters ---

Room = dict[str, tuple[int, int]]
"""By node: devices and cpu that are free."""


def cluster_of(dice: random.Random) -> tuple[list[JSON], dict[str, str], Room]:
    """Nodes of two pools, some devices in use; the pool and the room of each."""
    objects: list[JSON] = []
    pools: dict[str, str] = {}
    room: Room = {}
    for number in range(dice.randint(1, 4)):
        name, pool, devices, cpu = f"n{number}", dice.choice("ab"), dice.randint(0, 4), dice.randint(2, 6)
        objects += node(name, pool, devices, cpu)
        held = dice.randint(0, devices)
        objects += [in_use(name, f"gpu-{device}") for device in range(held)]
        pools[name], room[name] = pool, (devices - held, cpu)
    return objects, pools, room


def workload_of(dice: random.Random, name: str) -> JSON:
    sets = [
        (pod_set(f"s{number}", dice.randint(1, 3), dice.randint(0, 2), dice.randint(1, 3)), dice.choice(("a", "b")))
        for number in range(dice.randint(1, 2))
    ]
    return workload(name, sets)


def needs_of(made: JSON) -> Iterator[tuple[str, int, int]]:
    """Of each pod in order: its pool, devices and cpu."""
    for each, assigned in zip(made["spec"]["podSets"], made["status"]["admission"]["podSetAssignments"], strict=True):
        spec = each["template"]["spec"]
        claims = spec.get("resourceClaims") or [{"resourceClaimTemplateName": "gpus-0"}]
        devices = int(claims[0]["resourceClaimTemplateName"].removeprefix("gpus-"))
        cpu = int(spec["containers"][0]["resources"]["requests"]["cpu"])
        yield from [(assigned["flavors"]["cpu"], devices, cpu)] * each["count"]


def exists(needs: Sequence[tuple[str, int, int]], pools: dict[str, str], room: Room) -> bool:
    """Whether any placement of all pods exists: every node is tried for each."""
    if not needs:
        return True
    (pool, devices, cpu), *rest = needs
    return any(
        exists(rest, pools, {**room, name: (free - devices, left - cpu)})
        for name, (free, left) in room.items()
        if pools[name] == pool and devices <= free and cpu <= left
    )


@pytest.mark.parametrize("first", range(0, 200, 100))
def test_a_gang_on_one_node_fits_if_any_node_has_room_for_all_of_it(first: int) -> None:
    seen: Counter[bool] = Counter()
    for seed in range(first, first + fewer(100)):
        dice = random.Random(seed)
        cluster, pools, room = cluster_of(dice)
        pods, devices = dice.randint(2, 3), 1
        found = answered(cluster, job(pods, devices, gang=str(pods), on_one_node=True))
        wide = [free >= pods * devices and cpu >= pods and pools[name] == "a" for name, (free, cpu) in room.items()]
        assert found.fits == any(wide), f"seed {seed}"
        assert len(set(nodes_of(found))) == 1, f"seed {seed}"
        seen[found.fits] += 1
    assert min(seen.values()) > fewer(5)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_every_workload_that_is_said_to_fit_can_start_and_no_other_could(first: int) -> None:
    """What was answered is played again by arithmetic of its own, pod by pod."""
    seen: Counter[bool] = Counter()
    for seed in range(first, first + fewer(100)):
        dice = random.Random(seed)
        cluster, pools, room = cluster_of(dice)
        taken = {
            f"{DRIVER}/{it['status']['allocation']['devices']['results'][0]['pool']}/{device}"
            for it in cluster
            if it["kind"] == "ResourceClaim"
            for device in [it["status"]["allocation"]["devices"]["results"][0]["device"]]
        }
        asked = [workload_of(dice, f"w{number}") for number in range(dice.randint(1, 5))]
        facts = list(answered(cluster, *asked).pods)
        for made in asked:
            needs = list(needs_of(made))
            made["status"]["conditions"] = ADMITTED if facts[0].node else []
            its, facts = facts[: len(needs)], facts[len(needs) :]
            fits = all(pod.node for pod in its)
            assert fits or not any(pod.node for pod in its), f"seed {seed}: a part of a workload has a place"
            assert fits == exists(needs, pools, room), f"seed {seed}: {made['metadata']['name']}"
            seen[fits] += 1
            for pod, (pool, devices, cpu) in zip(its, needs, strict=True) if fits else ():
                free, left = room[pod.node]
                room[pod.node] = free - devices, left - cpu
                assert pools[pod.node] == pool
                assert min(room[pod.node]) >= 0
                assert len(set(pod.devices) - taken) == devices == len(pod.devices)
                assert all(device.startswith(f"{DRIVER}/{pod.node}/") for device in pod.devices)
                taken |= set(pod.devices)
        assert not facts
        # Kueue has admitted what fits: all of it can start, also beside one that comes first in the files.
        last = workload_of(dice, "last")
        again = answered(cluster, last, *asked)
        assert all(pod.node for pod in again.promised), f"seed {seed}: a promise is not kept"
        assert bool(again.pods[0].node) == exists(list(needs_of(last)), pools, room), f"seed {seed}: last"
    assert min(seen.values()) > fewer(20)


@pytest.mark.parametrize("is_admitted", [False, True])
def test_a_workload_of_a_billion_pods_is_refused_in_the_words_of_the_check(is_admitted: bool) -> None:
    """An admitted one is no part of the question, and a server that made its pods would need all memory."""
    conditions = [{"type": "Admitted", "status": "True", "reason": "Admitted"}] if is_admitted else []
    huge = workload("huge", [(pod_set("main", 1_000_000_000, 0), "any")], conditions=conditions)
    small = workload("small", [(pod_set("main", 1, 0), "any")])
    with pytest.raises(Problem, match="ns/huge: it has 1000000000 pods, and at most 2000 are planned together"):
        wanted(*FLAVORS, huge, small)


def test_a_topology_assignment_of_a_billion_domains_is_refused_as_fast() -> None:
    huge = workload("huge", [(pod_set("main", 1_000_000_000, 0), "any")])
    values = [{"universal": "x"}]
    domains = {"domainCount": 1_000_000_000, "valuesPerLevel": values, "podCounts": {"universal": 1}}
    assigned = huge["status"]["admission"]["podSetAssignments"][0]
    assigned["topologyAssignment"] = {"levels": ["rack"], "slices": [domains]}
    with pytest.raises(Problem, match="at most 2000 are planned together"):
        wanted(*FLAVORS, huge)


def test_more_pods_of_admitted_workloads_than_an_answer_may_have_are_refused() -> None:
    admitted = [{"type": "Admitted", "status": "True", "reason": "Admitted"}]
    many = [workload(f"job-{it}", [(pod_set("main", 2000, 9), "any")], conditions=admitted) for it in range(6)]
    small = workload("small", [(pod_set("main", 1, 0), "any")])
    with pytest.raises(Problem, match="more than 10000 pods of admitted Workloads have not started"):
        answered([], *many, small)
