"""What a check found where a request is short of devices, and the nearest change that would help.

One look at the devices that the check took away, never a search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dra_operator.allocator.basics.bits import each
from dra_operator.allocator.basics.wording import counted, listed
from dra_operator.allocator.published.taints import blocking
from dra_operator.allocator.refusal import Rule

from .meter_hints import capacity_hint, counter_hint
from .shortage import Hint, Shortage


def hint(shortage: Shortage) -> Hint:
    """The hint of the rule to blame."""
    make = _HINTS.get(shortage.rule)
    return make(shortage) if make is not None else Hint()


def _selectors(shortage: Shortage) -> Hint:
    """Which selector matches no device; or, if some devices match all, how many are missing."""
    problem, domain = shortage.problem, shortage.domain
    selectors, devices = domain.alternative.selectors, len(problem.view.devices)
    matching = problem.matching(domain).bit_count()
    if matching:
        how = "be published" if matching == devices else "match"
        more = f"{max(1, domain.need) - matching} more would have to {how}"
        usable = domain.usable.bit_count()
        if usable < matching:
            more += f", and {counted(matching - usable, 'device that matches', 'devices that match')} to become usable"
        return Hint("", f"ask for at most {counted(usable, 'device')}; {more}" if usable else more)
    idle = [one for one in selectors if not problem.view.selected((one.expression,), problem.node.compiled).true]
    if not idle:
        return Hint(f" (no device matches all {len(selectors)} selectors)", "change selectors that exclude each other")
    one = str(idle[0]) if idle[0].is_foreign else f"selector #{idle[0].position} of the request"
    return Hint(f" ({one} matches none)", f"change {one}, or publish devices that it matches")


def _in_use(shortage: Shortage) -> Hint:
    more = counted(shortage.missing, "more matching device is", "more matching devices are")
    return Hint("", f"wait until {more} free, or end a pod that uses one")


def _elsewhere(shortage: Shortage) -> Hint:
    fields = "nodeName, nodeSelector and allNodes of the devices decide"
    return Hint("", f"{counted(shortage.missing, 'more matching device')} must be for this node: {fields}")


def _binding(shortage: Shortage) -> Hint:
    return Hint("", "enable DRADeviceBindingConditions and DRAResourceClaimDeviceStatus")


def _taints(shortage: Shortage) -> Hint:
    problem, tolerations = shortage.problem, shortage.domain.alternative.tolerations
    taints = [blocking(problem.view.devices[device].taints, tolerations) for device in each(shortage.gone)]
    found = Counter((taint.key, taint.value, taint.effect) for taint in taints if taint is not None)
    names = [f"{key}={value}:{effect}" if value else f"{key}:{effect}" for key, value, effect in _by_number(found)]
    key, value, effect = _by_number(found)[0]
    how = f'operator: Equal, value: "{value}"' if value else "operator: Exists"
    toleration = f"{{key: {key}, {how}, effect: {effect}}}"
    return Hint(
        f" (not tolerated: {listed(names)})",
        f"add the toleration {toleration} to {shortage.request}, or have the taint removed",
    )


def _by_number(found: Counter[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    return sorted(found, key=lambda taint: (-found[taint], taint))


def _attributes(shortage: Shortage) -> Hint:
    """Devices that cannot take part in a constraint since they lack its attribute."""
    columns = [column for one in shortage.domain.comparing for column in (one.agrees_on, one.differs_in) if column]
    absent = {column.attribute: None for column in columns if shortage.gone & ~column.present}
    count, named = shortage.gone.bit_count(), listed(absent)
    lacking = counted(count, "device does", "devices do")
    return Hint(
        f" with attribute {named}, which {lacking} not publish",
        f"correct {named} in the constraint, or leave {shortage.request} out of it",
    )


def _unpublished(shortage: Shortage) -> Hint:
    view = shortage.problem.view
    if view.troubled:
        return Hint("", "have the driver publish complete and valid pools")
    if view.outdated:
        return Hint("", "have the driver publish the newest generation for this node, too")
    return Hint("", "run a driver that publishes devices for this node (see: kubectl get resourceslices)")


_HINTS: dict[Rule, Callable[[Shortage], Hint]] = {
    Rule.SELECTOR: _selectors,
    Rule.IN_USE: _in_use,
    Rule.NODE: _elsewhere,
    Rule.BINDING_CONDITIONS: _binding,
    Rule.CAPACITY: capacity_hint,
    Rule.COUNTERS: counter_hint,
    Rule.TAINTS: _taints,
    Rule.CONSTRAINT: _attributes,
    Rule.NO_DEVICES: _unpublished,
    Rule.INVALID_POOL: _unpublished,
}
