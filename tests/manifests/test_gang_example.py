"""The examples for gangs say what the page promises: two pods by a name or a PodGroup, four pods by a number on a Job's
template."""

from __future__ import annotations

from typing import Any

from command import ROOT
from dra_api import yaml_text
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.gates import FeatureGates
from dra_api.scheduling import PodGroup
from dra_api.validation.claims import validate_pod_group
from dra_operator.scheduling.state import Gang, gang_of

EXAMPLES = ROOT / "manifests" / "examples" / "gang"


def of_kind(file: str, kind: str) -> list[dict[str, Any]]:
    return [it for it in yaml_text.load_all((EXAMPLES / file).read_text()) if it["kind"] == kind]


def gang(pod: dict[str, Any], namespace: str = "default") -> Gang:
    found = gang_of(convert(Pod, {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}))
    assert isinstance(found, Gang)
    return found


def test_the_two_pods_are_one_gang_on_one_node() -> None:
    gangs = [gang(pod) for pod in of_kind("pods.yaml", "Pod")]
    assert gangs == [Gang("default/name gang of 2 kubernetes.io/hostname", "gang", 2, "kubernetes.io/hostname")] * 2


def test_the_same_pods_in_another_namespace_are_another_gang() -> None:
    pod = of_kind("pods.yaml", "Pod")[0]
    assert gang(pod).key != gang(pod, "other").key


def test_the_pods_that_the_job_makes_are_a_gang_of_four() -> None:
    (job,) = of_kind("job.yaml", "Job")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "gang-job", "uid": "uid-job", "controller": True}
    template = job["spec"]["template"]
    metadata = {**template["metadata"], "name": "gang-job-0", "ownerReferences": [owner]}
    found = gang({**template, "metadata": metadata})
    assert (found.size, found.title) == (job["spec"]["parallelism"], "of Job gang-job")


def test_the_pods_of_the_group_are_a_gang_of_two_on_one_node() -> None:
    [raw] = of_kind("pod-group.yaml", "PodGroup")
    raw["metadata"]["namespace"] = "default"
    group = convert(PodGroup, raw)
    assert not validate_pod_group(group, gates=FeatureGates.of({}))
    pods = [convert(Pod, it) for it in of_kind("pod-group.yaml", "Pod")]
    assert {pod.spec.scheduling_group.pod_group_name for pod in pods if pod.spec.scheduling_group} == {
        group.metadata.name
    }
    gangs = [gang_of(pod, group) for pod in pods]
    assert gangs[0] == gangs[1]
    assert isinstance(gangs[0], Gang)
    assert (gangs[0].size, gangs[0].topology) == (len(pods), "kubernetes.io/hostname")
