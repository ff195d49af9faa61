"""What ``why`` says of a pod before, and after, nodes are asked, and when it needs the joint decision."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from dra_api.codec import convert
from dra_api.core import Namespace, Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceClaimConsumerReference, ResourceSlice
from dra_api.values import format_time
from dra_operator.kubectl.answer import ExitCode
from dra_operator.kubectl.commands import COMMANDS
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import Pipeline, pipeline
from dra_operator.kubectl.why.answer import answer, waiting_groups
from msgspec.structs import replace
from objects import Make

NODE = convert(Node, {"metadata": {"name": "node-1"}, "status": {"allocatable": {"cpu": "2", "pods": "110"}}})


def _claim(selector: dict[str, Any] | None = None) -> ResourceClaim:
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"}
    allocation = {"nodeSelector": {"nodeSelectorTerms": [selector]}, "devices": {"results": [result]}}
    return convert(
        ResourceClaim,
        {
            "metadata": {"name": "gpu", "namespace": "team", "uid": "claim"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
            "status": {} if selector is None else {"allocation": allocation},
        },
    )


def _pod(name: str, cpu: str, *, priority: int = 0, node: str = "", claims: Sequence[str] = ()) -> Pod:
    spec: dict[str, Any] = {
        "schedulerName": "dra-scheduler",
        "priority": priority,
        "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}],
        "resourceClaims": [{"name": it, "resourceClaimName": it} for it in claims],
    }
    if node:
        spec["nodeName"] = node
    return convert(Pod, {"metadata": {"name": name, "namespace": "team", "uid": name}, "spec": spec})


def _why(objects: list[Object]) -> tuple[list[str], ExitCode]:
    parser = argparse.ArgumentParser()
    COMMANDS["why"].add_arguments(parser)
    seen = Observed(objects, datetime.now(UTC), namespace="team")
    found = answer(seen, parser.parse_args(["pod/waits"]))
    return list(found.lines), found.code


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pods of which the joint decision was asked."""
    asked: list[str] = []
    decides = Pipeline.planned

    def noted(self: Pipeline, state: Any, *rest: Any) -> Any:
        asked.append(state.pod.metadata.name)
        return decides(self, state, *rest)

    monkeypatch.setattr(Pipeline, "planned", noted)
    return asked


def test_where_each_node_says_no_the_joint_decision_is_not_asked(planned: list[str]) -> None:
    lines, code = _why([NODE, _pod("waits", "4")])
    assert lines[0] == "pod team/waits would fit 0 of 1 node"
    assert code is ExitCode.IN_THE_WAY
    assert planned == []


def test_a_pool_that_is_published_in_part_says_when_its_last_slice_came() -> None:
    """An earlier one says nothing of how long the driver has been at it."""
    now = datetime.now(UTC)
    objects: list[Object] = [NODE, convert(DeviceClass, {"metadata": {"name": "gpu"}}), _claim()]
    for number, minutes in enumerate((50, 5)):
        body = Make.slice("node-1", 1)
        body["metadata"] = {
            "name": f"part-{number}",
            "creationTimestamp": format_time(now - timedelta(minutes=minutes)),
        }
        body["spec"]["pool"]["resourceSliceCount"] = 3
        objects.append(convert(ResourceSlice, body))
    lines, _ = _why([*objects, _pod("waits", "1", claims=["gpu"])])
    assert [it.strip() for it in lines if "are there" in it] == [
        "2 of 3 slices of pool gpu.example.com/node-1 are there; the last one came 5m ago: wait for driver "
        "gpu.example.com to publish the others, or restart it"
    ]


def test_where_a_pod_of_lower_priority_may_end_the_joint_decision_says_for_whom(planned: list[str]) -> None:
    lines, _ = _why([NODE, _pod("batch", "2", node="node-1"), _pod("waits", "2", priority=10)])
    assert planned == ["waits"]
    assert any(line.endswith("after which it fits: team/batch (priority 0)") for line in lines), lines


def test_an_allocation_whose_node_selector_cannot_be_read_is_named(planned: list[str]) -> None:
    selector = {"matchExpressions": [{"key": "zone", "operator": "Is", "values": ["a"]}]}
    class_ = convert(DeviceClass, {"metadata": {"name": "gpu"}})
    lines, code = _why([NODE, class_, _claim(selector), _pod("waits", "1", claims=["gpu"])])
    assert lines == [
        "pod team/waits is held back on all nodes by an error: claim team/gpu: allocation: node selector: zone has the "
        "unsupported operator 'Is': use In, NotIn, Exists, DoesNotExist, Gt or Lt",
        "  no fix found",
    ]
    assert code is ExitCode.IN_THE_WAY
    assert planned == []


