"""Domains of a gang whose nodes or devices must have a value in common. The smallest domain is tried first.

With a topology, the nodes have the same value of a label. A domain is smaller if its nodes have less free room. With an
attribute, the devices have the same value, or a common one if values are lists, as for ``matchAttribute``. A domain is
smaller if fewer of its devices are free. With both, each topology domain is divided by the values of the attribute. So
large domains stay free for large gangs.

Allocated devices of the gang fix the value: those of its running pods, and those of its claims.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from dra_api.resource import AllocationResult

from dra_operator.allocator import AttributeValue, DeviceId, Values, ValueSupply
from dra_operator.scheduling.cycle.filter import NoPlace
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.pieces import Elapsed, InPieces, Pause
from dra_operator.scheduling.state.node import LoadedNode

from .members import is_open

MOST_DOMAIN_PAIRS: Final = 50_000
"""Limit on pairs of a label value and an attribute value. A cluster of 5,000 nodes has fewer devices."""
GROUPS_BETWEEN_PAUSES: Final = 64
FIXED: Final = "gang-value"
"""The kind of a refusal because the allocated devices of the gang have no value in common."""


class GangDomain(NamedTuple):
    """A domain. ``nodes`` are its nodes, or None for all nodes.

    All devices must have ``value``, if there is one. Only ``nodes_with_value`` have such devices.
    """

    nodes: Collection[str] | None = None
    value: AttributeValue | None = None
    nodes_with_value: Collection[str] | None = None

    def nodes_for(self, state: CycleState) -> Collection[str] | None:
        """Return the nodes worth asking for a pod. A pod without devices may go to any node of the domain."""
        needs_devices = any(is_open(claim) and claim.spec.devices.requests for claim in state.resource_claims)
        return self.nodes_with_value if self.value is not None and needs_devices else self.nodes


EVERYWHERE: Final = GangDomain()


@dataclass(frozen=True, slots=True)
class SameValues:
    """The condition on the places of a gang: one value of a node label, of a device attribute, or both.

    ``label`` is the only allowed value of the label if pods of the gang run already. ``running`` has the allocations of
    its running pods.
    """

    topology: str = ""
    attribute: str = ""
    label: str | None = None
    running: tuple[AllocationResult, ...] = ()

    def where(self, closest: GangDomain) -> str:
        """Return a clause that continues "pods fit together", about a domain."""
        common = [f"nodes with the same value of {self.topology}"] if self.topology else []
        if closest.value is not None:
            common.append(f"devices with the same value of {self.attribute}, closest with {closest.value.text}")
        return f" on {' and '.join(common)}" if common else ""

    def allocated(self, states: Sequence[CycleState]) -> Iterator[DeviceId]:
        """Yield the allocated devices of the gang, which fix the value of the attribute."""
        # Claims without a pod count as well: whoever uses them next has to be in the same domain.
        held = (claim.status.allocation for state in states for claim in state.resource_claims)
        for allocation in (*self.running, *held) if self.attribute else ():
            yield from map(DeviceId.of, allocation.results if allocation is not None else ())

    def are_given(self, states: Sequence[CycleState]) -> bool:
        """Return whether running pods or allocated claims of the gang fix a value."""
        return self.label is not None or any(True for _ in self.allocated(states))


NOTHING_SAME: Final = SameValues()


def domains_of(
    states: Sequence[CycleState], same: SameValues
) -> Generator[Pause, Elapsed, Sequence[GangDomain] | NoPlace]:
    """Return the domains in the order of the trials, or why there are none."""
    if not same.topology and not same.attribute:
        return [EVERYWHERE]
    # One group of all nodes, without a set of their names.
    groups: list[Collection[str] | None] = [None]
    if same.topology:
        groups = list(_by_label(states[0].nodes, same))
        if not groups:
            return NoPlace(f"no node has the label {same.topology}", "gang")
    if not same.attribute:
        return [GangDomain(nodes) for nodes in groups]
    allocator = states[0].allocator
    counting = InPieces(allocator.supplies(same.attribute, states[0].usage))
    for _ in counting:
        yield Pause.SEARCHING
    # A gang that grows or restarts must stay with the devices it has: only values of all of them remain.
    common: Values | None = None
    for device in same.allocated(states):
        values = allocator.values(device, same.attribute)
        if values is not None:  # None for a device that is not published any more: its value is not known
            common = values if common is None else common & values
            if not common:
                why = "which has none" if not values else "which has another one than others of the gang"
                text = f"its pods have devices without a common value of {same.attribute}, such as {device}, {why}"
                return NoPlace(text, FIXED)
    found = [it for it in counting.answer if common is None or it.value.value in common]
    if not found:
        return NoPlace(f"no published device has the attribute {same.attribute}", "gang")
    domains = yield from _divided(groups, found)
    if len(domains) > MOST_DOMAIN_PAIRS:
        many = f"{same.topology} and {same.attribute} have more than {MOST_DOMAIN_PAIRS} values together"
        return NoPlace(f"gave up: {many}; ask for one of them", is_error=True)
    return domains or NoPlace(
        f"no node with the label {same.topology} has a device with the attribute {same.attribute}", "gang"
    )


def _by_label(nodes: Iterable[LoadedNode], same: SameValues) -> Iterator[Collection[str]]:
    found: dict[str, list[LoadedNode]] = {}
    for state in nodes:
        of_node = (state.node.metadata.labels or {}).get(same.topology)
        if of_node is not None and same.label in (None, of_node):
            found.setdefault(of_node, []).append(state)
    # The fullest domain first, so that emptier ones stay whole for larger gangs.
    room = {name: sum(state.emptiness for state in states) for name, states in found.items()}
    for name in sorted(found, key=lambda it: (room[it], it)):
        yield frozenset(state.name for state in found[name])


def _divided(
    groups: Sequence[Collection[str] | None], supplies: Sequence[ValueSupply]
) -> Generator[Pause, Elapsed, list[GangDomain]]:
    """Return each group divided by its values, at most ``MOST_DOMAIN_PAIRS`` + 1 domains.

    Values are looked up by node. A label with a value per node and an attribute with a value per device have billions
    of pairs, of which nearly all are empty.
    """
    # Their devices can be used from several nodes, so such a value is possible in every group.
    anywhere = [number for number, supply in enumerate(supplies) if supply.anywhere]
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    for number, supply in enumerate(supplies):
        if not supply.anywhere:
            for node in supply.nodes:
                by_node[node].append(number)
    found: list[GangDomain] = []
    for count, nodes in enumerate(groups, 1):
        if count % GROUPS_BETWEEN_PAUSES == 0:
            yield Pause.SEARCHING
        here = by_node if nodes is None else (node for node in nodes if node in by_node)
        for number in sorted({*anywhere, *chain.from_iterable(by_node[node] for node in here)}):
            supply = supplies[number]
            own = nodes if supply.anywhere else supply.nodes if nodes is None else supply.nodes.intersection(nodes)
            found.append(GangDomain(nodes, supply.value, own))
        if len(found) > MOST_DOMAIN_PAIRS:
            return found[: MOST_DOMAIN_PAIRS + 1]
    return found
