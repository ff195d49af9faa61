"""Pod templates are found at any depth of any kind, by ``lint`` and by ``fit``, each as often as it is made."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from dra_operator.commands.file_items import BadInput
from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.fit import wanted_of
from dra_operator.kubectl.lint.manifest import Manifests, not_read, pod_templates

JSON = dict[str, Any]
ENTRIES: Final = [{"name": "g", "resourceClaimTemplateName": "absent"}]
CONTAINER: Final = {"name": "c", "image": "x", "resources": {"claims": [{"name": "g"}]}}
TEMPLATE: Final[JSON] = {"spec": {"containers": [CONTAINER], "resourceClaims": ENTRIES}}


def made(kind: str, version: str, **spec: Any) -> JSON:
    """An object ``w``."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "w", "namespace": "ns"}, "spec": spec}


def group(name: str, **more: Any) -> JSON:
    """A worker group of a RayCluster."""
    return {"groupName": name, "template": TEMPLATE} | more


WORKLOADS: Final[dict[str, tuple[JSON, dict[str, int]]]] = {
    "Deployment": (made("Deployment", "apps/v1", replicas=3, template=TEMPLATE), {"w": 3}),
    "ReplicationController": (made("ReplicationController", "v1", replicas=2, template=TEMPLATE), {"w": 2}),
    "Job": (made("Job", "batch/v1", parallelism=4, completions=2, template=TEMPLATE), {"w": 2}),
    "Job without parallelism": (made("Job", "batch/v1", completions=5, template=TEMPLATE), {"w": 1}),
    "Deployment of another group": (made("Deployment", "apps.example.com/v1", template=TEMPLATE), {"w": 1}),
    "Rollout": (made("Rollout", "argoproj.io/v1alpha1", replicas=2, template=TEMPLATE), {"w": 2}),
    "MPIJob": (
        made(
            "MPIJob",
            "kubeflow.org/v2beta1",
            mpiReplicaSpecs={"Launcher": {"template": TEMPLATE}, "Worker": {"replicas": 4, "template": TEMPLATE}},
        ),
        {"w-launcher": 1, "w-worker": 4},
    ),
    "PyTorchJob": (
        made("PyTorchJob", "kubeflow.org/v1", pytorchReplicaSpecs={"Worker": {"replicas": 2, "template": TEMPLATE}}),
        {"w": 2},
    ),
    "JobSet": (
        made(
            "JobSet",
            "jobset.x-k8s.io/v1alpha2",
            replicatedJobs=[
                {"name": "a", "replicas": 2, "template": {"spec": {"parallelism": 3, "template": TEMPLATE}}},
                {"name": "b", "template": {"spec": {"template": TEMPLATE}}},
            ],
        ),
        {"w-a": 6, "w-b": 1},
    ),
    "LeaderWorkerSet": (
        made(
            "LeaderWorkerSet",
            "leaderworkerset.x-k8s.io/v1",
            replicas=2,
            leaderWorkerTemplate={"size": 4, "leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE},
        ),
        {"w-leader": 2, "w-worker": 6},
    ),
    "LeaderWorkerSet without a template of its leader": (
        made(
            "LeaderWorkerSet",
            "leaderworkerset.x-k8s.io/v1",
            replicas=2,
            leaderWorkerTemplate={"size": 4, "workerTemplate": TEMPLATE},
        ),
        {"w": 8},
    ),
    "RayCluster": (
        made(
            "RayCluster",
            "ray.io/v1",
            headGroupSpec={"template": TEMPLATE},
            workerGroupSpecs=[group("small", minReplicas=2), group("large", replicas=3, numOfHosts=2, minReplicas=1)],
        ),
        {"w-head": 1, "w-small": 2, "w-large": 6},
    ),
    "Job of Volcano": (
        made(
            "Job",
            "batch.volcano.sh/v1alpha1",
            minAvailable=3,
            tasks=[{"name": "t", "replicas": 3, "template": TEMPLATE}],
        ),
        {"w": 3},
    ),
    "PodTemplate": (
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "w", "namespace": "ns"}, "template": TEMPLATE},
        {"w": 1},
    ),
    "a kind that nobody knows": (made("Any", "x.example.com/v1", a={"b": [{"c": {"template": TEMPLATE}}]}), {"w": 1}),
}


@pytest.mark.parametrize("kind", WORKLOADS)
def test_fit_places_each_pod_of_a_workload_of_any_kind(kind: str) -> None:
    item, names = WORKLOADS[kind]
    wanted = wanted_of([("it", item)], (), "ns")
    assert {it.pod.metadata.name: it.replicas for it in wanted.pods} == names
    assert {it.pod.spec.resource_claims is not None for it in wanted.pods} == {True}
    assert len({it.pod.metadata.controller for it in wanted.pods}) == 1


@pytest.mark.parametrize("kind", WORKLOADS)
def test_lint_reads_the_pods_of_a_workload_of_any_kind(kind: str, tmp_path: Path) -> None:
    item, names = WORKLOADS[kind]
    file = tmp_path / "it.yaml"
    wrong = yaml.safe_load(yaml.safe_dump(item).replace("resourceClaims:", "resourceClaim:"))
    file.write_text(yaml.safe_dump(wrong))
    manifests = Manifests("ns").read([str(file)])
    [(found, faults)] = manifests.each()
    assert len(found) == len(names) == len(faults)
    assert all('unknown field "resourceClaim"' in fault.message for fault in faults)
    assert not manifests.others


def test_kinds_that_hold_nothing_to_look_at_are_named(tmp_path: Path) -> None:
    foreign = {"apiVersion": "example.com/v1", "kind": "ResourceClaim", "metadata": {"name": "x"}, "spec": {"size": 1}}
    items = [made("TrainJob", "trainer.kubeflow.org/v1alpha1"), foreign]
    file = tmp_path / "it.yaml"
    file.write_text("---\n".join(map(yaml.safe_dump, items)))
    others = Manifests("ns").read([str(file)]).others
    assert others == Counter({"TrainJob": 1, "ResourceClaim of example.com": 1})
    assert "TrainJob" in next(not_read(others))
    with pytest.raises(Problem, match=r"no pods were found in them: .*TrainJob"):
        wanted_of([("it", item) for item in items], (), "ns")


def test_a_number_of_pods_that_is_none_is_said_with_its_field() -> None:
    item = made("RayCluster", "ray.io/v1", workerGroupSpecs=[group("a", replicas="two")])
    with pytest.raises(BadInput, match=r"spec.workerGroupSpecs\[0\].replicas: expected a number, 0 or more, got 'two'"):
        list(pod_templates(item))
    with pytest.raises(Problem, match=r"RayCluster w: spec.workerGroupSpecs"):
        wanted_of([("it", item)], (), "ns")
