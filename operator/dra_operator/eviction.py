"""Decides which pods have to leave their tainted devices, why, and when (scheduling.md section 10, TE-01 to TE-04).

Sections without a page are sections of scheduling.md.

A taint evicts from the moment it was added, later by the seconds that the claim tolerates it, and never if the claim
tolerates it without a limit. The tolerations that count are those that the allocator copied into the allocation result.
Example: a device got ``dra.example.com/broken:NoExecute`` at 12:00:00; its result tolerates that key for 300 seconds by
one toleration and for 60 by another; the pod is due at 12:01:00.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from dra_api.core import Pod
from dra_api.meta import Condition
from dra_api.references import ClaimUse, is_owned_by, is_reserved_for
from dra_api.resource import (
    AllocationResult,
    DeviceRequestAllocationResult,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintSelector,
    DeviceToleration,
    ResourceClaim,
    ResourceSlice,
)
from dra_api.values import parse_time
from msgspec import structs

from dra_operator.allocator import DeviceId, PoolId, tolerates
from dra_operator.wording import counted

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


NEVER = datetime.max.replace(tzinfo=UTC)


def evicts(rule: DeviceTaintRule) -> bool:
    """Return whether the rule's taint evicts pods; without a selector it selects no device (PRJ-010)."""
    return rule.spec.taint.effect == NO_EXECUTE and rule.spec.device_selector is not None


_Selected = tuple[str | None, str | None, str | None]
"""Driver, pool and device; None for any."""


class EvictingRules:
    """Rules whose taint evicts, found by a device: there may be a thousand, one for each broken device."""

    def __init__(self, rules: Iterable[DeviceTaintRule] = ()) -> None:
        self._by_name: dict[str, DeviceTaintRule] = {}
        # By the fields that a selector has, and then by their values.
        self._by_shape: dict[tuple[bool, bool, bool], dict[_Selected, dict[str, DeviceTaintRule]]] = {}
        for rule in rules:
            self.put(rule)

    def put(self, rule: DeviceTaintRule) -> None:
        """Take the rule in, in place of another version of it; or forget it, if it does not evict."""
        name = rule.metadata.name
        self.remove(name)
        if evicts(rule):
            self._by_name[name] = rule
            shape, selected = _selection(rule)
            self._by_shape.setdefault(shape, {}).setdefault(selected, {})[name] = rule

    def remove(self, name: str) -> None:
        """Forget the rule of this name."""
        rule = self._by_name.pop(name, None)
        if rule is None:
            return
        shape, selected = _selection(rule)
        alike = self._by_shape[shape]
        del alike[selected][name]
        if not alike[selected]:
            del alike[selected]
        if not alike:
            del self._by_shape[shape]

    def selecting(self, device: DeviceId) -> Iterator[DeviceTaintRule]:
        """Yield the rules that select the device."""
        for (by_driver, by_pool, by_device), rules in self._by_shape.items():
            selected = (
                device.driver if by_driver else None,
                device.pool if by_pool else None,
                device.device if by_device else None,
            )
            yield from rules.get(selected, {}).values()

    def __iter__(self) -> Iterator[DeviceTaintRule]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)


def _selection(rule: DeviceTaintRule) -> tuple[tuple[bool, bool, bool], _Selected]:
    selector = rule.spec.device_selector or DeviceTaintSelector()
    selected = selector.driver, selector.pool, selector.device
    return (selected[0] is not None, selected[1] is not None, selected[2] is not None), selected


def may_evict(allocation: AllocationResult, taints: DeviceTaints, rules: EvictingRules) -> bool:
    """Return whether any device of the allocation has a taint that evicts, tolerated or not."""
    return any(True for result in allocation.results for _ in _causes(result, taints, rules))


def pod_eviction(
    pod: Pod,
    claims: Iterable[tuple[ClaimUse, ResourceClaim | None]],
    taints: DeviceTaints,
    rules: EvictingRules,
    undated: datetime,
) -> Eviction | None:
    """Return when and why the pod is due, or None. ``claims``: all it uses, also for extended resources (PRJ-011).

    A claim counts if it is reserved for this pod and, if generated, was made for it (TE-04). A taint without a time
    counts from ``undated``.
    """
    if not pod.spec.node_name:
        return None
    found = (
        claim_eviction(claim.status.allocation, taints, rules, undated)
        for use, claim in claims
        if claim is not None and claim.status.allocation is not None and _is_used_by(pod, use, claim)
    )
    return merged(eviction for eviction in found if eviction is not None)


def claim_eviction(
    allocation: AllocationResult, taints: DeviceTaints, rules: EvictingRules, undated: datetime
) -> Eviction | None:
    """Return when and why pods of a claim with this allocation are due, or None. Admin access counts (TE-02, TE-03)."""
    found: list[Eviction] = []
    for result in allocation.results:
        for cause in _causes(result, taints, rules):
            seconds = _tolerated_for(cause.taint, result.tolerations or ())
            if seconds is not None:
                found.append(Eviction(_after(parse_time(cause.taint.time_added) or undated, seconds), (cause,)))
    return merged(found)


