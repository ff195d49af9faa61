"""Remedies in a pod's requests for devices: fewer, less capacity, tolerations, fewer constraints, another resource.

Requests have the names that refusals use. Taints and amounts are taken from the devices that match a request, in use
or not. Devices of other drivers do not matter here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from dra_api.core import Container, Pod
from dra_api.resource import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    CapacityRequirements,
    Device,
    DeviceCapacity,
    DeviceConstraint,
    DeviceRequest,
    DeviceSubRequest,
    DeviceTaint,
    DeviceTaintRule,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceSlice,
)
from dra_api.values import Quantity
from dra_ledger.taints import rule_selects as selects
from msgspec.structs import replace

from dra_operator.allocator import NodeView, Refusal, Rule, Usage, blocking, scheduler_of
from dra_operator.cache import Cluster
from dra_operator.kubectl.why.changes import Change, Effort, Patch, amount_of, containers_of, less_in, pod_change
from dra_operator.kubectl.why.published import likely_meant
from dra_operator.scheduling import CycleState, PodFilter
from dra_operator.scheduling.state import LoadedNode

Wanted = ExactDeviceRequest | DeviceSubRequest
"""What a request, or one of its alternatives, asks for."""


def every_request(claim: ResourceClaim) -> Iterator[tuple[str, Wanted]]:
    """``request`` or ``request/subrequest``, and what it asks for."""
    for request in claim.spec.devices.requests or ():
        if request.exactly is not None:
            yield request.name, request.exactly
        for sub in request.first_available or ():
            yield f"{request.name}/{sub.name}", sub


def matching(cycle_state: CycleState, state: LoadedNode) -> dict[tuple[str, str], list[int]]:
    """The devices of the node that match each request, by claim and request, be they in use or not.

    Nothing matches a selector that fails.
    """
    view, program = cycle_state.allocator.inventory.view(state.node), PodFilter(cycle_state).demands.on(state).program
    found: dict[tuple[str, str], list[int]] = {}
    for stage in program.stages:
        for alternative in stage.alternatives:
            bits = view.selected(alternative.expressions, cycle_state.allocator.inventory.compiled).true & view.here
            key = program.claims[stage.claim].key, alternative.request
            found[key] = [number for number in range(len(view.devices)) if bits >> number & 1]
    return found


def with_request(claim: ResourceClaim, name: str, change: Callable[[Wanted], Wanted]) -> Patch:
    """The claim with that request changed."""

    def make(now: ResourceClaim) -> ResourceClaim:
        requests = tuple(_changed(request, name, change) for request in now.spec.devices.requests or ())
        return _with(now, requests=requests)

    return Patch(ResourceClaim, claim.key, make)


def with_fields(**fields: object) -> Callable[[Wanted], Wanted]:
    """Changes these fields of a request."""
    return lambda wanted: replace(wanted, **fields)


def with_constraint(claim: ResourceClaim, old: DeviceConstraint, new: DeviceConstraint | None) -> Patch:
    """The claim with another constraint in the place of one of its own, or without that one."""

    def make(now: ResourceClaim) -> ResourceClaim:
        every = (new if one == old else one for one in now.spec.devices.constraints or ())
        return _with(now, constraints=tuple(one for one in every if one is not None) or None)

    return Patch(ResourceClaim, claim.key, make)


def _changed(request: DeviceRequest, name: str, change: Callable[[Wanted], Wanted]) -> DeviceRequest:
    if request.name == name and request.exactly is not None:
        return replace(request, exactly=change(request.exactly))
    subs = tuple(change(sub) if f"{request.name}/{sub.name}" == name else sub for sub in request.first_available or ())
    return replace(request, first_available=subs or None)


def _with(claim: ResourceClaim, **fields: Any) -> ResourceClaim:
    return replace(claim, spec=replace(claim.spec, devices=replace(claim.spec.devices, **fields)))


def fewer(asked: int, refusal: Refusal) -> Sequence[int]:
    """Less than was asked for, the most first: as many as are left, one less, half, and one."""
    return sorted({count for count in (left(refusal), asked - 1, asked // 2, 1) if 0 < count < asked}, reverse=True)


def left(refusal: Refusal) -> int:
    """How many devices match and are not taken out by a check."""
    return refusal.matching - sum(tally.devices for tally in refusal.lost)


MOST_TAINTS: Final = 4
"""Sets of taints of single devices whose tolerations are tried."""
MOST_SMALLER_REQUESTS: Final = 4
"""Smaller amounts of one capacity that are tried."""
BROKEN: Final = re.compile(
    r"fail|broken|fault|defect|damage|unhealthy|degraded|dead|lost|error|fallen|xid|ecc(?![a-z])|overheat|repair", re.I
)
"""What keys and values of taints say of hardware that does not work."""
AWAY: Final = re.compile(r"\b(gone|absent|missing|removed|unplugged|detached)\b|in-?use\b", re.I)
"""What they say of a device that is not there, or that somebody has whom no claim names."""


def claim_remedies(cycle_state: CycleState, state: LoadedNode, refusal: Refusal, cluster: Cluster) -> Iterator[Change]:
    """What may make the node's devices do; the request that the refusal names comes first."""
    claims = [claim for claim in cycle_state.resource_claims if claim.status.allocation is None]
    claims.sort(key=lambda claim: claim.key != refusal.claim.key)
    view, matches = cycle_state.allocator.inventory.view(state.node), matching(cycle_state, state)
    for claim in claims:
        asked = sorted(every_request(claim), key=lambda request: request[0] != refusal.request)
        for name, wanted in asked:
            candidates = matches.get((claim.key, name), [])
            yield from _tolerations(claim, name, wanted, view, candidates)
            yield from _repairs(cluster, wanted, view, candidates)
            yield from _counts(claim, name, wanted, refusal)
            if refusal.rule in (Rule.CAPACITY, Rule.COMBINATION):
                yield from _capacity(claim, name, wanted, view, cycle_state.usage)
        yield from _constraints(claim, view)


