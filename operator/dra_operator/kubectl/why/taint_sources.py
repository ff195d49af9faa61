"""DeviceTaintRules by name: which taints that keep a request from devices come from a rule, not from the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dra_api.resource import DeviceTaintRule

from dra_operator.allocator import DeviceId, Refusal, Rule, scheduler_of
from dra_operator.cache import Cluster
from dra_operator.kubectl.facts import taint_text
from dra_operator.scheduling import CycleState


def taint_sources(refusals: Sequence[Refusal], cycle_state: CycleState, cluster: Cluster) -> Iterator[str]:
    """A line for each rule with a taint on a device of a node that lost devices to taints."""
    nodes = {refusal.node for refusal in refusals if any(lost.rule is Rule.TAINTS for lost in refusal.lost)}
    states = [state for name in sorted(nodes) if (state := cycle_state.nodes.get(name)) is not None]
    views = [cycle_state.allocator.inventory.view(state.node) for state in states if len(cluster.rules)]
    devices = {view.id(number) for view in views for number in range(len(view.devices))}
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


def selects(rule: DeviceTaintRule, device: DeviceId) -> bool:
    """Whether the rule is about the device; without a selector it is about none."""
    selector = rule.spec.device_selector
    if selector is None:
        return False
    wanted = (selector.driver, selector.pool, selector.device)
    return all(one in (None, its) for one, its in zip(wanted, (device.driver, device.pool, device.device), strict=True))
