"""Each rule and each score is in the list of all, and its reasons have names of their own."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from types import ModuleType

import dra_operator.scheduling
import pytest
from dra_operator.scheduling import Nodes
from dra_operator.scheduling.nodes import RULES
from dra_operator.scheduling.rules.node_rules import OTHER_OS
from dra_operator.scheduling.rules.rule import NodeRule
from dra_operator.scheduling.scores import SCORES, Score
from dra_operator.scheduling.state import Obstacle
from dra_operator.scheduling.state.obstacle import Reason
from placement_lab import node, pod

OS = "kubernetes.io/os"


def modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(dra_operator.scheduling.__path__, "dra_operator.scheduling.")
    return [importlib.import_module(it.name) for it in found]


def test_every_rule_that_exists_is_asked() -> None:
    existing = {
        value
        for module in modules()
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, NodeRule) and value is not NodeRule
    }
    assert existing == set(RULES)


def test_no_two_reasons_share_a_name() -> None:
    reasons = {value for module in modules() for value in vars(module).values() if isinstance(value, Reason)}
    assert len(reasons) > 30
    assert {name for name, count in Counter(reason.name for reason in reasons).items() if count > 1} == set()


def test_a_pod_that_asks_nothing_has_only_the_rules_that_hold_for_all() -> None:
    rules = Nodes().rules_of(pod())
    assert rules.obstacle(node("n1")) is None
    assert not Nodes().rules_between(pod())


def test_every_score_that_exists_is_asked() -> None:
    existing = {
        value
        for module in modules()
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Score) and value is not Score
    }
    assert existing == set(SCORES)


@pytest.mark.parametrize(
    ("system", "labels", "fits"),
    [
        pytest.param({"name": "linux"}, {OS: "linux"}, True, id="its own system"),
        pytest.param({"name": "windows"}, {OS: "linux"}, False, id="another system"),
        pytest.param({"name": "windows"}, {}, True, id="a node that does not tell"),
        pytest.param(None, {OS: "windows"}, True, id="a pod that names none"),
    ],
)
def test_a_pod_runs_on_the_operating_system_that_it_names(
    system: dict[str, str] | None, labels: dict[str, str], fits: bool
) -> None:
    found = Nodes().rules_of(pod(os=system)).obstacle(node("n1", labels=labels))
    assert found == (None if fits else Obstacle(OTHER_OS, "windows"))
