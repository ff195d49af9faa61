"""What the condition of a DeviceTaintRule says (scheduling.md 10.5)."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.meta import Condition
from dra_operator.eviction import RuleCounts, eviction_condition
from objects import rule

NOW = "2026-01-01T00:01:00Z"
END = (
    " if the effect was NoExecute. This information will not be updated again. "
    "Recreate the DeviceTaintRule to trigger an update."
)
NOTHING = RuleCounts()


def said(effect: str, counts: RuleCounts, evicted: int = 0, known: dict[str, Any] | None = None) -> Condition | None:
    acting = rule(selector={}, effect=effect, conditions=[known] if known is not None else [])
    return eviction_condition(acting, counts, evicted, NOW)


@pytest.mark.parametrize(
    ("effect", "counts", "evicted", "status", "reason", "message"),
    [
        ("NoExecute", RuleCounts(pods=3, namespaces=2), 0, "True", "PodsPendingEviction",
         "3 pods need to be evicted in 2 different namespaces."),
        ("NoExecute", RuleCounts(pods=1, namespaces=1), 0, "True", "PodsPendingEviction",
         "1 pod needs to be evicted in 1 namespace."),
        ("NoExecute", RuleCounts(pods=2, namespaces=1), 5, "True", "PodsPendingEviction",
         "2 pods need to be evicted in 1 namespace. 5 pods evicted since starting the controller."),
        ("NoExecute", NOTHING, 1, "False", "Completed", "1 pod evicted since starting the controller."),
        ("NoExecute", NOTHING, 0, "False", "NotStarted", ""),
        ("None", RuleCounts(pods=1, namespaces=1, published=1, allocated=1), 0, "False", "NoEffect",
         "1 published device selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace" + END),
        ("None", RuleCounts(pods=0, namespaces=0, published=4, allocated=2), 0, "False", "NoEffect",
         "4 published devices selected. 2 allocated devices selected. 0 pods would be evicted in 0 different "
         "namespaces" + END),
        ("None", NOTHING, 2, "False", "NoEffect",
         "0 published devices selected. 0 allocated devices selected. 0 pods would be evicted in 0 different "
         "namespaces" + END + " 2 pods evicted since starting the controller."),
        ("NoSchedule", RuleCounts(pods=9), 0, "False", "OtherEffect",
         "Eviction only happens for the NoExecute effect."),
        ("Explode", NOTHING, 0, "False", "OtherEffect", "Eviction only happens for the NoExecute effect."),
    ],
)  # fmt: skip
def test_the_condition(effect: str, counts: RuleCounts, evicted: int, status: str, reason: str, message: str) -> None:
    assert said(effect, counts, evicted) == Condition(
        type="EvictionInProgress",
        status=status,
        reason=reason,
        message=message,
        observed_generation=1,
        last_transition_time=NOW,
    )


KNOWN = {
    "type": "EvictionInProgress",
    "status": "True",
    "reason": "PodsPendingEviction",
    "message": "1 pod needs to be evicted in 1 namespace.",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
ONE = RuleCounts(pods=1, namespaces=1)


def test_what_the_rule_says_already_is_not_said_again() -> None:
    assert said("NoExecute", ONE, known=KNOWN) is None


@pytest.mark.parametrize(
    ("counts", "known"),
    [(RuleCounts(pods=2, namespaces=1), KNOWN), (ONE, {**KNOWN, "observedGeneration": 0})],
    ids=["another message", "another generation"],
)
def test_any_difference_is_said_with_the_time(counts: RuleCounts, known: dict[str, Any]) -> None:
    condition = said("NoExecute", counts, known=known)
    assert condition is not None
    assert condition.last_transition_time == NOW


COMPLETED = {**KNOWN, "status": "False", "reason": "Completed", "message": ""}


def test_what_an_earlier_process_completed_stays_completed() -> None:
    assert said("NoExecute", NOTHING, known=COMPLETED) is None


def test_a_changed_rule_has_not_started() -> None:
    condition = said("NoExecute", NOTHING, known={**COMPLETED, "observedGeneration": 0})
    assert condition is not None
    assert condition.reason == "NotStarted"


def test_conditions_of_other_types_do_not_matter() -> None:
    assert said("NoExecute", ONE, known={**KNOWN, "type": "Other"}) is not None
