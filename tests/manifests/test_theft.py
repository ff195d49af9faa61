"""What a stolen token of the operator is worth: each right of its role is tried, as a thief and as the operator.

For each right there is an attack, and who refuses it. Requests are dry runs, so that the order does not matter.
``HOLDINGS`` is what there is to attack.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bare_client import CLAIMS, EVENTS, NAMESPACES, PATCH, PODS, claim, pod
from command import ROOT
from manifest_accounts import DRIVER, ON_NODE_1, Json, furnish, grant, objects, operator, single_rules
from rbac_cases import RELEASES, ReleaseClient, rbac_server
from waiting import until

CORE, DRA_GROUP, COORDINATION = "", "resource.k8s.io", "coordination.k8s.io"
GATE, OTHER_GATE = {"name": "dra.kopf.dev/allocate"}, {"name": "queue.example.com/wait"}
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
VOLUMES, VOLUME_CLAIMS = "/api/v1/persistentvolumes", "/api/v1/namespaces/default/persistentvolumeclaims"
SYSTEM = f"{NAMESPACES}/kube-system/pods"
TAINT_RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
GROUPED = f"{PODS}/grouped"
ENTRY = {"name": "gpu", "resourceClaimTemplateName": "tmpl"}
POOL_REQUESTS = "/apis/resource.k8s.io/v1alpha3/resourcepoolstatusrequests"
SELECTED, BOUND = "volume.kubernetes.io/selected-node", "pv.kubernetes.io/bound-by-controller"
PROTECTION = "resource.kubernetes.io/delete-protection"
USES = [{"name": "gpu", "resourceClaimName": "here"}]
PLUGGED = {"name": "main", "image": "app:1", "resources": {"limits": {"example.com/gpu": "1"}}}
"""A container with a device of a device plugin."""
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
ON_NODE_2 = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-2"]}]}


def _owned(name: str, kind: str = "Pod", version: str = "v1") -> Json:
    owner = {"apiVersion": version, "kind": kind, "name": "with-device", "uid": "u", "controller": True}
    made = claim(name)
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [owner], "finalizers": [PROTECTION]}}


def _volume(name: str, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/tmp"},
            "storageClassName": "late",
            **spec,
        },
    }


def _volume_claim(name: str, **annotations: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "late",
        },
    }


def lease(name: str) -> Json:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": "its holder"},
    }


def event(name: str, component: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "free", "namespace": "default"},
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "no device",
        "source": {"component": component},
        "reportingComponent": component,
    }


def _taken_by(name: str, **more: str) -> Json:
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": name, **more}


SPOKEN = {"status": {"devices": [{"driver": DRIVER, "pool": "node-1", "device": "gpu", "data": {"address": "mine"}}]}}
"""What only the driver may say of a device of the claim ``here``."""
ALLOCATED = {"status": {"allocation": ON_NODE_1}}
"""Of the claims ``here`` and ``told``; of the latter its driver has said something as well."""

HOLDINGS: list[tuple[str, Json]] = [
    (PODS, pod("free")),
    (PODS, pod("gated", schedulingGates=[GATE, OTHER_GATE])),
    (PODS, pod("queued", schedulingGates=[OTHER_GATE])),
    (PODS, pod("with-device", resourceClaims=USES)),
    (PODS, pod("grouped", schedulingGroup={"podGroupName": "group"})),
    (PODS, pod("plugged", nodeName="node-1", containers=[PLUGGED])),
    (PODS, pod("unplugged", containers=[PLUGGED])),
    (SYSTEM, pod("kube-proxy", nodeName="node-1")),
    (CLAIMS, claim("here")),
    (CLAIMS, claim("told")),
    (CLAIMS, _owned("of-a-pod")),
    (VOLUMES, _volume("free")),
    (VOLUMES, _volume("bound", claimRef=_taken_by("theirs", uid="u"))),
    (VOLUMES, _volume("kept", claimRef=_taken_by("theirs"))),
    (VOLUME_CLAIMS, _volume_claim("waiting")),
    (VOLUME_CLAIMS, _volume_claim("placed", **{SELECTED: "node-1"})),
    *((LEASES, lease(name)) for name in ("kube-scheduler", "kube-controller-manager", "dra-operator-dra-scheduler")),
    (EVENTS, event("theirs", "kubelet")),
    (EVENTS, event("ours", "dra-operator")),
    (TAINT_RULES, {"metadata": {"name": "rule"}, "spec": {"taint": {"key": "k", "effect": "NoExecute"}}}),
    (POOL_REQUESTS, {"metadata": {"name": "asked"}, "spec": {"driver": DRIVER}}),
    (GROUPS, {"metadata": {"name": "group"}, "spec": {"schedulingPolicy": {"basic": {}}, "resourceClaims": [ENTRY]}}),
]


class Theft(NamedTuple):
    """``send`` is the body, or makes it from the object as it is. ``refused``: words of the refusal; "" if none.

    ``or_refused`` are those of another one who refuses it, where a release does not ask by itself.
    """

    verb: str
    resource: str
    path: str
    send: Any = None
    refused: str = ""
    group: str = CORE
    kind: str = "application/json"
    or_refused: str = ""

    @property
    def refusals(self) -> list[str]:
        return list(filter(None, (self.refused, self.or_refused)))

    @property
    def method(self) -> str:
        return {"update": "PUT", "patch": "PATCH", "create": "POST", "delete": "DELETE"}[self.verb]


def changed(*path: str | int, to: Any) -> Callable[[Json], None]:
    """The object with one field changed."""

    def change(obj: Any) -> None:
        for part in path[:-1]:
            obj = obj.setdefault(part, {}) if isinstance(obj, dict) else obj[part]
        obj[path[-1]] = to

    return change


def both(*changes: Callable[[Json], None]) -> Callable[[Json], None]:
    def change(obj: Json) -> None:
        for each in changes:
            each(obj)

    return change


_OPENED = changed("spec", "schedulingGates", to=[OTHER_GATE])
_ONLY_GATED, _ONLY_THESE = "only pods with the scheduling gate", "nothing of a pod but"
_ONLY_STATUS = "of a pod's status the operator changes"
_CONDITION = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no device"}


def _status(field: str, value: Any) -> Json:
    return {"status": {field: value}}


def _pods() -> Iterator[Theft]:
    def update(name: str, change: Callable[[Json], None], refused: str, place: str = PODS) -> Theft:
        return Theft("update", "pods", f"{place}/{name}", change, refused)

    image = changed("spec", "containers", 0, "image", to="evil:1")
    weighed = [{"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]
    apart = [{"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}]
    yield update("kube-proxy", image, _ONLY_GATED, SYSTEM)
    yield update("free", changed("metadata", "labels", to={"app": "other"}), _ONLY_GATED)
    yield update("queued", changed("spec", "schedulingGates", to=[]), _ONLY_GATED)
    yield update("gated", both(_OPENED, image), _ONLY_THESE)
    yield update("gated", both(_OPENED, changed("metadata", "annotations", to={"a": "b"})), _ONLY_THESE)
    yield update("gated", both(_OPENED, changed("metadata", "finalizers", to=["example.com/x"])), _ONLY_THESE)
    yield update("gated", both(_OPENED, changed("spec", "nodeSelector", to={"a": "b"})), _ONLY_THESE)
    for affinity, refused in (({"nodeAffinity": {PREFERRED: weighed}}, _ONLY_THESE),
                              ({"podAntiAffinity": {REQUIRED: apart}}, "pod updates may not change")):  # fmt: skip
        yield update("gated", both(_OPENED, changed("spec", "affinity", to=affinity)), refused)
    yield update("gated", changed("spec", "schedulingGates", to=[]), "and no other")
    yield update("gated", changed("spec", "schedulingGates", to=[GATE]), "and no other")
    terms = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [ON_NODE_2]}}}
    yield update("gated", both(_OPENED, changed("spec", "affinity", to=terms)), "")
    yield Theft("delete", "pods", f"{SYSTEM}/kube-proxy", None, "deletes only pods with devices")
    yield Theft("delete", "pods", f"{PODS}/free", None, "deletes only pods with devices")
    yield Theft("delete", "pods", f"{PODS}/with-device", None, "")
    yield Theft("delete", "pods", GROUPED, None, "")


def _pod_status() -> Iterator[Theft]:
    def patch(name: str, body: Json, refused: str, place: str = PODS) -> Theft:
        return Theft("patch", "pods/status", f"{place}/{name}/status", body, refused, kind=PATCH["merge"])

    yield patch("free", _status("phase", "Failed"), _ONLY_STATUS)
    yield patch("free", _status("podIP", "10.0.0.1"), _ONLY_STATUS)
    yield patch("free", _status("conditions", [{"type": "Ready", "status": "False"}]), _ONLY_STATUS)
    yield patch("free", {"metadata": {"labels": {"app": "other"}}}, _ONLY_STATUS)
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    yield patch("kube-proxy", _status("conditions", disrupted), "disrupts only pods with devices", SYSTEM)
    yield patch("with-device", _status("conditions", disrupted), "")
    yield patch("grouped", _status("conditions", disrupted), "")
    yield patch("free", _status("conditions", [_CONDITION]), "")
    mapping = {"containerName": "main", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"}
    served = _status("extendedResourceClaimStatus", {"resourceClaimName": "x", "requestMappings": [mapping]})
    yield patch("plugged", served, "before the pod has its node")
    yield patch("unplugged", served, "")
    path = f"{PODS}/free/status"
    yield Theft("update", "pods/status", path, changed("status", "message", to="out of memory"), _ONLY_STATUS)
    yield Theft("update", "pods/status", path, changed("status", "qosClass", to="Guaranteed"), "field is immutable")
    names = [{"name": "gpu", "resourceClaimName": "x"}]
    yield Theft("update", "pods/status", f"{PODS}/with-device/status",
                changed("status", "resourceClaimStatuses", to=names), "")  # fmt: skip


def _binding(**meta: Any) -> Json:
    target = {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "free", **meta}, "target": target}


def _bindings() -> Iterator[Theft]:
    path = f"{PODS}/free/binding"
    no = "without annotations or labels"
    yield Theft("create", "pods/binding", path, _binding(annotations={"a": "b"}), no)
    yield Theft("create", "pods/binding", path, _binding(labels={"a": "b"}), no)
    yield Theft("create", "pods/binding", path, _binding(), "")


def _volumes() -> Iterator[Theft]:
    def volume(name: str, change: Callable[[Json], None], refused: str) -> Theft:
        return Theft("update", "persistentvolumes", f"{VOLUMES}/{name}", change, refused)

    def of_claim(name: str, change: Callable[[Json], None], refused: str) -> Theft:
        return Theft("update", "persistentvolumeclaims", f"{VOLUME_CLAIMS}/{name}", change, refused)

    mine = changed("spec", "claimRef", to=_taken_by("mine"))
    only, robbed = "nothing of a volume but", "no volume from its claim"
    yield volume("free", both(mine, changed("spec", "persistentVolumeReclaimPolicy", to="Delete")), only)
    yield volume("free", both(mine, changed("metadata", "labels", to={"a": "b"})), only)
    yield volume("free", both(mine, changed("metadata", "annotations", to={"a": "b"})), only)
    yield volume("bound", changed("spec", "persistentVolumeReclaimPolicy", to="Delete"), only)
    yield volume("bound", mine, robbed)
    yield volume("kept", mine, robbed)
    yield volume("bound", lambda obj: obj["spec"].pop("claimRef"), robbed)
    yield volume("kept", changed("spec", "claimRef", to=_taken_by("theirs", uid="v")), "")
    yield volume("free", both(mine, changed("metadata", "annotations", to={BOUND: "yes"})), "")
    only = "nothing of a claim to a volume but"
    node = changed("metadata", "annotations", SELECTED, to="node-2")
    yield of_claim("waiting", changed("metadata", "annotations", "a", to="b"), only)
    yield of_claim("waiting", changed("metadata", "labels", to={"a": "b"}), only)
    yield of_claim("waiting", changed("spec", "volumeName", to="bound"), only)
    yield of_claim("placed", node, only)
    yield of_claim("placed", lambda obj: obj["metadata"].pop("annotations"), only)
    yield of_claim("waiting", node, "")


def _claims() -> Iterator[Theft]:
    def on(verb: str, name: str, send: Any, refused: str, part: str = "") -> Theft:
        path = "/".join(filter(None, (CLAIMS, name, part)))
        resource = "resourceclaims" + (f"/{part}" if part else "")
        kind = PATCH["merge"] if verb == "patch" else "application/json"
        return Theft(verb, resource, path, send, refused, DRA_GROUP, kind)

    for_pods, finalizers = "only claims that a pod or a PodGroup owns", "its own finalizers and the status"
    yield on("create", "", claim("mine"), for_pods)
    yield on("create", "", _owned("mine", "Deployment", "apps/v1"), for_pods)
    yield on("create", "", _owned("mine"), "")
    yield on("create", "", _owned("mine", "PodGroup", "scheduling.k8s.io/v1beta1"), "")
    yield on("delete", "here", None, for_pods)
    yield on("delete", "of-a-pod", None, "")
    yield on("update", "here", changed("metadata", "labels", to={"a": "b"}), finalizers)
    yield on("update", "here", changed("metadata", "ownerReferences", to=_owned("x")["metadata"]["ownerReferences"]),
             finalizers)  # fmt: skip
    yield on("update", "here", changed("metadata", "finalizers", to=["example.com/x"]), finalizers)
    yield on("update", "here", changed("metadata", "finalizers", to=[PROTECTION]), "")
    yield on("patch", "here", {"metadata": {"annotations": {"dra.kopf.dev/allocate": "Immediate"}}}, finalizers)
    yield on("patch", "of-a-pod", {"metadata": {"finalizers": None}}, "")
    yield on("patch", "here", SPOKEN, 'requires resource="resourceclaims/driver"', "status")._replace(
        or_refused="drivers say what their devices are"
    )
    yield on("patch", "here", _status("allocation", None), "", "status")
    yield on("update", "told", changed("status", to={}), "", "status")
    yield on("update", "here", changed("status", "reservedFor", to=[{"resource": "pods", "name": "p", "uid": "u"}]),
             "", "status")  # fmt: skip


def _leases() -> Iterator[Theft]:
    def on(verb: str, name: str, send: Any, refused: str) -> Theft:
        path = LEASES if verb == "create" else f"{LEASES}/{name}"
        return Theft(verb, "leases", path, send, refused, COORDINATION)

    take = changed("spec", "holderIdentity", to="a thief")
    for name in ("kube-scheduler", "kube-controller-manager"):
        yield on("update", name, take, "cannot update resource")
    for name in ("other", "dra-operator-another"):
        yield on("create", "", lease(name), "the operator has one Lease")
    yield on("update", "dra-operator-dra-scheduler", take, "")


def _rest() -> Iterator[Theft]:
    yield Theft("create", "events", EVENTS, event("new", "kubelet"), "in its own name")
    yield Theft("create", "events", EVENTS, event("new", "dra-operator"), "")
    own = "counts its own events"
    yield Theft("patch", "events", f"{EVENTS}/theirs", {"count": 2}, own, kind=PATCH["merge"])
    yield Theft("patch", "events", f"{EVENTS}/ours", {"message": "other"}, own, kind=PATCH["merge"])
    yield Theft("patch", "events", f"{EVENTS}/ours", {"count": 2}, "", kind=PATCH["merge"])
    said = {"type": "EvictionInProgress", "status": "False", "reason": "None", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    other = {**said, "type": "Ready"}
    for conditions, refused in (([said], ""), ([other], "the condition EvictionInProgress"),
                                ([said, other], "the condition EvictionInProgress")):  # fmt: skip
        yield Theft("patch", "devicetaintrules/status", f"{TAINT_RULES}/rule/status", _status("conditions", conditions),
                    refused, DRA_GROUP, PATCH["merge"])  # fmt: skip
    yield Theft("update", "resourcepoolstatusrequests/status", f"{POOL_REQUESTS}/asked/status",
                changed("status", to={"poolCount": 0, "pools": []}), "", DRA_GROUP)  # fmt: skip
    yield Theft("delete", "resourcepoolstatusrequests", f"{POOL_REQUESTS}/asked", None, "", DRA_GROUP)
    ended = {"type": "DisruptionTarget", "status": "True", "reason": "None", "message": "",
             "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    placed = {**ended, "type": "PodGroupInitiallyScheduled"}
    for change, refused in (
        (changed("status", to={"conditions": [ended]}), "the names of its claims and whether it was placed"),
        (changed("status", to={"conditions": [placed, ended]}), "the names of its claims and whether it was placed"),
        (changed("status", to={"conditions": [placed]}), ""),
        (changed("status", to={"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "c"}]}), ""),
    ):
        yield Theft("update", "podgroups/status", f"{GROUPS}/group/status", change, refused, "scheduling.k8s.io")


THEFTS = [*_pods(), *_pod_status(), *_bindings(), *_volumes(), *_claims(), *_leases(), *_rest()]


CHECKED_BY_THE_SERVER = {("update", "resourceclaims/binding"), ("patch", "resourceclaims/binding")}
"""Verbs that are asked beside those of a write of a claim's status."""