def named(claim: ResourceClaim, request: str) -> str:
    """A request in a sentence."""
    return f'request "{request}" of claim {claim.key}'


def _tolerations(
    claim: ResourceClaim, name: str, wanted: Wanted, view: NodeView, candidates: Sequence[int]
) -> Iterator[Change]:
    """The taints of one device that are not tolerated, those of most devices first."""
    sets: Counter[tuple[DeviceTaint, ...]] = Counter()
    for number in candidates:
        taints = _untolerated(view.devices[number], wanted)
        if taints and not any(map(scheduler_of, taints)):  # those belong to another scheduler: no toleration mends that
            sets[tuple(dict.fromkeys(taints))] += 1
    for taints, _ in sorted(sets.items(), key=lambda item: (len(item[0]), -item[1]))[:MOST_TAINTS]:
        added = tuple(_toleration(taint) for taint in taints)
        words = " and ".join(_words(each) for each in added)
        plural = "s" if len(added) > 1 else ""
        text = f"add the toleration{plural} {words} to {named(claim, name)}"
        is_broken = any(says_broken(taint.key, taint.value) for taint in taints)
        is_away = any(says_away(taint.key, taint.value) for taint in taints)
        if is_broken:  # the pod would run, and fail
            text = f"{text}, although the taint says that the hardware is broken"
        elif is_away:  # the pod would be placed, and not start
            text = f"{text}, although the taint says that the device is not there, or in use by others"

        def make(now: Wanted, more: tuple[DeviceToleration, ...] = added) -> Wanted:
            return replace(now, tolerations=(*(now.tolerations or ()), *more))

        patch = with_request(claim, name, make)
        effort = Effort.TOLERATED_BREAKAGE if is_broken or is_away else 1
        yield Change(text, (patch,), effort, f"tolerations {claim.key} {name}")


