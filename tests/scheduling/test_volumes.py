"""Volumes that a pod's claims are bound to, and claims that keep it from being placed at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from dra_operator.scheduling.rules import NO_VOLUMES, volumes_of
from dra_operator.scheduling.rules.volumes import VOLUME_AFFINITY, VOLUME_ZONE, PodVolumes
from dra_operator.scheduling.state import Obstacle
from dra_operator.scheduling.state.obstacle import Reason
from objects import Obj, owner
from volume_lab import (
    AT_ONCE,
    REGION,
    ZONE,
    Shelf,
    ephemeral,
    node,
    on_labels,
    on_nodes,
    pod,
    storage_class,
    uses,
    volume,
    volume_claim,
)

OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
OWNED = {"ownerReferences": [owner("pod")]}
EXPRESSION = {"key": "a", "operator": "Wrong"}

ON_NODE: dict[str, tuple[Obj, dict[str, str], Reason | None]] = {
    "a volume without affinity": (volume(), {}, None),
    "a volume of this node": (volume(affinity=on_nodes("n0", "n1")), {}, None),
    "a volume of another node": (volume(affinity=on_nodes("n2")), {}, VOLUME_AFFINITY),
    "a volume of the node's rack": (volume(affinity=on_labels("rack", "r1")), {"rack": "r1"}, None),
    "a volume of another rack": (
        volume(affinity=on_labels("rack", "r1")),
        {"rack": "r2"},
        VOLUME_AFFINITY,
    ),
    "an affinity without required part": (volume(spec={"nodeAffinity": {}}), {}, None),
    "an affinity that cannot be understood": (
        volume(affinity={"required": {"nodeSelectorTerms": [{"matchExpressions": [EXPRESSION]}]}}),
        {},
        VOLUME_AFFINITY,
    ),
    "an affinity by the name of the node, which is no label": (
        volume(
            affinity={
                "required": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
                    ]
                }
            }
        ),
        {},
        VOLUME_AFFINITY,
    ),
    "the node's zone": (volume(metadata={"labels": {ZONE: "a"}}), {ZONE: "a"}, None),
    "one of several zones": (volume(metadata={"labels": {ZONE: "b__a"}}), {ZONE: "a"}, None),
    "another zone": (volume(metadata={"labels": {ZONE: "b"}}), {ZONE: "a"}, VOLUME_ZONE),
    "another region": (
        volume(metadata={"labels": {ZONE: "a", REGION: "s"}}),
        {ZONE: "a", REGION: "t"},
        VOLUME_ZONE,
    ),
    "a zone that the node does not tell": (
        volume(metadata={"labels": {ZONE: "a"}}),
        {REGION: "s"},
        VOLUME_ZONE,
    ),
    "a zone, on a node without zones": (volume(metadata={"labels": {ZONE: "a"}}), {}, None),
    "an old label against the node's new one": (volume(metadata={"labels": {OLD_ZONE: "a"}}), {ZONE: "a"}, None),
    "an old label against another new one": (
        volume(metadata={"labels": {OLD_ZONE: "a"}}),
        {ZONE: "b"},
        VOLUME_ZONE,
    ),
    "an old label on both": (volume(metadata={"labels": {OLD_ZONE: "a"}}), {OLD_ZONE: "a", ZONE: "b"}, None),
    "a new label against the node's old one": (
        volume(metadata={"labels": {ZONE: "a"}}),
        {OLD_ZONE: "a"},
        VOLUME_ZONE,
    ),
    "a zone label without value": (volume(metadata={"labels": {ZONE: "a__"}}), {ZONE: "b"}, None),
}


@pytest.mark.rule("NR-33", "NR-34")
@pytest.mark.parametrize("case", ON_NODE)
def test_a_bound_volume_allows_nodes(case: str) -> None:
    stored, labels, expected = ON_NODE[case]
    volumes = volumes_of(pod(uses("data")), Shelf.of(volume_claim(volume="pv"), stored))
    assert isinstance(volumes, PodVolumes)
    obstacle = volumes.obstacle(node("n1", **labels), {})
    assert (obstacle.reason if obstacle is not None else None) == expected


def test_the_first_volume_that_does_not_allow_the_node_counts() -> None:
    claims = [volume_claim("a", "pv-a"), volume_claim("b", "pv-b")]
    shelf = Shelf.of(*claims, volume("pv-a"), volume("pv-b", affinity=on_nodes("n2")))
    volumes = volumes_of(pod(uses("a", "b")), shelf)
    assert isinstance(volumes, PodVolumes)
    assert volumes.obstacle(node("n1"), {}) == Obstacle(VOLUME_AFFINITY)
    assert volumes.obstacle(node("n2"), {}) is None


@pytest.mark.rule("NR-33")
def test_a_volume_that_does_not_exist_allows_no_node() -> None:
    volumes = volumes_of(pod(uses("data")), Shelf.of(volume_claim(volume="gone")))
    assert isinstance(volumes, PodVolumes)
    obstacle = volumes.obstacle(node(), {})
    assert obstacle is not None
    assert obstacle.text == "node(s) unavailable: claim ns/data is bound to PersistentVolume gone, which does not exist"


@pytest.mark.rule("NR-34")
def test_zone_labels_of_ephemeral_volumes_do_not_count() -> None:
    claim = volume_claim("pod-scratch", "pv", metadata=OWNED)
    volumes = volumes_of(pod(ephemeral()), Shelf.of(claim, volume(metadata={"labels": {ZONE: "b"}})))
    assert isinstance(volumes, PodVolumes)
    assert volumes.obstacle(node("n1", **{ZONE: "a"}), {}) is None


def test_pods_without_claims_of_volumes_ask_nothing() -> None:
    volumes: list[Obj] = [{"name": "tmp", "emptyDir": {}}]
    assert volumes_of(pod(volumes), Shelf(unseen=["storageclasses.storage.k8s.io"])) is NO_VOLUMES


ONCE = {"accessModes": ["ReadWriteOncePod"]}
OF_POD: dict[str, tuple[Sequence[Obj], Shelf, str]] = {
    "missing": (uses("data"), Shelf(), 'persistentvolumeclaim "data" not found: create it, or correct claimName'),
    "the second one missing": (
        uses("data", "more"),
        Shelf.of(volume_claim(volume="pv"), volume()),
        'persistentvolumeclaim "more" not found: create it, or correct claimName',
    ),
    "being deleted": (
        uses("data"),
        Shelf.of(volume_claim(volume="pv", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})),
        'persistentvolumeclaim "data" is being deleted',
    ),
    "lost": (
        uses("data"),
        Shelf.of(volume_claim(volume="pv", status={"phase": "Lost"})),
        'persistentvolumeclaim "data" bound to non-existent persistentvolume "pv"',
    ),
    "not made yet": (
        ephemeral(),
        Shelf(),
        'waiting for ephemeral volume controller to create the persistentvolumeclaim "pod-scratch"',
    ),
    "of another pod": (
        ephemeral(),
        Shelf.of(volume_claim("pod-scratch", "pv")),
        'persistentvolumeclaim "pod-scratch" was not created for the pod (the pod is not its owner): delete it',
    ),
    "bound at once, but not yet": (
        uses("data"),
        Shelf.of(volume_claim(class_name=AT_ONCE), storage_class(AT_ONCE)),
        'pod has unbound immediate PersistentVolumeClaim "data"',
    ),
    "without class": (
        uses("data"),
        Shelf.of(volume_claim(class_name=None)),
        'pod has unbound immediate PersistentVolumeClaim "data"',
    ),
    "of a class that does not exist": (
        uses("data"),
        Shelf.of(volume_claim()),
        'pod has unbound immediate PersistentVolumeClaim "data"',
    ),
    "for a volume by name": (
        uses("data"),
        Shelf.of(volume_claim(spec={"volumeName": "pv"}), volume(), storage_class()),
        'pod has unbound immediate PersistentVolumeClaim "data"',
    ),
    "in use by another pod": (
        uses("data"),
        Shelf.of(volume_claim(volume="pv", spec=ONCE), volume(), in_use={"ns/data": ["uid-other"]}),
        'persistentvolumeclaim "data" has the access mode ReadWriteOncePod and is in use by another pod',
    ),
    "unseen": (
        uses("data"),
        Shelf(unseen=["persistentvolumes", "csinodes.storage.k8s.io"]),
        "the pod uses PersistentVolumeClaims, and persistentvolumes, csinodes.storage.k8s.io cannot be seen: "
        "allow dra-operator to list and watch them (manifests/operator/rbac.yaml)",
    ),
}


@pytest.mark.rule("NR-31", "NR-32", "NR-35")
@pytest.mark.parametrize("case", OF_POD)
def test_no_node_is_tried_for_a_claim_that_is(case: str) -> None:
    volumes, shelf, expected = OF_POD[case]
    obstacle = volumes_of(pod(volumes), shelf)
    assert isinstance(obstacle, Obstacle)
    assert obstacle.text == expected


FREE: dict[str, dict[str, Any]] = {
    "used by the pod itself": {"in_use": {"ns/data": ["uid-pod"]}},
    "not in use": {},
}


@pytest.mark.rule("NR-35")
@pytest.mark.parametrize("case", FREE)
def test_a_claim_for_one_pod_is_free_when_it_is(case: str) -> None:
    shelf = Shelf.of(volume_claim(volume="pv", spec=ONCE), volume(), **FREE[case])
    assert isinstance(volumes_of(pod(uses("data")), shelf), PodVolumes)


def test_a_claim_for_many_pods_may_be_in_use() -> None:
    shelf = Shelf.of(volume_claim(volume="pv"), volume(), in_use={"ns/data": ["uid-other"]})
    assert isinstance(volumes_of(pod(uses("data")), shelf), PodVolumes)
