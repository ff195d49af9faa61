"""Computes from taints and tolerations when the pods of a claim are due for eviction, and why (TE-01 to TE-04).

A taint evicts from the moment it was added, later by the seconds that the claim tolerates it, and never if the claim
tolerates it without a limit. The tolerations that count are those that the allocator copied into the allocation result.
Example: a device got ``dra.example.com/broken:NoExecute`` at 12:00:00; its result tolerates that key for 300 seconds by
one toleration and for 60 by another; the pod is due at 12:01:00.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from dra_api.core import Pod
from dra_api.references import ClaimUse, is_owned_by, is_reserved_for
from dra_api.resource import (
    AllocationResult,
    DeviceRequestAllocationResult,
    DeviceTaint,
    DeviceTaintRule,
    DeviceToleration,
    ResourceClaim,
)
from dra_api.values import parse_time
from dra_ledger.taints import rule_selects as selects

from dra_operator.allocator import DeviceId, tolerates
from dra_operator.eviction.taints import NO_EXECUTE, DeviceTaints

NO_DEVICE = DeviceId("", "", "")


class Cause(NamedTuple):
    """One taint that evicts: of a DeviceTaintRule (``rule``, ``rule_uid``), or of a device in its slice.

    Fields are in the order in which causes are listed: rules first, by name, then devices by driver, pool and name,
    and the taints of a device by their place in the slice.
    """

    is_of_device: bool
    rule: str
    device: DeviceId
    place: int
    rule_uid: str
    taint: DeviceTaint

    @classmethod
    def of_rule(cls, name: str, uid: str, taint: DeviceTaint) -> Cause:
        """Return the taint of a rule, on whatever devices it selects."""
        return cls(False, name, NO_DEVICE, 0, uid, taint)

    @classmethod
    def of_device(cls, device: DeviceId, place: int, taint: DeviceTaint) -> Cause:
        """Return a taint that the driver publishes."""
        return cls(True, "", device, place, "", taint)

    def __str__(self) -> str:
        value = f"={self.taint.value}" if self.taint.value else ""
        source = f"device {self.device}" if self.is_of_device else f"DeviceTaintRule {self.rule}"
        return f"{source} has taint {self.taint.key}{value}:{self.taint.effect}"


class Eviction(NamedTuple):
    """The pod may be deleted from ``due`` on; ``causes`` are sorted, without repetition."""

    due: datetime
    causes: tuple[Cause, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.causes))


def merged(evictions: Iterable[Eviction]) -> Eviction | None:
    """Return the earliest due time with the causes of all; None for none."""
    known = list(evictions)
    if not known:
        return None
    causes = {cause[:4]: cause for eviction in known for cause in eviction.causes}
    return Eviction(min(eviction.due for eviction in known), tuple(causes[key] for key in sorted(causes)))


Rules = Iterable[DeviceTaintRule]
NEVER = datetime.max.replace(tzinfo=UTC)


def evicts(rule: DeviceTaintRule) -> bool:
    """Return whether the rule's taint ends pods; without a selector it selects no device (PRJ-010)."""
    return rule.spec.taint.effect == NO_EXECUTE and rule.spec.device_selector is not None


def may_evict(allocation: AllocationResult, taints: DeviceTaints, rules: Rules) -> bool:
    """Return whether any device of the allocation has a taint that evicts, tolerated or not."""
    return any(True for result in allocation.results for _ in _causes(result, taints, rules))


def pod_eviction(
    pod: Pod,
    claims: Iterable[tuple[ClaimUse, ResourceClaim | None]],
    taints: DeviceTaints,
    rules: Rules,
    undated: datetime,
) -> Eviction | None:
    """When the pod has to go, None if it may stay; ``claims`` are those it uses, for extended resources too (PRJ-011).

    Only claims count that are reserved for this very pod and, if generated, were made for it (TE-04). ``undated``: the
    time from which a taint without a time counts.
    """
    if not pod.spec.node_name:
        return None
    rules = tuple(rules)
    found = (
        claim_eviction(claim.status.allocation, taints, rules, undated)
        for use, claim in claims
        if claim is not None and claim.status.allocation is not None and _is_used_by(pod, use, claim)
    )
    return merged(eviction for eviction in found if eviction is not None)


def claim_eviction(
    allocation: AllocationResult, taints: DeviceTaints, rules: Rules, undated: datetime
) -> Eviction | None:
    """When the pods of a claim with this allocation have to go, also with admin access (TE-02, TE-03)."""
    rules = tuple(rules)
    found: list[Eviction] = []
    for result in allocation.results:
        for cause in _causes(result, taints, rules):
            seconds = _tolerated_for(cause.taint, result.tolerations or ())
            if seconds is not None:
                found.append(Eviction(_after(parse_time(cause.taint.time_added) or undated, seconds), (cause,)))
    return merged(found)


def _causes(result: DeviceRequestAllocationResult, taints: DeviceTaints, rules: Rules) -> Iterator[Cause]:
    device = DeviceId.of(result)
    for place, taint in taints.of(device):
        yield Cause.of_device(device, place, taint)
    for rule in rules:
        if evicts(rule) and selects(rule, device):
            yield Cause.of_rule(rule.metadata.name, rule.metadata.uid, rule.spec.taint)


def _tolerated_for(taint: DeviceTaint, tolerations: Iterable[DeviceToleration]) -> int | None:
    """Return the smallest toleration in seconds; None: without a limit. An empty effect, enough for scheduling, is not
    enough here."""
    seconds: list[int] = []
    for toleration in tolerations:
        if toleration.effect == NO_EXECUTE and tolerates(toleration, taint):
            if toleration.toleration_seconds is None:
                return None
            seconds.append(max(0, toleration.toleration_seconds))
    return min(seconds, default=0)


def _is_used_by(pod: Pod, use: ClaimUse, claim: ResourceClaim) -> bool:
    return is_reserved_for(pod, claim) and (not use.must_check_owner or is_owned_by(pod, claim))


def _after(start: datetime, seconds: int) -> datetime:
    try:
        return start + timedelta(seconds=seconds)
    except OverflowError:
        return NEVER