def _untolerated(device: Device, wanted: Wanted) -> tuple[DeviceTaint, ...]:
    return tuple(_untimed(taint) for taint in device.taints or () if blocking((taint,), wanted.tolerations))


def says_broken(*words: str) -> bool:
    """Whether a taint with this key and value says that hardware has failed."""
    return any(BROKEN.search(word) for word in words)


def says_away(*words: str) -> bool:
    """Return whether a taint with this key and value says that a device is not there, or in use by others."""
    return any(AWAY.search(word) for word in words)


def _repairs(cluster: Cluster, wanted: Wanted, view: NodeView, candidates: Sequence[int]) -> Iterator[Change]:
    """Wait until broken devices are repaired, or others are back: the driver takes its taint back then.

    The taint of a DeviceTaintRule stays until a person deletes the rule.
    """
    for number in candidates:
        device, id_ = view.devices[number], view.id(number)
        taints = _untolerated(device, wanted)
        if not taints or not all(
            says_broken(taint.key, taint.value) or says_away(taint.key, taint.value) for taint in taints
        ):
            continue
        again = "repaired" if any(says_broken(taint.key, taint.value) for taint in taints) else "available"
        rules = [it for it in cluster.rules if _untimed(it.spec.taint) in taints and selects(it, id_)]
        pool = [it for it in cluster.slices if (it.spec.driver, it.spec.pool.name) == (id_.driver, id_.pool)]
        slices = [it for it in pool if any(one.name == id_.device and one.taints for one in it.spec.devices or ())]

        def repaired(now: ResourceSlice, name: str = id_.device) -> ResourceSlice:
            devices = tuple(replace(it, taints=None) if it.name == name else it for it in now.spec.devices or ())
            return replace(now, spec=replace(now.spec, devices=devices))

        patches = [Patch(ResourceSlice, it.key, repaired) for it in slices]
        patches += [Patch(DeviceTaintRule, it.key, _without_effect) for it in rules]
        keys = " and ".join(dict.fromkeys(taint.key for taint in taints))
        names = " and ".join(f"DeviceTaintRule {it.metadata.name}" for it in rules)
        then = f"delete {names} then" if rules else f"its driver removes the taint {keys} then"
        yield Change(f"wait until device {id_} is {again} ({then})", tuple(patches), Effort.WAIT_FOR_REPAIR, "repair")


def _without_effect(rule: DeviceTaintRule) -> DeviceTaintRule:
    return replace(rule, spec=replace(rule.spec, taint=replace(rule.spec.taint, effect="None")))


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
        patch = with_request(claim, name, with_fields(allocation_mode="ExactCount", count=count))
        yield Change(f"{text.format(count=count)} {named(claim, name)}", (patch,), 3, f"count {claim.key} {name}")


def _capacity(claim: ResourceClaim, name: str, wanted: Wanted, view: NodeView, usage: Usage) -> Iterator[Change]:
    """The most that a device has, or has left, as its request policy allows; after these, without the capacity."""
    asked = (wanted.capacity.requests if wanted.capacity is not None else None) or {}
    for what, amount in asked.items():
        group = f"capacity {claim.key} {name} {what}"
        smaller = {most for most in _amounts(what, view, usage) if 0 < most < amount.nanos}
        for most in sorted(smaller, reverse=True)[:MOST_SMALLER_REQUESTS]:
            less = Quantity.from_nanos(most, binary=str(amount).endswith("i"))
            patch = with_request(claim, name, _with_capacity(what, less))
            text = f"ask for at most {less} {what} instead of {amount} in {named(claim, name)}"
            yield Change(text, (patch,), 3, group)
        without = _with_capacity(what, None)
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


