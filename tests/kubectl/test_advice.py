"""Advice of ``kubectl dra why`` works when it is followed to the letter, and what cannot work is not given."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dra_api.releases import Release
from dra_operator.kubectl import free
from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.cli import main
from dra_operator.kubectl.why.changes import quantity_of
from dra_operator.wording import amount
from scheduling_causes import (
    DRIVER,
    asks,
    cel,
    claim,
    device,
    device_class,
    lease,
    model,
    node,
    owned,
    pod,
    slice_,
    template,
)
from told import Json, told

NIC = "nic.example.com"
LEASE = lease()


def waiting(*names: str, **spec: Any) -> Json:
    """The pod that waits, with these claims."""
    entries = [{"name": name, "resourceClaimName": name} for name in names or ("c",)]
    return pod("waits", schedulerName="dra-scheduler", **{"resourceClaims": entries} | spec)


def cluster(*more: Json, claims: tuple[Json, ...] = (), **spec: Any) -> list[Json]:
    """The class, the objects, and the pod with its claims."""
    has_class = any(it["kind"] == "DeviceClass" and it["metadata"]["name"] == "gpu" for it in more)
    names = [it["metadata"]["name"] for it in claims]
    return [*([] if has_class else [device_class()]), *more, *claims, waiting(*names, **spec)]


def selecting(expression: str) -> tuple[Json]:
    """A claim for one device with this selector."""
    return (claim(asks(selectors=[cel(expression)])),)


def holder(name: str, device_path: str, *, node_name: str = "gpu-1", driver: str = DRIVER, **spec: Any) -> list[Json]:
    """A claim with a device, and the pod that uses it."""
    held = claim(asks(), name=f"{name}-claim", held=[device_path], node_name=node_name, users=[name])
    held["status"]["allocation"]["devices"]["results"][0]["driver"] = driver
    user = pod(name, nodeName=node_name, **spec)
    user["status"] = {"phase": "Running"}
    user["metadata"]["uid"] = f"uid-{name}"
    return [held, user]


def gpus(*models: str, node_name: str = "gpu-1", **more: Any) -> Json:
    """A slice with a device of each model."""
    return slice_(node_name, [device(f"gpu-{number}", model=it, **more) for number, it in enumerate(models)])


MODEL = f'device.attributes["{DRIVER}"].model'
MEMORY = f'device.capacity["{DRIVER}"].memory'


@pytest.mark.parametrize(
    ("asked", "published", "said"),
    [
        ("A100", {"gpu-1": "h100", "gpu-2": "a100"}, ['on gpu-2: write "a100" instead of "A100"']),
        ("a010", {"gpu-1": "h100", "gpu-2": "a100"}, ['on gpu-2: write "a100" instead of "a010"']),
        ("a10", {"gpu-1": "h100", "gpu-2": "a100"}, ['on gpu-2: write "a100" instead of "a10"']),
        ("a10O", {"gpu-1": "h100", "gpu-2": "a100"}, ['on gpu-2: write "a100" instead of "a10O"']),
        ("h100", {"gpu-1": "h100-sxm", "gpu-2": "l4"}, ['on gpu-1: write "h100-sxm" instead of "h100"']),
        ("b200", {"gpu-1": "h100", "gpu-2": "a100"}, []),
        ("t4", {"gpu-1": "l4"}, []),
    ],
)
def test_a_value_is_proposed_only_for_a_likely_slip(asked: str, published: dict[str, str], said: list[str]) -> None:
    objects = [it for name, model_ in published.items() for it in (node(name), gpus(model_, node_name=name))]
    found = told(cluster(*objects, claims=selecting(f'{MODEL} == "{asked}"')))
    written = [text.partition(" in selector")[0] for text in found.advice if "write" in text]
    assert written == said, found.text


@pytest.mark.parametrize("similar", [f"{DRIVER}/model2", "gpus.example.com/model"])
def test_a_published_attribute_is_not_taken_for_a_slip_of_a_similar_one(similar: str) -> None:
    """The other attribute has the value by chance."""
    attributes = {"model": {"string": "a100"}, similar: {"string": "h100"}}
    devices = [device("gpu-0", attributes=attributes)]
    found = told(cluster(node("gpu-1"), slice_("gpu-1", devices), claims=selecting(f'{MODEL} == "h100"')))
    assert found.advice
    assert not any("model2" in it or "gpus.example.com" in it for it in found.advice)


@pytest.mark.parametrize(
    ("wrong", "domain", "capacity"),
    [("A", DRIVER, "40Gi"), ("h100", "gpu.nvidia.com", "40Gi"), ("h100", DRIVER, "99Gi")],
)
def test_a_fix_names_the_node_that_the_pod_then_gets(wrong: str, domain: str, capacity: str) -> None:
    wants = f'device.attributes["{domain}"].?model.orValue("") == "{wrong}"'
    wants += f' && {MEMORY}.compareTo(quantity("{capacity}")) >= 0'
    objects = [node("n0"), node("n1"), gpus("a100", node_name="n0"), gpus("h100", node_name="n1")]
    found = told(cluster(*objects, claims=selecting(wants)))
    for fix in found.fixes:
        if "instead of" in fix["text"] and wrong == "h100":
            assert fix["node"] == "n1", found.text


@pytest.mark.parametrize(
    ("asked", "there"),
    [("gpu.intel.com", "npu.intel.com"), ("tpu.google.com", "gpu.google.com"), ("gpu.nvidia.com", "gpu.amd.com")],
)
def test_a_driver_that_publishes_nothing_is_to_be_started_and_no_other_one_taken(asked: str, there: str) -> None:
    runs = owned(pod("intel-gpu-plugin-x", nodeName="gpu-1"), "DaemonSet", asked.replace(".", "-"))
    runs["metadata"]["namespace"] = "kube-system"
    runs["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
    found = told(
        cluster(device_class("gpu", asked), node("gpu-1"), slice_("gpu-1", driver=there), runs, claims=(claim(),))
    )
    wanted = (
        f"driver {asked} publishes nothing: start it (pods of its DaemonSet: kube-system/intel-gpu-plugin-x on gpu-1"
    )
    assert wanted in found.text
    assert found.advice == []
    assert "instead of" not in found.text


@pytest.mark.parametrize("release", [Release.V1_33, Release.V1_34])
@pytest.mark.parametrize(
    "spec",
    [
        {"sharedCounters": [{"name": "gpu", "counters": {"memory": {"value": "80Gi"}}}]},
        {"perDeviceNodeSelection": True},
    ],
    ids=["counters beside devices", "a node for each device"],
)
def test_partitions_without_their_feature_gate_are_not_told_to_be_for_other_nodes(release: Release, spec: Json) -> None:
    """The gate is off by default there, for the operator too: the slice names the node, and counts for none."""
    objects = cluster(node("gpu-1"), slice_("gpu-1", **spec), claims=(claim(),))
    found = told(objects, release=release)
    assert "feature gate DRAPartitionableDevices" in found.text
    assert "for none of these nodes" not in found.text


def test_a_mistyped_driver_is_mended_in_the_class() -> None:
    found = told(cluster(device_class("gpu", "gpu.exmaple.com"), node("gpu-1"), slice_("gpu-1"), claims=(claim(),)))
    assert found.advice == [f'on gpu-1: write "{DRIVER}" instead of "gpu.exmaple.com" in selector #0 of class gpu']


def test_of_many_drivers_with_an_attribute_of_that_name_the_domain_of_the_class_is_meant() -> None:
    others = [slice_(f"n{it}", driver=f"d{it}.example.org") for it in range(50)]
    nodes = [node(f"n{it}") for it in range(50)]
    wants = 'device.attributes["nvidia.com"].?model.orValue("") == "a100"'
    found = told(cluster(*nodes, *others, node("gpu-1"), slice_("gpu-1"), claims=selecting(wants)))
    assert found.advice[0] == (
        f'on gpu-1: write "{DRIVER}" instead of "nvidia.com" in selector #0 of request "gpu" of claim ns/c'
    )
    assert all(", and " not in text for text in found.advice)


def numbered(number: int, version: str = "535.104.5") -> Json:
    """A device with a number and a version."""
    attributes: Json = {"model": {"string": "a100"}, "numa": {"int": number}, "driverVersion": {"version": version}}
    attributes |= {"ecc": {"bool": False}, "productName": {"string": "ACME A100-40GB"}}
    return device(f"gpu-{number}", attributes=attributes)


NUMA = f'device.attributes["{DRIVER}"].numa'
VERSION = f'device.attributes["{DRIVER}"].driverVersion'
LONG_NAME = f'device.attributes["{DRIVER}"].productName'


@pytest.mark.parametrize(
    ("wants", "said"),
    [
        (f"{NUMA} == 5", "write 1 instead of 5"),
        (f"{NUMA} > 1", "write 0 instead of 1"),
        (f'{NUMA} == "1"', 'write 1 instead of "1"'),
        (f'{MEMORY}.isGreaterThan(quantity("40Gi"))', 'write "39Gi" instead of "40Gi"'),
        (f'{MEMORY}.compareTo(quantity("40Gi")) > 0', 'write "39Gi" instead of "40Gi"'),
        (f'{MEMORY}.compareTo(quantity("80Gi")) >= 0', 'write "40Gi" instead of "80Gi"'),
        (f'{VERSION} == "535.104.5"', 'write semver("535.104.5") instead of "535.104.5"'),
        (f'{VERSION}.isGreaterThan(semver("550.0.0"))', 'write "535.104.4" instead of "550.0.0"'),
        (f'{MODEL} == "a100" && {NUMA} == 7', "write 1 instead of 7"),
        (f'device.attributes["{DRIVER}"].modle == "a100"', "write model instead of modle"),
        (f'{MODEL}.matches("^A100$")', 'write "^a100$" instead of "^A100$"'),
        (f"{NUMA} == -1", "write 0 instead of -1"),
        (f"{MEMORY}.asInteger() > 42949672960", "write 42949672959 instead of 42949672960"),
        (f"{VERSION}.major() >= 550", "write 535 instead of 550"),
        (f'{MEMORY} >= "40Gi"', f'write {MEMORY}.compareTo(quantity("40Gi")) >= 0 instead of {MEMORY} >= "40Gi"'),
        (f'{VERSION} >= "535"', f'write {VERSION}.compareTo(semver("535", true)) >= 0 instead of'),
        (f'{VERSION} == "535"', 'write semver("535.104.5") instead of "535"'),
        (f'{VERSION}.startsWith("535.")', f"write {VERSION}.major() == 535 instead of"),
        (f'device.attributes["{DRIVER}"].ecc == true', "write false instead of true"),
        (f'{MEMORY}.compareTo(quantity("40GB")) >= 0', 'write "40Gi" instead of "40GB"'),
        (f'{MEMORY}.compareTo(quantity("40 GiB")) >= 0', 'write "40Gi" instead of "40 GiB"'),
        (f'{MEMORY}.isGreaterThan(quantity("41gb"))', 'write "41G" instead of "41gb"'),
        (f'{VERSION}.isGreaterThan(semver("535"))', 'write "535.0.0" instead of "535"'),
        (f'{VERSION}.compareTo(semver("535.104.05")) == 0', 'write "535.104.5" instead of "535.104.05"'),
        (f'{VERSION}.isGreaterThan(semver("v535.1"))', 'write "535.1.0" instead of "v535.1"'),
        (f'{LONG_NAME}.contains("acme")', 'write "ACME" instead of "acme"'),
        (f'{LONG_NAME}.startsWith("A100")', 'write "ACME A100" instead of "A100"'),
        (f'{LONG_NAME}.endsWith("a100")', 'write "A100-40GB" instead of "a100"'),
        (f'{LONG_NAME}.matches("^A100.*$")', 'write "A100" instead of "^A100.*$"'),
        (f'{LONG_NAME} == "A100"', 'write "ACME A100-40GB" instead of "A100"'),
        (f'{LONG_NAME} in ["H100", "a100"]', 'write "ACME A100-40GB" instead of "a100"'),
    ],
)
def test_a_mistake_in_one_literal_is_mended_in_the_literal(wants: str, said: str) -> None:
    found = told(cluster(node("gpu-1"), slice_("gpu-1", [numbered(0), numbered(1)]), claims=selecting(wants)))
    assert found.advice, found.text
    assert said in found.advice[0], found.text


COMPARED = {
    "attributes.productName": '{} == "ACME A100-40GB"',
    "attributes.numa": "{} == 1",
    "attributes.ecc": "!{}",
    "attributes.driverVersion": '{}.isGreaterThan(semver("1.0.0"))',
    "capacity.memory": '{}.compareTo(quantity("1Gi")) > 0',
}
OTHER_KIND = {"attributes": "capacity", "capacity": "attributes"}
WRONG_WAYS: dict[str, Callable[[str, str], str]] = {
    "of the other kind": lambda kind, name: f'device.{OTHER_KIND[kind]}["{DRIVER}"].{name}',
    "without a domain": lambda kind, name: f"device.{kind}.{name}",
    "without a domain, in brackets": lambda kind, name: f'device.{kind}["{name}"]',
    "the domain without brackets": lambda kind, name: f"device.{kind}.{DRIVER}.{name}",
    "domain and name in one": lambda kind, name: f"device.{kind}['{DRIVER}/{name}']",
    "with the field of the slice": lambda kind, name: f'device.{kind}["{DRIVER}"].{name}.value',
}


@pytest.mark.parametrize("way", WRONG_WAYS)
@pytest.mark.parametrize("read", COMPARED)
def test_a_name_that_is_read_in_a_wrong_way_is_mended_in_the_name(read: str, way: str) -> None:
    """These are the forms that users try first; to remove the selector would give them any device."""
    kind, name = read.split(".")
    wrong = WRONG_WAYS[way](kind, name)
    claims = selecting(COMPARED[read].format(wrong))
    found = told(cluster(node("gpu-1"), slice_("gpu-1", [numbered(0), numbered(1)]), claims=claims))
    assert found.advice, found.text
    assert f'write device.{kind}["{DRIVER}"].{name} instead of {wrong} in selector' in found.advice[0], found.text


def test_an_amount_that_is_compared_as_an_attribute_and_as_a_text_is_mended_at_once() -> None:
    claims = selecting(f'device.attributes["{DRIVER}"].memory >= "40Gi"')
    found = told(cluster(node("gpu-1"), slice_("gpu-1", [numbered(0)]), claims=claims))
    assert f'write {MEMORY}.compareTo(quantity("40Gi")) >= 0 as selector #0' in found.advice[0], found.text


def test_two_conditions_that_each_hold_on_another_node_lose_as_little_as_possible() -> None:
    objects = [
        node("n0"),
        node("n1"),
        gpus("h100", memory="40Gi", node_name="n0"),
        gpus("a100", memory="80Gi", node_name="n1"),
    ]
    wants = f'{MODEL} == "h100" && {MEMORY}.compareTo(quantity("80Gi")) >= 0'
    found = told(cluster(*objects, claims=selecting(wants)))
    assert found.advice[0].startswith('on n0: write "40Gi" instead of "80Gi"'), found.text
    assert not any(it.partition(": ")[2].startswith("remove selector") for it in found.advice[:1])


def test_only_holders_of_devices_that_match_are_tried() -> None:
    nics = [device(f"nic-{it:02}") for it in range(20)]
    held = [it for number in range(20) for it in holder(f"nic-{number:02}", f"gpu-1/nic-{number:02}", driver=NIC)]
    objects = [node("gpu-1"), gpus("a100"), slice_("gpu-1", nics, driver=NIC), *held, *holder("train", "gpu-1/gpu-0")]
    for it in objects:
        if it["kind"] == "Node":
            it["status"]["allocatable"]["pods"] = "110"
    found = told(cluster(*objects, claims=(claim(),)))
    assert [text for text in found.advice if "ns/train" in text], found.text
    assert "were not tried" not in found.text


def test_holders_that_were_not_tried_are_named() -> None:
    names = [f"gpu-{it:02}" for it in range(20)]
    held = [it for name in names for it in holder(f"train-{name}", f"gpu-1/{name}")]
    first = node("gpu-1")
    first["status"]["allocatable"]["pods"] = "110"
    objects = [first, slice_("gpu-1", [device(name) for name in names]), *held]
    found = told(cluster(*objects, claims=(claim(asks(count=20)),)))
    assert "gpu-1: 8 other holders of devices that match were not tried: claim ns/train-gpu-12-claim" in found.text


def test_only_rules_for_devices_that_are_asked_for_are_named() -> None:
    def rule(name: str, driver: str) -> Json:
        taint = {"key": name, "effect": "NoSchedule"}
        spec = {"deviceSelector": {"driver": driver}, "taint": taint}
        return {
            "apiVersion": "resource.k8s.io/v1beta2",
            "kind": "DeviceTaintRule",
            "metadata": {"name": name},
            "spec": spec,
        }

    tainted: Json = {"taints": [{"key": "flaky", "effect": "NoSchedule"}]}
    objects = [node("gpu-1"), gpus("a100", **tainted), slice_("gpu-1", driver=NIC), rule("nic-maintenance", NIC)]
    found = told(cluster(*objects, claims=(claim(),)))
    assert "nic-maintenance" not in found.text
    found = told(cluster(*objects, rule("gpu-maintenance", DRIVER), claims=(claim(),)))
    assert (
        "taint gpu-maintenance:NoSchedule on 1 of these devices comes from DeviceTaintRule gpu-maintenance"
        in found.text
    )


def unreachable(name: str) -> Json:
    """A node whose kubelet has stopped to answer."""
    made = node(name, taints=[{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}])
    made["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    return made


def test_a_holder_on_an_unreachable_node_cannot_be_waited_for() -> None:
    lost = holder("train", "net/gpu-0", node_name="gpu-2")
    lost[1]["metadata"] |= {"deletionTimestamp": "2030-01-01T11:00:00Z", "finalizers": ["example.com/x"]}
    del lost[0]["status"]["allocation"]["nodeSelector"]
    objects = [node("gpu-1"), unreachable("gpu-2"), slice_("net", [device("gpu-0")], allNodes=True), *lost]
    found = told(cluster(*objects, claims=(claim(),)))
    assert found.advice, found.text
    assert "wait until pod ns/train" not in found.text
    assert "node gpu-2, which is unreachable and is being deleted for 60m, and cannot end there" in found.advice[0]
    assert "kubectl taint nodes -- gpu-2 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in found.advice[0]


def test_fixes_on_other_nodes_are_told_beside_one_that_takes_an_operator() -> None:
    lost = holder("lost", "gpu-2/gpu-0", node_name="gpu-2")
    lost[1]["metadata"] |= {"deletionTimestamp": "2030-01-01T11:00:00Z", "finalizers": ["example.com/x"]}
    objects = [node("gpu-1"), unreachable("gpu-2"), gpus("a100"), gpus("a100", node_name="gpu-2")]
    found = told(cluster(*objects, *lost, *holder("train", "gpu-1/gpu-0"), claims=(claim(),)))
    assert found.advice[0] == "on gpu-1: wait until pod ns/train ends, or delete it (frees gpu.example.com/gpu-1/gpu-0)"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_holder_that_has_finished_is_not_waited_for(phase: str) -> None:
    done = holder("old", "gpu-1/gpu-0")
    done[1]["status"] = {"phase": phase}
    found = told(cluster(node("gpu-1"), gpus("a100"), *done, claims=(claim(),)))
    assert "wait until pod" not in found.text
    assert "pod ns/old has finished, and one of these releases its claim" in found.advice[0]


def test_holders_that_are_made_again_before_the_pod_are_scaled_down() -> None:
    held, user = holder("web-1", "gpu-1/gpu-0", priority=1000)
    found = told(cluster(node("gpu-1"), gpus("a100"), held, owned(user, "ReplicaSet", "web"), claims=(claim(),)))
    assert "scale down ReplicaSet web, which makes it again" in found.advice[0]


@pytest.mark.parametrize(
    "key",
    [
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "node.cloudprovider.kubernetes.io/shutdown",
        "DeletionCandidateOfClusterAutoscaler",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "node.ocean.example.com/deletion",
        "kubevirt.io/drain",
        "startup-taint.cluster-autoscaler.kubernetes.io/gpu",
        "efs.csi.aws.com/agent-not-ready",
        "node.cluster.x-k8s.io/uninitialized",
        "example.com/gpu-driver-not-installed",
    ],
)
def test_no_pod_tolerates_that_its_node_goes_or_is_not_there_yet(key: str) -> None:
    tainted = node("gpu-1", taints=[{"key": key, "effect": "NoSchedule"}])
    found = told(cluster(tainted, gpus("a100"), claims=(claim(),)))
    assert all(f"wait until the taint {key} goes: node gpu-1 is not there yet" in text for text in found.advice)
    assert "toleration" not in found.text
    assert f"(taint {key})" in found.text


def test_a_condition_that_no_node_has_does_not_end() -> None:
    tainted = node(
        "gpu-1", taints=[{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]
    )
    found = told(cluster(tainted, gpus("a100"), claims=(claim(),)))
    assert "condition" not in found.text
    assert found.advice == [
        "on gpu-1: remove the taint node.kubernetes.io/out-of-service from node gpu-1 "
        "(kubectl taint nodes -- gpu-1 node.kubernetes.io/out-of-service:NoExecute-) if the machine is repaired"
    ]


@pytest.mark.parametrize(
    "label", ["kubernetes.io/hostname", "topology.kubernetes.io/zone", "node.kubernetes.io/instance-type"]
)
def test_labels_that_say_which_machine_it_is_are_not_written(label: str) -> None:
    found = told(cluster(node("gpu-1"), gpus("a100"), claims=(claim(),), nodeSelector={label: "x"}))
    assert found.advice == [f"on gpu-1: remove {label}=x from spec.nodeSelector of the pod"]
    assert "kubectl label" not in found.text
    assert "delete pod ns/waits" in found.text


@pytest.mark.parametrize(
    ("taint", "wait", "words"),
    [
        ({"key": "gpu.example.com/xid-errors", "effect": "NoExecute"}, "is repaired", "hardware is broken"),
        ({"key": "gpu.example.com/gone", "effect": "NoSchedule"}, "is available", "not there, or in use by others"),
        (
            {"key": "hostdev.example.com/in-use-elsewhere", "value": "nics.example.com", "effect": "NoSchedule"},
            "is available",
            "not there, or in use by others",
        ),
    ],
    ids=lambda it: str(it["key"]) if isinstance(it, dict) else "",
)
def test_a_device_that_would_not_serve_is_tolerated_last(taint: Json, wait: str, words: str) -> None:
    """The pod would be placed, and not start or not run."""
    objects = [node("gpu-1"), slice_("gpu-1", [device("gpu-0", taints=[taint]), device("gpu-1")])]
    found = told(cluster(*objects, *holder("train", "gpu-1/gpu-1"), claims=(claim(),)))
    assert any(f"wait until device {DRIVER}/gpu-1/gpu-0 {wait}" in it for it in found.advice[:2])
    assert not any("toleration" in it for it in found.advice[:-1])
    assert "toleration" not in found.text or words in found.advice[-1]


def replaced(request: Json, *devices: Json) -> list[Json]:
    """The claim of the pod asks for another model; its template has this request by now."""
    old = claim(
        asks(selectors=[model("A100")]), name="waits-gpu", annotations={"resource.kubernetes.io/pod-claim-name": "gpu"}
    )
    old = owned(old, "Pod", "waits", "uid-waits")
    return [device_class(), node("gpu-1"), *devices, template("t", request), old, of_template()]


def test_a_claim_from_a_template_that_was_replaced_is_made_again() -> None:
    found = told(replaced(asks(), slice_("gpu-1")))
    assert [text.partition(",")[0] for text in found.advice] == ["on gpu-1: create the pod again"]
    assert "delete ResourceClaimTemplate" not in found.text


def test_a_template_that_was_replaced_by_another_wrong_one_is_mended_as_well() -> None:
    found = told(replaced(asks(selectors=[model("H200")]), gpus("H100")))
    [advice] = found.advice
    assert advice.startswith("on gpu-1: create the pod again, which makes claim ns/waits-gpu anew from what the ")
    assert f', and remove selector #0 of request "gpu" of claim ns/waits-gpu ({MODEL} == "H200")' in advice
    assert "delete ResourceClaimTemplate ns/t, and create it again with the change" in found.text


def test_another_claim_is_mended_while_that_of_a_replaced_template_does() -> None:
    """The template would ask for more devices than there are: its claim is not to be made again."""
    objects = replaced(asks(count=5), gpus("A100", "A100"))
    objects[-1]["spec"]["resourceClaims"].append({"name": "other", "resourceClaimName": "other"})
    found = told([*objects, claim(asks(selectors=[model("H200")]), name="other")])
    assert found.advice
    assert not any("create the pod again" in it for it in found.advice)


def test_an_init_container_that_asks_for_too_much_is_named_and_mended() -> None:
    setup = {"name": "setup", "image": "busybox", "resources": {"requests": {"cpu": "12"}}}
    found = told(cluster(node("gpu-1"), gpus("a100"), claims=(claim(),), initContainers=[setup]))
    assert "init container setup asks for 12; gpu-1 " in found.text
    assert found.advice == ["on gpu-1: ask for at most 8 cpu instead of 12 in init container setup"]


def test_a_node_that_is_being_deleted_does_not_count() -> None:
    going = node("gpu-1", taints=[{"key": "web", "effect": "NoSchedule"}])
    going["metadata"] |= {"deletionTimestamp": "2030-01-01T11:00:00Z", "finalizers": ["karpenter.sh/termination"]}
    found = told(cluster(going, gpus("a100"), *holder("train", "gpu-1/gpu-0"), claims=(claim(),)))
    assert "it is being deleted, so it does not count (kept by karpenter.sh/termination)" in found.text
    assert found.advice == []


def held(**status: Any) -> list[Json]:
    """The claim of a holder with other fields of its status and metadata, and no pod."""
    found = holder("train", "gpu-1/gpu-0")[0]
    found["metadata"] |= status.pop("metadata", {})
    found["status"] |= status
    return [found]


@pytest.mark.parametrize(
    ("holders", "said"),
    [
        (
            held(reservedFor=[], metadata={"deletionTimestamp": "2030-01-01T11:00:00Z", "finalizers": ["x/y"]}),
            "one of these releases claim ns/train-claim, in deletion already",
        ),
        (
            held(reservedFor=[], metadata={"finalizers": ["example.com/keep"]}),
            "delete claim ns/train-claim, reserved for no pod, and see that its finalizer example.com/keep goes",
        ),
        (
            held(reservedFor=[{"apiGroup": "batch", "resource": "jobs", "name": "j", "uid": "j"}]),
            "wait until the consumers of claim ns/train-claim end: jobs.batch j",
        ),
        (
            [*held(), pod("train", nodeName="n9")],
            "delete pod ns/train (kubectl delete pod --force -n ns -- train): its node n9 does not exist",
        ),
    ],
)
def test_who_has_to_act_so_that_devices_are_released_is_said(holders: list[Json], said: str) -> None:
    found = told(cluster(node("gpu-1"), gpus("a100"), *holders, claims=(claim(),)))
    assert said in found.advice[0], found.text


def test_a_daemonset_is_kept_from_the_node_since_it_has_no_replicas() -> None:
    held, agent = holder("agent-1", "gpu-1/gpu-0")
    found = told(cluster(node("gpu-1"), gpus("a100"), held, owned(agent, "DaemonSet", "agent"), claims=(claim(),)))
    assert "keep DaemonSet agent from node gpu-1 (its nodeSelector), which makes it again" in found.advice[0]
    assert "scale down" not in found.text


def test_how_long_a_node_is_unreachable_is_said() -> None:
    lost = unreachable("gpu-1")
    lost["status"]["conditions"][0]["lastTransitionTime"] = "2030-01-01T09:00:00Z"
    found = told(cluster(lost, gpus("a100"), *holder("train", "gpu-1/gpu-0"), claims=(claim(),)))
    assert "node gpu-1, which is unreachable since 3h" in found.text


def of_template(*, is_made: bool = True) -> Json:
    """The pod that waits, with a claim from the template."""
    waits = pod(
        "waits", schedulerName="dra-scheduler", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}]
    )
    statuses = [{"name": "gpu", "resourceClaimName": "waits-gpu"}]
    return waits | ({"status": {"resourceClaimStatuses": statuses}} if is_made else {})


@pytest.mark.parametrize("is_made", [True, False])
def test_a_corrected_class_is_written_where_a_person_can_write_it(is_made: bool) -> None:
    wants = asks(class_name="gup")
    made = claim(wants, name="waits-gpu", annotations={"resource.kubernetes.io/pod-claim-name": "gpu"})
    made = owned(made, "Pod", "waits", "uid-waits")
    waits = of_template(is_made=is_made)
    waits["metadata"]["uid"] = "uid-waits"
    found = told([device_class(), node("gpu-1"), slice_("gpu-1"), template("t", wants), *[made][: int(is_made)], waits])
    assert "write deviceClassName gpu instead of gup" in found.advice[0], found.text
    assert "delete ResourceClaimTemplate ns/t, and create it again with the change" in found.text


def test_a_claim_where_a_template_is_named_is_pointed_out() -> None:
    elsewhere = template("t", namespace="other")
    found = told(
        [device_class(), node("gpu-1"), slice_("gpu-1"), claim(name="t"), elsewhere, of_template(is_made=False)]
    )
    assert "there is a ResourceClaim of that name: write resourceClaimName" in found.text


def test_of_a_shared_device_as_much_is_proposed_as_the_emptiest_one_gives() -> None:
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "40Gi"}}
    share = device(
        "gpu-0", allowMultipleAllocations=True, capacity={"memory": {"value": "40Gi", "requestPolicy": policy}}
    )
    other = holder("other", "gpu-1/gpu-0")
    other[0]["status"]["allocation"]["devices"]["results"][0] |= {
        "shareID": "5d8c3f0e-0000-4000-8000-000000000001",
        "consumedCapacity": {"memory": "30Gi"},
    }
    objects = [it for name in ("gpu-1", "gpu-2") for it in (node(name), slice_(name, [share]))]
    found = told(cluster(*objects, *other, claims=(claim(asks(capacity={"requests": {"memory": "80Gi"}})),)))
    assert found.advice[0].startswith("on gpu-2: ask for at most 40Gi memory"), found.text


def test_pods_that_name_the_gang_with_another_size_are_told() -> None:
    members = []
    for number, size in enumerate("433"):
        one = pod("waits" if not number else f"waits-{number}", schedulerName="dra-scheduler")
        one["metadata"]["annotations"] = {"dra.kopf.dev/gang": "train", "dra.kopf.dev/gang-size": size}
        members.append(one)
    found = told([node("gpu-1"), *members])
    assert "not counted: pods waits-1, waits-2 of a gang train with size 3 instead of 4" in found.text


def test_a_misspelt_scheduler_is_named() -> None:
    waits = waiting()
    waits["spec"]["schedulerName"] = "dra-schedular"
    found = told([device_class(), node("gpu-1"), slice_("gpu-1"), claim(), LEASE, waits])
    assert "(did you mean dra-scheduler?)" in found.text


def test_a_claim_in_deletion_is_kept_by_finalizers_after_its_pods() -> None:
    kept, user = holder("train", "gpu-1/gpu-0")
    kept["metadata"] |= {"deletionTimestamp": "2030-01-01T11:00:00Z"}
    kept["metadata"] |= {"finalizers": ["example.com/keep", "resource.kubernetes.io/delete-protection"]}
    found = told([device_class(), node("gpu-1"), slice_("gpu-1"), kept, user], "claim/train-claim")
    assert "waits for its consumers to end: train; then for its finalizers: example.com/keep" in found.text


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("zone", "A", "on gpu-1: write zone In a, x instead of zone In A, x in spec.affinity.nodeAffinity of the pod"),
        ("zoen", "a", "on gpu-1: write zone In a, x instead of zoen In a, x in spec.affinity.nodeAffinity of the pod"),
        ("zone", "b", "on gpu-1: remove spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"),
    ],
)
def test_a_typing_error_in_the_node_affinity_is_corrected(key: str, value: str, said: str) -> None:
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": [value, "x"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    found = told(
        cluster(node("gpu-1", zone="a"), slice_("gpu-1"), claims=(claim(),), affinity={"nodeAffinity": required})
    )
    assert found.advice[0].startswith(said), found.text


@pytest.mark.parametrize(
    ("attribute", "said"),
    [("Root", f"write matchAttribute: {DRIVER}/root instead of {DRIVER}/Root in"), ("rack", "remove the constraint")],
)
def test_a_typing_error_in_a_constraint_is_corrected(attribute: str, said: str) -> None:
    devices = [device(f"gpu-{it}") for it in range(2)]
    for each in devices:
        each["attributes"]["root"] = {"string": "r"}
    wants = claim(asks(count=2), constraints=[{"matchAttribute": f"{DRIVER}/{attribute}"}])
    found = told(cluster(node("gpu-1"), slice_("gpu-1", devices), claims=(wants,)))
    assert found.advice[0].startswith(f"on gpu-1: {said}"), found.text
    assert any("create it again" in line for line in found.lines)


@pytest.mark.parametrize("published", ["pcieRoot", "example.com/pcieRoot", "pciRoot"])
def test_the_attribute_of_another_domain_is_proposed_for_a_constraint(published: str) -> None:
    """Drivers published the root of PCIe under names of their own before there was a common one."""
    devices = [device(f"gpu-{it}", attributes={published: {"string": "pci0000:00"}}) for it in range(2)]
    wants = claim(asks(count=2), constraints=[{"matchAttribute": "resource.kubernetes.io/pcieRoot"}])
    found = told(cluster(node("gpu-1"), slice_("gpu-1", devices), claims=(wants,)))
    name = published if "/" in published else f"{DRIVER}/{published}"
    said = f"on gpu-1: write matchAttribute: {name} instead of resource.kubernetes.io/pcieRoot in claim"
    assert found.advice[0].startswith(said), found.text


def test_constraints_on_one_attribute_are_removed_together() -> None:
    numa = "resource.kubernetes.io/numaNode"
    wants = claim(asks(count=2), constraints=[{"matchAttribute": numa}, {"distinctAttribute": numa}])
    found = told(cluster(node("gpu-1"), gpus("a", "b"), claims=(wants,)))
    assert found.advice[0].startswith(f"on gpu-1: remove the 2 constraints on {numa} from claim"), found.text


def test_devices_of_an_older_generation_are_not_published() -> None:
    empty = slice_("gpu-1", [])
    empty["metadata"]["name"] = "newer"
    empty["spec"]["pool"]["generation"] = 7
    found = told(cluster(node("gpu-1"), node("gpu-2"), gpus("a"), empty, claims=(claim(),)))
    assert f"driver {DRIVER} publishes slices without devices for 1 node (gpu-1)" in found.text
    assert "for none of these nodes" not in found.text


def test_a_driver_that_found_no_device_is_not_to_be_started() -> None:
    found = told(cluster(node("gpu-1"), node("gpu-2"), slice_("gpu-1", []), claims=(claim(),)))
    assert f"driver {DRIVER} publishes slices without devices for 1 node (gpu-1)" in found.text
    assert "start it" not in found.text


@pytest.mark.parametrize(
    ("target", "hint"),
    [("pod/wiats", "; there is waits"), ("pod/train", "; there is one in namespace ml"), ("pod/x", "")],
)
def test_a_pod_that_does_not_exist_is_answered_by_the_one_that_may_be_meant(target: str, hint: str) -> None:
    other = pod("train")
    other["metadata"]["namespace"] = "ml"
    with pytest.raises(Problem) as raised:
        told([node("gpu-1"), other, waiting()], target)
    assert str(raised.value) == f"there is no pod {target[4:]} in namespace ns{hint}"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"capacity": {"storage": "1Gi"}}, "has 1Gi storage, and the claim asks for 2Gi"),
        ({"accessModes": ["ReadOnlyMany"]}, "has the access modes ReadOnlyMany, and the claim asks for ReadWriteOnce"),
        ({"claimRef": {"namespace": "ml", "name": "data", "uid": "d"}}, "belongs to PersistentVolumeClaim ml/data"),
        ({"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["b"]}]}]}}}, "is for nodes with zone In b"),
        (None, "StorageClass local provisions none, and there is no PersistentVolume of it"),
    ],
)  # fmt: skip
def test_why_a_volume_does_not_do_is_told(spec: Json | None, said: str) -> None:
    storage: Json = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "local"}}
    storage |= {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    wants: Json = {"accessModes": ["ReadWriteOnce"], "storageClassName": "local"}
    wants |= {"resources": {"requests": {"storage": "2Gi"}}}
    asked: Json = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "v", "namespace": "ns"}}
    made: Json = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"}}
    made |= {"status": {"phase": "Available"}}
    made["spec"] = {"capacity": {"storage": "4Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local"}
    made["spec"] |= spec or {}
    objects = [storage, asked | {"spec": wants}, *([made] if spec is not None else [])]
    found = told(cluster(node("gpu-1", zone="a"), slice_("gpu-1"), *objects, claims=(claim(),), uses="v"))
    assert said in found.text


AT_ONCE = "pod has unbound immediate PersistentVolumeClaim"


@pytest.mark.parametrize(
    ("notes", "spec", "volume", "said"),
    [
        ({"pv.kubernetes.io/bind-completed": "yes"}, {"volumeName": "pv"}, {"nodeAffinity": {"required": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}}},
            ["has PersistentVolume pv, for nodes with zone In b"]),
        ({"pv.kubernetes.io/bind-completed": "yes"}, {"volumeName": "pv", "accessModes": ["ReadWriteOncePod"]}, {},
            ["PersistentVolumeClaim ns/v is used by pod ns/user"]),
        ({}, {"storageClassName": "locla"}, None,
            [AT_ONCE, "names StorageClass locla, which does not exist; there is local"]),
        ({}, {"storageClassName": ""}, None, [AT_ONCE, "ns/v has no StorageClass, and no PersistentVolume is bound"]),
        ({"volume.kubernetes.io/selected-node": "gpu-1"}, {"storageClassName": "made"}, None,
            ["waits for PersistentVolumeClaim ns/v to get a new volume on node gpu-1"]),
        ({}, {}, {}, ["waits for PersistentVolumeClaim ns/v to be bound to PersistentVolume pv"]),
    ],
    ids=["elsewhere", "in use", "mistyped class", "no class", "being made", "being bound"],
)  # fmt: skip
def test_what_is_known_of_the_volume_claim_of_a_waiting_pod_is_told(
    notes: Json, spec: Json, volume: Json | None, said: list[str]
) -> None:
    late = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "volumeBindingMode": "WaitForFirstConsumer"}
    local = late | {"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner"}
    made = late | {"metadata": {"name": "made"}, "provisioner": "csi.example.com"}
    size = {"accessModes": ["ReadWriteOnce"], "storageClassName": "local"}
    asked: Json = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    asked |= {"metadata": {"name": "v", "namespace": "ns", "annotations": notes}}
    asked |= {"spec": size | {"resources": {"requests": {"storage": "2Gi"}}} | spec}
    there: Json = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"}}
    there |= {"status": {"phase": "Bound" if notes else "Available"}}
    there["spec"] = size | {"capacity": {"storage": "4Gi"}, "claimRef": {"namespace": "ns", "name": "v"}}
    there["spec"] |= volume or {}
    user = pod("user", nodeName="gpu-1", uses="v")
    done = pod("done", nodeName="gpu-1", uses="v") | {"status": {"phase": "Succeeded"}}
    others = [user, done, pod("waiting", uses="v")]
    objects = [local, made, asked, *others, *([there] if volume is not None else [])]
    found = told(cluster(node("gpu-1", zone="a"), slice_("gpu-1"), *objects, claims=(claim(),), uses="v"))
    assert [it for it in said if it not in found.text] == []
    assert not {"ns/done", "ns/waiting"}.intersection(found.text.split())


def of_condition(status: str) -> Json:
    made = node("gpu-1")
    made["status"]["conditions"] = [{"type": "Ready", "status": status}]
    return made


@pytest.mark.parametrize(
    ("objects", "entry", "said"),
    [
        ([unreachable("gpu-1")], {"resourceClaimName": "c"}, "node gpu-1 is unreachable"),
        ([of_condition("False")], {"resourceClaimName": "c"}, "gpu-1 is not ready (its condition Ready is False)"),
        ([node("gpu-1")], {"resourceClaimName": "c"}, "claim c is not reserved for the pod"),
        ([node("gpu-1"), template("t", asks())], {"resourceClaimTemplateName": "t"}, "ResourceClaimTemplate ns/t"),
    ],
    ids=["unreachable", "not ready", "not reserved", "not made"],
)
def test_a_pod_that_has_its_node_and_does_not_start_is_explained(objects: list[Json], entry: Json, said: str) -> None:
    held = claim(held=["gpu-1/gpu-0"])
    started = pod("waits", nodeName="gpu-1", resourceClaims=[{"name": "c"} | entry])
    found = told([*objects, slice_("gpu-1"), held, device_class(), started])
    assert said in found.text


@pytest.mark.parametrize(
    ("key", "asked", "meant"),
    [
        ("gang-topology", "zoen", "there is zone"),
        ("gang-match-attribute", f"{DRIVER}/modle", f"there is {DRIVER}/model"),
    ],
)
def test_a_misspelt_label_or_attribute_of_a_gang_is_named(key: str, asked: str, meant: str) -> None:
    waits = waiting("c")
    annotations = {"dra.kopf.dev/gang": "train", "dra.kopf.dev/gang-size": "1", f"dra.kopf.dev/{key}": asked}
    waits["metadata"] |= {"uid": "uid-waits", "annotations": annotations}
    found = told([device_class(), node("gpu-1", zone="a"), slice_("gpu-1"), claim(), LEASE, waits])
    assert meant in found.lines, found.text


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            "Job",
            "neither a pod nor the template of a Job can be changed: delete Job web, or what makes it, and create it",
        ),
        ("StatefulSet", "a pod cannot be changed: change the template of StatefulSet web or of its owner"),
    ],
)
def test_a_template_that_cannot_be_changed_is_replaced(kind: str, said: str) -> None:
    waits = owned(of_template() | {"status": {}}, kind, "web")
    waits["metadata"]["uid"] = "uid-waits"
    waits["spec"] |= {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}], "nodeSelector": {"zone": "A"}}
    found = told([device_class(), node("gpu-1", zone="a"), slice_("gpu-1"), claim(), waits])
    assert any(line.startswith(said) for line in found.lines), found.text


def test_a_gang_is_judged_as_one_while_its_operator_does_not_work() -> None:
    """It would fit, each of its pods said, and waited on after the operator had been started."""
    members = [waiting(f"c{it}") for it in range(2)]
    for number, one in enumerate(members):
        one["metadata"] |= {"name": f"waits-{number}" if number else "waits", "uid": f"uid-{number}"}
        one["metadata"]["annotations"] = {"dra.kopf.dev/gang": "train", "dra.kopf.dev/gang-size": "2"}
    devices = slice_("gpu-1", [device("gpu-0")])
    found = told([device_class(), node("gpu-1"), devices, claim(name="c0"), claim(name="c1"), *members])
    assert "only 1 of 2 pods fit together" in found.text
    assert "there is no Lease" in found.text


def test_a_claim_from_a_template_is_not_to_be_created_by_a_person() -> None:
    made = claim(name="waits-gpu", held=["old/gpu-0"], node_name="old")
    made["metadata"] |= {"annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"}}
    made = owned(made, "Pod", "waits", "uid-waits")
    waits = of_template()
    waits["metadata"]["uid"] = "uid-waits"
    found = told([device_class(), node("gpu-1"), slice_("gpu-1"), template("t"), made, waits])
    assert found.advice == ["on gpu-1: delete claim ns/waits-gpu: made again from its template, it gets other devices"]


def test_of_very_many_rules_the_first_are_named_and_the_others_counted() -> None:
    def rule(number: int) -> Json:
        taint = {"key": f"k{number}", "effect": "NoSchedule"}
        spec = {"deviceSelector": {"driver": DRIVER}, "taint": taint}
        made = {"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule"}
        return {**made, "metadata": {"name": f"r{number}"}, "spec": spec}

    found = told(cluster(node("gpu-1"), gpus("a"), *map(rule, range(30)), claims=(claim(),)))
    assert found.text.count("comes from DeviceTaintRule") == 20
    assert "and 10 more DeviceTaintRules" in found.text


def test_of_very_many_budgets_drain_names_the_first_and_counts_the_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Whoever may create a PodDisruptionBudget may create 5,000 for one pod."""
    budgets = [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": f"b{number}", "namespace": "ns"},
            "spec": {"minAvailable": 1, "selector": {}},
        }
        for number in range(25)
    ]
    path = tmp_path / "cluster.json"
    objects = [device_class(), node("gpu-1"), gpus("a"), *holder("holds", "gpu-1/gpu-0"), *budgets]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    main(["drain", "gpu-1", "--from", str(path)])
    said = capsys.readouterr().out
    assert said.count("PodDisruptionBudget ns/b") == 20
    assert "and 5 more budgets" in said