def _immediate(claim: ResourceClaim) -> ResourceClaim:
    return replace(claim, metadata=replace(claim.metadata, annotations={"dra.kopf.dev/allocate": "immediate"}))


def _used(claim: ResourceClaim) -> ResourceClaim:
    users = (convert(ResourceClaimConsumerReference, {"resource": "pods", "name": "holder", "uid": "holder"}),)
    return replace(claim, status=replace(claim.status, reserved_for=users))


SLICE = Make.slice("node-1", 1)
SLICE["spec"]["devices"] = [{"name": "gpu-0"}]
GPU: list[Object] = [convert(DeviceClass, Make.device_class()), convert(ResourceSlice, SLICE)]
ON_NODE = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
ELSEWHERE = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-2"]}]}
NOT_IMMEDIATE = "remove the annotation dra.kopf.dev/allocate from claim team/"


@pytest.mark.parametrize(("is_immediate", "first"), [(False, ""), (True, f"{NOT_IMMEDIATE}held and ")])
def test_an_immediate_claim_keeps_its_device_until_its_annotation_is_removed(is_immediate: bool, first: str) -> None:
    held = _used(_claim(ON_NODE))
    held = replace(held, metadata=replace(held.metadata, name="held", uid="held"))
    pods = [_pod("holder", "1", node="node-1", claims=["held"]), _pod("waits", "1", claims=["gpu"])]
    lines, _ = _why([NODE, *GPU, _immediate(held) if is_immediate else held, _claim(), *pods])
    end = "wait until pod team/holder ends, or delete it (frees gpu.example.com/node-1/gpu-0)"
    assert lines[-1].strip() == f"on node-1: {first}{end}"


@pytest.mark.parametrize(("is_immediate", "first"), [(False, ""), (True, f"{NOT_IMMEDIATE}gpu and ")])
def test_an_immediate_claim_stays_elsewhere_until_its_annotation_is_removed(is_immediate: bool, first: str) -> None:
    claim = _used(_claim(ELSEWHERE))
    pods = [_pod("holder", "1", node="node-2", claims=["gpu"]), _pod("waits", "1", claims=["gpu"])]
    lines, _ = _why([NODE, *GPU, _immediate(claim) if is_immediate else claim, *pods])
    assert lines[-1].strip().startswith(f"on node-1: {first}wait until ")
    assert lines[-1].endswith(": team/holder")


PERMITS: Final = "resource.kubernetes.io/admin-access"
LABEL: Final = f"the label {PERMITS}: true on namespace team"
REFUSED: Final = f"gets no devices: claim team/gpu: admin access to devices requires {LABEL}"


def _admin(*labels: str) -> list[Object]:
    """The claim asks for admin access; the namespace has these labels."""
    claim = _claim()
    [request] = claim.spec.devices.requests or ()
    assert request.exactly is not None
    requests = (replace(request, exactly=replace(request.exactly, admin_access=True)),)
    spec = replace(claim.spec, devices=replace(claim.spec.devices, requests=requests))
    namespace = convert(Namespace, {"metadata": {"name": "team", "labels": dict.fromkeys(labels, "true")}})
    return [NODE, *GPU, replace(claim, spec=spec), namespace]


def _groups(objects: list[Object]) -> list[str]:
    seen = Observed(objects, datetime.now(UTC), namespace="team")
    return [it.reason for it in waiting_groups(pipeline(seen), seen.every(Pod))]


def test_a_claim_gets_no_admin_access_in_a_namespace_without_the_label() -> None:
    pod = _pod("waits", "1", claims=["gpu"])
    assert _why([*_admin(), pod]) == ([f"pod team/waits {REFUSED}"], ExitCode.IN_THE_WAY)
    assert _groups([*_admin(), pod]) == [REFUSED.replace("claim team/gpu", "its claim")]
    assert _why([*_admin(PERMITS), pod])[1] is ExitCode.CLEAR
    assert _groups([*_admin(PERMITS), pod]) == ["nothing holds it back"]


def test_a_pod_waits_for_one_of_its_gang_that_gets_no_admin_access() -> None:
    gang = {"dra.kopf.dev/gang": "pair", "dra.kopf.dev/gang-size": "2"}
    pods = [_pod("waits", "1"), _pod("other", "1", claims=["gpu"])]
    pods = [replace(pod, metadata=replace(pod.metadata, annotations=gang)) for pod in pods]
    [line], code = _why([*_admin(), *pods])
    assert line.startswith("pod team/waits: waits for pod other ")
    assert line.endswith(REFUSED)
    assert code is ExitCode.IN_THE_WAY
    assert _why([*_admin(PERMITS), *pods])[1] is ExitCode.CLEAR
