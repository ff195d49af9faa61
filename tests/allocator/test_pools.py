"""Which pools a node may use (allocator.md section 3), and slices that come and go."""

from __future__ import annotations

from typing import Any

import pytest
from allocator_lab import Answer, Json, Lab, claim, device, lab, make_node, pool, request
from dra_api.codec import convert
from dra_api.core import NodeSelector
from dra_api.resource import ResourceSlice
from dra_ledger.node_selectors import matches as node_matches
from dra_operator.allocator import Features, NodeSelectionError, Refused, Semantics

ONE = [claim(request("r"))]
EVERYTHING = [claim(request("r", allocationMode="All"))]


def slice_(name: str, *devices: Any, generation: int = 1, count: int = 1, node: str = "n1", **spec: Any) -> Any:
    where = spec or {"nodeName": node}
    about = {"name": "p", "generation": generation, "resourceSliceCount": count}
    return {"metadata": {"name": name}, "spec": {"driver": "drv", "pool": about, "devices": list(devices), **where}}


SEES: dict[str, tuple[list[Json], Answer, Answer]] = {
    "slices of another node": ([slice_("s", device("a"), node="n2")], "none", "none"),
    "slices for all nodes": ([slice_("s", device("a"), allNodes=True)], [["r=drv/p/a"]], [["r=drv/p/a"]]),
    "slices that name no nodes at all": ([slice_("s", device("a"), unknown=True)], "none", "none"),
    "an incomplete pool": ([slice_("s", device("a"), count=2)], "none", "nodeError"),
    "a pool completed by a slice of another node": (
        [slice_("s", device("a"), count=2), slice_("t", device("b"), count=2, node="n2")],
        [["r=drv/p/a"]],
        [["r=drv/p/a"]],
    ),
    "too many slices": (
        [slice_("s", device("a")), slice_("t", device("b"), node="n2"), slice_("u", device("c"), node="n3")],
        [["r=drv/p/a"]],
        [["r=drv/p/a"]],
    ),
    "slices that do not agree how many they are, the first of which by name is right": (
        [slice_("t", device("b"), count=3), slice_("s", device("a"), count=2)],
        [["r=drv/p/a"]],
        [["r=drv/p/a", "r=drv/p/b"]],
    ),
    "slices that do not agree how many they are, the first of which by name is wrong": (
        [slice_("t", device("b"), count=2), slice_("s", device("a"), count=3)],
        "none",
        "nodeError",
    ),
    "a slice that has devices beside shared counters": (
        [slice_("s", device("a"), nodeName="n1", sharedCounters=[{"name": "y", "counters": {"c": {"value": "1"}}}])],
        "none",
        "none",
    ),
    "a slice that is not for all nodes, but some of its devices are": (
        [slice_("s", device("a", extra={"allNodes": True}), allNodes=False, perDeviceNodeSelection=True)],
        [["r=drv/p/a"]],
        [["r=drv/p/a"]],
    ),
    "only the newest generation": (
        [slice_("s", device("a")), slice_("t", device("b"), generation=2)],
        [["r=drv/p/b"]],
        [["r=drv/p/b"]],
    ),
    "an older generation while the newer one is elsewhere": (
        [slice_("s", device("a")), slice_("t", device("b"), generation=2, node="n2")],
        "none",
        "none",
    ),
    "a device name twice": ([slice_("s", device("a"), device("a"))], "nodeError", "nodeError"),
    "a device name twice, on another node": (
        [slice_("s", device("a"), count=2), slice_("t", device("a"), count=2, node="n2")],
        [["r=drv/p/a"]],
        [["r=drv/p/a"]],
    ),
    "devices for nodes of their own": (
        [
            slice_(
                "s",
                device("a", extra={"nodeName": "n2"}),
                device("b", extra={"allNodes": True}),
                device("c", extra={"nodeName": "n1"}),
                perDeviceNodeSelection=True,
            )
        ],
        [["r=drv/p/b"]],
        [["r=drv/p/b", "r=drv/p/c"]],
    ),
    "a device that consumes nothing, unlike one of its name on another node": (
        [
            slice_("s", device("a"), device("b", consumes={"y": {"c": 1}}), count=3),
            slice_("t", device("a", consumes={"y": {"c": 2}}), count=3, node="n2"),
            slice_("u", count=3, nodeName="n1", sharedCounters=[{"name": "y", "counters": {"c": {"value": "1"}}}]),
        ],
        [["r=drv/p/a"]],
        [["r=drv/p/a", "r=drv/p/b"]],
    ),
    "consumption from an unknown counter set": (
        [
            slice_("s", device("a", consumes={"x": {"c": 1}}), count=2),
            slice_("t", count=2, nodeName="n1", sharedCounters=[{"name": "y", "counters": {"c": {"value": "1"}}}]),
        ],
        "nodeError",
        "nodeError",
    ),
    "an invalid pool of counters on another node": (
        [
            slice_("s", device("a", consumes={"x": {"c": 1}}), count=2, node="n2"),
            slice_("t", count=2, nodeName="n2", sharedCounters=[{"name": "y", "counters": {"c": {"value": "1"}}}]),
        ],
        "none",
        "none",
    ),
    "a selector that cannot be parsed": (
        [
            slice_("s", device("a")),
            {
                "metadata": {"name": "t"},
                "spec": {
                    "driver": "other",
                    "pool": {"name": "o", "generation": 1, "resourceSliceCount": 1},
                    "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "z", "operator": "Bogus"}]}]},
                },
            },
        ],
        [["r=drv/p/a"]],
        [["r=drv/p/a"]],
    ),
}