REFUSED = (403, 422)


async def furnished(client: ReleaseClient) -> ReleaseClient:
    await grant(client)
    await furnish(client)
    for path, obj in HOLDINGS:
        if client.serves(path):
            await client.post(path, obj)
    await client.patch(f"{CLAIMS}/here/status", ALLOCATED)
    await client.patch(f"{CLAIMS}/told/status", {"status": {**ALLOCATED["status"], **SPOKEN["status"]}})
    return client


@pytest.fixture(params=RELEASES)
async def administrator(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ReleaseClient]:
    async with rbac_server(request.param, tmp_path) as client:
        await furnished(client)
        thief = operator(client)
        await thief.until(f"{LEASES}/kube-controller-manager", lambda answer: answer.code == 200)

        async def refuses() -> bool:
            return (await thief.call("POST", LEASES, lease("other"), dryRun="All")).code in REFUSED

        await until("the policy is in force", refuses)  # a real server hears of policies by watches
        yield client


async def test_what_a_thief_sends_is_refused_unless_the_operator_sends_the_same(administrator: ReleaseClient) -> None:
    wrong = []
    for theft in thefts_from(administrator):
        body = await body_of(theft, administrator)
        answer = await operator(administrator).call(theft.method, theft.path, body, kind=theft.kind, dryRun="All")
        is_refused = answer.code in REFUSED and any(words in answer.message for words in theft.refusals)
        if not (is_refused if theft.refused else answer.code < 300):
            wrong.append((theft.verb, theft.path, body, theft.refused, answer.body.decode()))
    assert not wrong, "\n".join(map(str, wrong))