def _constraints(claim: ResourceClaim, view: NodeView) -> Iterator[Change]:
    """Correct a likely typing error in the attribute of a constraint; after these, without the constraint."""
    constraints = claim.spec.devices.constraints or ()
    known = _attributes(view) if constraints else frozenset()
    several: dict[str, list[DeviceConstraint]] = {}
    for constraint in constraints:
        field = "match_attribute" if constraint.match_attribute else "distinct_attribute"
        kind = "matchAttribute" if constraint.match_attribute else "distinctAttribute"
        attribute = constraint.match_attribute or constraint.distinct_attribute or ""
        group = f"constraint {claim.key} {attribute}"
        several.setdefault(attribute, []).append(constraint)
        for meant in _attributes_meant(attribute, known)[:MOST_ATTRIBUTES]:
            text = f"write {kind}: {meant} instead of {attribute} in claim {claim.key}"
            patch = with_constraint(claim, constraint, replace(constraint, **{field: meant}))
            yield Change(text, (patch,), 1, group)
        text = f"remove the constraint {kind}: {attribute} from claim {claim.key}"
        yield Change(text, (with_constraint(claim, constraint, None),), 3, group)
    for attribute, its in several.items():
        if len(its) > 1:  # without one of them the other one says the same
            text = f"remove the {len(its)} constraints on {attribute} from claim {claim.key}"
            patches = tuple(with_constraint(claim, it, None) for it in its)
            yield Change(text, patches, 4, f"constraint {claim.key} {attribute}")


MOST_ATTRIBUTES: Final = 2
"""Attributes that are tried in the place of one that no device has."""


def _attributes_meant(attribute: str, known: Collection[str]) -> list[str]:
    """Known attributes in the place of one that no device has: a slip, or one of another domain."""
    if attribute in known:
        return []
    its = attribute.rpartition("/")[2]
    by_id: dict[str, list[str]] = {}
    for name in sorted(known):
        by_id.setdefault(name.rpartition("/")[2], []).append(name)
    ids = [it for it in (its, *likely_meant(its, by_id)) if it in by_id]
    return list(dict.fromkeys([*likely_meant(attribute, known), *(name for it in ids for name in by_id[it])]))


def _attributes(view: NodeView) -> frozenset[str]:
    """The attributes of the node's devices, each with its domain."""
    return frozenset(
        name if "/" in name else f"{view.driver(number)}/{name}"
        for number, device in enumerate(view.devices)
        for name in device.attributes or ()
    )


def _with_capacity(what: str, amount: Quantity | None) -> Callable[[Wanted], Wanted]:
    """Ask for this amount of a capacity; None: do not ask for it."""

    def make(now: Wanted) -> Wanted:
        asked = (now.capacity.requests if now.capacity is not None else None) or {}
        left = {key: value for key, value in asked.items() if key != what}
        more = {what: amount} if amount is not None else {}
        return replace(now, capacity=CapacityRequirements(requests={**left, **more}))

    return make


def extended_remedies(pod: Pod, refusal: Refusal) -> Iterator[Change]:
    """What may make the devices of the node do for the resource that the refusal names, if it names one."""
    resource = refusal.claim.resource
    for field, container in containers_of(pod) if resource else ():
        asked = amount_of(container, resource)
        for count in fewer(asked.rounded_up(), refusal) if asked is not None else ():
            yield less_in(pod, field, container, resource, Quantity.from_nanos(count * 10**9))


def name_remedies(pod: Pod, resource: str, known: Iterable[str]) -> Iterator[Change]:
    """The extended resource that was meant, where nothing offers the one that the pod asks for."""
    for meant in likely_meant(resource, known):

        def make(now: Pod, new: str = meant) -> dict[str, Any]:
            return {
                field: tuple(_renamed(it, resource, new) for it in getattr(now.spec, field) or ()) or None
                for field in ("containers", "init_containers")
            }

        yield pod_change(pod, f"ask for {meant} instead of {resource} in the pod", 1, make, f"resource {resource}")


def _renamed(container: Container, old: str, new: str) -> Container:
    def of(amounts: dict[str, Quantity] | None) -> dict[str, Quantity] | None:
        return {new if name == old else name: it for name, it in amounts.items()} if amounts is not None else None

    its = container.resources
    return replace(container, resources=replace(its, requests=of(its.requests), limits=of(its.limits)))
