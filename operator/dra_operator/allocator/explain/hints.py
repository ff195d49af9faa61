"""Says what a check found when a request is short of devices, and the nearest change that would help.

A hint takes one look at the devices that the check took away, never a search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dra_ledger.basics import each
from dra_ledger.taints import LEFT

from dra_operator.allocator.refusal import Rule
from dra_operator.wording import counted, listed

from .meant import meant
from .meter_hints import capacity_hint, counter_hint
from .recovery import Taint, recovery, scheduler_of_taint, taints_of, tolerate
from .shortage import Hint, Shortage


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
