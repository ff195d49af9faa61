"""The answers of the conformance kit, and those of the reference's own tests (allocator.md).

Where the reference's behaviour and the documented one differ, a case has an answer for each: the former is compared
under ``Semantics.reference()``, the latter by default. What the default changes in the recorded answers
is checked as well: only cases that show one of the two patterns may differ, and only in the direction that the rule
explains.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from allocator_lab import case_lab, claim, difference, lab, outcome_kind, partition_problem, request
from allocator_problems import laboratory
from corpus import cases, kit
from dra_api.codec import convert, to_dict
from dra_api.core import Node
from dra_api.releases import Release
from dra_api.resource import AllocationResult, CapacityRequestPolicy, DeviceCapacity
from dra_api.values import Quantity
from dra_ledger.capacity import consumed, consumption, violates
from dra_operator.allocator import Allocated, Failed, Refused, Semantics
from kit_cases import expected
from rounds import a_third

Json = dict[str, Any]


def observed_kind(observed: Json) -> str:
    if observed.get("error"):
        return "nodeError" if observed.get("errorFailedOnNode") else "error"
    return "none" if observed["results"] is None else "allocated"


def has_older_generation(case: Json) -> bool:
    """Some pool has slices of several generations: the pattern of ``newest_generation_only``."""
    generations: dict[tuple[str, str], set[int]] = {}
    for slice_ in case["slices"]:
        pool = slice_["spec"]["pool"]
        generations.setdefault((slice_["spec"]["driver"], pool["name"]), set()).add(pool["generation"])
    return any(len(found) > 1 for found in generations.values())


def wants_admin_access(case: Json) -> bool:
    """Some request has admin access: the pattern of ``admin_ignores_allocations``."""
    return any(
        (request.get("exactly") or {}).get("adminAccess")
        for claim in case["claims"]
        for request in claim["spec"]["devices"].get("requests") or []
    )


RULES = {"reference": Semantics.reference(), "documented": Semantics()}


def kit_differences(file: str, answers: str, semantics: Semantics) -> dict[str, tuple[Json, str, str]]:
    """Per differing case and node: the case, what is expected by these semantics, and how the answer differs."""
    found = {}
    for case in a_third(kit(f"allocator/{file}")):
        wanted = expected(case, answers)
        if wanted is None:
            continue
        lab = laboratory(case, semantics)
        nodes = {node["metadata"]["name"]: convert(Node, node) for node in case["nodes"]}
        for expect in wanted:
            outcome = lab.decide(nodes[expect["node"]])
            different = difference(outcome, expect["outcome"], expect.get("results"))
            if different:
                found[f"{case['name']} on {expect['node']}"] = case, f"{expect['outcome']}", different
    return found


def test_the_test_table_of_the_reference() -> None:
    wrong = {}
    for case in cases("allocator/cases.json"):
        outcome = case_lab(case, Semantics.reference()).decide(convert(Node, case["node"]))
        observed = case["observed"]
        different = difference(outcome, observed_kind(observed), observed.get("results"))
        if different:
            wrong[case["name"]] = different
    assert not wrong


def test_errors_of_the_test_table_name_what_the_reference_names() -> None:
    for case in cases("allocator/cases.json"):
        wanted = case["expect"].get("errorContains")
        outcome = case_lab(case, Semantics.reference()).decide(convert(Node, case["node"]))
        for text in [wanted] if isinstance(wanted, str) else wanted or []:
            problem = text.rpartition(": ")[2]
            if isinstance(outcome, Failed) and "not found" not in problem:
                assert problem in str(outcome.error), case["name"]


@pytest.mark.parametrize(
    ("file", "semantics"),
    [
        *(("random", "reference"), ("semantics", "reference"), ("random", "documented"), ("semantics", "documented")),
        *(("deviations", "documented"), ("generated", "documented"), ("hard", "documented")),
    ],
)
def test_every_case_of_the_kit_gets_the_expected_answer(file: str, semantics: str) -> None:
    different = kit_differences(file, semantics, RULES[semantics])
    assert not {name: how for name, (_, _, how) in different.items()}


def test_documented_rules_differ_only_where_their_pattern_shows() -> None:
    for name, (case, recorded, how) in kit_differences("random", "reference", Semantics()).items():
        if has_older_generation(case) or recorded == "error":  # the third pattern: errors_stay_on_node
            continue
        assert wants_admin_access(case), f"{name}: {how}"
        assert recorded == "none", f"{name}: the reference's own solution must come first: {how}"


def test_documented_rules_in_the_test_table() -> None:
    for case in cases("allocator/cases.json"):
        observed = case["observed"]
        outcome = case_lab(case, Semantics()).decide(convert(Node, case["node"]))
        different = difference(outcome, observed_kind(observed), observed.get("results"))
        stays = observed_kind(observed) == "error" and not isinstance(outcome, Failed)
        stays |= isinstance(outcome, Failed) and outcome.is_of_node
        assert not different or has_older_generation(case) or stays, case["name"]


def test_claim_configuration_is_copied_once() -> None:
    (case,) = (case for case in kit("allocator/deviations") if case["name"] == "deviations/config-dup")
    outcome = case_lab(case, Semantics()).decide(convert(Node, case["nodes"][0]))
    assert isinstance(outcome, Allocated)
    (entry,) = outcome.results[0].devices.config or ()
    assert entry.requests == ("r", "q")


CHANGED_LATER = {
    "claim-config-covering-all-requests-is-cleared": "requests of a config entry that covers all requests are cleared",
    "prioritized-list-class-config": "the same, for class configuration",
    "prioritized-list-device-config": "the same",
    "with-class-device-config": "the same, for class configuration",
    "list-attributes-disabled-distinct-constraint-with-lists": "list values are left out for CEL instead of failing",
    "list-attributes-disabled-match-constraint-with-lists": "the same",
}


@pytest.mark.parametrize("release", [Release.V1_36, Release.V1_37], ids=str)
def test_each_release_is_followed_where_they_differ(release: Release) -> None:
    """1.36 does not do what changed later; everything else in the new cases is the same (section 16)."""
    for case in cases("allocator/cases-1.37-dev.json"):
        outcome = case_lab(case, Semantics.reference(), release).decide(convert(Node, case["node"]))
        observed = case["observed"]
        agrees = not difference(outcome, observed_kind(observed), observed.get("results"))
        assert agrees is (release > Release.V1_36 or case["name"] not in CHANGED_LATER), case["name"]


def test_the_random_problems_have_the_answers_of_1_37() -> None:
    """Configuration and the spelling of consumed capacity included."""
    wrong = []
    for case in a_third(cases("allocator/random-1.37.json")):
        lab = case_lab(case, Semantics.reference(), Release.V1_37)
        nodes = {node["metadata"]["name"]: convert(Node, node) for node in case["nodes"]}
        for expect in case["expect"]:
            outcome = lab.decide(nodes[expect["node"]])
            found = [said(to_dict(result)) for result in outcome.results] if isinstance(outcome, Allocated) else None
            recorded = expect.get("results") if expect["outcome"] == "allocated" else None
            if outcome_kind(outcome) != expect["outcome"] or found != (recorded and [*map(said, recorded)]):
                wrong.append(f"{case['name']} on {expect['node']}")
    assert not wrong


def said(result: Json) -> Json:
    """A result as it is written, but for the ids of shares, which are random."""
    read: Json = to_dict(convert(AllocationResult, result))
    for device in read["devices"].get("results", ()):
        device.update({"shareID": "some"} if "shareID" in device else {})
    return read


class Stopped(Exception):
    """What a caller's deadline or cancellation raises."""


