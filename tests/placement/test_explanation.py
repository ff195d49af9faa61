"""The one line that an event has for all nodes."""

from __future__ import annotations

from dra_operator.allocator import Refusal, Rule
from dra_operator.placement.explanation import LONGEST, Reasons


def refused(number: int, name: str, detail: str = "") -> Refusal:
    return Refusal(f"node-{number}", Rule.SELECTOR, f"claim {name}", "r", needs=1, devices=number % 3, detail=detail)


def test_five_thousand_nodes_with_different_numbers_are_one_reason_with_the_closest_node() -> None:
    reasons = Reasons()
    for number in range(5000):
        reasons.refuse(refused(number, "ns/c"))
    assert reasons.line(5000) == (
        "0/5000 nodes are available: 5000 claim ns/c, request r: 2 devices: 0 match; needs 1 (best node: node-2)"
    )


def test_a_line_fits_an_event_however_long_the_names_are() -> None:
    reasons = Reasons()
    for number in range(5000):
        reasons.refuse(refused(number, f"{number % 6}-{'n' * 300}"))
    line = reasons.line(5000)
    assert LONGEST - 400 < len(line) <= LONGEST
    assert line.endswith("for other reasons")
    shown = [int(part.split()[0]) for part in line.partition("available: ")[2].split("; ") if part[0].isdigit()]
    assert sum(shown) == 5000


def test_what_does_not_fit_even_alone_is_cut_visibly() -> None:
    reasons = Reasons()
    reasons.refuse(refused(1, "ns/c", detail=" " + "d" * 2000))
    line = reasons.line(1)
    assert len(line) == LONGEST
    assert line.endswith("...")


def test_nodes_that_were_not_asked_are_told_by_the_request_alone() -> None:
    reasons = Reasons()
    reasons.refuse_others("claim ns/c", "r", 3)
    assert reasons.line(3) == "0/3 nodes are available: 3 too few free devices match claim ns/c, request r"
    assert Reasons().line(0) == "0/0 nodes are available: the cluster has no nodes"