def test_rules_beyond_the_first_look_at_no_device_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of rules times thousands of devices took minutes: the devices are counted once."""

    class Counted(Counter[Any]):
        made = 0

        def __init__(self, *args: Any) -> None:
            Counted.made += 1
            super().__init__(*args)

    monkeypatch.setattr("dra_operator.kubectl.why.causes.Counter", Counted)
    numbers = []
    for rules in (2, 40):
        Counted.made = 0
        made = [rule_of(f"r{number}", device=f"gpu-{number % 2}") for number in range(rules)]
        told(cluster(node("gpu-1"), gpus("a", "a"), *made, claims=(claim(),)))
        numbers.append(Counted.made)
    assert numbers == [1, 1]


def rule_of(name: str, **selector: str) -> Json:
    spec = {"deviceSelector": {"driver": DRIVER, **selector}, "taint": {"key": name, "effect": "NoSchedule"}}
    return {
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {"name": name},
        "spec": spec,
    }


def test_a_driver_without_the_attribute_of_a_constraint_is_named_with_its_similar_one() -> None:
    shared = "resource.kubernetes.io/pcieRoot"
    intel = slice_("gpu-1", [{"name": "x", "attributes": {"pciRoot": {"string": "a"}}}], driver="gpu.intel.com")
    nic = slice_("gpu-1", [{"name": "y", "attributes": {shared: {"string": "a"}}}], driver="nic.example.com")
    intel["spec"]["pool"]["name"], nic["spec"]["pool"]["name"] = "intel", "nic"
    classes = device_class("gpu", "gpu.intel.com"), device_class("nic", "nic.example.com")
    wanted = claim(asks(), asks("nic", class_name="nic"), constraints=[{"matchAttribute": shared}])
    found = told(cluster(*classes, node("gpu-1"), intel, nic, claims=(wanted,)))
    says = f"driver gpu.intel.com does not publish {shared}, but gpu.intel.com/pciRoot; nic.example.com does"
    assert says in found.text


def test_of_an_attribute_without_a_value_why_blames_the_slice() -> None:
    class_ = device_class(selectors=[cel(f'device.attributes["{DRIVER}"].model == "a"')])
    bare = slice_("gpu-1", [{"name": "x", "attributes": {"model": {}}}])
    found = told(cluster(class_, node("gpu-1"), bare, claims=(claim(),)))
    assert "the ResourceSlice is at fault: have its driver publish one value" in found.text


@pytest.mark.parametrize(
    ("bytes_", "says"), [(9 * 10**18, "9E"), (80 << 30, "80Gi"), (1024, "1Ki"), (2000 << 10, "2000Ki"), (10, "10")]
)
def test_an_amount_is_not_written_in_powers_of_1024_if_that_is_much_longer(bytes_: int, says: str) -> None:
    assert amount(bytes_ * 10**9) == str(quantity_of("memory", bytes_ * 10**9)) == says


@pytest.mark.parametrize("words", [["free"], ["top", "classes"]])
def test_classes_with_the_same_selectors_are_asked_once(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admin may have thousands of classes, and each took an attempt on each node."""
    asked: list[str] = []

    def counted(pipeline: Any, class_: str, node: Any, most: int) -> int:
        asked.append(class_)
        return largest(pipeline, class_, node, most)

    largest = free._largest
    monkeypatch.setattr(free, "_largest", counted)
    classes = [device_class(f"c{number}") for number in range(30)]
    other = device_class("other", selectors=[cel(f'device.driver == "{DRIVER}" && true')])
    path = tmp_path / "cluster.json"
    items = [*classes, other, node("gpu-1"), gpus("a", "a")]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    main([*words, "--from", str(path)])
    said = capsys.readouterr().out
    assert len(asked) == 2
    assert len(said.splitlines()) == 1 + len(classes) + 1
    assert all(f"c{number} " in said for number in range(30))
