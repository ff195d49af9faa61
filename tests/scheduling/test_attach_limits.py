"""CSI drivers attach only so many volumes to a node, and have only so much room for new ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from dra_operator.scheduling.rules import Bindings, volumes_of
from dra_operator.scheduling.rules.volume_binding import VOLUME_SPACE
from dra_operator.scheduling.rules.volumes import VOLUME_LIMIT, AttachLimits, PodVolumes
from dra_operator.scheduling.state import Obstacle, add, node_requests
from objects import Obj
from volume_lab import (
    CSI,
    HOST,
    Shelf,
    attachment,
    capacity,
    csi,
    csi_driver,
    csi_node,
    node,
    pod,
    storage_class,
    uses,
    volume,
    volume_claim,
)

FAST = "fast"
CLASSES = [storage_class(), storage_class(FAST, CSI)]


def bound(name: str, handle: str = "", driver: str = CSI) -> list[Obj]:
    """A claim with its volume."""
    return [volume_claim(name, f"pv-{name}"), volume(f"pv-{name}", spec=csi(handle or f"h-{name}", driver))]


A, B, C = bound("a"), bound("b"), bound("c")
FULL = Obstacle(VOLUME_LIMIT, CSI)
CASES: dict[str, tuple[list[Obj], Sequence[Sequence[str]], Sequence[str], Obstacle | None]] = {
    "no limit": ([csi_node(None), *A, *B], [["a"]], ["b"], None),
    "no CSINode": ([*A, *B], [["a"]], ["b"], None),
    "room left": ([csi_node(2), *A, *B], [["a"]], ["b"], None),
    "none left": ([csi_node(1), *A, *B], [["a"]], ["b"], FULL),
    "no room for two": ([csi_node(2), *A, *B, *C], [["a"]], ["b", "c"], FULL),
    "a limit of nothing": ([csi_node(0), *A], [], ["a"], FULL),
    "two pods of one volume": ([csi_node(2), *A, *B], [["a"], ["a"]], ["b"], None),
    "a volume that is there already": ([csi_node(1), *A], [["a"]], ["a"], None),
    "two claims of one volume": ([csi_node(2), *A, *bound("b", "h-a"), *C], [["a", "b"]], ["c"], None),
    "another driver's limit": ([csi_node(1, driver="other"), *A, *B], [["a"]], ["b"], None),
    "volumes of another driver": ([csi_node(1), *bound("a", driver="other"), *B], [["a"]], ["b"], None),
    "volumes of no driver": (
        [csi_node(1), volume_claim("a", "pv-a"), volume("pv-a"), *B],
        [["a"]],
        ["b"],
        None,
    ),
    "a pod without volumes": ([csi_node(0)], [], [], None),
    "a volume that is still attached": ([csi_node(1), *A, *B, attachment("pv-a")], [], ["b"], FULL),
    "an attachment of a volume in use": ([csi_node(2), *A, *B, attachment("pv-a")], [["a"]], ["b"], None),
    "an attachment to another node": ([csi_node(1), *A, *B, attachment("pv-a", "n2")], [], ["b"], None),
    "an attachment of a volume that is gone": ([csi_node(1), *B, attachment("pv-x")], [], ["b"], None),
    "a volume to be made": ([csi_node(1), *CLASSES, *A, volume_claim("new", class_name=FAST)], [["a"]], ["new"], FULL),
    "a volume being made": (
        [csi_node(1), *CLASSES, *A, volume_claim("new", class_name=FAST)],
        [["new"]],
        ["a"],
        FULL,
    ),
    "a claim that is gone": ([csi_node(1), *A], [["gone"]], ["a"], None),
}


@pytest.mark.rule("NR-41")
@pytest.mark.parametrize("case", CASES)
def test_a_node_with(case: str) -> None:
    objects, there, comes, expected = CASES[case]
    used: dict[str, int] = {}
    for number, claims in enumerate(there):
        used = add(used, node_requests(pod(uses(*claims), f"there-{number}"), ()))
    found = AttachLimits.of(pod(uses(*comes)), Shelf.of(*objects)).obstacle("n1", used)
    assert found == expected


HERE, THERE = {"matchLabels": {HOST: "n1"}}, {"matchLabels": {HOST: "n2"}}
ASKED = csi_driver(tells_capacity=True)
ROOM: dict[str, tuple[list[Obj], bool]] = {
    "no driver": ([], True),
    "a driver that does not tell": ([csi_driver(tells_capacity=False)], True),
    "a driver that tells of no room": ([ASKED], False),
    "enough": ([ASKED, capacity("c", FAST, HERE, capacity="2Gi")], True),
    "just enough": ([ASKED, capacity("c", FAST, HERE, capacity="1Gi")], True),
    "too little": ([ASKED, capacity("c", FAST, HERE, capacity="1Mi")], False),
    "enough in pieces that are too small": (
        [ASKED, capacity("c", FAST, HERE, capacity="5Gi", maximumVolumeSize="1Mi")],
        False,
    ),
    "no figures": ([ASKED, capacity("c", FAST, HERE)], False),
    "room elsewhere": ([ASKED, capacity("c", FAST, THERE, capacity="2Gi")], False),
    "room everywhere": ([ASKED, capacity("c", FAST, {}, capacity="2Gi")], True),
    "room nowhere": ([ASKED, capacity("c", FAST, None, capacity="2Gi")], False),
    "room for another class": ([ASKED, capacity("c", "other", HERE, capacity="2Gi")], False),
    "room in the second place": (
        [ASKED, capacity("c", FAST, HERE, capacity="1Mi"), capacity("d", FAST, HERE, capacity="2Gi")],
        True,
    ),
}


@pytest.mark.rule("NR-40")
@pytest.mark.parametrize("case", ROOM)
def test_a_new_volume_with(case: str) -> None:
    objects, fits = ROOM[case]
    volumes = volumes_of(pod(uses("data")), Shelf.of(*CLASSES, *objects, volume_claim(class_name=FAST)))
    assert isinstance(volumes, PodVolumes)
    found = volumes.bindings(node("n1"))
    assert found == Obstacle(VOLUME_SPACE) if not fits else isinstance(found, Bindings)


@pytest.mark.rule("NR-40")
def test_a_claim_that_names_no_size_needs_no_room() -> None:
    claim = volume_claim(class_name=FAST, spec={"resources": {}})
    volumes = volumes_of(pod(uses("data")), Shelf.of(*CLASSES, ASKED, claim))
    assert isinstance(volumes, PodVolumes)
    assert isinstance(volumes.bindings(node("n1")), Bindings)