@pytest.mark.rule("AL-01", "AL-02", "AL-03", "AL-04", "AL-05")
@pytest.mark.parametrize(("slices", "one", "everything"), SEES.values(), ids=SEES.keys())
def test_what_a_node_sees_of(slices: list[Json], one: Answer, everything: Answer) -> None:
    assert lab(slices, ONE).devices() == one
    assert lab(slices, EVERYTHING).devices() == everything


@pytest.mark.parametrize("what", [what for what, (_, _, everything) in SEES.items() if everything == "nodeError"])
def test_the_reference_has_one_node_end_the_attempt_for_all(what: str) -> None:
    assert lab(SEES[what][0], EVERYTHING, semantics=Semantics.reference()).devices() == "error"


def test_the_reference_has_a_selector_that_cannot_be_parsed_end_the_attempt() -> None:
    slices, _, _ = SEES["a selector that cannot be parsed"]
    assert lab(slices, ONE, semantics=Semantics.reference()).devices() == "error"


@pytest.mark.rule("AL-01")
def test_without_partitionable_devices_their_slices_do_not_exist() -> None:
    off = Features(partitionable_devices=False)
    per_device = [slice_("s", device("a", extra={"allNodes": True}), perDeviceNodeSelection=True)]
    assert lab(per_device, ONE, features=off).devices() == "none"
    counters = pool(device("a", consumes={"g": {"s": 1}}), counters={"g": {"s": 1}})
    assert lab(counters, ONE, features=off).devices() == "none"


def put(made: Lab, slice_: object) -> None:
    made.allocator.inventory.put_slice(convert(ResourceSlice, slice_))


def test_decisions_follow_slices_as_they_change() -> None:
    made = lab([], ONE)
    assert made.devices() == "none"
    put(made, slice_("s", device("a"), count=2))
    assert made.devices() == "none"
    put(made, slice_("t", device("b"), count=2))
    assert made.devices() == [["r=drv/p/a"]]
    put(made, slice_("s", count=2))
    assert made.devices() == [["r=drv/p/b"]]
    made.allocator.inventory.remove_slice("t")
    made.allocator.inventory.remove_slice("t")  # late news are harmless
    assert made.devices() == "none"
    put(made, slice_("s", device("z"), generation=9))
    assert made.devices() == [["r=drv/p/z"]]


@pytest.mark.rule("AL-01")
def test_a_node_that_changes_its_labels_sees_other_slices() -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    made = lab([slice_("s", device("a"), nodeSelector=terms)], ONE)
    assert made.devices(make_node("n1", zone="b")) == "none"
    assert made.devices(make_node("n1", zone="a")) == [["r=drv/p/a"]]


def test_equal_parts_of_devices_are_kept_once() -> None:
    capacity = {"mem": "1Gi"}
    made = lab([slice_("s", device("a", model="A", capacity=capacity)), slice_("t", device("b", model="A"))], ONE)
    put(made, slice_("u", device("c", model="A", capacity=capacity), device("d", capacity={"mem": "1024Mi"})))
    inventory = made.allocator.inventory
    (a,), (b,), (c, d) = ((inventory.slice(name) or pytest.fail(name)).spec.devices or () for name in "stu")
    assert a.attributes is not None
    assert c.attributes is not None
    assert a.attributes["model"] is c.attributes["model"]
    assert a.capacity is c.capacity
    assert d.capacity is not None
    assert str(d.capacity["mem"].value) == "1024Mi"  # equal in value, but texts are kept
    assert b.capacity is None


