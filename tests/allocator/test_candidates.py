"""Which nodes are worth trying: never too few, errors first, kept up to date."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from allocator_lab import Json, Lab, claim, device, device_class, first_available, lab, make_node, pool, request, sub
from allocator_problems import REFERENCE_MISTAKES, LocalMaker, ask_oracle, laboratory, make_case
from dra_api.codec import convert
from dra_api.core import Node
from dra_api.releases import Release
from dra_api.resource import DeviceClass, ResourceSlice
from dra_operator.allocator import Allocated, DeviceId, Failed, Features, Outcome, Semantics, Usage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounds import fewer

REFERENCE = Semantics.reference()
A, B = 'device.attributes["drv"].model == "A"', 'device.attributes["drv"].model == "B"'


def node_pool(node: str, *models: str, **spec: Any) -> list[Any]:
    devices = (device(f"d{i}", model=model) if model else device(f"d{i}") for i, model in enumerate(models))
    return pool(*devices, name=node, **(spec or {"nodeName": node}))


THREE = [*node_pool("n1", "A", "B"), *node_pool("n2", "A", "A"), *node_pool("n3", "B")]


def names(made: Lab) -> list[str]:
    return sorted(made.allocator.candidates(made.claims, made.usage))


def test_nodes_with_enough_matching_devices() -> None:
    assert names(lab(THREE, [claim(request("r", A))])) == ["n1", "n2"]
    assert names(lab(THREE, [claim(request("r", A, count=2))])) == ["n2"]
    assert names(lab(THREE, [claim(request("r", A, count=3))])) == []


def test_every_request_must_fit() -> None:
    assert names(lab(THREE, [claim(request("r", A), request("q", B))])) == ["n1"]
    assert names(lab(THREE, [claim(request("r", A), name="c1"), claim(request("q", B), name="c2")])) == ["n1"]


def test_requests_with_the_same_selectors_need_different_devices() -> None:
    assert names(lab(THREE, [claim(request("r", A), request("q", A))])) == ["n2"]
    assert names(lab(THREE, [claim(request("r", A), name="c1"), claim(request("q", A), name="c2")])) == ["n2"]
    shared = pool(device("d", model="A", extra={"allowMultipleAllocations": True}), name="n4", nodeName="n4")
    assert "n4" in names(lab([*THREE, *shared], [claim(request("r", A), request("q", A))]))


def test_one_alternative_suffices() -> None:
    assert names(lab(THREE, [claim(first_available("r", sub("x", A, count=2), sub("y", B)))])) == ["n1", "n2", "n3"]


def test_devices_in_use_do_not_count_until_they_are_free_again() -> None:
    made = lab(THREE, [claim(request("r", A))])
    assert names(made) == ["n1", "n2"]
    made.usage.take_device(DeviceId("drv", "n1", "d0"))
    assert names(made) == ["n2"]
    outcome = made.decide(make_node("n2"))
    assert isinstance(outcome, Allocated)
    made.usage.add(outcome.results[0])
    assert names(made) == ["n2"]  # one of two is left
    made.usage.take_device(DeviceId("drv", "n2", "d1"))
    assert names(made) == []
    made.usage.remove(outcome.results[0])
    assert names(made) == ["n2"]


def test_snapshots_old_and_new_are_counted_as_they_are() -> None:
    made = lab(THREE, [claim(request("r", A))])

    def offered(usage: Usage) -> list[str]:
        return sorted(made.allocator.candidates(made.claims, usage))

    before = made.usage.snapshot()
    made.usage.take_device(DeviceId("drv", "n1", "d0"))
    after = made.usage.snapshot()
    fork = before.snapshot()
    fork.take_device(DeviceId("drv", "n2", "d0"))
    fork.take_device(DeviceId("drv", "n2", "d1"))
    for _ in range(2):
        assert offered(before) == ["n1", "n2"]
        assert offered(after) == ["n2"]
        assert offered(made.usage) == ["n2"]
        assert offered(fork) == ["n1"]


def test_admin_access_and_all_look_at_devices_in_use() -> None:
    for fields in ({"adminAccess": True}, {"allocationMode": "All"}):
        made = lab(THREE, [claim(request("r", A, **fields))])
        made.usage.take_device(DeviceId("drv", "n1", "d0"))
        assert names(made) == ["n1", "n2"]


def test_slices_and_classes_that_change() -> None:
    made = lab(THREE, [claim(request("r"))], classes=[device_class("any", A)])
    inventory = made.allocator.inventory
    assert names(made) == ["n1", "n2"]
    (changed,) = node_pool("n3", "A")
    inventory.put_slice(convert(ResourceSlice, changed))
    assert names(made) == ["n1", "n2", "n3"]
    inventory.remove_slice("drv-n1-1")
    assert names(made) == ["n2", "n3"]
    inventory.put_class(convert(DeviceClass, device_class("any", B)))
    assert names(made) == []
    inventory.remove_class("any")
    assert made.allocator.candidates(made.claims, made.usage).anywhere, "the error is the same on every node"
    assert isinstance(made.decide(), Failed)


def test_network_devices_count_for_every_node() -> None:
    network = node_pool("net", "A", allNodes=True)
    made = lab([*THREE, *network], [claim(request("r", A))])
    assert made.allocator.candidates(made.claims, made.usage).anywhere
    assert names(lab([*THREE, *network], [claim(request("r", A, count=2))])) == ["n1", "n2"]


def test_a_node_whose_selector_raises_comes_first_in_the_reference() -> None:
    """The attempt ends with the error although another node would do (E2E-055)."""
    made = lab([*THREE, *node_pool("n4", "")], [claim(request("r", A))], semantics=REFERENCE)
    candidates = list(made.allocator.candidates(made.claims, made.usage))
    assert candidates[0] == "n4"
    assert sorted(candidates) == ["n1", "n2", "n4"]
    assert isinstance(made.decide(make_node("n4")), Failed)


def test_a_node_whose_selector_raises_is_suspected_if_no_other_fits() -> None:
    made = lab([*THREE, *node_pool("n4", "")], [claim(request("r", A))])
    candidates = made.allocator.candidates(made.claims, made.usage)
    assert sorted(candidates) == ["n1", "n2"]
    assert candidates.suspects() == ["n4"]
    outcome = made.decide(make_node("n4"))
    assert isinstance(outcome, Failed)
    assert outcome.is_of_node


def test_a_selector_that_does_not_compile_is_a_fault_of_the_claim() -> None:
    made = lab(THREE, [claim(request("r", "device.nothing"))])
    candidates = made.allocator.candidates(made.claims, made.usage)
    assert list(candidates) == list(candidates.may_error) == ["n1", "n2", "n3"]
    outcome = made.decide()
    assert isinstance(outcome, Failed)
    assert not outcome.is_of_node


def test_an_unusable_pool_makes_its_node_suspicious_for_all() -> None:
    broken = pool(device("a"), device("a"), name="n4", nodeName="n4")
    assert names(lab([*THREE, *broken], [claim(request("r"))])) == ["n1", "n2", "n3"]
    asked = [claim(request("r", allocationMode="All"))]
    made = lab([*THREE, *broken], asked)
    assert names(made) == ["n1", "n2", "n3"]
    assert made.allocator.candidates(made.claims, made.usage).suspects() == ["n4"]
    everything = lab([*THREE, *broken], asked, semantics=REFERENCE)
    assert next(iter(everything.allocator.candidates(everything.claims, everything.usage))) == "n4"


EQUAL = {"matchAttribute": "drv/k", "requests": ["all"]}
BOTH_EQUAL = {"matchAttribute": "drv/k", "requests": ["r", "all"]}
DISTINCT = {"distinctAttribute": "drv/k", "requests": ["all"]}
EVERY_A = request("all", A, allocationMode="All")
NEEDS_B = request("r", B)


def valued(node: str, *values: int | None, rest: int = 0) -> list[Any]:
    """A node with devices of model A that have these values of ``k``, and others of model B."""
    known: list[Any] = [{} if value is None else {"k": value} for value in values]
    devices = [device(f"a{i}", model="A", **attributes) for i, attributes in enumerate(known)]
    return pool(*devices, *(device(f"b{i}", model="B", k=7) for i in range(rest)), name=node, nodeName=node)


CONFLICTS: dict[str, tuple[list[Any], list[Any], list[str]]] = {
    "all devices differ, and another request finds none": (
        [*valued("n1", 1, 2), *valued("n2", 1, 1), *valued("n3", 1)],
        [claim(EVERY_A, NEEDS_B, constraints=[EQUAL])],
        ["n1"],
    ),
    "a device lacks the attribute": (
        [*valued("n1", None), *valued("n2", 1)],
        [claim(EVERY_A, NEEDS_B, constraints=[EQUAL])],
        ["n1"],
    ),
    "a request before finds too few devices, so that the search never gets there": (
        [*valued("n1", 1, 2), *valued("n2", 1, 2, rest=1)],
        [claim(NEEDS_B, EVERY_A, request("q", B, count=9), constraints=[EQUAL])],
        ["n2"],
    ),
    "a device of the request before may differ": (
        [*valued("n1", 1, rest=1), *valued("n2", 7, rest=1)],
        [claim(NEEDS_B, EVERY_A, request("q", B, count=9), constraints=[BOTH_EQUAL])],
        ["n1"],
    ),
    "the request behind only takes what still agrees": (
        [*valued("n1", 1, rest=1)],
        [claim(EVERY_A, NEEDS_B, request("q", B, count=9), constraints=[BOTH_EQUAL])],
        [],
    ),
    "equal values that should be distinct": (
        [*valued("n1", 1, 2), *valued("n2", 1, 1)],
        [claim(EVERY_A, NEEDS_B, constraints=[DISTINCT])],
        ["n2"],
    ),
    "more than 32 devices": (
        [*valued("n1", *range(33)), *valued("n2", *range(32))],
        [claim(EVERY_A), claim(NEEDS_B, name="d")],
        ["n1"],
    ),
    "more than 32 devices together with another request": (
        [*valued("n1", *range(31)), *valued("n2", *range(30))],
        [claim(EVERY_A, NEEDS_B, request("q", B))],
        ["n1"],
    ),
    "two requests that take more than 32 devices together": (
        [*valued("n1", *range(11), rest=22), *valued("n2", *range(11), rest=21)],
        [claim(EVERY_A, request("rest", B, allocationMode="All")), claim(request("q", "false"), name="d")],
        ["n1"],
    ),
}


@pytest.mark.parametrize(("slices", "claims", "failing"), CONFLICTS.values(), ids=CONFLICTS.keys())
def test_nodes_that_fail_are_suspects_though_they_lack_devices(
    slices: list[Json], claims: list[Json], failing: list[str]
) -> None:
    made = lab(slices, claims, semantics=REFERENCE)
    candidates = made.allocator.candidates(made.claims, made.usage)
    nodes = {slice_["spec"]["nodeName"] for slice_ in slices}
    assert [node for node in sorted(nodes) if isinstance(made.decide(make_node(node)), Failed)] == failing
    assert not candidates.anywhere
    assert list(candidates.may_error) == failing
    assert sorted(candidates) == failing


def test_a_suspect_is_one_only_as_long_as_its_devices_differ() -> None:
    made = lab(valued("n1", 1, 2), [claim(EVERY_A, NEEDS_B, constraints=[EQUAL])], semantics=REFERENCE)
    assert names(made) == ["n1"]
    for values, expected in (((1, 1), []), ((1, 3, 1), ["n1"]), ((), []), ((None,), ["n1"])):
        (slice_,) = valued("n1", *values)
        made.allocator.inventory.put_slice(convert(ResourceSlice, slice_))
        assert names(made) == expected


def test_a_request_for_more_devices_than_a_claim_may_have_fails_on_any_node() -> None:
    made = lab(THREE, [claim(request("r", A, count=33))])
    assert made.allocator.candidates(made.claims, made.usage).anywhere


def test_a_malformed_node_selector_concerns_every_node_and_request_in_the_reference_only() -> None:
    broken = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Is"}]}]}
    slices = [*THREE, *pool(device("d"), name="net", nodeSelector=broken)]
    made = lab(slices, [claim(request("r", A, count=3))], semantics=REFERENCE)
    assert isinstance(made.decide(), Failed)
    assert made.allocator.candidates(made.claims, made.usage).anywhere
    for asked in (request("r", A, count=2), request("r", A, allocationMode="All")):
        made = lab(slices, [claim(asked)])
        assert made.devices(make_node("n2")) == [["r=drv/n2/d0", "r=drv/n2/d1"]]


@pytest.mark.rule("AL-04")
def test_counters_that_are_defined_twice_fail_a_request_for_all_on_nodes_without_devices_too() -> None:
    twice = pool(device("d"), name="p", nodeName="n9", counters={"set": {"slots": 1}})
    twice[1]["spec"]["sharedCounters"] *= 2
    asked = [claim(request("r", A, allocationMode="All"))]
    features = Features(Release.V1_36)  # in 1.37 that is the business of n9 alone, and in this project
    assert lab([*THREE, *twice], asked, features=features).devices(make_node("n1")) == [["r=drv/n1/d0"]]
    made = lab([*THREE, *twice], asked, features=features, semantics=REFERENCE)
    assert isinstance(made.decide(make_node("n3")), Failed)
    assert made.allocator.candidates(made.claims, made.usage).anywhere


def test_faulty_claims_are_not_hidden() -> None:
    made = lab(THREE, [claim(request("r", deviceClassName="nope"))])
    assert made.allocator.candidates(made.claims, made.usage).anywhere
    assert isinstance(made.decide(), Failed)


def test_counting_can_be_interrupted_and_goes_on() -> None:
    slices = [slice_ for number in range(100) for slice_ in node_pool(f"n{number:03}", "A" if number % 2 else "B")]
    made = lab(slices, [claim(request("r", A))])
    allocator = made.allocator
    pieces = allocator.catch_up(made.claims, made.usage)
    next(pieces)
    del pieces
    made.usage.take_device(DeviceId("drv", "n001", "d0"))
    assert sum(1 for _ in allocator.catch_up(made.claims, made.usage)) > 2
    assert list(allocator.catch_up(made.claims, made.usage)) == []
    assert names(made) == [f"n{number:03}" for number in range(3, 100, 2)]


def test_excluded_nodes_have_a_reason() -> None:
    made = lab(THREE, [claim(request("r", A, count=3))])
    candidates = made.allocator.candidates(made.claims, made.usage)
    assert candidates.refusal is not None
    assert candidates.refusal.line() == (
        'cannot satisfy claim default/c request "r" (needs 3 devices; 2 of 2 match; '
        "on the node with most free devices that match)"
    )
    assert "n1" not in candidates


@settings(max_examples=fewer(60))
@given(
    st.sampled_from([Semantics(), REFERENCE]),
    st.lists(st.lists(st.sampled_from(["A", "B", ""]), max_size=3), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from([A, B, "true"]), st.integers(0, 2)), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=4),
)
def test_no_node_that_fits_or_ends_the_attempt_is_left_out(
    semantics: Semantics, models: list[list[str]], wanted: list[tuple[str, int]], used: list[tuple[int, int]]
) -> None:
    slices = [slice_ for number, members in enumerate(models) for slice_ in node_pool(f"n{number}", *members)]
    requests = [request(f"r{i}", selector, count=count) for i, (selector, count) in enumerate(wanted)]
    made = lab(slices, [claim(*requests)], semantics=semantics)
    made.allocator.candidates(made.claims, made.usage)
    for node, number in used:
        made.usage.take_device(DeviceId("drv", f"n{node}", f"d{number}"))
    candidates = made.allocator.candidates(made.claims, made.usage)
    offered = set(candidates)
    for number in range(len(models)):
        outcome = made.decide(make_node(f"n{number}"))
        if settles(outcome) and not candidates.anywhere:
            assert f"n{number}" in offered
            assert f"n{number}" in candidates


relaxed = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=fewer(150))


def expected_answers(case: dict[str, Any], **mistakes: bool) -> dict[str, str]:
    """The answer of brute force on each node, up to the first that takes too long."""
    found = {}
    for node in case["nodes"]:
        expected = ask_oracle(case, node, **mistakes)
        if expected is None:
            break
        found[node["metadata"]["name"]] = expected.outcome
    return found


def settles(outcome: Outcome) -> bool:
    """The outcome ends an attempt for all nodes."""
    return isinstance(outcome, Allocated) or (isinstance(outcome, Failed) and not outcome.is_of_node)


@relaxed
@given(st.booleans(), st.randoms(use_true_random=False))
def test_the_nodes_that_settle_the_claims_are_found_through_the_index(as_reference: bool, source: Random) -> None:
    """What fits or fails is never left out; slices, and devices in use, come and go before the question."""
    case = make_case(source, LocalMaker)
    made = laboratory({**case, "slices": case["slices"][::2]}, REFERENCE if as_reference else Semantics())
    list(made.allocator.candidates(made.claims, made.usage))
    for slice_ in case["slices"][1::2]:
        made.allocator.inventory.put_slice(convert(ResourceSlice, slice_))
    list(made.allocator.candidates(made.claims, made.usage))
    for slice_ in case["slices"][::3]:
        made.allocator.inventory.remove_slice(slice_["metadata"]["name"])
        made.allocator.inventory.put_slice(convert(ResourceSlice, slice_))
    candidates = made.allocator.candidates(made.claims, made.usage)
    answers = expected_answers(case, **(dict.fromkeys(REFERENCE_MISTAKES, False) if as_reference else {}))
    settling = [(name, answer) for name, answer in answers.items() if answer in ("allocated", "error")]
    found = []
    for name in answers:
        if name in candidates:
            outcome = made.decide(next(convert(Node, n) for n in case["nodes"] if n["metadata"]["name"] == name))
            if settles(outcome):
                found.append((name, "allocated" if isinstance(outcome, Allocated) else "error"))
    assert found == settling
    if not candidates.anywhere:
        assert {name for name, answer in settling if answer == "error"} <= set(candidates.may_error)
        names = [node["metadata"]["name"] for node in case["nodes"]]
        assert sorted(candidates) == [name for name in names if name in candidates]


def test_a_constraint_of_an_unknown_type_is_an_error_on_every_node() -> None:
    made = lab(THREE, [claim(request("r", A, allocationMode="All"), constraints=[{}])])
    assert made.allocator.candidates(made.claims, made.usage).anywhere
    outcome = made.decide()
    assert isinstance(outcome, Failed)
    assert "constraint #0: empty constraint" in str(outcome.error)