def _causes(result: DeviceRequestAllocationResult, taints: DeviceTaints, rules: EvictingRules) -> Iterator[Cause]:
    device = DeviceId.of(result)
    for place, taint in taints.of(device):
        yield Cause.of_device(device, place, taint)
    for rule in rules.selecting(device):
        yield Cause.of_rule(rule.metadata.name, rule.metadata.uid, rule.spec.taint)


def _tolerated_for(taint: DeviceTaint, tolerations: Iterable[DeviceToleration]) -> int | None:
    """Return the seconds for which the taint is tolerated, or None for no limit."""
    seconds: list[int] = []
    for toleration in tolerations:
        # A toleration without an effect tolerates every effect for scheduling, but not for eviction (TE-03).
        if toleration.effect == NO_EXECUTE and tolerates(toleration, taint):
            if toleration.toleration_seconds is None:
                return None
            seconds.append(max(0, toleration.toleration_seconds))
    return min(seconds, default=0)


def _is_used_by(pod: Pod, use: ClaimUse, claim: ResourceClaim) -> bool:
    return is_reserved_for(pod, claim) and (not use.must_check_owner or is_owned_by(pod, claim))


def _after(start: datetime, seconds: int) -> datetime:
    # tolerationSeconds is an int64, which may lead past the year 9999.
    try:
        return start + timedelta(seconds=seconds)
    except OverflowError:
        return NEVER


NO_EXECUTE = "NoExecute"


class TaintOfDevice(NamedTuple):
    """A taint with its index among the taints of the device."""

    place: int
    taint: DeviceTaint


_Taints = tuple[TaintOfDevice, ...]


class _Published(NamedTuple):
    """The generation of a slice, and the evicting taints of its devices."""

    generation: int
    devices: Mapping[str, _Taints]


class DeviceTaints:
    """The evicting taints of published devices. For other devices only the generation of their slice is kept."""

    def __init__(self) -> None:
        self._slices: dict[PoolId, dict[str, _Published]] = {}
        self.tainted: dict[PoolId, Mapping[str, _Taints]] = {}
        """The evicting taints of the newest generation, for pools that have some."""

    def replace(self, old: ResourceSlice | None, new: ResourceSlice | None) -> set[DeviceId]:
        """Note that a slice is new (``old`` is None), gone (``new`` is None) or changed.

        Return the devices whose taints have changed.
        """
        pools: set[PoolId] = set()
        if old is not None:
            pool = PoolId.of(old)
            del self._slices[pool][old.metadata.name]
            pools.add(pool)
        if new is not None:
            pool = PoolId.of(new)
            published = _Published(new.spec.pool.generation, _evicting(new))
            self._slices.setdefault(pool, {})[new.metadata.name] = published
            pools.add(pool)
        return {device for pool in pools for device in self._refresh(pool)}

    def of(self, device: DeviceId) -> _Taints:
        """Return the taints of a device, in the order of the slice; none if the device is not published."""
        return self.tainted.get(device.pool_id, {}).get(device.device, ())

    def __iter__(self) -> Iterator[DeviceId]:
        """Yield the devices with evicting taints."""
        return (DeviceId(*pool, name) for pool, devices in self.tainted.items() for name in devices)

    def _refresh(self, pool: PoolId) -> set[DeviceId]:
        slices = self._slices[pool]
        before = self.tainted.pop(pool, {})
        now: dict[str, _Taints] = {}
        if any(published.devices for published in slices.values()):
            # An older generation is a remainder that the driver is about to delete: its taints are not current.
            newest = max(published.generation for published in slices.values())
            for _, published in sorted(slices.items()):
                if published.generation == newest:
                    now = {**published.devices, **now}  # of two devices of one name the first slice's counts
        if now:
            self.tainted[pool] = now
        if not slices:
            del self._slices[pool]
        names = before.keys() | now.keys()
        return {DeviceId(*pool, name) for name in names if before.get(name) != now.get(name)}


def _evicting(slice_: ResourceSlice) -> Mapping[str, _Taints]:
    tainted: dict[str, _Taints] = {}
    for device in slice_.spec.devices or ():
        if device.taints:
            found = (TaintOfDevice(place, taint) for place, taint in enumerate(device.taints))
            if evicting := tuple(entry for entry in found if entry.taint.effect == NO_EXECUTE):
                tainted[device.name] = evicting
    return tainted


EVICTION_IN_PROGRESS = "EvictionInProgress"
_NO_MORE = "This information will not be updated again. Recreate the DeviceTaintRule to trigger an update."


class RuleCounts(NamedTuple):
    """The numbers of pods and devices that a rule affects, or would affect if its effect were ``NoExecute``."""

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
