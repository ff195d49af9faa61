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
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import pipeline
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


LOW = pod("low", 1, "node-0")
WHO = "1 pod of lower priority on node node-0, after which it fits: ns/low (priority 1)"


@pytest.mark.parametrize(
    ("lease", "line"),
    [
        ("", f"with --preemption the operator would end {WHO}"),
        ('{"preemption": false}', f"with --preemption the operator would end {WHO}"),
        ('{"preemption": true}', f"it ends {WHO}"),
    ],
)
def test_the_victims_are_named_whether_preemption_is_on_or_off(lease: str, line: str) -> None:
    assert line in [it.strip() for it in lines(LOW, lease=lease)]


def test_a_pod_that_is_being_deleted_is_waited_for() -> None:
    leaving = pod("low", 1, "node-0", deletionTimestamp="2026-01-01T00:00:30Z")
    text = "it fits on node node-0 once ns/low has ended, being deleted already"
    assert text in [it.strip() for it in lines(leaving)]


def test_of_a_pod_that_nobody_ends_for_no_victim_is_named() -> None:
    assert not any("lower priority" in it for it in lines(pod("equal", 10, "node-0")))
