"""The reference's recorded answers (allocator.md, conformance/allocator).

Where the reference's behaviour and the documented one differ, the recorded answers follow the reference and
``deviations.json`` the documentation, so the former are compared under ``Rules.reference()`` and the latter
under the default rules. What the default rules change in the recorded answers is checked as well: only
cases that show one of the two patterns may differ, and only in the direction that the rule explains.
"""

from __future__ import annotations

from typing import Any

import pytest
from allocator_lab import KINDS, case_lab, difference
from corpus import cases
from dra_api.codec import convert
from dra_api.core import Node
from dra_api.quantity import Quantity
from dra_api.resource import CapacityRequestPolicy, DeviceCapacity
from dra_operator.allocator import Allocated, Failed, Refused, Rules
from dra_operator.allocator.published.capacity import consumed, consumption, violates

Json = dict[str, Any]
FAMILIES = (
    *("admin", "allmode", "basic", "binding", "config", "constraints", "consumable", "distinct", "firstavailable"),
    *("listattrs", "mixed", "multinode", "network", "partition-admin", "partition-constraints", "partition-multi"),
    *("partition-samepool", "partition-taints", "partitionable-samepool", "partitionable", "poolstate", "taints"),
)


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


def random_differences(family: str, rules: Rules) -> dict[str, tuple[Json, str, str]]:
    """Per differing case and node: the case, what was recorded, and how the answer differs."""
    found = {}
    for case in cases("allocator/random.json"):
        if case["family"] != family:
            continue
        lab = case_lab(case, rules)
        nodes = {node["metadata"]["name"]: convert(Node, node) for node in case["nodes"]}
        for expect in case["expect"]:
            outcome = lab.decide(nodes[expect["node"]])
            different = difference(outcome, expect["outcome"], expect.get("results"))
            if different:
                found[f"{case['name']} on {expect['node']}"] = case, f"{expect['outcome']}", different
    return found


def test_the_test_table_of_the_reference() -> None:
    wrong = {}
    for case in cases("allocator/cases.json"):
        outcome = case_lab(case, Rules.reference()).decide(convert(Node, case["node"]))
        observed = case["observed"]
        different = difference(outcome, observed_kind(observed), observed.get("results"))
        if different:
            wrong[case["name"]] = different
    assert not wrong


def test_errors_of_the_test_table_name_what_the_reference_names() -> None:
    for case in cases("allocator/cases.json"):
        wanted = case["expect"].get("errorContains")
        outcome = case_lab(case, Rules.reference()).decide(convert(Node, case["node"]))
        for text in [wanted] if isinstance(wanted, str) else wanted or []:
            problem = text.rpartition(": ")[2]
            if isinstance(outcome, Failed) and "not found" not in problem:
                assert problem in str(outcome.error), case["name"]


def test_the_semantics_cases() -> None:
    wrong = {}
    for case in cases("allocator/semantics.json"):
        outcome = case_lab(case, Rules.reference()).decide(convert(Node, case["node"]))
        different = difference(outcome, case["expect"]["outcome"], case["expect"].get("results"))
        if different:
            wrong[case["name"]] = different
    assert not wrong


@pytest.mark.parametrize("family", FAMILIES)
def test_generated_problems(family: str) -> None:
    different = random_differences(family, Rules.reference())
    assert not {name: how for name, (_, _, how) in different.items()}


def test_every_family_is_covered() -> None:
    assert {case["family"] for case in cases("allocator/random.json")} == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_documented_rules_differ_only_where_their_pattern_shows(family: str) -> None:
    for name, (case, recorded, how) in random_differences(family, Rules()).items():
        if has_older_generation(case):
            continue
        assert wants_admin_access(case), f"{name}: {how}"
        assert recorded == "none", f"{name}: the reference's own solution must come first: {how}"


def test_documented_rules_in_the_test_table_and_semantics() -> None:
    for file, key in (("cases", "observed"), ("semantics", "expect")):
        for case in cases(f"allocator/{file}.json"):
            expected = case[key]
            kind = observed_kind(expected) if key == "observed" else expected["outcome"]
            outcome = case_lab(case, Rules()).decide(convert(Node, case["node"]))
            assert not difference(outcome, kind, expected.get("results")) or has_older_generation(case), case["name"]


def test_deviations_have_the_intended_answer() -> None:
    wrong = {}
    for case in cases("allocator/deviations.json"):
        outcome = case_lab(case, Rules()).decide(convert(Node, case["node"]))
        devices = None
        if isinstance(outcome, Allocated):
            devices = [
                [[r.request, r.driver, r.pool, r.device] for r in result.devices.results or ()]
                for result in outcome.results
            ]
        got = (KINDS[type(outcome)], devices)
        if got != (case["intendedOutcome"], case.get("intendedDevices")):
            wrong[case["name"]] = got
    assert not wrong


def test_claim_configuration_is_copied_once() -> None:
    for case in cases("allocator/deviations.json"):
        if case["name"] == "config-dup":
            outcome = case_lab(case, Rules()).decide(convert(Node, case["node"]))
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


def test_the_development_branch_agrees_apart_from_its_changes() -> None:
    """What 1.37 changes is not followed; everything else in its new cases is (section 16)."""
    for case in cases("allocator/cases-1.37-dev.json"):
        outcome = case_lab(case, Rules.reference()).decide(convert(Node, case["node"]))
        observed = case["observed"]
        agrees = not difference(outcome, observed_kind(observed), observed.get("results"))
        assert agrees is (case["name"] not in CHANGED_LATER), case["name"]


class Stopped(Exception):
    """What a caller's deadline or cancellation raises."""


def test_deadline_and_cancellation_reach_the_caller_unchanged() -> None:
    for case in cases("allocator/interrupt.json"):
        lab, node = case_lab(case, Rules()), convert(Node, case["node"])
        wanted = case["expect"].get("error")
        if wanted is None:
            assert isinstance(lab.decide(node), Refused)
            continue

        def stop(reason: str = wanted) -> None:
            raise Stopped(reason)

        with pytest.raises(Stopped, match=wanted):
            lab.decide(node, interrupt=stop)


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
