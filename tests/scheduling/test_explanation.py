"""The one line that an event has for all nodes."""

from __future__ import annotations

from dataclasses import replace

from dra_api.codec import convert
from dra_api.resource import ResourceSlice
from dra_operator.allocator import Refusal, RefusedClaim, Rule
from dra_operator.scheduling import NoPlace
from dra_operator.scheduling.cycle.filter import LONGEST_DIAGNOSIS_CHARACTERS, Reasons
from placement_lab import allocator, claim, decide, node, pod, wants


def refused(number: int, name: str, detail: str = "") -> Refusal:
    return Refusal(f"node-{number}", Rule.SELECTOR, RefusedClaim(name), "r", needs=1, devices=number % 3, detail=detail)


def test_five_thousand_nodes_with_different_numbers_are_one_reason_with_the_closest_node() -> None:
    for numbers in (range(5000), range(4999, -1, -1)):  # the order of the nodes makes no difference
        reasons = Reasons()
        for number in numbers:
            reasons.refuse(replace(refused(number, "ns/c"), matching=number % 3 // 2))
        assert reasons.line(5000) == (
            '0/5000 nodes are available: 5000 cannot satisfy claim ns/c request "r" '
            "(needs 1 device; 1 of 2 matches; best node: node-1001)"
        )


def test_no_node_is_the_best_where_no_device_matches() -> None:
    reasons = Reasons()
    for number in range(5000):
        reasons.refuse(refused(number, "ns/c"))
    assert reasons.line(5000) == (
        '0/5000 nodes are available: 5000 cannot satisfy claim ns/c request "r" (needs 1 device; no device matches)'
    )


def test_a_line_fits_an_event_however_long_the_names_are() -> None:
    reasons = Reasons()
    for number in range(5000):
        reasons.refuse(refused(number, f"{number % 6}-{'n' * 300}"))
    line = reasons.line(5000)
    assert LONGEST_DIAGNOSIS_CHARACTERS - 400 < len(line) <= LONGEST_DIAGNOSIS_CHARACTERS
    assert line.endswith("for other reasons")
    shown = [int(part.split()[0]) for part in line.partition("available: ")[2].split("), ") if part[0].isdigit()]
    assert sum(shown) == 5000


def test_what_does_not_fit_even_alone_is_cut_visibly() -> None:
    reasons = Reasons()
    reasons.refuse(refused(1, "ns/c", detail=" " + "d" * 2000))
    line = reasons.line(1)
    assert len(line) == LONGEST_DIAGNOSIS_CHARACTERS
    assert line.endswith("...")


def test_nodes_that_were_not_asked_are_described_by_the_request_alone() -> None:
    reasons = Reasons()
    reasons.refuse_others(RefusedClaim("ns/c"), "r", 3)
    assert reasons.line(3) == (
        '0/3 nodes are available: 3 cannot satisfy claim ns/c request "r" (too few free devices match)'
    )
    assert Reasons().line(0) == "0/0 nodes are available: the cluster has no nodes"


def test_of_nodes_that_were_not_asked_no_numbers_are_reported() -> None:
    reasons = Reasons()
    for _ in range(17):
        reasons.refuse(refused(2, "ns/c"))
    reasons.refuse_others(RefusedClaim("ns/c"), "r", 83)
    assert reasons.line(100) == (
        '0/100 nodes are available: 100 cannot satisfy claim ns/c request "r" '
        "(needs 1 device; no device matches on the 17 nodes looked at)"
    )


def test_a_node_whose_pool_is_incomplete_comes_closer_than_one_that_never_had_such_devices() -> None:
    devices = allocator(n3=["nic", "nic"])
    spec = {"driver": "drv", "nodeName": "n2", "devices": [{"name": "a", "attributes": {"gpu": {"bool": True}}}]}
    pool = {"name": "n2", "generation": 1, "resourceSliceCount": 2}
    devices.inventory.put_slice(convert(ResourceSlice, {"metadata": {"name": "half"}, "spec": {**spec, "pool": pool}}))
    nodes = [node(name) for name in ("n1", "n2", "n3")]
    answer = decide(pod(), [claim("c", wants(selector="gpu"))], nodes, devices)
    assert isinstance(answer, NoPlace)
    assert answer.message == (
        '0/3 nodes are available: 3 cannot satisfy claim ns/c request "r" (needs 1 device; no usable devices; '
        "resource pool drv/n2 is currently being updated, since it announces 2 slices of its newest generation and "
        "has fewer; best node: n2)"
    )


def test_where_pools_are_missing_on_all_nodes_none_is_the_best() -> None:
    nodes = [node(name) for name in ("n1", "n2", "n3")]
    answer = decide(pod(), [claim("c", wants(selector="gpu"))], nodes, allocator(n3=["nic", "nic"]))
    assert isinstance(answer, NoPlace)
    assert answer.message == (
        '0/3 nodes are available: 3 cannot satisfy claim ns/c request "r" (needs 1 device; no device matches)'
    )
