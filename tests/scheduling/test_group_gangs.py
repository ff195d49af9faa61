"""The gang of a pod in a PodGroup: what the group asks for, and what the pod's annotations may add (docs/gangs.md)."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.releases import Release
from dra_api.scheduling import PodGroup
from dra_operator.allocator import Features
from dra_operator.scheduling.rules.node_rules import group_obstacle
from dra_operator.scheduling.state import Gang, Obstacle, gang_key, gang_of
from objects import Make, Obj

RACK = {"topology": [{"key": "rack"}]}
MATCH = "dra.kopf.dev/gang-match-attribute"
TOPOLOGY_GATE = "TopologyAwareWorkloadScheduling"
TOPOLOGY = "dra.kopf.dev/gang-topology"


def group(min_count: int | None = None, **spec: Any) -> PodGroup:
    policy: Obj = {"basic": {}} if min_count is None else {"gang": {"minCount": min_count}}
    meta = {"name": "train", "namespace": "ns"}
    return convert(PodGroup, {"metadata": meta, "spec": {"schedulingPolicy": policy, **spec}})


def member(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    pod = Make.pod("p", schedulingGroup={"podGroupName": "train"}, **spec)
    pod["metadata"].update(annotations=annotations or {}, labels=labels or {})
    return convert(Pod, pod)


def test_a_group_with_the_policy_gang_is_a_gang_of_its_minimum_and_topology() -> None:
    expected = Gang("ns/podgroup train", "of PodGroup train", 4, "rack")
    assert gang_of(member(), group(4, schedulingConstraints=RACK)) == expected


def test_the_pods_of_a_group_stay_one_gang_when_it_changes_comes_or_goes() -> None:
    pod, sizes = member(), (1, 4)
    assert {gang_key(pod), *(found.key for it in sizes if isinstance(found := gang_of(pod, group(it)), Gang))} == {
        "ns/podgroup train"
    }


def test_a_basic_group_is_no_gang_and_with_a_topology_one_of_one_pod() -> None:
    assert gang_of(member(), group()) is None
    assert gang_of(member(), group(schedulingConstraints={"topology": []})) is None
    found = gang_of(member(), group(schedulingConstraints=RACK))
    assert isinstance(found, Gang)
    assert (found.size, found.topology) == (1, "rack")


def test_pods_of_a_group_may_ask_for_one_value_of_an_attribute_and_name_a_topology_if_it_does_not() -> None:
    found = gang_of(member({MATCH: "example.com/domain", TOPOLOGY: "rack"}), group(2))
    assert isinstance(found, Gang)
    assert (found.topology, found.attribute) == ("rack", "example.com/domain")
    assert found.key == gang_key(member({MATCH: "example.com/domain", TOPOLOGY: "rack"}))


@pytest.mark.parametrize(
    ("annotations", "asks", "key"),
    [
        ({"dra.kopf.dev/gang": "g", "dra.kopf.dev/gang-size": "2"}, group(2), "dra.kopf.dev/gang"),
        ({"dra.kopf.dev/gang-size": "2"}, group(2), "dra.kopf.dev/gang-size"),
        ({"dra.kopf.dev/gang": "2"}, group(schedulingConstraints=RACK), "dra.kopf.dev/gang"),
        ({TOPOLOGY: "block"}, group(2, schedulingConstraints=RACK), TOPOLOGY),
    ],
)
def test_what_a_pod_says_of_its_gang_beside_its_group_is_refused(
    annotations: dict[str, str], asks: PodGroup, key: str
) -> None:
    found = gang_of(member(annotations), asks)
    assert isinstance(found, Obstacle)
    assert found.text == f"{key}: PodGroup train of the pod says this as well; remove one of both"


def test_a_pod_of_a_basic_group_may_be_of_a_gang_by_annotations() -> None:
    pod = member({"dra.kopf.dev/gang": "g", "dra.kopf.dev/gang-size": "2"})
    found = gang_of(pod, group())
    assert isinstance(found, Gang)
    assert (found.title, found.key) == ("g", gang_key(pod))


def test_a_pod_of_a_group_is_in_no_pod_group_of_kueue() -> None:
    pod = member({"kueue.x-k8s.io/pod-group-total-count": "2"}, {"kueue.x-k8s.io/pod-group-name": "k"})
    assert gang_of(pod, group()) is None


def test_a_minimum_of_more_than_a_thousand_pods_is_refused() -> None:
    assert isinstance(gang_of(member(), group(1000)), Gang)
    assert isinstance(gang_of(member(), group(1001)), Obstacle)


@pytest.mark.parametrize(
    ("asks", "gates", "release", "needed"),
    [
        (group(2), {"generic_workload": True}, Release.V1_36, "GangScheduling"),
        (group(2), {"generic_workload": True, "gang_scheduling": True}, Release.V1_36, ""),
        (group(2), {"generic_workload": True}, Release.V1_37, ""),
        (
            group(schedulingConstraints=RACK),
            {"generic_workload": True},
            Release.V1_37,
            TOPOLOGY_GATE,
        ),
        (group(schedulingConstraints={}), {"generic_workload": True}, Release.V1_37, ""),
    ],
)
def test_a_wish_whose_gate_is_off_is_refused_with_the_name_of_the_gate(
    asks: PodGroup, gates: dict[str, Any], release: Release, needed: str
) -> None:
    found = group_obstacle(member(), asks, Features(release=release, **gates))
    assert (found is not None and f"needs the feature gate {needed}" in found.text) if needed else found is None


DIFFERS = 'podgroup "train": the pod has {} and the group {}; pods have that of their group: '
NEVER = {"preemptionPolicy": "Never"}


@pytest.mark.parametrize(
    ("of_pod", "of_group", "said"),
    [
        ({}, {}, ""),
        ({"priority": 0}, {}, ""),
        ({"priority": 10}, {"priority": 10}, ""),
        ({"priority": 10}, {}, DIFFERS.format("priority 10", 0)),
        ({"priority": 10}, {"priority": 20}, DIFFERS.format("priority 10", 20)),
        ({"preemptionPolicy": "PreemptLowerPriority"}, {}, ""),
        (NEVER, NEVER, ""),
        (NEVER, {}, DIFFERS.format("the preemption policy Never", "PreemptLowerPriority")),
        ({}, NEVER, DIFFERS.format("the preemption policy PreemptLowerPriority", "Never")),
    ],
)
@pytest.mark.parametrize("min_count", [None, 2], ids=["basic", "gang"])
def test_a_pod_has_the_priority_of_its_group_from_1_37_on_and_with_a_gate_its_policy(
    of_pod: Obj, of_group: Obj, said: str, min_count: int | None
) -> None:
    def text(release: Release, *, with_policy: bool) -> str:
        gates: Any = {"generic_workload": True, "gang_scheduling": True, "pod_group_preemption_policy": with_policy}
        found = group_obstacle(member(**of_pod), group(min_count, **of_group), Features(release, **gates))
        return "" if found is None else found.text

    assert text(Release.V1_36, with_policy=False) == ""
    assert text(Release.V1_37, with_policy=True).startswith(said)
    assert bool(text(Release.V1_37, with_policy=True)) == bool(said)
    assert text(Release.V1_37, with_policy=False) == ("" if "policy" in said else text(Release.V1_37, with_policy=True))
