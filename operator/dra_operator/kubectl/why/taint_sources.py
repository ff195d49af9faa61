"""DeviceTaintRules by name: which taints that keep a request from devices come from a rule, not from the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dra_operator.allocator import DeviceId, Refusal, Rule, scheduler_of
from dra_operator.cache import Cluster
from dra_operator.eviction import selects
from dra_operator.kubectl.facts import taint_text
from dra_operator.scheduling import CycleState
from dra_operator.scheduling.state import LoadedNode

from .fixes.requests import matching


def taint_sources(refusals: Sequence[Refusal], cycle_state: CycleState, cluster: Cluster) -> Iterator[str]:
    """A line for each rule with a taint on a device that is asked for, of a node that lost devices to taints."""
    nodes = {refusal.node for refusal in refusals if any(lost.rule is Rule.TAINTS for lost in refusal.lost)}
    states = [state for name in sorted(nodes) if (state := cycle_state.nodes.get(name)) is not None]
    devices = {device for state in states if len(cluster.rules) for device in _asked_for(cycle_state, state)}
    for rule in sorted(cluster.rules, key=lambda rule: rule.metadata.name):
        if scheduler_of(rule.spec.taint) == cluster.scheduler_name:
            continue  # it keeps nothing of ours away
        if number := sum(selects(rule, device) for device in devices):
            if (scheduler := scheduler_of(rule.spec.taint)) is not None:
                what = f"{number} of these devices to the scheduler {scheduler}"
                yield f"DeviceTaintRule {rule.metadata.name} gives {what}"
                continue
            what = f"taint {taint_text(rule.spec.taint)} on {number} of these devices"
            yield f"{what} comes from DeviceTaintRule {rule.metadata.name}"


def _asked_for(cycle_state: CycleState, state: LoadedNode) -> Iterator[DeviceId]:
    view = cycle_state.allocator.inventory.view(state.node)
    return (view.id(number) for numbers in matching(cycle_state, state).values() for number in numbers)
