"""``kubectl dra why`` names the pods that end, or would end, for a waiting one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.leases import Lease
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.why.changes import Report
from dra_operator.kubectl.why.pods import why_pod
from objects import Make, Obj, user

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod(name: str, rank: int, node: str = "", **meta: Any) -> Pod:
    body = Make.pod(name, claims=[Make.use(name)], node=node, priority=rank)
    return convert(Pod, {**body, "metadata": {**body["metadata"], "uid": f"uid-{name}", **meta}})


def claim(name: str, device: str = "") -> ResourceClaim:
    body = Make.claim(name, uid=f"uid-claim-{name}", finalizers=["resource.kubernetes.io/delete-protection"])
    status: Obj = {}
    if device:
        result = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": device}
        fields = [{"key": "metadata.name", "operator": "In", "values": ["node-0"]}]
        selector = {"nodeSelectorTerms": [{"matchFields": fields}]}
        status = {
            "allocation": {"devices": {"results": [result]}, "nodeSelector": selector},
            "reservedFor": [user(name)],
        }
    return convert(ResourceClaim, {**body, "status": status})


def lines(*pods: Pod, lease: str = "") -> list[str]:
    objects: list[Object] = [
        convert(DeviceClass, Make.device_class()),
        convert(Node, Make.node("node-0")),
        convert(ResourceSlice, Make.slice("node-0", 1)),
        claim("high"),
        *(claim(it.metadata.name, "dev-0") for it in pods),
        *pods,
    ]
    if lease:
        meta = {"name": "dra-operator-dra-scheduler", "annotations": {"dra.kopf.dev/settings": lease}}
        held = {"holderIdentity": "op", "leaseDurationSeconds": 10, "renewTime": "2026-01-01T00:00:00Z"}
        objects.append(convert(Lease, {"metadata": meta, "spec": held}))
    high = pod("high", 10)
    return why_pod(pipeline(Observed([*objects, high], NOW)), high).lines


def gang(rank: int = 10, free: int = 0, topology: str = "") -> Report:
    """A gang of two, which both want a device of a node with two; all but ``free`` of them are held by ``low`` pods."""
    wishes = {"dra.kopf.dev/gang": "g", "dra.kopf.dev/gang-size": "2"}
    if topology:
        wishes["dra.kopf.dev/gang-topology"] = topology
    members = [pod(name, rank, annotations=wishes) for name in ("g-0", "g-1")]
    low = [pod(f"low-{number}", number, "node-0") for number in range(2 - free)]
    claims = [claim(it.metadata.name, f"dev-{number}") for number, it in enumerate(low)]
    objects: list[Object] = [
        convert(DeviceClass, Make.device_class()),
        convert(Node, Make.node("node-0")),
        convert(ResourceSlice, Make.slice("node-0", 2)),
        *(claim(it.metadata.name) for it in members),
    ]
    return why_pod(pipeline(Observed([*objects, *claims, *low, *members], NOW)), members[1])


LOW = pod("low", 1, "node-0")
WHO = "1 pod of lower priority on node node-0, after which it fits: ns/low (priority 1)"


@pytest.mark.parametrize(
    ("lease", "line"),
    [
        ("", f"with --preemption the operator would preempt {WHO}"),
        ('{"preemption": false}', f"with --preemption the operator would preempt {WHO}"),
        ('{"preemption": true}', f"it preempts {WHO}"),
    ],
)
def test_the_victims_are_named_whether_preemption_is_on_or_off(lease: str, line: str) -> None:
    assert line in [it.strip() for it in lines(LOW, lease=lease)]


def test_a_pod_that_is_being_deleted_is_waited_for() -> None:
    leaving = pod("low", 1, "node-0", deletionTimestamp="2026-01-01T00:00:30Z")
    text = "it fits on node node-0 when ns/low, being deleted already, has terminated"
    assert text in [it.strip() for it in lines(leaving)]


def test_of_a_pod_that_nobody_ends_for_no_victim_is_named() -> None:
    assert not any("lower priority" in it for it in lines(pod("equal", 10, "node-0")))


# --- gangs ---


def test_a_pod_of_a_gang_is_judged_with_the_others() -> None:
    report = gang(free=1)
    assert not report.is_clear, "alone it would fit"
    assert report.lines[0].startswith(
        "pod ns/g-1: gang g: only 1 of 2 pods fit together; pod g-0 fits on no other node"
    )
    whole = gang(free=2)
    assert whole.is_clear
    assert whole.lines[0] == "pod ns/g-1: gang g fits together: g-1 on node-0, g-0 on node-0"


def test_what_the_places_of_a_gang_need_in_common_is_named() -> None:
    report = gang(free=2, topology="example.com/rack")
    assert report.lines[0] == "pod ns/g-1: gang g: no node has the label example.com/rack"


def test_the_victims_for_a_gang_are_named() -> None:
    who = "2 pods of lower priority, after which all of gang g fits: ns/low-1 (priority 1), ns/low-0 (priority 0)"
    assert f"with --preemption the operator would preempt {who}" in [it.strip() for it in gang().lines]
    assert not any("of lower priority" in it for it in gang(rank=1).lines)
