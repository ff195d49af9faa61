"""Kueue's kinds have the fields that the project reads, and what stands for many pods costs little."""

from __future__ import annotations

from itertools import islice

import pytest
from dra_api.codec import convert
from dra_api.kueue import TopologyAssignment, Workload, WorkloadError, pod_count, pods_of
from kueue_structure import OWN, strangers
from objects import Obj
from real_kueue import assets


def test_each_field_that_is_read_is_one_of_the_definition() -> None:
    assert strangers([OWN]) == []


@pytest.mark.skipif(assets() is None, reason="KUEUE_ASSETS names no folder with Kueue")
def test_each_field_that_is_read_is_one_of_kueue() -> None:
    folder = assets()
    assert folder is not None
    assert strangers((folder / "components" / "crd" / "bases").glob("*.yaml")) == []


def slices(**more: object) -> Obj:
    return {
        "levels": ["host"],
        "slices": [{"domainCount": 2**31 - 1, "valuesPerLevel": [{"universal": "a"}], **more}],
    }


def workload(count: int, topology: Obj) -> Workload:
    assigned = {"name": "main", "topologyAssignment": topology}
    return convert(
        Workload,
        {
            "metadata": {"name": "it", "namespace": "ns"},
            "spec": {"podSets": [{"name": "main", "count": count, "template": {"spec": {}}}]},
            "status": {"admission": {"clusterQueue": "q", "podSetAssignments": [assigned]}},
        },
    )


def test_two_billion_domains_are_looked_at_one_by_one() -> None:
    many = convert(TopologyAssignment, slices(podCounts={"universal": 1}))
    assert list(islice(many.places(), 2)) == [({"host": "a"}, 1)] * 2
    made = workload(3, slices(podCounts={"universal": 1}))
    assert pod_count(made) == 3
    assert [(pod.spec.node_selector, number) for pod, number in pods_of(made, lambda _: None)] == [
        ({"host": "a"}, 1)
    ] * 3


@pytest.mark.parametrize("number", [0, -5])
def test_domains_without_pods_are_refused_at_the_first_one(number: int) -> None:
    with pytest.raises(WorkloadError, match="pod set main: topologyAssignment has a domain without pods"):
        pods_of(workload(3, slices(podCounts={"universal": number})), lambda _: None)


def test_a_set_that_has_ended_asks_for_no_domain() -> None:
    assert pods_of(workload(0, slices(podCounts={"universal": 1})), lambda _: None) == []
