"""``kubectl dra why`` names every cause at once, each with what it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest
from dra_api.codec import convert
from dra_api.releases import Release
from dra_api.resource import ResourceSlice
from dra_cel import Reference
from dra_ledger.pools import newest_slices
from dra_operator.kubectl import facts
from dra_operator.kubectl.why import published
from scheduling_causes import DRIVER, asks, claim, device_class, lease, node, owned, pod, slice_, template
from told import Json, told

HELD: Final = claim(asks(count=2), name="other", held=["gpu-1/gpu-0", "gpu-1/gpu-1"])
"""All devices of gpu-1, reserved for no pod."""
IN_USE: Final = "delete claim ns/other, reserved for no pod"
WEB: Final = [{"key": "web", "effect": "NoSchedule"}]


def waits(**spec: Any) -> Json:
    """The pod with a claim ``c``, unless its spec says otherwise."""
    entries = [{"name": "gpu", "resourceClaimName": "c"}]
    return pod("waits", schedulerName="dra-scheduler", **{"resourceClaims": entries} | spec)


def of_template(name: str) -> list[Json]:
    """Entries for a claim from a template."""
    return [{"name": "gpu", "resourceClaimTemplateName": name}]


GATE: Final = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
CASES: Final = {
    "a gate, and all devices in use": (
        [slice_("gpu-1"), HELD, claim(), waits(**GATE)],
        ["kueue.x-k8s.io/admission"],
        IN_USE,
    ),
    "a volume claim that is missing, and a selector that matches nothing": (
        [
            slice_("gpu-1"),
            claim(asks(selectors=[{"cel": {"expression": f'device.attributes["{DRIVER}"].model == "A100"'}}])),
            waits(uses="data"),
        ],
        ['persistentvolumeclaim "data" not found'],
        'write "a100" instead of "A100"',
    ),
    "a class that is missing, and a tainted node": (
        [node("gpu-1", taints=WEB), slice_("gpu-1"), claim(asks(class_name="absent")), waits()],
        ["device class absent does not exist", "untolerated taint {web: }"],
        "{key: web, operator: Exists",
    ),
    "a mistyped class, and all devices in use": (
        [slice_("gpu-1"), HELD, claim(asks(class_name="gpus")), waits()],
        ["device class gpus does not exist", "; there is gpu"],
        f'gpu instead of gpus in request "gpu" of claim ns/c, and {IN_USE}',
    ),
    "a claim that is not made, and a selector in its template": (
        [slice_("gpu-1"), template("t", asks(count=5)), waits(resourceClaims=of_template("t"))],
        ["ResourceClaimTemplate ns/t", "needs 5 devices"],
        "ask for at most 2 instead of 5",
    ),
    "a mistyped template, and all devices in use": (
        [slice_("gpu-1"), HELD, template("gpus", asks()), waits(resourceClaims=of_template("gpu"))],
        ["ResourceClaimTemplate ns/gpu does not exist", "; there is gpus"],
        f"write resourceClaimTemplateName gpus instead of gpu in the pod, and {IN_USE}",
    ),
    "a claim that is missing, and a cordon": (
        [node("gpu-1", cordoned=True), slice_("gpu-1"), waits()],
        ['resourceclaim "c" not found', "were unschedulable"],
        "uncordon the node",
    ),
    "a cordon, and a driver that is not there": (
        [node("gpu-1", cordoned=True), claim(), waits()],
        ["were unschedulable", f"driver {DRIVER} publishes nothing: start it"],
        "uncordon the node",
    ),
    "no operator, and all devices in use": (
        [slice_("gpu-1"), HELD, claim(), waits()],
        ["there is no Lease dra-operator-dra-scheduler"],
        IN_USE,
    ),
    "a gate, a volume claim, a class, and a taint": (
        [node("gpu-1", taints=WEB), slice_("gpu-1"), claim(asks(class_name="absent")), waits(uses="data", **GATE)],
        ["kueue", 'persistentvolumeclaim "data" not found', "device class absent", "untolerated taint {web: }"],
        "{key: web, operator: Exists",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_cause_is_named(case: str) -> None:
    objects, named, fix = CASES[case]
    nodes = [] if any(it["kind"] == "Node" for it in objects) else [node("gpu-1")]
    found = told([device_class(), *nodes, *objects])
    assert found.code == 3
    for words in named:
        assert words in found.text, found.text
    assert any(fix in text for text in found.advice) if fix else not found.advice, found.text
    everything = told([device_class(), *nodes, *objects], "").text
    assert "nothing holds it back" not in everything
    for words in named:
        if not words.startswith((";", "makes", "driver", "ResourceClaimTemplate", "; there")):
            assert words in everything, everything


def test_what_was_thought_away_is_there_again() -> None:
    """The answer about a second pod does not depend on that about the first."""
    objects = [
        device_class(),
        node("gpu-1"),
        slice_("gpu-1"),
        template("t", asks()),
        waits(resourceClaims=of_template("t")),
    ]
    first = told(objects)
    again = told(first.seen)
    assert again.lines == first.lines
    assert first.code == 3


def test_a_template_of_another_namespace_is_named() -> None:
    objects = [
        device_class(),
        node("gpu-1"),
        template("t", asks(), namespace="other"),
        waits(resourceClaims=of_template("t")),
    ]
    assert "; there is one in namespace other, but a pod uses only templates of its own namespace" in told(objects).text


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({**claim(asks()), "metadata": {"name": "c", "namespace": "other"}}, "; there is one in namespace other, but"),
        (template("c", asks()), "; there is a ResourceClaimTemplate of that name: write resourceClaimTemplateName"),
        (claim(asks(), name="cc"), "; there is cc"),
    ],
)
def test_a_claim_that_is_meant_by_a_wrong_name_is_named(there: Json, said: str) -> None:
    objects = [device_class(), node("gpu-1"), there, waits(resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])]
    assert said in told(objects).text


def test_what_another_scheduler_says_is_told_whatever_the_operator_would_do() -> None:
    pod = waits(resourceClaims=of_template("t"))
    pod["spec"]["schedulerName"] = "default-scheduler"
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "the plugin X says no"}
    pod["status"] = {"phase": "Pending", "conditions": [said]}
    text = told([device_class(), node("gpu-1"), template("t", asks()), pod]).text
    assert "no driver publishes devices" in text
    assert "default-scheduler says: the plugin X says no" in text


def event(reason: str, message: str, *, kind: str = "Pod", name: str = "waits", uid: str = "uid-waits") -> Json:
    """A warning, ten minutes old."""
    about = {"kind": kind, "namespace": "ns", "name": name, "uid": uid}
    meta = {"name": f"{name}-{reason}".lower(), "namespace": "ns"}
    more = {"reason": reason, "message": message, "type": "Warning", "lastTimestamp": "2030-01-01T11:50:00Z"}
    return {"apiVersion": "v1", "kind": "Event", "metadata": meta, "involvedObject": about} | more


def bound(minutes: int = 20, **spec: Any) -> list[Json]:
    """A pod that has its node and its device for so long, and its claim."""
    held = claim(held=["gpu-1/gpu-0"], users=["waits"])
    held["status"]["reservedFor"][0]["uid"] = "uid-waits"
    found = waits(nodeName="gpu-1", **spec)
    since = f"2030-01-01T11:{60 - minutes:02}:00Z"
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
    found["status"] = {"phase": "Pending", "conditions": [scheduled]}
    return [device_class(), node("gpu-1"), slice_("gpu-1"), held, found]


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Failed", 'Failed to pull image "nosuch:1": not found'),
        ("FailedMount", 'MountVolume.SetUp failed for volume "x": configmap "x" not found'),
        ("FailedCreatePodSandBox", "Failed to create pod sandbox: no network"),
        ("FailedPrepareDynamicResources", "prepare dynamic resources: device is gone"),
        ("FailedAttachVolume", "Multi-Attach error for volume"),
    ],
)
def test_a_pod_that_has_its_node_and_does_not_start_says_why(reason: str, message: str) -> None:
    found = told([*bound(), event(reason, message), event("FailedScheduling", "0/1 nodes are available")])
    assert found.code == 3
    assert f"{reason}, 10m ago: {message}" in found.text
    assert "FailedScheduling" not in found.text


def waiting_container(reason: str, message: str, phase: str = "Pending", kind: str = "containerStatuses") -> Json:
    """The status of a pod whose container the kubelet cannot start."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": phase, kind: [{"name": "main", "state": state}]}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            waiting_container("ImagePullBackOff", "no such image"),
            "container main waits, ImagePullBackOff: no such image",
        ),
        (waiting_container("CrashLoopBackOff", "back-off 5m0s", "Running"), "container main waits, CrashLoopBackOff"),
        (
            waiting_container("CreateContainerConfigError", 'secret "x" not found', kind="initContainerStatuses"),
            'init container main waits, CreateContainerConfigError: secret "x" not found',
        ),
        (
            {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no such device"},
            "it failed: UnexpectedAdmissionError: no such device",
        ),
    ],
)
def test_what_the_kubelet_says_in_the_status_is_told_when_its_events_are_gone(status: Json, said: str) -> None:
    objects = bound(1)
    objects[-1]["status"] |= status
    found = told(objects)
    assert said in found.text
    assert found.code == 3
    objects[-1]["status"] |= waiting_container("ContainerCreating", "", status["phase"])
    objects[-1]["status"].pop("initContainerStatuses", None)
    assert told(objects).code == (3 if status["phase"] == "Failed" else 0)


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_pod_with_a_node_that_its_finalizers_keep_names_them(phase: str) -> None:
    objects = bound(1)
    objects[-1]["status"]["phase"] = phase
    objects[-1]["metadata"] |= {"deletionTimestamp": "2030-01-01T11:00:00Z", "finalizers": ["example.com/billing"]}
    found = told(objects)
    assert "example.com/billing" in found.text
    assert found.code == 3


