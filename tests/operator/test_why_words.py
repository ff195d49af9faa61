"""What ``kubectl dra why`` says of pods and claims in every state, on a view in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_operator.allocator import Allocator, Inventory
from dra_operator.app.why import why_claim, why_pod
from dra_operator.cluster import Cluster
from placement_lab import Attributes, wants

ENTRY = [{"name": "gpu", "resourceClaimName": "c"}]
TIME = "2030-01-01T00:00:00Z"
GIVEN = {"devices": {"results": [{"request": "r", "driver": "drv", "pool": "n1", "device": "a"}]}}
ELSEWHERE = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]}
USER = {"resource": "pods", "name": "web", "uid": "uid-web"}


def meta(name: str, **more: Any) -> dict[str, Any]:
    return {"namespace": "ns", "name": name, "uid": f"uid-{name}", "resourceVersion": "1", **more}


def pod(entries: Iterable[Any] = ENTRY, phase: str = "", about: dict[str, Any] | None = None, **spec: Any) -> Pod:
    spec = {"schedulerName": "dra-scheduler", "resourceClaims": list(entries), **spec}
    return convert(Pod, {"metadata": meta("web", **(about or {})), "spec": spec, "status": {"phase": phase}})


def claim(status: Any = None, about: dict[str, Any] | None = None, **request: Any) -> ResourceClaim:
    spec = {"devices": {"requests": [wants(**request)]}}
    return convert(ResourceClaim, {"metadata": meta("c", **(about or {})), "spec": spec, "status": status or {}})


def cluster(*objects: Object, classes: Iterable[str] = ("gpu",)) -> Cluster:
    """One node with one device, and these objects."""
    made = Cluster(Inventory(language=Attributes()))
    for name in classes:
        made.put(convert(DeviceClass, {"metadata": {"name": name}}))
    spec = {
        "driver": "drv",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "a"}],
    }
    made.put(convert(ResourceSlice, {"metadata": {"name": "s"}, "spec": spec}))
    made.put(convert(Node, {"metadata": {"name": "n1"}}))
    for obj in objects:
        made.put(obj)
    return made


def told_of(view: Cluster, what: Pod | ResourceClaim) -> list[str]:
    allocator = Allocator(view.inventory, new_share_id=lambda: "share")
    return list(why_pod(view, allocator, what) if isinstance(what, Pod) else why_claim(view, allocator, what))


PODS: dict[str, tuple[Pod, list[Object], list[str]]] = {
    "it has ended": (pod(phase="Succeeded"), [], ["pod ns/web is done (Succeeded)"]),
    "it has its node, and its claim holds devices": (
        pod(nodeName="n1"),
        [claim({"allocation": GIVEN, "reservedFor": [USER]})],
        ["pod ns/web is assigned to node n1", "  claim c: allocated (drv/n1/a), reserved for web"],
    ),
    "it has its node, and its claim is gone": (
        pod(nodeName="n1"),
        [],
        ["pod ns/web is assigned to node n1", "  claim c: does not exist"],
    ),
    "it is gated": (
        pod(schedulingGates=[{"name": "one"}, {"name": "two"}]),
        [],
        ["pod ns/web waits for its scheduling gates to be removed: one, two"],
    ),
    "somebody else places it": (
        pod(schedulerName=""),
        [claim()],
        [
            "pod ns/web is placed by default-scheduler, not by dra-scheduler; what we would do:",
            "pod ns/web would fit 1 of 1 node: n1",
            "  nothing holds it back any more; if it stays, look at the operator's log",
        ],
    ),
    "its claim does not exist": (pod(), [], ['pod ns/web is not tried: resourceclaim "c" not found']),
    "its class does not exist": (
        pod(),
        [
            convert(
                ResourceClaim,
                {
                    "metadata": meta("c"),
                    "spec": {
                        "devices": {
                            "requests": [
                                {
                                    "name": "r",
                                    "exactly": {"deviceClassName": "none", "allocationMode": "ExactCount", "count": 1},
                                }
                            ]
                        }
                    },
                },
            )
        ],
        [
            "pod ns/web fits no node: claim ns/c, request r: device class none does not exist: create it, or correct "
            "deviceClassName"
        ],
    ),
    "its claim is allocated elsewhere": (
        pod(),
        [claim({"allocation": {**GIVEN, "nodeSelector": ELSEWHERE}})],
        ["pod ns/web would fit 0 of 1 node", "  n1: a claim of the pod is allocated elsewhere"],
    ),
    "an earlier attempt left a claim half made": (
        pod([]),
        [
            claim(
                about={
                    "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
                    "ownerReferences": [
                        {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "uid-web", "controller": True}
                    ],
                }
            )
        ],
        ["pod ns/web is not tried before claims of an earlier attempt are deleted: c"],
    ),
}


@pytest.mark.parametrize(("asked", "others", "lines"), PODS.values(), ids=PODS.keys())
def test_a_pod_is_explained(asked: Pod, others: list[Object], lines: list[str]) -> None:
    assert told_of(cluster(asked, *others), asked) == lines


CLAIMS: dict[str, tuple[ResourceClaim, list[Object], list[str]]] = {
    "it holds devices": (
        claim({"allocation": GIVEN}),
        [],
        ["claim ns/c: allocated (drv/n1/a), reserved for nobody"],
    ),
    "it holds no devices though it is allocated": (
        claim({"allocation": {}}),
        [],
        ["claim ns/c: allocated (no devices), reserved for nobody"],
    ),
    "it is deleted while a pod uses it": (
        claim({"allocation": GIVEN, "reservedFor": [USER]}, {"deletionTimestamp": TIME, "finalizers": ["f"]}),
        [],
        [
            "claim ns/c: allocated (drv/n1/a), reserved for web",
            "  being deleted; waits for its consumers to end: web",
        ],
    ),
    "it is deleted, and nobody uses it": (
        claim({"allocation": GIVEN}, {"deletionTimestamp": TIME, "finalizers": ["f"]}),
        [],
        ["claim ns/c: allocated (drv/n1/a), reserved for nobody", "  being deleted; waits for its finalizers"],
    ),
    "a pod waits for it": (
        claim(count=2),
        [pod()],
        [
            "claim ns/c: not allocated",
            "  pod ns/web would fit 0 of 1 node",
            "    node n1: does not fit (selector)",
            "      claim ns/c, request r needs 2 devices",
            "        the node has 1 device",
            "        1 matches the selectors",
            "      nearest fix: ask for at most 1 device; 1 more would have to be published",
        ],
    ),
}


@pytest.mark.parametrize(("asked", "others", "lines"), CLAIMS.values(), ids=CLAIMS.keys())
def test_a_claim_is_explained(asked: ResourceClaim, others: list[Object], lines: list[str]) -> None:
    assert told_of(cluster(asked, *others), asked) == lines
