"""Label selectors: what they select, which are equal, and the label under which one can be filed."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.meta import LabelSelector
from dra_api.selectors import (
    EVERYTHING,
    NOTHING,
    Requirement,
    Selector,
)

LABELS = {"app": "web", "tier": "x"}


def selector(**fields: Any) -> Selector:
    return Selector.of(convert(LabelSelector, fields))


def wish(operator: str, *values: str, key: str = "app") -> Selector:
    return selector(matchExpressions=[{"key": key, "operator": operator, "values": list(values)}])


@pytest.mark.parametrize(
    ("given", "selected"),
    [
        pytest.param(Selector.of(None), False, id="none"),
        pytest.param(selector(), True, id="empty"),
        pytest.param(selector(matchLabels={"app": "web"}), True, id="a label"),
        pytest.param(selector(matchLabels={"app": "db"}), False, id="another value"),
        pytest.param(selector(matchLabels={"app": "web", "zone": "a"}), False, id="one of two labels"),
        pytest.param(wish("In", "web", "db"), True, id="In"),
        pytest.param(wish("In", "db"), False, id="not In"),
        pytest.param(wish("In"), False, id="In nothing"),
        pytest.param(wish("NotIn", "db"), True, id="NotIn"),
        pytest.param(wish("NotIn", "web"), False, id="not NotIn"),
        pytest.param(wish("NotIn", "a", key="zone"), True, id="NotIn without the label"),
        pytest.param(wish("Exists"), True, id="Exists"),
        pytest.param(wish("Exists", key="zone"), False, id="not Exists"),
        pytest.param(wish("DoesNotExist", key="zone"), True, id="DoesNotExist"),
        pytest.param(wish("DoesNotExist"), False, id="not DoesNotExist"),
        pytest.param(wish("Like", "web"), False, id="an operator that does not exist"),
        pytest.param(EVERYTHING.also([Requirement("app", "Exists")]), True, id="one more requirement"),
        pytest.param(NOTHING.also([Requirement("app", "Exists")]), False, id="nothing stays nothing"),
    ],
)
def test_labels_are_selected(given: Selector, selected: bool) -> None:
    assert given.matches(LABELS) is selected


@pytest.mark.parametrize("operator", ["In", "NotIn", "Exists", "DoesNotExist", "Like"])
@pytest.mark.parametrize("key", ["app", "zone"])
@pytest.mark.parametrize("values", [(), ("web",), ("db", "mail")])
def test_many_objects_are_selected_as_each_of_them(operator: str, key: str, values: tuple[str, ...]) -> None:
    requirement = Requirement(key, operator, frozenset(values))
    several: list[dict[str, str]] = [{}, LABELS, {"app": "db"}, {"zone": "web"}]
    labelled = [(labels, number) for number, labels in enumerate(several)]
    assert requirement.among(labelled) == [it for it in labelled if requirement.holds(it[0])]


def test_what_asks_for_the_same_is_equal() -> None:
    one = selector(matchLabels={"a": "1", "b": "2"}, matchExpressions=[{"key": "c", "operator": "Exists"}])
    other = selector(
        matchExpressions=[{"key": "c", "operator": "Exists"}, {"key": "a", "operator": "In", "values": ["1"]}],
        matchLabels={"b": "2"},
    )
    assert (one, hash(one)) == (other, hash(other))
    assert (selector().is_empty, Selector.of(None).is_empty, one.is_empty) == (True, False, False)


@pytest.mark.parametrize(
    ("given", "anchor"),
    [
        pytest.param(selector(matchLabels={"b": "2", "a": "1"}), ("a", "1"), id="the first label"),
        pytest.param(wish("In", "web"), ("app", "web"), id="one value"),
        pytest.param(wish("In", "web", "db"), None, id="two values"),
        pytest.param(wish("NotIn", "web"), None, id="not a value"),
        pytest.param(selector(), None, id="everything"),
        pytest.param(NOTHING, None, id="nothing"),
    ],
)
def test_a_label_that_all_selected_objects_have_is_the_anchor(given: Selector, anchor: tuple[str, str] | None) -> None:
    assert given.anchor == anchor
