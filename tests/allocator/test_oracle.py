"""Agreement with brute force (design.md section 7): the same first solution, the same kind of refusal or error.

The oracle itself is held against the reference's recorded answers, so that agreement with it means something.
"""

from __future__ import annotations

from random import Random
from typing import Any

import dra_operator.allocator.search as search_module
import pytest
from allocator_lab import Lab, difference
from allocator_oracle.pools import OutOfSteps, Problem
from allocator_oracle.search import Answer, answer
from allocator_problems import (
    REFERENCE_MISTAKES,
    CrowdedMaker,
    Maker,
    ask_oracle,
    check,
    comparable,
    disagreement,
    laboratory,
    make_case,
)
from corpus import document, kit
from dra_api.codec import convert
from dra_api.core import Node
from dra_api.releases import Release
from dra_api.resource import AllocationResult, ResourceSlice
from dra_operator.allocator import (
    Allocated,
    AllocationError,
    Failed,
    GaveUp,
    NodeFailure,
    Outcome,
    Refusal,
    Refused,
    RefusedClaim,
    Rule,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit_cases import expected
from rounds import a_third, fewer

Json = dict[str, Any]
AS_REFERENCE = dict.fromkeys(REFERENCE_MISTAKES, False)
sources = st.randoms(use_true_random=False)
relaxed = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def recorded() -> list[tuple[str, Json, Json, str, Any]]:
    """Name, case, node, kind and results of every answer that the reference gave."""
    found = []
    for case in [*kit("allocator/random"), *kit("allocator/semantics")]:
        nodes = {node["metadata"]["name"]: node for node in case["nodes"]}
        for expect in expected(case, "reference") or ():
            found.append((case["name"], case, nodes[expect["node"]], expect["outcome"], expect.get("results")))
    for case in document("allocator/cases.json")["cases"]:
        observed = case["observed"]
        kind = "none" if observed["results"] is None else "allocated"
        if observed.get("error"):
            kind = "nodeError" if observed.get("errorFailedOnNode") else "error"
        found.append((case["name"], case, case["node"], kind, observed.get("results")))
    return found


def as_outcome(expected: Answer) -> Outcome:
    """The oracle's answer in the allocator's words, for comparisons that expect those."""
    if expected.outcome == "allocated":
        return Allocated("", expected.results)
    if expected.outcome == "error":
        return Failed("", AllocationError(expected.error))
    kinds: dict[str, type[Refused | NodeFailure]] = {"none": Refused, "nodeError": NodeFailure}

    def explain(*, hints: bool = True) -> Refusal:
        return Refusal("", Rule.COMBINATION, RefusedClaim(""), "", detail=expected.error)

    return kinds[expected.outcome]("", explain)


def test_the_oracle_gives_the_recorded_answers_of_the_reference() -> None:
    wrong = {}
    for name, case, node, kind, results in a_third([*recorded()]):
        try:
            found = answer(Problem.from_case(case, node, **AS_REFERENCE), limit=20_000)
        except OutOfSteps:
            wrong[name] = "takes too long"
            continue
        different = difference(as_outcome(found), kind, results)
        if different:
            wrong[name] = different
    assert not wrong


def test_the_oracle_gives_the_intended_answers_where_the_reference_errs() -> None:
    for case in kit("allocator/deviations"):
        found = as_outcome(answer(Problem.from_case(case, case["nodes"][0])))
        (intended,), (defect,) = expected(case, "documented") or [], expected(case, "defect") or []
        assert not difference(found, intended["outcome"], intended.get("results")), case["name"]
        if case["name"] != "deviations/config-dup":  # a repetition that the comparison overlooks
            assert difference(found, defect["outcome"], defect.get("results")), case["name"]


@pytest.mark.rule("AL-07")
@settings(relaxed, max_examples=fewer(250))
@given(sources)
def test_the_allocator_agrees_with_brute_force(source: Random) -> None:
    check(make_case(source))


@settings(relaxed, max_examples=fewer(60))
@given(sources, st.sampled_from([release for release in Release if release < Release.V1_36]))
def test_the_allocator_agrees_with_brute_force_by_the_rules_of_older_releases(source: Random, release: Release) -> None:
    check(make_case(source), release=release)


@pytest.mark.parametrize("maker", [Maker, CrowdedMaker])
@settings(relaxed, max_examples=fewer(120))
@given(source=sources)
def test_pruning_changes_no_answer(maker: type[Maker], source: Random) -> None:
    """Small problems rarely need it, so it is switched on from the start: it must not skip a solution or an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "FAILURES_BEFORE_PRUNING", -1)
        check(make_case(source, maker))


@settings(relaxed, max_examples=fewer(80))
@given(sources)
def test_the_mistakes_of_the_reference_can_be_repeated(source: Random) -> None:
    check(make_case(source), as_reference=True)


@settings(relaxed, max_examples=fewer(80))
@given(sources)
def test_slices_may_arrive_in_any_order_before_and_after_other_decisions(source: Random) -> None:
    case = make_case(source)
    nodes = [convert(Node, node) for node in case["nodes"]]
    slices = list(case["slices"])
    source.shuffle(slices)
    early = laboratory({**case, "slices": slices[: len(slices) // 2]})
    for node in nodes:
        early.decide(node)
    for slice_ in slices[len(slices) // 2 :]:
        early.allocator.inventory.put_slice(convert(ResourceSlice, slice_))
    settled = laboratory(case)
    assert [said(early, node) for node in nodes] == [said(settled, node) for node in nodes]


def said(lab: Lab, node: Node) -> tuple[str, list[Json] | str]:
    """The kind of the outcome with its results or error text."""
    outcome = lab.decide(node)
    what = comparable(outcome.results) if isinstance(outcome, Allocated) else str(getattr(outcome, "error", ""))
    return type(outcome).__name__, what


@settings(relaxed, max_examples=fewer(80))
@given(sources, st.integers(1, 60))
def test_a_spent_budget_is_never_a_refusal(source: Random, budget: int) -> None:
    case = make_case(source)
    lab = laboratory(case)
    for node in case["nodes"]:
        expected = ask_oracle(case, node)
        outcome = lab.decide(convert(Node, node), budget=budget)
        if expected is not None and not isinstance(outcome, GaveUp):
            assert disagreement(outcome, expected) is None


def test_the_comparison_notices_a_different_device_and_a_different_kind() -> None:
    one, other = (
        convert(AllocationResult, {"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": d}]}})
        for d in "ab"
    )
    assert disagreement(Allocated("n1", (one,)), Answer("allocated", (one,))) is None
    assert disagreement(Allocated("n1", (one,)), Answer("allocated", (other,))) is not None
    assert disagreement(GaveUp("n1", 5), Answer("none")) is not None
