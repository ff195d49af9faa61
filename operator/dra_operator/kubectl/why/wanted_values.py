"""What selectors ask for, beside what the devices of the whole cluster publish of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from dra_api.core import Node, Pod
from dra_cel import Reference

from dra_operator.allocator import AllocationError, Inventory, Refusal
from dra_operator.kubectl.why.fixes.selector_remedies import drivers_of, references_of
from dra_operator.scheduling import CycleState
from dra_operator.wording import counted, listed

from .published import Published

SHOWN_VALUES: Final = 4
"""Values of one name."""


def wanted_values(
    refusals: Sequence[Refusal], cycle_state: CycleState, published: Published, pods: Iterable[Pod]
) -> Iterator[str]:
    """Lines for claims of which no device matches on some node; ``pods``: those of the cluster, drivers among them."""
    keys = {refusal.claim.key for refusal in refusals if not refusal.matching}
    claims = [claim for claim in cycle_state.resource_claims if claim.key in keys]
    if not claims:
        return
    program = cycle_state.allocator.compile([claim for claim in claims if claim.status.allocation is None])
    expressions = {
        selector.expression
        for stage in program.stages
        for alternative in stage.alternatives
        for selector in alternative.selectors
    }
    yield from _drivers(expressions, published, cycle_state, pods)
    for name in sorted({name for expression in expressions for name in references_of(expression)}):
        yield _values(name, published)


def _drivers(
    expressions: set[str], published: Published, cycle_state: CycleState, pods: Iterable[Pod]
) -> Iterator[str]:
    asked = {driver for expression in expressions for driver in drivers_of(expression)}
    if known := sorted(asked & set(published.drivers)):
        inventory = cycle_state.allocator.inventory
        for driver in known:
            if any(_has_some_of(driver, node.node, inventory) for node in cycle_state.nodes):
                continue
            number = counted(published.drivers[driver], "device")
            places = listed(published.places(driver), SHOWN_VALUES)
            yield f"driver {driver} publishes {number}, for none of these nodes: for {places}"
        return
    for driver in sorted(asked):
        there = listed(f"{name} ({counted(number, 'device')})" for name, number in published.drivers.most_common())
        others = f"drivers that publish devices: {there}" if there else "no driver publishes devices"
        yield f"driver {driver} publishes nothing: start it ({_where_it_runs(driver, pods)}); {others}"


def _where_it_runs(driver: str, pods: Iterable[Pod]) -> str:
    found = driver_pods(driver, pods)
    if not found:
        return "no pod of a DaemonSet is named after it: is it installed?"
    return f"pods of its DaemonSet: {listed(map(_as_seen, found))}"


def _as_seen(pod: Pod) -> str:
    where = f" on {pod.spec.node_name}" if pod.spec.node_name else ""
    unready = [one for one in pod.status.conditions or () if one.type == "Ready" and one.status != "True"]
    return f"{pod.key}{where}, {pod.status.phase or 'Pending'}{', not ready' if unready else ''}"


def driver_pods(driver: str, pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods of DaemonSets that seem to run a driver: the words of its name are in theirs, or in a label.

    Nothing in the API says which pods run a driver.
    """
    words = {word for word in re.split(r"[.\-]", driver)[:-1] if word not in ("k8s", "io", "dra", "driver", "resource")}
    found = []
    for pod in pods:
        owner = pod.metadata.controller
        if owner is None or owner.kind != "DaemonSet":
            continue
        text = " ".join((pod.metadata.namespace, owner.name, *(pod.metadata.labels or {}).values()))
        if driver in text or words <= set(re.split(r"[^a-z0-9]+", text)):
            found.append(pod)
    return sorted(found, key=lambda pod: pod.key)


def _has_some_of(driver: str, node: Node, inventory: Inventory) -> bool:
    """Whether devices of a driver are for a node, be they free or not; also if that cannot be told now."""
    try:
        view = inventory.view(node)
    except AllocationError:
        return True
    unclear = {pool.pool.driver for pool in view.troubled} | {pool.pool.driver for pool in view.outdated}
    return driver in unclear or any(
        view.driver(number) == driver for number in range(len(view.devices)) if view.here >> number & 1
    )


def _values(name: Reference, published: Published) -> str:
    what = f"{'attribute' if name.kind == 'attributes' else 'capacity'} {name}"
    if values := published.values(name):
        return f"in the whole cluster, devices publish {what}: {_counts(values)}"
    for domain in published.domains_of(name.kind, name.id):
        other = Reference(name.kind, domain, name.id)
        return f"no device of the cluster publishes {what}; they publish {other}: {_counts(published.values(other))}"
    known = listed(published.names_of(name.kind, name.domain), SHOWN_VALUES)
    return f"no device of the cluster publishes {what}" + (f"; in {name.domain} they publish {known}" if known else "")


def _counts(values: Mapping[str, int]) -> str:
    return listed((f"{value} ({number})" for value, number in values.items()), SHOWN_VALUES)
