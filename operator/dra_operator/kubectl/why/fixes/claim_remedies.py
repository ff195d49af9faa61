"""Remedies in what a claim asks for: fewer devices, less capacity, tolerations, fewer constraints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from dra_api.resource import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    CapacityRequirements,
    Device,
    DeviceCapacity,
    DeviceTaint,
    DeviceToleration,
    ResourceClaim,
)
from dra_api.values.quantity import Quantity
from msgspec.structs import replace

from dra_operator.allocator import NodeView, Refusal, Rule, Usage, blocking, scheduler_of
from dra_operator.scheduling import CycleState
from dra_operator.scheduling.state import LoadedNode

from .change import Change
from .fewer import fewer, left
from .requests import Wanted, every_request, with_fields, with_request, without_constraint

MOST_TAINTS: Final = 4
"""Sets of taints of single devices whose tolerations are tried."""
MOST_SMALLER_REQUESTS: Final = 4
"""Smaller amounts of one capacity that are tried."""


def claim_remedies(cycle_state: CycleState, state: LoadedNode, refusal: Refusal) -> Iterator[Change]:
    """What may make the node's devices do; the request that the refusal names comes first."""
    claims = [claim for claim in cycle_state.resource_claims if claim.status.allocation is None]
    claims.sort(key=lambda claim: claim.key != refusal.claim.key)
    view = cycle_state.allocator.inventory.view(state.node)
    for claim in claims:
        asked = sorted(every_request(claim), key=lambda request: request[0] != refusal.request)
        for name, wanted in asked:
            yield from _tolerations(claim, name, wanted, view)
            yield from _counts(claim, name, wanted, refusal)
            if refusal.rule in (Rule.CAPACITY, Rule.COMBINATION):
                yield from _capacity(claim, name, wanted, view, cycle_state.usage)
        yield from _constraints(claim)


def named(claim: ResourceClaim, request: str) -> str:
    """A request in a sentence."""
    return f'request "{request}" of claim {claim.key}'


def _tolerations(claim: ResourceClaim, name: str, wanted: Wanted, view: NodeView) -> Iterator[Change]:
    """The taints of one device that are not tolerated, those of most devices first."""
    sets: Counter[tuple[DeviceTaint, ...]] = Counter()
    for device in view.devices:
        taints = tuple(_untimed(taint) for taint in device.taints or () if blocking((taint,), wanted.tolerations))
        if taints and not any(map(scheduler_of, taints)):  # those belong to another scheduler: no toleration mends that
            sets[tuple(dict.fromkeys(taints))] += 1
    for taints, _ in sorted(sets.items(), key=lambda item: (len(item[0]), -item[1]))[:MOST_TAINTS]:
        added = tuple(_toleration(taint) for taint in taints)
        words = " and ".join(_words(each) for each in added)
        plural = "s" if len(added) > 1 else ""
        text = f"add the toleration{plural} {words} to {named(claim, name)}"
        edit = with_request(claim, name, with_fields(tolerations=(*(wanted.tolerations or ()), *added)))
        yield Change(text, (edit,), 1, f"tolerations {claim.key} {name}")


def _untimed(taint: DeviceTaint) -> DeviceTaint:
    return replace(taint, time_added=None)


def _toleration(taint: DeviceTaint) -> DeviceToleration:
    operator = "Equal" if taint.value else "Exists"
    return DeviceToleration(key=taint.key, operator=operator, value=taint.value, effect=taint.effect)


def _words(toleration: DeviceToleration) -> str:
    value = f', value: "{toleration.value}"' if toleration.value else ""
    return f"{{key: {toleration.key}, operator: {toleration.operator}{value}, effect: {toleration.effect}}}"


def _counts(claim: ResourceClaim, name: str, wanted: Wanted, refusal: Refusal) -> Iterator[Change]:
    """As many devices as are left, or fewer."""
    if wanted.allocation_mode == "All":
        tried: Sequence[int] = sorted({count for count in (left(refusal), 1) if count > 0}, reverse=True)
        text = "ask for {count} of the devices instead of all (allocationMode: ExactCount) in"
    else:
        tried = fewer(wanted.count, refusal)
        text = f"ask for at most {{count}} instead of {wanted.count} in"
    for count in tried:
        edit = with_request(claim, name, with_fields(allocation_mode="ExactCount", count=count))
        yield Change(f"{text.format(count=count)} {named(claim, name)}", (edit,), 3, f"count {claim.key} {name}")


def _capacity(claim: ResourceClaim, name: str, wanted: Wanted, view: NodeView, usage: Usage) -> Iterator[Change]:
    """The most that a device has, or has left, as its request policy allows; after these, without the capacity."""
    asked = (wanted.capacity.requests if wanted.capacity is not None else None) or {}
    for what, amount in asked.items():
        group = f"capacity {claim.key} {name} {what}"
        smaller = {most for most in _amounts(what, view, usage) if 0 < most < amount.nanos}
        for most in sorted(smaller, reverse=True)[:MOST_SMALLER_REQUESTS]:
            less = Quantity.from_nanos(most, binary=str(amount).endswith("i"))
            edit = with_request(claim, name, _capacity_of({**asked, what: less}))
            text = f"ask for at most {less} {what} instead of {amount} in {named(claim, name)}"
            yield Change(text, (edit,), 3, group)
        without = _capacity_of({key: value for key, value in asked.items() if key != what})
        text = f"remove the capacity {what} from {named(claim, name)}"
        yield Change(text, (with_request(claim, name, without),), 3, group)


def _amounts(what: str, view: NodeView, usage: Usage) -> Iterator[int]:
    """What one share may ask for at most: of each device, of all that it has and of what is left."""
    for number, device in enumerate(view.devices):
        capacity = _capacity_named(device, what, view.driver(number))
        if capacity is not None:
            device_id = view.id(number)
            consumed = usage.pool(device_id.pool_id).consumed.get(device_id.device, {})
            used = sum(amount for key, amount in consumed.items() if key.endswith(what))
            yield _allowed(capacity.value.nanos, capacity.request_policy)
            yield _allowed(capacity.value.nanos - used, capacity.request_policy)


def _allowed(most: int, policy: CapacityRequestPolicy | None) -> int:
    """The largest amount up to this one that the policy allows; 0 if there is none."""
    if policy is None:
        return most
    if policy.valid_values:
        return max((value.nanos for value in policy.valid_values if value.nanos <= most), default=0)
    bounds = policy.valid_range or CapacityRequestPolicyRange()
    least = bounds.min.nanos if bounds.min is not None else 0
    most = min(most, bounds.max.nanos) if bounds.max is not None else most
    step = bounds.step.nanos if bounds.step is not None else 0
    return (most - (most - least) % step if step else most) if most >= least else 0


def _capacity_named(device: Device, name: str, driver: str) -> DeviceCapacity | None:
    capacities = device.capacity or {}
    return capacities.get(name) or capacities.get(name.removeprefix(f"{driver}/"))


def _constraints(claim: ResourceClaim) -> Iterator[Change]:
    for constraint in claim.spec.devices.constraints or ():
        kind = "matchAttribute" if constraint.match_attribute else "distinctAttribute"
        attribute = constraint.match_attribute or constraint.distinct_attribute
        text = f"remove the constraint {kind}: {attribute} from claim {claim.key}"
        yield Change(text, (without_constraint(claim, constraint),), 3)


def _capacity_of(requests: Mapping[str, Quantity]) -> Callable[[Wanted], Wanted]:
    return with_fields(capacity=CapacityRequirements(requests=dict(requests)))
