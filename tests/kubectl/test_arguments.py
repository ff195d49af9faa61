"""Label selectors and times as kubectl takes them."""

from __future__ import annotations

import argparse

import pytest
from dra_operator.allocator import DEVICE_ORDERS
from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.arguments import ORDERS, STRATEGIES, seconds
from dra_operator.kubectl.labels import selecting
from dra_operator.scheduling import PLACEMENT_STRATEGIES

LABELS = {"app": "web", "zone": "a", "example.com/gpu": ""}


@pytest.mark.parametrize(
    ("selector", "is_selected"),
    [
        (None, True),
        ("", True),
        ("app=web", True),
        ("app==web,zone=a", True),
        ("app = web , zone!=b", True),
        ("app=db", False),
        ("tier!=db", True),
        ("zone in (a, b)", True),
        ("zone notin (a,b)", False),
        ("tier notin (a)", True),
        ("example.com/gpu", True),
        ("!example.com/gpu", False),
        ("!spot,zone in (b,a),app", True),
        ("example.com/gpu=", True),
    ],
)
def test_a_selector_selects_as_that_of_kubectl(selector: str | None, is_selected: bool) -> None:
    assert selecting(selector)(LABELS) is is_selected


@pytest.mark.parametrize("selector", ["zone in a", "app=web tier=db", "=web", "a,,b", "zone in (a"])
def test_a_selector_that_cannot_be_read_is_refused(selector: str) -> None:
    with pytest.raises(Problem, match="--selector: cannot read"):
        selecting(selector)


@pytest.mark.parametrize(
    ("text", "limit"), [("0", 0), ("30", 30), ("5s", 5), ("1.5m", 90), ("2h", 7200), ("10ms", 0.01)]
)
def test_a_time_is_read(text: str, limit: float) -> None:
    assert seconds(text) == pytest.approx(limit)


def test_the_names_of_strategies_and_orders_are_those_of_the_operator() -> None:
    """Written out, because help and completion load no scheduler."""
    assert (STRATEGIES, ORDERS) == (PLACEMENT_STRATEGIES, DEVICE_ORDERS)


@pytest.mark.parametrize("text", ["", "soon", "-1s", "5d"])
def test_a_time_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        seconds(text)
