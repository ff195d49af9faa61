"""A request that finds too few devices on a node even alone, and what would bring devices back.

Only published devices and pools that the request can mean count (``Meant``). Selectors that name drivers rule all
others out: what those publish is no reason why the request is refused, and a refusal that counted it would change with
each slice of theirs.

Devices that match but cannot be taken come back by waiting, by tolerations, by both, or by neither. A device in use
comes back by waiting alone unless it is also tainted: then it takes both. No single change brings back devices that
other checks took (capacity, shared counters).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dra_api.resource import SCHEDULER_KEY, DeviceTaint
from dra_ledger.basics import each
from dra_ledger.pools import PoolView, Superseded, Unreadable
from dra_ledger.taints import LEFT, blocking, scheduler_of

from dra_operator.allocator.outcome import Rule
from dra_operator.allocator.problem.filters import stages
from dra_operator.allocator.problem.node_state import Domain
from dra_operator.allocator.problem.problem import NodeProblem
from dra_operator.wording import counted


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
    pools += [*(old.pool for old in view.outdated), *(one.pool for one in view.unreadable)]
    drivers = {pool.driver for pool in pools}
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
        busy = _fitting(problem, domain, taken.get(Rule.IN_USE, 0))
        blocked = sum(1 << device for device in each(busy) if any(taints_of(problem, domain, device)))
        waiting, tainted, both = waiting | busy & ~blocked, tainted | taken.get(Rule.TAINTS, 0), both | blocked
    return waiting, tainted & ~waiting, both & ~tainted & ~waiting


def _fitting(problem: NodeProblem, domain: Domain, devices: int) -> int:
    """The devices in use that could be taken if they were free and had no taints."""
    devices &= problem.view.here & problem.view.fitting(domain.alternative.capacity).devices
    return devices if problem.node.features.binding_conditions else devices & ~problem.view.binding


def taints_of(problem: NodeProblem, domain: Domain, device: int) -> Iterator[Taint]:
    """The taints of a device that keep the request from it."""
    for taint in problem.view.devices[device].taints or ():
        if (taint == LEFT or problem.node.features.device_taints) and blocking(
            (taint,), domain.alternative.tolerations
        ) is not None:
            yield _key(taint)


def _key(taint: DeviceTaint) -> Taint:
    return (taint.key, taint.value, taint.effect)


def _tolerate(problem: NodeProblem, domains: Sequence[Domain], devices: int) -> str:
    """The tolerations that make all these devices usable, for the first domain that they match."""
    for domain in domains:
        if own := devices & problem.matching(domain):
            found = (taint for device in each(own) for taint in taints_of(problem, domain, device))
            return tolerate(domain, dict.fromkeys(found))
    raise AssertionError("a device that was lost matches some domain")


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