def thefts_from(administrator: ReleaseClient) -> list[Theft]:
    """Return the thefts of what the server has."""
    has_groups = administrator.serves(GROUPS)
    return [
        each for each in THEFTS if administrator.serves(each.path) and (has_groups or not each.path.startswith(GROUPED))
    ]


async def body_of(theft: Theft, administrator: ReleaseClient) -> Json | None:
    """What is sent: as written, or the object as it is with a change."""
    if not callable(theft.send):
        return theft.send  # type: ignore[no-any-return]
    body = await administrator.get(theft.path)
    theft.send(body)
    return body


async def test_where_the_server_does_not_ask_who_speaks_of_devices_the_policy_does(tmp_path: Path) -> None:
    async with rbac_server("1.35", tmp_path) as client:
        thief, status = operator(await furnished(client)), f"{CLAIMS}/here/status"
        answer = await thief.call("PATCH", status, SPOKEN, kind=PATCH["merge"])
        assert (answer.code, "not the operator" in answer.message) == (403, True)
        await client.patch(status, SPOKEN)
        freed = {"status": {"devices": None, "allocation": None}}
        assert (await thief.call("PATCH", status, freed, kind=PATCH["merge"])).code == 200


async def test_others_are_not_concerned(administrator: ReleaseClient) -> None:
    for theft in thefts_from(administrator):
        if theft.refused:
            body = await body_of(theft, administrator)
            answer = await administrator.call(theft.method, theft.path, body, kind=theft.kind, dryRun="All")
            assert "ValidatingAdmissionPolicy" not in answer.body.decode(), theft


def test_each_right_to_write_is_tried_and_told_of() -> None:
    rules = single_rules(obj for obj in objects() if obj["metadata"]["name"].startswith("dra-operator"))
    rights = {(rule.verbs[0], rule.resources[0]) for rule in rules if rule.verbs[0] not in ("get", "list", "watch")}
    assert {(theft.verb, theft.resource) for theft in THEFTS} == rights - CHECKED_BY_THE_SERVER
    page = (ROOT / "docs" / "threat-model.md").read_text().partition("## A stolen token of the operator")[2]
    told = re.findall(r"^\| `([a-z/]+)`: ([a-z, ]+) \|", page.partition("\n## ")[0], re.MULTILINE)
    assert {(verb, resource) for resource, verbs in told for verb in verbs.split(", ")} == rights