MATCHES = {
    "In": ({"key": "zone", "operator": "In", "values": ["a", "b"]}, True),
    "In with another value": ({"key": "zone", "operator": "In", "values": ["b"]}, False),
    "In with a missing label": ({"key": "nope", "operator": "In", "values": [""]}, False),
    "NotIn with a missing label": ({"key": "nope", "operator": "NotIn", "values": ["b"]}, True),
    "Exists": ({"key": "zone", "operator": "Exists"}, True),
    "DoesNotExist": ({"key": "zone", "operator": "DoesNotExist"}, False),
    "Gt": ({"key": "number", "operator": "Gt", "values": ["6"]}, True),
    "Gt with the same number": ({"key": "number", "operator": "Gt", "values": ["7"]}, False),
    "Lt with a label that is no number": ({"key": "zone", "operator": "Lt", "values": ["8"]}, False),
    "Gt with a number that is spelled otherwise": ({"key": "padded", "operator": "Gt", "values": ["006"]}, True),
    "Gt with separators in the number": ({"key": "separated", "operator": "Gt", "values": ["6"]}, False),
    "Gt with a number of more than 64 bits": ({"key": "huge", "operator": "Gt", "values": ["6"]}, False),
}
NUMBERS = {"number": "7", "padded": "007", "separated": "1_0", "huge": "9223372036854775808"}


@pytest.mark.parametrize(("requirement", "expected"), MATCHES.values(), ids=MATCHES.keys())
def test_node_selector_requirement(requirement: Json, expected: bool) -> None:
    selector = convert(NodeSelector, {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]})
    assert node_matches(selector, make_node("n1", zone="a", **NUMBERS)) is expected


@pytest.mark.parametrize(
    "requirement",
    [
        {"key": "metadata.name", "operator": "Exists"},
        {"key": "metadata.name", "operator": "In", "values": ["a", "b"]},
        {"key": "metadata.name", "operator": "NotIn"},
    ],
)
def test_a_malformed_requirement_on_fields_is_named(requirement: Json) -> None:
    selector = convert(NodeSelector, {"nodeSelectorTerms": [{"matchFields": [requirement]}]})
    with pytest.raises(NodeSelectionError, match=r"field metadata\.name supports In and NotIn"):
        node_matches(selector, make_node("n1"))


def test_terms_are_alternatives_and_an_empty_one_matches_nothing() -> None:
    name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    assert node_matches(convert(NodeSelector, {"nodeSelectorTerms": [{}, name]}), make_node("n1"))
    assert not node_matches(convert(NodeSelector, {"nodeSelectorTerms": [{}]}), make_node("n1"))


@pytest.mark.parametrize(
    "requirement",
    [
        {"key": "z", "operator": "Bogus"},
        {"key": "z", "operator": "In"},
        {"key": "z", "operator": "Exists", "values": ["a"]},
        {"key": "z", "operator": "Gt", "values": ["many"]},
        {"key": "z", "operator": "Gt", "values": ["9223372036854775808"]},
        {"key": "z", "operator": "Gt", "values": ["-1"]},  # a number, but no value of a label
        {"key": "z", "operator": "NotIn", "values": ["a", "not a value"]},
        {"key": "z z", "operator": "Exists"},
    ],
)
def test_a_malformed_requirement_is_named(requirement: Json) -> None:
    selector = convert(NodeSelector, {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]})
    with pytest.raises(NodeSelectionError, match="z"):
        node_matches(selector, make_node("n1"))


def test_of_two_malformed_slices_the_same_one_is_named_in_whatever_order_they_came() -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": "Is", "values": ["a"]}]}
    slices = [
        slice_(name, device(name), count=2, nodeSelector={"nodeSelectorTerms": [term]}) for name in ("first", "second")
    ]
    fault = "first: node selector: zone has the unsupported operator"
    for arrived in (slices, slices[::-1]):
        outcome = lab(arrived, ONE, semantics=Semantics.reference()).decide()
        assert str(getattr(outcome, "error", "")).startswith(f"slice {fault}")
        refused = lab(arrived, ONE).decide()
        assert isinstance(refused, Refused)
        (named,) = refused.refusal.pools
        assert named.startswith(f"resource pool drv/p has devices for no node: ResourceSlice {fault}")
