"""The condition ``EvictionInProgress`` of a DeviceTaintRule (10.5)."""

from __future__ import annotations

from typing import NamedTuple

from dra_api.meta import Condition
from dra_api.resource import DeviceTaintRule
from msgspec import structs

from dra_operator.wording import counted

from .taints import NO_EXECUTE

EVICTION_IN_PROGRESS = "EvictionInProgress"
_NO_MORE = "This information will not be updated again. Recreate the DeviceTaintRule to trigger an update."


class RuleCounts(NamedTuple):
    """How many pods and devices a rule affects; for a rule with effect None, how many it would affect with
    ``NoExecute``."""

    pods: int = 0
    namespaces: int = 0
    published: int = 0
    allocated: int = 0


def condition_of(rule: DeviceTaintRule) -> Condition | None:
    """Return the condition that the rule has."""
    conditions = rule.status.conditions or ()
    return next((condition for condition in conditions if condition.type == EVICTION_IN_PROGRESS), None)


def eviction_condition(rule: DeviceTaintRule, counts: RuleCounts, evicted: int, now: str) -> Condition | None:
    """Return the condition that the rule should have; None if it already has it.

    ``evicted``: pods evicted because of the rule since this process started. An eviction that an earlier process
    completed stays completed. The time changes with every change, because it says when the condition was last written.
    """
    known = condition_of(rule)
    status, reason, message = _verdict(rule, counts, evicted, known)
    if evicted:
        done = f"{counted(evicted, 'pod')} evicted since starting the controller."
        message = f"{message} {done}" if message else done
    condition = Condition(
        type=EVICTION_IN_PROGRESS,
        status=status,
        reason=reason,
        message=message,
        observed_generation=rule.metadata.generation,
        last_transition_time=known.last_transition_time if known is not None else None,
    )
    return structs.replace(condition, last_transition_time=now) if condition != known else None


def _verdict(rule: DeviceTaintRule, counts: RuleCounts, evicted: int, known: Condition | None) -> tuple[str, str, str]:
    effect = rule.spec.taint.effect
    if effect == "None":
        return "False", "NoEffect", _dry_run(counts)
    if effect != NO_EXECUTE:
        return "False", "OtherEffect", "Eviction only happens for the NoExecute effect."
    if counts.pods:
        verb = "needs" if counts.pods == 1 else "need"
        return "True", "PodsPendingEviction", f"{counted(counts.pods, 'pod')} {verb} to be evicted in {_where(counts)}."
    was_completed = (
        known is not None and known.reason == "Completed" and known.observed_generation == rule.metadata.generation
    )
    return "False", "Completed" if evicted or was_completed else "NotStarted", ""


def _dry_run(counts: RuleCounts) -> str:
    return (
        f"{counted(counts.published, 'published device')} selected. "
        f"{counted(counts.allocated, 'allocated device')} selected. "
        f"{counted(counts.pods, 'pod')} would be evicted in {_where(counts)} if the effect was NoExecute. {_NO_MORE}"
    )


def _where(counts: RuleCounts) -> str:
    return "1 namespace" if counts.namespaces == 1 else f"{counts.namespaces} different namespaces"