def test_deadline_and_cancellation_reach_the_caller_unchanged() -> None:
    for case in cases("allocator/interrupt.json"):
        lab, node = case_lab(case, Semantics()), convert(Node, case["node"])
        wanted = case["expect"].get("error")
        if wanted is None:
            assert isinstance(lab.decide(node), Refused)
            continue

        def stop(reason: str = wanted) -> None:
            raise Stopped(reason)

        with pytest.raises(Stopped, match=wanted):
            lab.decide(node, interrupt=stop)


def test_a_long_decision_is_interrupted_between_its_pieces() -> None:
    asked = Counter[str]()

    def stop() -> None:
        asked["times"] += 1
        if asked["times"] == 4:
            raise Stopped("deadline")

    made = lab(partition_problem("n1"), [claim(request("r", count=20))])
    with pytest.raises(Stopped, match="deadline"):
        made.decide(interrupt=stop)


@pytest.mark.rule("AL-15")
def test_capacity_arithmetic() -> None:
    for case in cases("allocator/capacity.json"):
        if case["operation"] == "violatesPolicy":
            policy = case["requestPolicy"] and convert(CapacityRequestPolicy, case["requestPolicy"])
            assert violates(Quantity(case["consumed"]), policy) is case["expect"], case["name"]
        elif case["operation"] == "consumedCapacity":
            requested = Quantity(case["requested"]) if case["requested"] is not None else None
            capacity = convert(DeviceCapacity, case["capacity"])
            assert consumed(requested, capacity) == Quantity(case["expect"]), case["name"]
        else:
            requests = {name: Quantity(text) for name, text in case["requests"].items()}
            capacities = {name: convert(DeviceCapacity, value) for name, value in case["capacities"].items()}
            expected = {name: Quantity(text) for name, text in case["expect"].items()}
            assert consumption(requests, capacities) == expected, case["name"]
