"""What ``kubectl dra why`` says of pods and claims in every state, on a view in memory."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.cache import ClaimTemplate, Cluster
from dra_operator.controllers.scheduling.mix import MixLearner
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.why.pods import why_claim, why_pod
from dra_operator.scheduling import Placement
from objects import meta, user
from placement_lab import Attributes, wants

ENTRY = [{"name": "gpu", "resourceClaimName": "c"}]
FROM_TEMPLATE = {"name": "gpu", "resourceClaimTemplateName": "t"}
GATED = "Scheduling is blocked due to non-empty scheduling gates"
REFUSED = {"type": "PodScheduled", "status": "False"}
TIME = "2030-01-01T00:00:00Z"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
GIVEN = {"devices": {"results": [{"request": "r", "driver": "drv", "pool": "n1", "device": "a"}]}}
ATTACHED = {
    "devices": {
        "results": [
            {
                **GIVEN["devices"]["results"][0],
                "bindingConditions": ["attached", "checked"],
                "bindingFailureConditions": ["broken"],
            }
        ]
    },
    "allocationTimestamp": TIME,
}
BROKEN = {
    "driver": "drv",
    "pool": "n1",
    "device": "a",
    "conditions": [{"type": "broken", "status": "True", "reason": "Loose", "message": "no cable"}],
}
ELSEWHERE = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]}
AT_GATE = "pod ns/web waits for devices at the scheduling gate dra.kopf.dev/allocate, which the operator then removes"
NOW_ANYWAY = {"annotations": {"dra.kopf.dev/allocate": "immediate"}}
USER = user("web")


def pod(
    entries: Iterable[Any] = ENTRY,
    phase: str = "",
    about: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> Pod:
    spec = {"schedulerName": "dra-scheduler", "resourceClaims": list(entries), **spec}
    status = {"phase": phase, **(status or {})}
    return convert(Pod, {"metadata": meta("web") | (about or {}), "spec": spec, "status": status})


def claim(status: object = None, about: dict[str, Any] | None = None, **request: Any) -> ResourceClaim:
    spec = {"devices": {"requests": [wants(**request)]}}
    return convert(ResourceClaim, {"metadata": meta("c") | (about or {}), "spec": spec, "status": status or {}})


def cluster(*objects: Object, classes: Iterable[str] = ("gpu",), features: Features | None = None) -> Cluster:
    """One node with one device, and these objects."""
    made = Cluster(Inventory(features, language=Attributes()))
    for name in classes:
        made.apply(convert(DeviceClass, {"metadata": {"name": name}}))
    spec = {
        "driver": "drv",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "a"}],
    }
    made.apply(convert(ResourceSlice, {"metadata": {"name": "s"}, "spec": spec}))
    made.apply(convert(Node, {"metadata": {"name": "n1"}}))
    for obj in objects:
        made.apply(obj)
    return made


def told_of(view: Cluster, what: Pod | ResourceClaim) -> list[str]:
    allocator = Allocator(view.inventory, new_share_id=lambda: "share")
    seen = Observed(list(view.store_of(ResourceSlice)), NOW)
    made = Pipeline(seen, Settings(), view, allocator, Placement(), MixLearner(view, allocator))
    return (why_pod(made, what) if isinstance(what, Pod) else why_claim(made, what)).lines


def tainted() -> ResourceSlice:
    """A newer generation of the pool, whose device has a taint since ``TIME``."""
    pool = {"name": "n1", "generation": 2, "resourceSliceCount": 1}
    devices = [{"name": "a", "taints": [{"key": "broken", "effect": "NoExecute", "timeAdded": TIME}]}]
    spec = {"driver": "drv", "nodeName": "n1", "pool": pool, "devices": devices}
    return convert(ResourceSlice, {"metadata": {"name": "t"}, "spec": spec})


def given(*tolerations: dict[str, Any]) -> dict[str, Any]:
    """An allocation whose device tolerates these taints."""
    return {"devices": {"results": [{**GIVEN["devices"]["results"][0], "tolerations": tolerations}]}}


def shares(**policy: Any) -> ResourceSlice:
    """A newer generation of the pool, whose device is shared: 10Gi of memory, asked for as the policy allows."""
    pool = {"name": "n1", "generation": 2, "resourceSliceCount": 1}
    capacity = {"memory": {"value": "10Gi", "requestPolicy": {"default": "1Gi", **policy}}}
    spec = {
        "driver": "drv",
        "nodeName": "n1",
        "pool": pool,
        "devices": [{"name": "a", "allowMultipleAllocations": True, "capacity": capacity}],
    }
    return convert(ResourceSlice, {"metadata": {"name": "t"}, "spec": spec})


def asks(**amounts: str) -> ResourceClaim:
    request = wants()
    request["exactly"]["capacity"] = {"requests": amounts}
    spec = {"devices": {"requests": [request]}}
    return convert(ResourceClaim, {"metadata": meta("c"), "spec": spec})


def capacity_fix(asked: ResourceClaim, published: ResourceSlice) -> list[str]:
    """The changes that would help, without the line about changing claims."""
    lines = told_of(cluster(asked, pod(), published, features=SHARED), pod())
    place = next((place for place, line in enumerate(lines) if "it would fit" in line), len(lines))
    return [line.strip() for line in lines[place + 1 : -1]]


SHARED = Features(consumable_capacity=True)
RANGE = {"min": "1Gi", "max": "8Gi", "step": "3Gi"}


@pytest.mark.parametrize(
    ("asked", "policy", "fix"),
    [
        ({"memory": "9Gi"}, {"validRange": RANGE}, "ask for at most 7Gi memory instead of 9Gi in"),
        ({"memory": "20Gi"}, {"validRange": RANGE}, "ask for at most 7Gi memory instead of 20Gi in"),
        ({"memory": "20Gi"}, {"validValues": ["1Gi", "4Gi"]}, "ask for at most 4Gi memory instead of 20Gi in"),
        ({"memory": "20Gi"}, {}, "ask for at most 10Gi memory instead of 20Gi in"),
        ({"disk": "1Gi"}, {}, "remove the capacity disk from"),
        ({"disk": "1Gi", "memory": "1Gi"}, {}, "remove the capacity disk from"),
    ],
)
def test_the_fix_for_a_capacity_is_an_amount_that_the_request_policy_allows(
    asked: dict[str, str], policy: dict[str, Any], fix: str
) -> None:
    assert capacity_fix(asks(**asked), shares(**policy)) == [f'on n1: {fix} request "r" of claim ns/c']


THEIRS: list[Object] = [
    convert(ResourceClaim, {"metadata": meta("theirs"), "spec": {"devices": {"requests": [wants()]}}}),
    convert(
        Pod,
        {
            "metadata": meta("other"),
            "spec": {
                "schedulerName": "default-scheduler",
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "theirs"}],
            },
        },
    ),
]
"""A pod of another scheduler that wants a device, and has no condition yet; and its claim."""
FOR_A_MINUTE = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
DYING = {"deletionTimestamp": TIME}
PODS: dict[str, tuple[Pod, list[Object], list[str]]] = {
    "it has ended": (pod(phase="Succeeded"), [], ["pod ns/web is done (Succeeded)"]),
    "it has its node, and its claim holds devices": (
        pod(nodeName="n1"),
        [claim({"allocation": GIVEN, "reservedFor": [USER]})],
        ["pod ns/web is assigned to node n1", "  claim c: allocated (drv/n1/a), reserved for web"],
    ),
    "it is on a tainted device": (
        pod(nodeName="n1"),
        [tainted(), claim({"allocation": given(), "reservedFor": [USER]})],
        [
            "pod ns/web is assigned to node n1",
            "  claim c: allocated (drv/n1/a), reserved for web",
            "  due to be deleted now: device drv/n1/a has taint broken:NoExecute",
        ],
    ),
    "it tolerates the taint for a time": (
        pod(nodeName="n1"),
        [tainted(), claim({"allocation": given(FOR_A_MINUTE), "reservedFor": [USER]})],
        [
            "pod ns/web is assigned to node n1",
            "  claim c: allocated (drv/n1/a), reserved for web",
            "  due to be deleted at 2030-01-01T00:01:00Z: device drv/n1/a has taint broken:NoExecute",
        ],
    ),
    "it is being deleted from a tainted device": (
        pod(nodeName="n1", about=DYING),
        [tainted(), claim({"allocation": given(), "reservedFor": [USER]})],
        [
            "pod ns/web is assigned to node n1",
            "  claim c: allocated (drv/n1/a), reserved for web",
            "  is being deleted since 0s: its kubelet ends it",
        ],
    ),
    "it has its node, and its claim is gone": (
        pod(nodeName="n1"),
        [],
        ["pod ns/web is assigned to node n1", "  claim c: does not exist"],
    ),
    "another scheduler decides on devices of its driver": (
        pod(),
        [claim(), *THEIRS],
        [
            "pod ns/web lets other schedulers decide first, which allocate devices as well",
            "pod ns/web would fit 1 of 1 node: n1",
            "  nothing holds it back any more; if it stays, look at the operator's log",
        ],
    ),
    "another scheduler decides, and the operator does not place the pod": (
        pod(schedulerName="default-scheduler"),
        [claim(), *THEIRS],
        [
            "pod ns/web is placed by default-scheduler, not by dra-scheduler; what dra-operator would do:",
            "pod ns/web would fit 1 of 1 node: n1",
        ],
    ),
    "another scheduler refuses it for a reason that the operator does not see": (
        pod(
            schedulerName="default-scheduler",
            status={"conditions": [{**REFUSED, "reason": "Unschedulable", "message": "0/1 nodes: no quota"}]},
        ),
        [claim()],
        [
            "pod ns/web is placed by default-scheduler, not by dra-scheduler; what dra-operator would do:",
            "pod ns/web would fit 1 of 1 node: n1",
            "  default-scheduler says: 0/1 nodes: no quota",
        ],
    ),
    "it has a device that another scheduler may have given away": (
        pod(),
        [claim({"allocation": GIVEN, "reservedFor": [USER]}), *THEIRS],
        [
            "pod ns/web would fit 1 of 1 node: n1",
            "  waits for a list of all claims, to see that no other scheduler allocated devices of ns/c as well",
        ],
    ),
    "it is gated": (
        pod(schedulingGates=[{"name": "one"}, {"name": "two"}]),
        [claim()],
        ["pod ns/web waits for its scheduling gates to be removed: one, two"],
    ),
    "its gate is misspelt": (
        pod(schedulingGates=[{"name": "dra.kopf.dev/alocate"}]),
        [claim()],
        [
            "pod ns/web waits for its scheduling gates to be removed: dra.kopf.dev/alocate; dra.kopf.dev/alocate is "
            "not the operator's gate, which is dra.kopf.dev/allocate"
        ],
    ),
    "it waits at our gate, fits, and was refused": (
        pod(
            schedulerName="",
            schedulingGates=[{"name": "dra.kopf.dev/allocate"}],
            status={"conditions": [{**REFUSED, "reason": "SchedulingGated", "message": "cannot open the gate: no"}]},
        ),
        [claim()],
        [
            AT_GATE,
            "pod ns/web would fit 1 of 1 node: n1",
            "  apparently nothing holds it back, but its condition says SchedulingGated: cannot open the gate: no",
            "  if that stays, look at the operator's log, and give this command the operator's settings "
            "(--feature-gates)",
        ],
    ),
    "it waits for its turn at our gate": (
        pod(schedulingGates=[{"name": "one"}, {"name": "dra.kopf.dev/allocate"}]),
        [claim()],
        [
            "pod ns/web waits for its scheduling gates to be removed: one; then the operator allocates its devices and "
            "removes dra.kopf.dev/allocate"
        ],
    ),
    "it waits for its turn at our gate, and Volcano waits for ours": (
        pod(
            schedulingGates=[
                {"name": "scheduling.volcano.sh/queue-allocation-gate"},
                {"name": "dra.kopf.dev/allocate"},
                {"name": "one"},
            ]
        ),
        [claim()],
        [
            "pod ns/web waits for its scheduling gates to be removed: one; then the operator allocates its devices and "
            "removes dra.kopf.dev/allocate; scheduling.volcano.sh/queue-allocation-gate is removed after that"
        ],
    ),
    "it waits at our gate": (
        pod(schedulerName="", schedulingGates=[{"name": "dra.kopf.dev/allocate"}]),
        [claim()],
        [
            AT_GATE,
            "pod ns/web would fit 1 of 1 node: n1",
            "  nothing holds it back any more; if it stays, look at the operator's log",
        ],
    ),
    "it waits at our gate with what its scheduler has to decide": (
        pod(
            schedulerName="",
            schedulingGates=[{"name": "dra.kopf.dev/allocate"}],
            volumes=[{"name": "v", "iscsi": {}}],
        ),
        [claim()],
        [
            AT_GATE,
            "pod ns/web is not tried: spec.volumes[0].iscsi is not supported by dra-operator yet; use "
            "a volume that any node can mount, or remove the scheduling gate dra.kopf.dev/allocate, so that the pod's "
            "scheduler allocates its devices",
        ],
    ),
    "another scheduler places it": (
        pod(schedulerName=""),
        [claim()],
        [
            "pod ns/web is placed by default-scheduler, not by dra-scheduler; what dra-operator would do:",
            "pod ns/web would fit 1 of 1 node: n1",
        ],
    ),
    "its claim does not exist": (
        pod(),
        [],
        ['pod ns/web is not tried: resourceclaim "c" not found: create it, or correct resourceClaimName'],
    ),
    "its template does not exist": (
        pod([FROM_TEMPLATE]),
        [],
        [
            "pod ns/web is not tried: ResourceClaim not created yet",
            "  entry gpu: ResourceClaimTemplate ns/t does not exist: create it, or correct resourceClaimTemplateName",
        ],
    ),
    "its claim is still to be made": (
        pod([FROM_TEMPLATE]),
        [convert(ClaimTemplate, {"metadata": meta("t"), "spec": {}})],
        [
            "pod ns/web is not tried: ResourceClaim not created yet",
            "  entry gpu: kube-controller-manager, or else the operator, makes the claim from ResourceClaimTemplate "
            "ns/t; events of the pod (FailedResourceClaimCreation) say why if they cannot",
        ],
    ),
    "its template is too large": (
        pod([FROM_TEMPLATE]),
        [convert(ClaimTemplate, {"metadata": meta("t"), "spec": {"metadata": {"annotations": {"a": "x" * 70_000}}}})],
        [
            "pod ns/web is not tried: ResourceClaim not created yet",
            "  entry gpu: ResourceClaimTemplate ns/t has a spec of 69 KiB, and dra-operator allocates at most 64 KiB: "
            "shorten selectors, tolerations, opaque parameters and a template's annotations, put what all claims share "
            "into the DeviceClass, or ask for some of the devices by another claim",
        ],
    ),
    "its generated claim was deleted": (
        pod([FROM_TEMPLATE], status={"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "made"}]}),
        [],
        ['pod ns/web is not tried: resourceclaim "made" not found; it is being recreated'],
    ),
    "no node has room": (
        pod([], containers=[{"name": "c", "resources": {"requests": {"cpu": "9", "memory": "1Gi"}}}]),
        [convert(Node, {"metadata": {"name": "n2"}, "status": {"allocatable": {"cpu": "7500m", "memory": "2Gi"}}})],
        [
            "pod ns/web would fit 0 of 2 nodes",
            "  n1: Insufficient cpu",
            "    the pod asks for 9; n1 has the most free: 0 of 0",
            "    also: Insufficient memory",
            "      the pod asks for 1Gi; n1 has the most free: 0 of 0",
            "  n2: Insufficient cpu",
            "    the pod asks for 9; n2 has the most free: 7500m of 7500m",
            "  it would fit with this change, which was tried:",
            "    on n2: ask for at most 7500m cpu instead of 9 in container c",
            "    a pod cannot be changed: delete pod ns/web, and create it again",
        ],
    ),
    "no node has the devices for its extended resource": (
        pod([], containers=[{"name": "c", "resources": {"limits": {"example.com/gpu": "5"}}}]),
        [convert(DeviceClass, {"metadata": {"name": "gpus"}, "spec": {"extendedResourceName": "example.com/gpu"}})],
        [
            "pod ns/web would fit 0 of 1 node",
            "  node n1: does not fit (too few devices match)",
            '    extended resource example.com/gpu (device class gpus) request "container-0-request-0" needs 5 devices',
            "      the node has 1 device",
            "      1 matches the selectors",
            "  it would fit with this change, which was tried:",
            "    on n1: ask for at most 1 example.com/gpu instead of 5 in container c",
            "    a pod cannot be changed: delete pod ns/web, and create it again",
        ],
    ),
    "no node has the memory": (
        pod([], containers=[{"name": "c", "resources": {"requests": {"memory": "3Gi"}}}]),
        [],
        [
            "pod ns/web would fit 0 of 1 node",
            "  n1: Insufficient memory",
            "    the pod asks for 3Gi; n1 has the most free: 0 of 0",
            "  no fix found",
        ],
    ),
    "it fits, but a write was refused": (
        pod(status={"conditions": [{**REFUSED, "reason": "SchedulerError", "message": "cannot allocate: a quota"}]}),
        [claim()],
        [
            "pod ns/web would fit 1 of 1 node: n1",
            "  apparently nothing holds it back, but its condition says SchedulerError: cannot allocate: a quota",
            "  if that stays, look at the operator's log, and give this command the operator's settings "
            "(--feature-gates)",
        ],
    ),
    "it fits, and the API server says that it was gated": (
        pod(status={"conditions": [{**REFUSED, "reason": "SchedulingGated", "message": GATED}]}),
        [claim()],
        [
            "pod ns/web would fit 1 of 1 node: n1",
            "  nothing holds it back any more; if it stays, look at the operator's log",
        ],
    ),
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
            "pod ns/web is not tried: claim ns/c, request r: device class none does not exist: create it, or correct "
            "deviceClassName"
        ],
    ),
    "its claim is allocated elsewhere": (
        pod(),
        [claim({"allocation": {**GIVEN, "nodeSelector": ELSEWHERE}})],
        [
            "pod ns/web cannot run: claim c is allocated (drv/n1/a) for node n2, which does not exist",
            "  it would fit with this change, which was tried:",
            "    on n1: delete claim ns/c and create it again, so that it gets other devices",
        ],
    ),
    "its device is being attached": (
        pod(),
        [claim({"allocation": ATTACHED, "reservedFor": [USER]})],
        [
            "pod ns/web waits up to 600 s for binding conditions: "
            "claim ns/c, device drv/n1/a: attached, checked not True"
        ],
    ),
    "its device could not be attached": (
        pod(),
        [claim({"allocation": ATTACHED, "reservedFor": [USER], "devices": [BROKEN]})],
        [
            "pod ns/web releases its devices and is rescheduled: "
            "device binding failed: claim=c, reason=Loose, message=no cable",
            "pod ns/web would fit 0 of 1 node",
            "  n1: resourceclaim not available on the node",
            "    claim c: allocated (drv/n1/a), reserved for web",
        ],
    ),
    "its claim is full": (
        pod(),
        [claim({"allocation": GIVEN, "reservedFor": [{**USER, "uid": str(number)} for number in range(256)]})],
        [
            "pod ns/web is not tried: claim ns/c is used by 256 pods, the most that can share one claim: "
            "wait until one of them ends, or use another claim"
        ],
    ),
    "another claim holds its device as well": (
        pod(),
        [
            claim({"allocation": GIVEN, "reservedFor": [USER]}),
            convert(ResourceClaim, {"metadata": meta("other"), "status": {"allocation": GIVEN}}),
        ],
        ["pod ns/web releases claim ns/c and is rescheduled: drv/n1/a was also allocated to another claim"],
    ),
    "an earlier attempt left a claim half made": (
        pod([], containers=[{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]),
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
        ["pod ns/web is not tried: waiting for stale extended-resource claim c to be deleted"],
    ),
}


@pytest.mark.parametrize(("asked", "others", "lines"), PODS.values(), ids=PODS.keys())
def test_a_pod_is_explained(asked: Pod, others: list[Object], lines: list[str]) -> None:
    assert told_of(cluster(asked, *others), asked) == lines


CLAIMS: dict[str, tuple[ResourceClaim, list[Object], list[str]]] = {
    "it holds devices": (
        claim({"allocation": GIVEN}),
        [],
        ["claim ns/c: allocated (drv/n1/a), not reserved"],
    ),
    "it holds no devices though it is allocated": (
        claim({"allocation": {}}),
        [],
        ["claim ns/c: allocated (no devices), not reserved"],
    ),
    "it is deleted while a pod uses it": (
        claim({"allocation": GIVEN, "reservedFor": [USER]}, {"deletionTimestamp": TIME, "finalizers": ["f"]}),
        [],
        [
            "claim ns/c: allocated (drv/n1/a), reserved for web",
            "  being deleted; waits for its consumers to end: web; then for its finalizers: f",
        ],
    ),
    "it is deleted, and no pod uses it": (
        claim({"allocation": GIVEN}, {"deletionTimestamp": TIME, "finalizers": ["f"]}),
        [],
        ["claim ns/c: allocated (drv/n1/a), not reserved", "  being deleted; waits for its finalizers: f"],
    ),
    "a pod waits for it": (
        claim(count=2),
        [pod()],
        [
            "claim ns/c: not allocated",
            "  pod ns/web would fit 0 of 1 node",
            "    node n1: does not fit (too few devices match)",
            '      claim ns/c request "r" needs 2 devices',
            "        the node has 1 device",
            "        1 matches the selectors",
            "    it would fit with this change, which was tried:",
            '      on n1: ask for at most 1 instead of 2 in request "r" of claim ns/c',
            "      a claim cannot be changed: delete claim ns/c, and create it again",
        ],
    ),
    "it is immediate and has devices": (
        claim({"allocation": GIVEN}, NOW_ANYWAY),
        [],
        [
            "claim ns/c: allocated (drv/n1/a), not reserved",
            "  keeps its devices as long as it has the annotation dra.kopf.dev/allocate: immediate",
        ],
    ),
    "it is immediate and waits": (
        claim(None, NOW_ANYWAY, count=2),
        [],
        [
            "claim ns/c: not allocated",
            "  is to be allocated at once",
            "  claim ns/c would fit 0 of 1 node",
            "    node n1: does not fit (too few devices match)",
            '      claim ns/c request "r" needs 2 devices',
            "        the node has 1 device",
            "        1 matches the selectors",
            "    it would fit with this change, which was tried:",
            '      on n1: ask for at most 1 instead of 2 in request "r" of claim ns/c',
            "      a claim cannot be changed: delete claim ns/c, and create it again",
        ],
    ),
    "it is immediate and a pod of another scheduler waits with it": (
        claim(None, NOW_ANYWAY),
        [pod(schedulerName="")],
        [
            "claim ns/c: not allocated",
            "  is allocated together with a node for one of its waiting pods: web",
            "  pod ns/web is placed by default-scheduler, not by dra-scheduler; what dra-operator would do:",
            "  pod ns/web would fit 1 of 1 node: n1",
        ],
    ),
    "its annotation is wrong": (
        claim(None, {"annotations": {"dra.kopf.dev/allocate": "soon"}}),
        [],
        [
            "claim ns/c: not allocated",
            '  metadata.annotations[dra.kopf.dev/allocate]: "soon" is not supported: use "immediate", or remove the '
            "annotation",
            "  no pod uses it; devices are allocated when one does",
        ],
    ),
}


@pytest.mark.parametrize(("asked", "others", "lines"), CLAIMS.values(), ids=CLAIMS.keys())
def test_a_claim_is_explained(asked: ResourceClaim, others: list[Object], lines: list[str]) -> None:
    assert told_of(cluster(asked, *others), asked) == lines
