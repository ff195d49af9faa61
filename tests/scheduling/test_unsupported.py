"""Rules for the place of a pod that placement does not know: the pod waits, with a message that names the field."""

from __future__ import annotations

from typing import Any

import pytest
from dra_operator.scheduling.rules.node_rules import UNSUPPORTED, unsupported
from placement_lab import pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ZONE = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}}
NODE = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": {}}
TIED = ["awsElasticBlockStore", "azureDisk", "azureFile", "cinder", "gcePersistentDisk", "iscsi"]
TIED += ["portworxVolume", "rbd", "vsphereVolume"]
ANYWHERE = ["cephfs", "configMap", "csi", "downwardAPI", "emptyDir", "fc", "flexVolume", "glusterfs", "hostPath"]
ANYWHERE += ["ephemeral", "image", "nfs", "persistentVolumeClaim", "projected", "secret"]


def volumes(*sources: str) -> list[dict[str, Any]]:
    return [{"name": f"v{number}", source: {}} for number, source in enumerate(sources)]


REFUSED: dict[str, dict[str, Any]] = {
    "spec.schedulingGroup": {"schedulingGroup": {}},  # as without the gate GenericWorkload
    **{f"spec.volumes[1].{source}": {"volumes": volumes("emptyDir", source)} for source in TIED},
}


@pytest.mark.parametrize("field", REFUSED)
def test_a_rule_that_placement_does_not_know_is_named(field: str) -> None:
    obstacle = unsupported(pod(**REFUSED[field]))
    assert obstacle is not None
    assert (obstacle.reason, obstacle.subject) == (UNSUPPORTED, field)
    assert obstacle.text.startswith(f"{field} is not supported by dra-operator yet; ")
    assert obstacle.text.endswith(", or have kube-scheduler place the pod (spec.schedulerName: default-scheduler)")


def terms(count: int, labels: int) -> list[dict[str, Any]]:
    return [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {f"k{term}.{it}": "x" for it in range(labels)}}}
        for term in range(count)
    ]


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
@pytest.mark.parametrize(("count", "labels", "allowed"), [(100, 5, True), (101, 1, False), (50, 11, False)])
def test_a_pod_has_at_most_a_hundred_rules_about_five_hundred_labels(
    kind: str, count: int, labels: int, *, allowed: bool
) -> None:
    preferred = [{"weight": 1, "podAffinityTerm": term} for term in terms(count, labels)]
    for spec in ({REQUIRED: terms(count, labels)}, {PREFERRED: preferred}):
        obstacle = unsupported(pod(affinity={kind: spec}))
        assert (obstacle is None) == allowed
        if obstacle is not None:
            assert obstacle.text == (
                "spec.affinity or spec.topologySpreadConstraints with more than 100 rules between pods (or 500 labels "
                "and expressions in them) is not supported by dra-operator yet; name several values in one "
                "expression, or have kube-scheduler place the pod (spec.schedulerName: default-scheduler)"
            )


def test_spread_constraints_count_as_rules_between_pods() -> None:
    constraints = [{**SPREAD, "topologyKey": f"zone{it}", "whenUnsatisfiable": "ScheduleAnyway"} for it in range(101)]
    assert unsupported(pod(topologySpreadConstraints=constraints[:100])) is None
    assert unsupported(pod(topologySpreadConstraints=constraints)) is not None


def test_what_selects_the_nodes_of_spread_constraints_counts_once_for_each() -> None:
    """26 constraints over nodes that 330 terms select took half a second for eight nodes, in one go."""
    some = [{**SPREAD, "topologyKey": f"zone{it}", "whenUnsatisfiable": "DoNotSchedule"} for it in range(25)]
    zones = [{"key": "zone", "operator": "NotIn", "values": [f"z{it}"]} for it in range(21)]
    affinity = [
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": zones[:it]}]}}} for it in (19, 20)
    ]
    assert unsupported(pod(topologySpreadConstraints=some, affinity=affinity[0])) is None
    assert unsupported(pod(topologySpreadConstraints=some, affinity=affinity[1])) is not None
    taints = [{**it, "nodeTaintsPolicy": "Honor", "nodeAffinityPolicy": "Ignore"} for it in some]
    tolerations = [{"key": f"k{it}", "operator": "Exists"} for it in range(21)]
    assert (
        unsupported(pod(topologySpreadConstraints=taints, affinity=affinity[1], tolerations=tolerations[:20])) is None
    )
    assert unsupported(pod(topologySpreadConstraints=taints, tolerations=tolerations)) is not None


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"affinity": {"nodeAffinity": NODE}}, id="node affinity"),
        pytest.param({"affinity": {"podAffinity": {PREFERRED: [{"weight": 1}]}}}, id="preferred pod affinity"),
        pytest.param({"affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 1}]}}}, id="preferred anti-affinity"),
        pytest.param({"affinity": {"podAffinity": {REQUIRED: [ZONE]}}}, id="pod affinity"),
        pytest.param({"affinity": {"podAntiAffinity": {REQUIRED: [ZONE]}}}, id="pod anti-affinity"),
        *(
            pytest.param({"topologySpreadConstraints": [{**SPREAD, "whenUnsatisfiable": how}]}, id=how)
            for how in ("DoNotSchedule", "ScheduleAnyway")
        ),
        *(pytest.param({"volumes": volumes(source)}, id=source) for source in ANYWHERE),
    ],
)
def test_preferences_and_volumes_that_any_node_can_mount_are_no_obstacle(spec: dict[str, Any]) -> None:
    assert unsupported(pod(**spec)) is None
