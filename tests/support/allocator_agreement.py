"""Compares the allocator with the oracle. Also a program, for long campaigns:

python tests/support/allocator_agreement.py --problems 20000 --seed 1
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any
from unittest.mock import patch

from allocator_lab import Lab, case_lab, outcome_kind
from allocator_oracle import SHARE, Answer, OutOfSteps, Problem, answer
from allocator_problems import CrowdedMaker, Maker, make_case
from dra_api.codec import convert, to_dict
from dra_api.core import Node
from dra_api.quantity import Quantity
from dra_api.releases.release import BUILT, Release
from dra_api.resource import AllocationResult, DeviceTaintRule
from dra_operator.allocator import Allocated, Outcome, Semantics, search

Json = dict[str, Any]
REFERENCE_MISTAKES = ("newest_generation_only", "admin_ignores_allocations", "errors_stay_on_node", "shares_stay_held")
LIMIT = 4_000
"""Steps of the oracle: what takes longer is left out, and must be rare."""


def laboratory(case: Json, semantics: Semantics | None = None, release: Release = Release.V1_36) -> Lab:
    """The allocator on a case, taint rules included."""
    lab = case_lab(case, semantics or Semantics(), release)
    for rule in case.get("rules") or []:
        lab.allocator.inventory.put_rule(convert(DeviceTaintRule, rule))
    return lab


def ask_oracle(
    case: Json, node: Json, release: Release = Release.V1_36, /, limit: int = LIMIT, **mistakes: bool
) -> Answer | None:
    """The oracle's answer, or None when it takes too long. Slices come to it in the order of their names."""
    ordered = {**case, "slices": sorted(case["slices"], key=lambda slice_: slice_["metadata"]["name"])}
    try:
        return answer(Problem.from_case(ordered, node, (1, int(release)), **mistakes), limit=limit)
    except OutOfSteps:
        return None


def comparable(results: Sequence[AllocationResult]) -> list[Json]:
    """Everything that a result says, without the ids of shares and the spelling of quantities."""
    made: list[Json] = [to_dict(result) for result in results]
    for result in made:
        for given in result.get("devices", {}).get("results", []):
            if "shareID" in given:
                given["shareID"] = SHARE
            if "consumedCapacity" in given:
                given["consumedCapacity"] = {k: Quantity(text).nanos for k, text in given["consumedCapacity"].items()}
    return made


def disagreement(outcome: Outcome, expected: Answer) -> str | None:
    """How the allocator's outcome differs from the oracle's answer; None when it does not."""
    kind = outcome_kind(outcome)
    if kind != expected.outcome:
        reason = getattr(outcome, "error", "") or getattr(outcome, "refusal", "")
        return f"{kind} ({reason}) instead of {expected.outcome} {expected.error}{comparable(expected.results)}"
    if isinstance(outcome, Allocated) and comparable(outcome.results) != comparable(expected.results):
        return f"{comparable(outcome.results)}\ninstead of\n{comparable(expected.results)}"
    return None


def check(case: Json, *, as_reference: bool = False, release: Release = Release.V1_36) -> list[str]:
    """The kinds of answer on the nodes of a case. Raises AssertionError when one of them differs."""
    lab = laboratory(case, Semantics.reference() if as_reference else Semantics(), release)
    mistakes = dict.fromkeys(REFERENCE_MISTAKES, False) if as_reference else {}
    kinds = []
    for node in case["nodes"]:
        expected = ask_oracle(case, node, release, **mistakes)
        if expected is None:
            kinds.append("too long for the oracle")
            continue
        different = disagreement(lab.decide(convert(Node, node)), expected)
        assert different is None, f"on {node['metadata']['name']}: {different}"
        kinds.append(expected.outcome)
    return kinds


def main() -> int:
    """Runs a campaign; prints the problems that differ, and how many answers there were of each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--as-reference", action="store_true", help="repeat the reference's mistakes")
    parser.add_argument("--crowded", action="store_true", help="many requests of few kinds on one node")
    parser.add_argument("--release", choices=[name for name in BUILT if name != "1.37"], default="1.36")
    parser.add_argument("--guided", action="store_true", help="prune from the start, not only when a search takes long")
    options = parser.parse_args()
    kinds: Counter[str] = Counter()
    wrong = 0
    patience = -1 if options.guided else search.FAILURES_BEFORE_PRUNING
    for number in range(options.problems):
        case = make_case(Random(f"{options.seed}/{number}"), CrowdedMaker if options.crowded else Maker)
        try:
            with patch.object(search, "FAILURES_BEFORE_PRUNING", patience):
                kinds.update(check(case, as_reference=options.as_reference, release=BUILT[options.release]))
        except AssertionError as error:
            wrong += 1
            print(f"problem {options.seed}/{number}: {error}\n{json.dumps(case)}")
    print(f"{options.problems} problems, seed {options.seed}: {wrong} differ; answers: {dict(kinds)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
