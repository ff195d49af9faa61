"""Says what the closest device lacks in capacity or shared counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dra_api.resource import CapacityRequestPolicy, DeviceCapacity
from dra_api.values.quantity import Quantity
from dra_ledger.basics import each
from dra_ledger.capacity import consumed, violates

from dra_operator.allocator.problem.problem import Problem
from dra_operator.wording import amount, listed

from .shortage import Hint, Shortage


class Gap(NamedTuple):
    """A device has ``left`` of ``total`` of ``name``, and the request needs ``wanted``."""

    device: int
    name: str
    wanted: int
    left: int
    total: int

    @property
    def filled(self) -> float:
        """The part of the wanted amount that is left; negative if the device is overdrawn."""
        return self.left / max(1, self.wanted)

    @property
    def rest(self) -> str:
        """``1 of 2``; a device that was published with more before may have less than nothing left."""
        overdrawn = f" (overdrawn by {amount(-self.left)})" if self.left < 0 else ""
        return f"{amount(max(0, self.left))} of {amount(self.total)}{overdrawn}"


def _closest(gaps: Mapping[int, list[Gap]]) -> Gap:
    """The worst gap of the device whose worst gap is the smallest; the first of equals."""
    worst = [min(own, key=lambda gap: gap.filled) for own in gaps.values()]
    return max(worst, key=lambda gap: gap.filled)


# --- capacity (section 9) -----------------------------------------------------------------------


def capacity_hint(shortage: Shortage) -> Hint:
    """The gap of the device with most left; a forbidden amount or an unknown name only if there is no such gap."""
    problem, requests = shortage.problem, dict(shortage.domain.alternative.capacity)
    features = problem.node.features
    gaps: dict[int, list[Gap]] = {}
    forbidden: Hint | None = None
    unknown = ""
    for device in each(shortage.gone):
        capacities = problem.view.devices[device].capacity or {}
        absent = next((name for name in requests if name not in capacities), None)
        if absent is not None:
            unknown = unknown or absent
            continue
        amounts = {name: consumed(requests.get(name), capacity, features) for name, capacity in capacities.items()}
        left = problem.node.left(device)
        found = [
            Gap(device, name, amounts[name].nanos, left[name], capacity.value.nanos)
            for name, capacity in capacities.items()
            if amounts[name].nanos > left[name]
        ]
        broken = next(
            (n for n, capacity in capacities.items() if violates(amounts[n], capacity.request_policy, features)), None
        )
        if broken is not None:
            forbidden = forbidden or _forbidden(problem, device, broken, amounts[broken], capacities[broken])
        elif found:
            gaps[device] = found
    if gaps:
        return _too_little(problem, _closest(gaps), requests)
    if forbidden or not unknown:
        return forbidden or Hint()  # a state with negative consumption: what is missing cannot be said
    return Hint(
        f" with {requests[unknown]} of {unknown}, a capacity that no free device has",
        f"correct the name {unknown} in the capacity of {shortage.request}",
    )


def _too_little(problem: Problem, gap: Gap, requests: Mapping[str, Quantity]) -> Hint:
    asked, left = requests.get(gap.name), amount(gap.left)
    how = ""
    if asked is None:
        how = " (what a share consumes unless it asks for less)"
    elif asked.nanos != gap.wanted:
        how = f" ({asked}, rounded up by the request policy)"
    device = problem.view.id(gap.device)
    fixes = [f"ask for at most {left} of {gap.name}"] if gap.left > 0 else []
    if gap.wanted <= gap.total:
        fixes.append(f"wait until other claims release their shares of {device}")
    return Hint(
        f" with {amount(gap.wanted)} of {gap.name}{how}, best device {device} has {gap.rest} left",
        ", or ".join(fixes),
    )


def _forbidden(problem: Problem, device: int, name: str, wanted: Quantity, capacity: DeviceCapacity) -> Hint:
    policy = capacity.request_policy or CapacityRequestPolicy()
    id_ = problem.view.id(device)
    return Hint(
        f" with {wanted} of {name}, where the request policy of device {id_} allows {', '.join(_allowed(policy))}",
        f"ask for an amount of {name} that the policy allows",
    )


def _allowed(policy: CapacityRequestPolicy) -> Iterator[str]:
    if policy.valid_values is not None:
        yield listed(map(str, policy.valid_values), 10)
    if policy.valid_range is not None:
        bounds = policy.valid_range
        yield from (f"at least {bounds.min}",) if bounds.min is not None else ()
        yield from (f"at most {bounds.max}",) if bounds.max is not None else ()
        yield from (f"in steps of {bounds.step}",) if bounds.step is not None else ()


# --- shared counters (section 10) ---------------------------------------------------------------


def counter_hint(shortage: Shortage) -> Hint:
    """The gap of the device whose scarcest counter lacks least."""
    problem, view = shortage.problem, shortage.problem.view
    gaps: dict[int, list[Gap]] = {}
    for device in each(shortage.gone):
        place = view.pool_of[device]
        table = view.pools[place].counters
        if not table.names:
            return Hint("; partitionable devices are off", "enable DRAPartitionableDevices")
        left = table.available(problem.node.usages[place].charged)
        charges = table.charges[view.devices[device].name]
        gaps[device] = [
            Gap(device, _counter(*table.names[number]), wanted, left[number], table.values[number])
            for number, wanted in charges
            if wanted > left[number]
        ]
        if not gaps[device]:  # only an overdrawn counter closes the pool for devices that do not draw on it
            number = min(range(len(left)), key=left.__getitem__)
            return Hint(
                f"; allocated devices of pool {view.pools[place].pool} have overdrawn {_counter(*table.names[number])}",
                "end the pods that use them",
            )
    gap = _closest(gaps)
    return Hint(
        f"; best device {view.id(gap.device)} takes {amount(gap.wanted)} of {gap.name}, of which {gap.rest} is left",
        "wait until devices that draw on the same counters are free, or ask for one that takes less",
    )


def _counter(set_: str, name: str) -> str:
    return f"counter {name} in set {set_}"