def test_a_node_that_lacks_several_resources_names_each() -> None:
    full = node("gpu-1")
    full["status"]["allocatable"]["pods"] = "0"
    wants = {"container": {"resources": {"requests": {"cpu": "20", "example.com/x": "1"}}}}
    found = told([device_class(), full, slice_("gpu-1"), claim(), waits(**wants)])
    for words in ("Insufficient cpu", "too many pods", "cannot fit resource example.com/x"):
        assert words in found.text, found.text


def test_a_pod_that_has_its_node_for_long_and_does_not_start_is_never_clear() -> None:
    found = told(bound())
    assert "has its node for 20 min and has not started, and no event says why: look at its kubelet" in found.text
    assert found.code == 3
    assert told(bound(1)).code == 0


def test_a_driver_whose_pod_is_down_while_its_slices_are_there_is_named() -> None:
    driver = owned(pod("gpu-driver-1", nodeName="gpu-1", labels={"driver": DRIVER}), "DaemonSet", "gpu-driver")
    driver["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
    found = told([*bound(1), driver])
    assert f"driver {DRIVER} has slices for node gpu-1, but its pod there is not ready: ns/gpu-driver-1" in found.text
    assert found.code == 3


def test_a_driver_without_a_pod_on_the_node_of_its_slices_is_named() -> None:
    driver = owned(pod("gpu-driver-2", nodeName="gpu-2", labels={"driver": DRIVER}), "DaemonSet", "gpu-driver")
    found = told([*bound(1), node("gpu-2"), driver])
    assert f"driver {DRIVER} has slices for node gpu-1, but no pod there: it runs in ns/gpu-driver-2" in found.text
    assert found.code == 3


def test_drivers_are_looked_up_once_for_all_pods_that_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand such pods took a minute and a half: each looked at all pods, and at all devices."""
    looks: Counter[str] = Counter()

    def counted(name: str, look: Callable[..., Any]) -> Callable[..., Any]:
        def looked(*given: Any) -> Any:
            looks[name] += 1
            return look(*given)

        return looked

    monkeypatch.setattr(facts, "driver_pods", counted("pods of a driver", facts.driver_pods))
    monkeypatch.setattr(f"{published.__name__}.newest_slices", counted("devices", newest_slices))
    *others, held, pending = bound()
    names = [f"waits-{it:02}" for it in range(20)]
    held["status"]["reservedFor"] = [{"resource": "pods", "name": it, "uid": f"uid-{it}"} for it in names]
    many = [{**pending, "metadata": {**pending["metadata"], "name": it, "uid": f"uid-{it}"}} for it in names]
    found = told([*others, held, *many], "")
    said = "20 pods (ns/waits-00, ns/waits-01, ns/waits-02 and 17 more): does not start: has its node for 20 min"
    assert said in found.text
    assert looks == {"pods of a driver": 1, "devices": 1}


def test_a_pod_that_was_deleted_before_it_got_a_node_is_kept_by_its_finalizers() -> None:
    kept = waits(**GATE)
    kept["metadata"] |= {"deletionTimestamp": "2030-01-01T11:00:00Z", "finalizers": ["example.com/billing"]}
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "ns", "deletionTimestamp": "2030-01-01T10:00:00Z", "finalizers": ["x"]},
    }
    found = told([device_class(), namespace, claim(), kept])
    assert "namespace ns was deleted 2h ago and terminates: nothing new is made in it" in found.text
    assert "was deleted 60m ago, before it got a node, and is kept by its finalizers: example.com/billing" in found.text
    assert found.code == 3


@pytest.mark.parametrize(
    ("target", "kind", "name"), [("deployment/web", "ReplicaSet", "web-5d4f"), ("job/train", "Job", "train")]
)
def test_a_controller_that_cannot_make_pods_says_why(target: str, kind: str, name: str) -> None:
    refused = event("FailedCreate", "Error creating: exceeded quota: small", kind=kind, name=name, uid="uid-x")
    other = event("FailedCreate", "another one", kind=kind, name=f"other{name}", uid="uid-y")
    found = told([device_class(), refused, other], target)
    assert f"{kind} {name}: FailedCreate: Error creating: exceeded quota: small" in found.text
    assert "another one" not in found.text
    assert found.code == 3


def test_devices_of_two_kinds_that_no_node_has_together() -> None:
    fpga = "fpga.example.com"
    slices = [slice_("n1"), slice_("n2", driver=fpga), slice_("n3"), node("n3")]
    objects = [device_class(), device_class("fpga", fpga), node("n1"), node("n2"), *slices]
    found = told([*objects, claim(asks(), asks("fpga", class_name="fpga")), waits()])
    together = 'request "gpu" of claim ns/c (on n1, n3), request "fpga" of claim ns/c (on n2)'
    assert f"no node has devices for all of its requests: {together}" in found.text
    assert "no device that is asked for" not in found.text


def test_a_part_of_a_device_that_is_given_away_as_a_whole() -> None:
    part = asks(capacity={"requests": {"memory": "10Gi"}})
    objects = [device_class(), node("gpu-1"), slice_("gpu-1"), HELD, claim(part), waits()]
    text = "gpu.example.com/gpu-1/gpu-0, gpu.example.com/gpu-1/gpu-1: given away as a whole, since it cannot be shared"
    assert text in told(objects).text


def test_an_extended_resource_that_nothing_offers() -> None:
    """A similar name, or the gate that drops it from classes in this release."""
    wants = {"container": {"resources": {"requests": {"example.com/gpus": "1"}, "limits": {"example.com/gpus": "1"}}}}
    objects = [device_class("ext", extendedResourceName="example.com/gpu"), node("gpu-1"), slice_("gpu-1")]
    found = told([*objects, waits(resourceClaims=[], **wants)])
    assert "there is example.com/gpu" in found.text
    assert found.advice == ["on gpu-1: ask for example.com/gpu instead of example.com/gpus in the pod"]
    found = told([*objects, waits(resourceClaims=[], **wants)], release=Release.V1_35)
    assert "the feature gate DRAExtendedResource is off in Kubernetes 1.35" in found.text


def test_a_claim_whose_node_is_gone() -> None:
    held = claim(held=["gpu-9/gpu-0"], node_name="n9")
    found = told([device_class(), node("gpu-1"), slice_("gpu-1"), held, waits()])
    assert "claim c is allocated (gpu.example.com/gpu-9/gpu-0) for node n9, which does not exist" in found.text
    assert found.advice == ["on gpu-1: delete claim ns/c and create it again, so that it gets other devices"]


def test_a_binding_condition_that_is_false_says_why() -> None:
    held = claim(held=["gpu-1/gpu-0"], users=["waits"])
    held["status"]["reservedFor"][0]["uid"] = "uid-waits"
    allocation = held["status"]["allocation"]
    allocation["devices"]["results"][0] |= {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Failed"]}
    allocation["allocationTimestamp"] = "2030-01-01T11:59:00Z"
    condition = {"type": "Attached", "status": "False", "reason": "NoPath", "message": "the fabric has no path"}
    device = {"driver": DRIVER, "pool": "gpu-1", "device": "gpu-0", "conditions": [condition]}
    held["status"]["devices"] = [device]
    found = told([device_class(), node("gpu-1"), slice_("gpu-1"), held, waits()])
    assert "condition Attached is False, NoPath: the fabric has no path" in found.text


def test_the_place_in_the_queue_is_told() -> None:
    others = []
    for number, (priority, minute) in enumerate([(9, 30), (0, 10), (0, 40)]):
        other = pod(f"other-{number}", schedulerName="dra-scheduler", priority=priority)
        other["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": f"o{number}"}]
        other["metadata"]["creationTimestamp"] = f"2030-01-01T11:{minute}:00Z"
        others += [claim(name=f"o{number}"), other]
    mine = waits()
    mine["metadata"]["creationTimestamp"] = "2030-01-01T11:20:00Z"
    found = told([device_class(), node("gpu-1"), slice_("gpu-1"), HELD, claim(), *others, mine])
    assert "1 pod of higher priority waits for devices of the same classes: ns/other-0" in found.text
    assert "by priority and age it is number 3 of the 4 pods that wait for devices of these classes" in found.text


def test_a_gang_says_how_many_of_its_pods_are_missing() -> None:
    members = []
    for number in range(3):
        one = pod("waits" if not number else f"waits-{number}", schedulerName="dra-scheduler")
        one["metadata"]["annotations"] = {"dra.kopf.dev/gang": "train", "dra.kopf.dev/gang-size": "5"}
        members.append(one)
    found = told([node("gpu-1"), *members])
    assert "2 more pods of gang train, which needs 5: 3 are there" in found.text


LED: Final = [lease(), lease("kube-scheduler")]
GONE: Final = {"name": "ns", "deletionTimestamp": "2030-01-01T11:00:00Z"}
ENDING: Final = {"apiVersion": "v1", "kind": "Namespace", "metadata": GONE}
OTHER_REQUEST: Final = {"containers": [{"name": "main", "resources": {"claims": [{"name": "gpu", "request": "nic"}]}}]}
PREPARE: Final = {
    "apiVersion": "v1",
    "kind": "Event",
    "metadata": {"name": "e", "namespace": "ns"},
    "involvedObject": {"kind": "Pod", "name": "waits", "namespace": "ns", "uid": "uid-waits"},
    "reason": "FailedPrepareDynamicResources",
    "message": "the driver is not registered",
    "lastTimestamp": "2030-01-01T11:55:00Z",
}


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([ENDING, waits()], "namespace ns was deleted 60m ago and terminates"),
        ([waits(**OTHER_REQUEST)], "container main names request nic, which its claim does not have; it has gpu"),
        ([waits(nodeName="gpu-9")], "does not start: node gpu-9 does not exist: delete the pod"),
        ([waits(nodeName="gpu-1"), PREPARE], "the driver is not registered"),
    ],
)
def test_what_keeps_a_pod_is_told_of_all_pods_as_well(objects: list[Json], said: str) -> None:
    held = claim(held=["gpu-1/gpu-0"], users=["waits"])
    every = told([device_class(), node("gpu-1"), slice_("gpu-1"), *LED, held, *objects], "")
    assert said in every.text
    assert every.code == 3
    assert "nothing holds it back" not in every.text


def test_a_pod_that_starts_is_not_told() -> None:
    held, runs = claim(held=["gpu-1/gpu-0"], users=["waits"]), waits(nodeName="gpu-1")
    runs["status"] = {"phase": "Pending", "startTime": "2030-01-01T11:59:59Z"}
    every = told([device_class(), node("gpu-1"), slice_("gpu-1"), *LED, held, runs], "")
    assert every.text == "0 pods with claims or extended resources wait"
    assert every.code == 0


def test_a_device_with_a_bare_and_a_qualified_name_of_one_attribute_counts_once() -> None:
    attributes = {"model": {"string": "a100"}, f"{DRIVER}/model": {"string": "a100"}}
    slices = [convert(ResourceSlice, slice_("gpu-1", [{"name": "gpu-0", "attributes": attributes}]))]
    assert published.Published(slices).values(Reference("attributes", DRIVER, "model")) == {"a100": 1}
