"""Says what a check found when a request is short of devices on a node even alone, and the nearest change that would
help.

A hint takes one look at the devices that the check took away, never a search. For capacity and shared counters it
names the shortage of the closest device.

Only published devices and pools that the request can mean count (``Meant``). Selectors that name drivers rule all
others out: what those publish is no reason why the request is refused, and a refusal that counted it would change with
each slice of theirs.

Devices that match but cannot be taken come back by waiting, by tolerations, by both, or by neither. A device in use
comes back by waiting alone unless it is also tainted: then it takes both. No single change brings back devices that
other checks took (capacity, shared counters).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dra_api.resource import SCHEDULER_KEY, CapacityRequestPolicy, DeviceCapacity, DeviceTaint
from dra_api.values import Quantity
from dra_ledger.basics import each
from dra_ledger.capacity import consumed, violates
from dra_ledger.pools import PoolView, Superseded, Unreadable
from dra_ledger.taints import LEFT, blocking, scheduler_of

from dra_operator.allocator.outcome import Rule
from dra_operator.allocator.problem.node_state import Domain
from dra_operator.allocator.problem.problem import NodeProblem, stages
from dra_operator.wording import amount, counted, listed


class Hint(NamedTuple):
    """``detail`` continues a line that begins with "needs 2"; ``fix`` is the nearest change that would help."""

    detail: str = ""
    fix: str = ""


class Shortage(NamedTuple):
    """``rule`` is the check to blame, ``gone`` the devices that it took away."""

    problem: NodeProblem
    domain: Domain
    rule: Rule
    gone: int

    @property
    def missing(self) -> int:
        """How many more devices are needed."""
        return max(1, self.domain.need - self.domain.usable.bit_count())

    @property
    def request(self) -> str:
        """The request in a sentence."""
        return f"request {self.domain.alternative.request}"


def losses(problem: NodeProblem, domain: Domain) -> Iterator[tuple[Rule, int]]:
    """How many matching devices each check took, in the order of the checks."""
    # Only matching devices: a check that excludes others is no loss to the request.
    left = problem.matching(domain)
    for rule, devices in [(Rule.NODE, problem.view.here), *stages(problem.node, domain)]:
        if taken := left & ~devices:
            yield rule, taken
        left &= devices


class Meant(NamedTuple):
    """``devices``: how many. ``troubled``: pools that cannot be used, ``outdated``: those of older generations,
    ``unreadable``: those with malformed node selectors."""

    devices: int
    troubled: list[PoolView]
    outdated: list[Superseded]
    unreadable: list[Unreadable]
    names_driver: bool
    """The selectors name drivers, so that those of others are not counted."""
    mixed: bool
    """The devices are those of several drivers, although the selectors name none."""


def meant(problem: NodeProblem, domain: Domain) -> Meant:
    """What an alternative of a request can mean."""
    view = problem.view
    naming = problem.node.compiled.drivers(domain.alternative.expressions)
    pools = [view_.pool for view_ in (*view.pools, *view.troubled)]
    # Unusable pools may hold the devices that the request means, so they count for the drivers it can mean.
    pools += [*(old.pool for old in view.outdated), *(one.pool for one in view.unreadable)]
    drivers = {pool.driver for pool in pools}
    # A selector that names no driver may mean any of them.
    drivers = {driver for driver in drivers if not any(one.excludes(driver) for one in naming)}
    usable = [pool for pool in view.pools if pool.pool.driver in drivers]
    return Meant(
        sum(len(pool.devices) for pool in usable),
        [pool for pool in view.troubled if pool.pool.driver in drivers],
        [old for old in view.outdated if old.pool.driver in drivers],
        [one for one in view.unreadable if one.pool.driver in drivers],
        bool(naming),
        not naming and len({pool.pool.driver for pool in usable}) > 1,
    )


Taint = tuple[str, str, str]
"""Key, value, effect."""


def recovery(problem: NodeProblem, domains: Sequence[Domain], lost: int, missing: int, kind: str = "") -> str:
    """How to get so many of the lost devices back for any of the domains; ``kind`` says which devices they are.

    Empty if waiting and tolerations bring none back.
    """
    waiting, tainted, both = _sorted_out(problem, domains, lost)
    # What needs one change comes before what needs two.
    chosen = [*each(waiting), *each(tainted), *each(both)][:missing]
    if not chosen:
        return ""
    back = sum(1 << device for device in chosen)
    parts = []
    if busy := (back & (waiting | both)).bit_count():
        one, several = ("more is", "more are") if kind else _PLAIN
        parts.append(f"wait until {counted(busy, one, several)} free{kind}")
    if needed := back & (tainted | both):
        parts.append(_tolerate(problem, domains, needed))
    if rest := missing - len(chosen):
        parts.append(f"{rest} more would have to become usable")
    elif busy and len(parts) == 1 and not kind:
        parts[0] += ", or end a pod that uses one"
    return ", and ".join(parts)


_PLAIN = ("more matching device is", "more matching devices are")


def _sorted_out(problem: NodeProblem, domains: Iterable[Domain], lost: int) -> tuple[int, int, int]:
    """The lost devices that need only waiting, only a toleration, or both, each by the domain that needs least."""
    waiting = tainted = both = 0
    for domain in domains:
        taken = {rule: devices & lost for rule, devices in losses(problem, domain)}
        # A device in use was asked nothing more: it counts only if it would pass the checks behind.
        busy = _fitting(problem, domain, taken.get(Rule.IN_USE, 0))
        blocked = sum(1 << device for device in each(busy) if any(taints_of(problem, domain, device)))
        waiting, tainted, both = waiting | busy & ~blocked, tainted | taken.get(Rule.TAINTS, 0), both | blocked
    # A device may be lost to several alternatives: the one that needs least decides.
    return waiting, tainted & ~waiting, both & ~tainted & ~waiting


def _fitting(problem: NodeProblem, domain: Domain, devices: int) -> int:
    """The devices in use that could be taken if they were free and had no taints."""
    devices &= problem.view.here & problem.view.fitting(domain.alternative.capacity).devices
    return devices if problem.node.features.binding_conditions else devices & ~problem.view.binding


def taints_of(problem: NodeProblem, domain: Domain, device: int) -> Iterator[Taint]:
    """The taints of a device that keep the request from it."""
    for taint in problem.view.devices[device].taints or ():
        # That a device is left to another scheduler counts with the feature off as well.
        if (taint == LEFT or problem.node.features.device_taints) and blocking(
            (taint,), domain.alternative.tolerations
        ) is not None:
            yield _key(taint)


def _key(taint: DeviceTaint) -> Taint:
    return (taint.key, taint.value, taint.effect)


def _tolerate(problem: NodeProblem, domains: Sequence[Domain], devices: int) -> str:
    """The tolerations that make all these devices usable, for the first domain that they match."""
    # A device that was lost matches some domain.
    domain, own = next((it, own) for it in domains if (own := devices & problem.matching(it)))
    found = (taint for device in each(own) for taint in taints_of(problem, domain, device))
    return tolerate(domain, dict.fromkeys(found))


def tolerate(domain: Domain, taints: Iterable[Taint]) -> str:
    """``add the toleration {...} to request r, or have the taint removed``; devices of another scheduler stay its."""
    every = dict.fromkeys(taints)
    schedulers = list(filter(None, map(scheduler_of_taint, every)))
    wanted = [_toleration(*taint) for taint in every if not scheduler_of_taint(taint)]
    parts = []
    if wanted:
        one = len(wanted) == 1
        words = (f"toleration {wanted[0]}", "taint") if one else (f"tolerations {' and '.join(wanted)}", "taints")
        parts.append(f"add the {words[0]} to request {domain.alternative.request}, or have the {words[1]} removed")
    # No toleration of the claim's author helps: a setting of this operator leaves the devices to another scheduler.
    if LEFT.value in schedulers:
        parts.append("have another scheduler place the pod, or this one not leave the devices alone (its settings)")
    elif schedulers:
        parts.append(
            f"set schedulerName: {' or '.join(schedulers)} in the pod, or have the taint {SCHEDULER_KEY} removed"
        )
    return ", and ".join(parts)


def scheduler_of_taint(taint: Taint) -> str | None:
    """Return the scheduler to which the taint gives its device; None for any other taint."""
    key, value, effect = taint
    return scheduler_of(DeviceTaint(key=key, value=value, effect=effect))


def _toleration(key: str, value: str, effect: str) -> str:
    how = f'operator: Equal, value: "{value}"' if value else "operator: Exists"
    return f"{{key: {key}, {how}, effect: {effect}}}"


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
        # No amount of the device can be compared if it lacks the name.
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
        # An amount that the policy forbids is refused however much is left, so a gap would be the wrong reason.
        if broken is not None:
            forbidden = forbidden or _forbidden(problem, device, broken, amounts[broken], capacities[broken])
        elif found:
            gaps[device] = found
    # An amount that is short is nearer to a fit than one that the policy forbids, or a name that no device has.
    if gaps:
        return _too_little(problem, _closest(gaps), requests)
    if forbidden or not unknown:
        return forbidden or Hint()  # a state with negative consumption: what is missing cannot be said
    return Hint(
        f" with {requests[unknown]} of {unknown}, a capacity that no free device has",
        f"correct the name {unknown} in the capacity of {shortage.request}",
    )


def _too_little(problem: NodeProblem, gap: Gap, requests: Mapping[str, Quantity]) -> Hint:
    asked, left = requests.get(gap.name), amount(gap.left)
    how = ""
    if asked is None:
        how = " (what a share consumes unless it asks for less)"
    elif asked.nanos != gap.wanted:
        how = f" ({asked}, rounded up by the request policy)"
    device = problem.view.id(gap.device)
    fixes = [f"ask for at most {left} of {gap.name}"] if gap.left > 0 else []
    # Waiting helps only if the device would have enough when nobody uses it.
    if gap.wanted <= gap.total:
        fixes.append(f"wait until other claims release their shares of {device}")
    return Hint(
        f" with {amount(gap.wanted)} of {gap.name}{how}, best device {device} has {gap.rest} left",
        ", or ".join(fixes),
    )


def _forbidden(problem: NodeProblem, device: int, name: str, wanted: Quantity, capacity: DeviceCapacity) -> Hint:
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
        # No counter is read if the gate is off, and each device that draws on one is refused.
        if not table.names:
            return Hint("; the feature gate DRAPartitionableDevices is off", "enable DRAPartitionableDevices")
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


def hint(shortage: Shortage) -> Hint:
    """The hint of the rule to blame."""
    make = _HINTS.get(shortage.rule)
    return make(shortage) if make is not None else Hint()


def _selectors(shortage: Shortage) -> Hint:
    """The selector that matches no device, or how many devices are missing if some match all selectors."""
    problem, domain = shortage.problem, shortage.domain
    selectors = domain.alternative.selectors
    matching = problem.matching(domain).bit_count()
    if matching:
        how = "be published" if matching == meant(problem, domain).devices else "match"
        more = f"{max(1, domain.need) - matching} more would have to {how}"
        usable = domain.usable.bit_count()
        if usable < matching:
            more += f", and {counted(matching - usable, 'device that matches', 'devices that match')} to become usable"
        return Hint("", f"ask for at most {counted(usable, 'device')}; {more}" if usable else more)
    compiled = problem.node.compiled
    # A hint must not cost more than the decision: a costly selector by itself is only evaluated where somebody waits
    # for the answer.
    quick = [one for one in selectors if compiled.patient or not compiled.is_costly(one.expression)]
    idle = [one for one in quick if not problem.view.selected((one.expression,), compiled).true]
    if not idle:
        return Hint(f"; no device matches all {len(selectors)} selectors", "change selectors that exclude each other")
    claim = problem.program.claims[domain.claim].key
    one = idle[0].of(claim) if idle[0].class_ else f"selector #{idle[0].position} of the request"
    return Hint(f"; {one} matches none", f"change {one}, or publish devices that it matches")


def _in_use(shortage: Shortage) -> Hint:
    problem, domain, missing = shortage.problem, shortage.domain, shortage.missing
    found = recovery(problem, (domain,), problem.matching(domain) & ~domain.usable, missing)
    return Hint("", found or f"{counted(missing, 'more matching device')} would have to become usable")


def _elsewhere(shortage: Shortage) -> Hint:
    fields = "nodeName, nodeSelector and allNodes of the devices decide"
    return Hint("", f"{counted(shortage.missing, 'more matching device')} must be for this node: {fields}")


def _binding(shortage: Shortage) -> Hint:
    return Hint("", "enable DRADeviceBindingConditions and DRAResourceClaimDeviceStatus")


def _node_operations(shortage: Shortage) -> Hint:
    # If our gate is on, it is the kubelet of the node that does not declare the feature.
    on = shortage.problem.node.features.optional_node_operations
    where = "for the kubelet of this node" if on else "for scheduler, API server and kubelets"
    return Hint("", f"enable DRAOptionalNodeOperations {where}, or have the driver publish no skipNodeOperations")


def _compatibility(shortage: Shortage) -> Hint:
    sets = {set_: None for number in each(shortage.gone) for set_ in _counter_sets(shortage, number)}
    return Hint("", f"wait until the devices in use on counter set {listed(sets)} are free, or ask for compatible ones")


def _counter_sets(shortage: Shortage, number: int) -> list[str]:
    return [it.counter_set for it in shortage.problem.view.devices[number].consumes_counters or ()]


def _taints(shortage: Shortage) -> Hint:
    """The taints, and the fewest tolerations that bring enough devices back, taints of most devices first."""
    problem, domain, missing = shortage.problem, shortage.domain, shortage.missing
    taints = {device: frozenset(taints_of(problem, domain, device)) for device in each(shortage.gone)}
    by_number = Counter(taint for own in taints.values() for taint in own)
    # Ties are broken by the taint itself: a hint that changed from look to look would be news.
    order = sorted(by_number, key=lambda taint: (-by_number[taint], taint))
    others = list(filter(None, map(scheduler_of_taint, order)))
    plain = [taint for taint in order if not scheduler_of_taint(taint)]
    names = [f"{key}={value}:{effect}" if value else f"{key}:{effect}" for key, value, effect in plain]
    found = f"; not tolerated: {listed(names)}" if names else ""
    if LEFT.value in others:
        found += "; devices are left to other schedulers by settings of this one"
    elif others:
        found += f"; devices belong to the scheduler {listed(others)}"

    def back(tolerated: frozenset[Taint]) -> int:
        return sum(own <= tolerated for own in taints.values())

    alone = sorted(set(taints.values()), key=lambda own: (len(own), -back(own), sorted(own)))
    together = [frozenset(order[: number + 1]) for number in range(len(order))]
    # A set of taints that brings enough devices back by itself, the smallest first; else the commonest together.
    enough = next((some for some in (*alone, *together) if back(some) >= missing), together[-1])
    fix = tolerate(domain, [taint for taint in order if taint in enough])
    if (rest := missing - back(enough)) > 0:
        fix += f", and {rest} more would have to become usable"
    return Hint(found, fix)


def _attributes(shortage: Shortage) -> Hint:
    """The devices that lack the attribute of a constraint."""
    columns = [column for one in shortage.domain.comparing for column in (one.agrees_on, one.differs_in) if column]
    absent = {column.attribute: None for column in columns if shortage.gone & ~column.present}
    count, named = shortage.gone.bit_count(), listed(absent)
    lacking = counted(count, "device does", "devices do")
    return Hint(
        f" with attribute {named}, which {lacking} not publish",
        f"correct {named} in the constraint, or leave {shortage.request} out of it",
    )


def _value(shortage: Shortage) -> Hint:
    """The value, and how many devices with it are missing."""
    wanted, missing = shortage.domain.alternative.value, shortage.missing
    named = f" with {wanted.attribute} {wanted.text}" if wanted is not None else ""
    return Hint(named, f"{counted(missing, 'more matching device')}{named} would have to become usable")


def _unpublished(shortage: Shortage) -> Hint:
    # What is nearest to working comes first: a pool that is incomplete, then one that is unreadable, then an outdated
    # one.
    offered = meant(shortage.problem, shortage.domain)
    if offered.troubled:
        return Hint("", "have the driver publish complete and valid pools")
    if offered.unreadable:
        return Hint("", "have the driver correct the node selectors")
    if offered.outdated:
        return Hint(
            "",
            "have the driver publish the newest generation for this node as well, or delete the slice if it is not "
            "the driver's",
        )
    other = ", or correct the driver that the selectors name" if offered.names_driver else ""
    return Hint("", f"run a driver that publishes devices for this node (see: kubectl get resourceslices){other}")


_HINTS: dict[Rule, Callable[[Shortage], Hint]] = {
    Rule.SELECTOR: _selectors,
    Rule.IN_USE: _in_use,
    Rule.NODE: _elsewhere,
    Rule.BINDING_CONDITIONS: _binding,
    Rule.CAPACITY: capacity_hint,
    Rule.NODE_OPERATIONS: _node_operations,
    Rule.COMPATIBILITY: _compatibility,
    Rule.COUNTERS: counter_hint,
    Rule.TAINTS: _taints,
    Rule.CONSTRAINT: _attributes,
    Rule.VALUE: _value,
    Rule.NO_DEVICES: _unpublished,
    Rule.INVALID_POOL: _unpublished,
}
