"""Claims of volumes that are bound when their first pod has a node: which volumes they get there.

The oracle tries everything in the order of the rules. It works on raw objects and shares nothing with placement: for
each claim, the smallest first, it looks at every volume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from dra_operator.scheduling.rules import Bindings, volumes_of
from dra_operator.scheduling.rules.volume_binding import VOLUME_BINDING
from dra_operator.scheduling.rules.volumes import VOLUME_AFFINITY, PodVolumes
from dra_operator.scheduling.state import Obstacle
from hypothesis import given
from hypothesis import strategies as st
from objects import Obj
from volume_lab import (
    HOST,
    LATE,
    SELECTED,
    Shelf,
    node,
    on_labels,
    on_nodes,
    pod,
    storage_class,
    uses,
    volume,
    volume_claim,
)

Chosen = dict[str, str | None]
"""By claim: the volume that it gets, None for a new one."""
SIZES = {"1Gi": 1, "2Gi": 2, "3Gi": 3}


def size(amounts: Mapping[str, str]) -> int:
    return SIZES[amounts["storage"]]


def oracle(claims: Sequence[Obj], volumes: Sequence[Obj], classes: Mapping[str, Obj], node: Obj) -> Chosen | None:
    """None if the pod cannot run on the node."""
    chosen: Chosen = {}
    for claim in sorted(claims, key=lambda it: size(it["spec"]["resources"]["requests"])):
        name = claim["metadata"]["name"]
        selected = claim["metadata"].get("annotations", {}).get("volume.kubernetes.io/selected-node")
        if selected not in (None, node["name"]):
            return None
        found = None if selected else _find(claim, volumes, node, [it for it in chosen.values() if it])
        if found is None and not _can_make(classes[claim["spec"]["storageClassName"]], node):
            return None
        chosen[name] = found
    return chosen


def _find(claim: Obj, volumes: Sequence[Obj], node: Obj, taken: Sequence[str]) -> str | None:
    best: tuple[int, str] | None = None
    for offered in volumes:
        spec, name = offered["spec"], offered["metadata"]["name"]
        ref: Any = spec.get("claimRef")
        own = ref is not None and ref["name"] == claim["metadata"]["name"] and ref.get("uid", "") in ("", _uid(claim))
        if name in taken or (ref is not None and not own):
            continue
        if spec["storageClassName"] != claim["spec"]["storageClassName"]:
            continue
        if size(spec["capacity"]) < size(claim["spec"]["resources"]["requests"]):
            continue
        if own:
            return name if _reaches(offered, node) else None
        if offered["status"]["phase"] != "Available" or not _reaches(offered, node):
            continue
        if not set(claim["spec"]["accessModes"]) <= set(spec["accessModes"]):
            continue
        best = min(best or (99, ""), (size(spec["capacity"]), name))
    return best[1] if best else None


def _uid(claim: Obj) -> str:
    return str(claim["metadata"]["uid"])


def _reaches(volume: Obj, node: Obj) -> bool:
    affinity = volume["spec"].get("nodeAffinity")
    if affinity is None:
        return True
    (term,) = affinity["required"]["nodeSelectorTerms"]
    return all(node["labels"].get(it["key"]) in it["values"] for it in term["matchExpressions"])


def _can_make(storage_class: Obj, node: Obj) -> bool:
    if storage_class["provisioner"] == "kubernetes.io/no-provisioner":
        return False
    terms = storage_class.get("allowedTopologies") or []
    if not terms:
        return True
    return any(
        all(node["labels"].get(it["key"]) in it["values"] for it in term["matchLabelExpressions"]) for term in terms
    )


FAST = "fast"
CLASSES = [storage_class(), storage_class(FAST, "csi.example.com")]
REF = {"kind": "PersistentVolumeClaim", "namespace": "ns", "name": "data"}
OWN, BY_NAME, OTHER = {**REF, "uid": "uid-data"}, REF, {**REF, "uid": "uid-of-another"}
RACK = [{"matchLabelExpressions": [{"key": "rack", "values": ["r1", "r2"]}]}]
TWO = [{"matchLabelExpressions": []}, {"matchLabelExpressions": [{"key": HOST, "values": ["n1"]}]}]


def bindings(shelf: Shelf, *claims: str, **labels: str) -> dict[str, str | None] | Obstacle:
    """By claim: the name of the volume that it gets on node ``n1``, None for a new one."""
    volumes = volumes_of(pod(uses(*claims)), shelf)
    assert isinstance(volumes, PodVolumes)
    found = volumes.bindings(node("n1", **labels))
    if isinstance(found, Bindings):
        reserved = {claim.metadata.name: it.metadata.name for claim, it in found.reserve}
        return {**reserved, **{claim.metadata.name: None for claim in found.provision}}
    assert volumes.obstacle(node("n1", **labels), {}) == found
    return found


NOTHING = Obstacle(VOLUME_BINDING)
CASES: dict[str, tuple[list[Obj], dict[str, str | None] | Obstacle]] = {
    "the only volume": ([volume_claim(), volume()], {"data": "pv"}),
    "none": ([volume_claim()], NOTHING),
    "the smallest that suffices": (
        [volume_claim(size="2Gi"), volume("a", size="3Gi"), volume("b", size="1Gi"), volume("c", size="2Gi")],
        {"data": "c"},
    ),
    "the first of two alike": ([volume_claim(), volume("b"), volume("a")], {"data": "a"}),
    "amounts in other units": ([volume_claim(size="1024Mi"), volume(size="1Gi")], {"data": "pv"}),
    "none that is too small": ([volume_claim(size="2Gi"), volume()], NOTHING),
    "none of another class": ([volume_claim(), volume(class_name=FAST)], NOTHING),
    "none of another node": ([volume_claim(), volume(affinity=on_nodes("n2"))], NOTHING),
    "none that is no longer free": ([volume_claim(), volume(status={"phase": "Released"})], NOTHING),
    "none that is being deleted": (
        [volume_claim(), volume(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})],
        NOTHING,
    ),
    "none of another mode": ([volume_claim(spec={"volumeMode": "Block"}), volume()], NOTHING),
    "one of the same mode, given or by default": (
        [volume_claim(spec={"volumeMode": "Filesystem"}), volume()],
        {"data": "pv"},
    ),
    "none with other attributes": ([volume_claim(spec={"volumeAttributesClassName": "gold"}), volume()], NOTHING),
    "one with all access modes": (
        [
            volume_claim(spec={"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}),
            volume("a"),
            volume("b", spec={"accessModes": ["ReadOnlyMany", "ReadWriteOnce", "ReadWriteMany"]}),
        ],
        {"data": "b"},
    ),
    "one that the selector selects": (
        [
            volume_claim(spec={"selector": {"matchLabels": {"tier": "gold"}}}),
            volume("a"),
            volume("b", metadata={"labels": {"tier": "gold"}}),
        ],
        {"data": "b"},
    ),
    "the reserved one, although it is bigger": (
        [volume_claim(), volume("a"), volume("b", size="3Gi", spec={"claimRef": OWN}, status={"phase": "Pending"})],
        {"data": "b"},
    ),
    "one reserved by name": ([volume_claim(), volume(spec={"claimRef": BY_NAME})], {"data": "pv"}),
    "none that is reserved for its predecessor": ([volume_claim(), volume(spec={"claimRef": OTHER})], NOTHING),
    "no other when the reserved one is elsewhere": (
        [volume_claim(), volume("a"), volume("b", affinity=on_nodes("n2"), spec={"claimRef": OWN})],
        NOTHING,
    ),
    "a new one": ([volume_claim(class_name=FAST)], {"data": None}),
    "one that exists rather than a new one": (
        [volume_claim(class_name=FAST), volume(class_name=FAST)],
        {"data": "pv"},
    ),
    "a new one when its node is selected": (
        [volume_claim(class_name=FAST, metadata={"annotations": {SELECTED: "n1"}}), volume(class_name=FAST)],
        {"data": None},
    ),
    "none when another node is selected": (
        [volume_claim(class_name=FAST, metadata={"annotations": {SELECTED: "n2"}}), volume(class_name=FAST)],
        NOTHING,
    ),
    "a new one where the class allows it": (
        [volume_claim(class_name="zonal"), storage_class("zonal", "csi.example.com", allowedTopologies=TWO)],
        {"data": None},
    ),
    "none where the class does not allow it": (
        [volume_claim(class_name="zonal"), storage_class("zonal", "csi.example.com", allowedTopologies=RACK)],
        NOTHING,
    ),
    "none where the class allows no node": (
        [volume_claim(class_name="zonal"), storage_class("zonal", "csi.example.com", allowedTopologies=TWO[:1])],
        NOTHING,
    ),
    "one whose class is in the old annotation": (
        [
            volume_claim(
                class_name="gone", metadata={"annotations": {"volume.beta.kubernetes.io/storage-class": LATE}}
            ),
            volume(),
        ],
        {"data": "pv"},
    ),
}


@pytest.mark.rule("NR-36", "NR-37")
@pytest.mark.parametrize("case", CASES)
def test_a_claim_gets(case: str) -> None:
    objects, expected = CASES[case]
    assert bindings(Shelf.of(*CLASSES, *objects), "data") == expected


@pytest.mark.rule("NR-36")
def test_small_claims_leave_big_volumes_to_big_ones() -> None:
    claims = [volume_claim("big", size="3Gi"), volume_claim("small"), volume_claim("same")]
    volumes = [volume("a", size="3Gi"), volume("b", size="1Gi"), volume("c", size="2Gi")]
    shelf = Shelf.of(*CLASSES, *claims, *volumes)
    assert bindings(shelf, "big", "small", "same") == {"big": "a", "small": "b", "same": "c"}


def test_a_claim_that_is_used_twice_gets_one_volume() -> None:
    assert bindings(Shelf.of(*CLASSES, volume_claim(), volume()), "data", "data") == {"data": "pv"}


def test_bound_claims_come_first() -> None:
    claims = [volume_claim("bound", "there"), volume_claim()]
    shelf = Shelf.of(*CLASSES, *claims, volume("there", affinity=on_nodes("n2")), volume())
    assert bindings(shelf, "bound", "data") == Obstacle(VOLUME_AFFINITY)


def test_what_a_plan_takes_is_taken_until_it_is_written() -> None:
    shelf = Shelf.of(*CLASSES, volume_claim(), volume_claim("other"), volume(), volume_claim("new", class_name=FAST))
    volumes = volumes_of(pod(uses("data", "new")), shelf)
    assert isinstance(volumes, PodVolumes)
    found = volumes.bindings(node("n1"))
    assert isinstance(found, Bindings)
    shelf.assume("uid-pod", "n1", found)
    assert bindings(shelf, "other") == NOTHING
    assert bindings(shelf, "data") == {"data": "pv"}
    shared = shelf.claim("ns/new")
    assert shared is not None
    assert (shared.metadata.annotations or {})[SELECTED] == "n1"
    shelf.written("uid-pod")
    assert bindings(shelf, "other") == {"other": "pv"}


# --- the same answer as an oracle that tries everything ---

_SIZES = st.sampled_from(["1Gi", "2Gi", "3Gi"])
_CLASS = st.sampled_from([LATE, FAST, "zonal"])
_AFFINITY = st.sampled_from([None, on_nodes("n1"), on_nodes("n2"), on_labels("rack", "r1")])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Obj], list[Obj]]:
    claims = []
    for number in range(draw(st.integers(1, 4))):
        notes = draw(st.sampled_from([{}, {}, {}, {SELECTED: "n1"}, {SELECTED: "n2"}]))
        meta: dict[str, Any] = {"annotations": notes}
        claims.append(volume_claim(f"c{number}", size=draw(_SIZES), class_name=draw(_CLASS), metadata=meta))
    volumes = []
    for number in range(draw(st.integers(0, 6))):
        owner = draw(st.sampled_from([None, None, None, "c0", "c1", "gone"]))
        uid = draw(st.sampled_from([{}, {"uid": f"uid-{owner}"}, {"uid": "of-another"}]))
        spec = {"claimRef": {**REF, "name": owner, **uid}} if owner else {}
        made = volume(f"v{number}", size=draw(_SIZES), class_name=draw(_CLASS), affinity=draw(_AFFINITY), spec=spec)
        made["status"]["phase"] = draw(st.sampled_from(["Available", "Available", "Released"]))
        volumes.append(made)
    return claims, volumes


@pytest.mark.rule("NR-36", "NR-37")
@given(worlds(), st.sampled_from(["r1", "r2", "r3"]))
def test_claims_get_what_an_oracle_gives_them(world: tuple[list[Obj], list[Obj]], rack: str) -> None:
    claims, volumes = world
    classes = [*CLASSES, storage_class("zonal", "csi.example.com", allowedTopologies=RACK)]
    found = bindings(Shelf.of(*classes, *claims, *volumes), *(it["metadata"]["name"] for it in claims), rack=rack)
    expected = oracle(
        claims,
        volumes,
        {it["metadata"]["name"]: it for it in classes},
        {"name": "n1", "labels": {HOST: "n1", "rack": rack}},
    )
    assert found == (NOTHING if expected is None else expected)
