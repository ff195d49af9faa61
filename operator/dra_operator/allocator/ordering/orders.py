"""The orders in which the devices of a node are tried, by their names (``device_order``), and what they would leave.

A ``Sketch`` is what a decision would leave of a node's devices, without its result: for scores. Nodes that are alike
are sketched once: their units are equal, one by one, and offer the same to the claims. Where that is more than units
say (constraints, partitions, alternatives, selectors that fail), each node is sketched by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from dra_ledger.basics import each
from dra_ledger.columns import Column

from dra_operator.allocator.claim_program import Alternative, ClaimProgram
from dra_operator.allocator.ordering.mix import Totals, wasted
from dra_operator.allocator.ordering.supply import Kinds, NodeSupply, Taken, supply_of
from dra_operator.allocator.problem.ledgers import ConsumableCapacity
from dra_operator.allocator.problem.node_state import Domain, NodeState
from dra_operator.allocator.problem.problem import NodeProblem, offer
from dra_operator.allocator.search import DeviceOrder, Grant, MakePruner, Search, Tried

ATTRIBUTES: Final = ("resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode")
"""What devices are aligned by, the closest first. The standard attributes of Kubernetes."""

Rank = tuple[bool, bool, int]
"""Not begun, does not suffice, and how much too large or too small it is: less is better."""
NO_GROUP: Final[Rank] = (True, True, 0)


class AlignedOrder:
    """The order ``aligned``."""

    def tried(self, problem: NodeProblem, grants: Sequence[Grant], domain: Domain, devices: int, missing: int) -> Tried:
        """Group by group."""
        # Groups from which this decision has taken come first: its devices are to lie close together.
        taken = sum({1 << device for _, device, _, _ in grants})
        lists = problem.node.features.list_attributes
        columns = [problem.view.column(attribute, lists=lists) for attribute in ATTRIBUTES]
        roots, numa_nodes = (_ranks(column, devices, taken, missing) for column in columns)
        # If no PCIe root has enough devices, the next larger group that may is a NUMA node.
        one_root = any(not lacks for _, lacks, _ in roots.values())
        first, second = (roots, numa_nodes) if one_root else (numa_nodes, roots)
        tried = sorted(each(devices), key=lambda it: (first.get(it, NO_GROUP), second.get(it, NO_GROUP), it))
        return Tried(tried, len(tried) // 16)


def _ranks(column: Column, devices: int, taken: int, missing: int) -> dict[int, Rank]:
    """Each device's best group: one that was begun first, then one that suffices, the smallest first."""
    found: dict[int, Rank] = {}
    for group in _groups(column, devices):
        free = (group & devices).bit_count()
        suffices = free >= missing
        rank = (not group & taken, not suffices, free if suffices else -free)
        for device in each(group & devices):
            found[device] = min(rank, found.get(device, rank))
    return found


def _groups(column: Column, devices: int) -> Iterable[int]:
    return [group for group in column.having.values() if group & devices]


WHOLE_MILLIONTHS: Final = 1_000_000
"""All of a capacity or counter."""


class BestFitOrder:
    """The order ``best-fit``."""

    def tried(self, problem: NodeProblem, grants: Sequence[Grant], domain: Domain, devices: int, missing: int) -> Tried:
        """The fullest first."""
        # The ledger includes devices that this search has taken so far; the node knows allocated ones only.
        consumable = next((it for ledger in domain.ledgers if (it := ledger.consumable_capacity) is not None), None)
        spent = _counters_left(domain)
        keys = {}
        for device in each(devices):
            # A shared device is full by its own remaining capacity; others by the counters that they draw on,
            # then by size.
            if device in domain.amounts:
                keys[device] = _left(problem, consumable, device)
            else:
                keys[device] = spent.get(device, 0), tuple(_size(problem, device))
        # Ties are broken by the number, so that the same devices are always chosen.
        return Tried(sorted(keys, key=lambda device: (keys[device], device)), len(keys) // 16)


def _left(problem: NodeProblem, consumable: ConsumableCapacity | None, device: int) -> tuple[int, tuple[int, ...]]:
    """What is left of a shared device, each capacity as a part of the whole."""
    left: Mapping[str, int] = consumable.left(device) if consumable is not None else problem.node.left(device)
    capacity = problem.view.devices[device].capacity or {}
    return sum(left[name] * WHOLE_MILLIONTHS // (capacity[name].value.nanos or 1) for name in capacity), ()


def _counters_left(domain: Domain) -> dict[int, int]:
    """What is left of the counters from which a device draws, and of those that are bound up with them."""
    found: dict[int, int] = {}
    for ledger in domain.ledgers:
        # Only a ledger of counters has some; the others bound nothing that could be spent here.
        counters = ledger.shared_counters
        if counters is None:
            continue
        for block in counters.blocks:
            left = sum(counters.left[number] for number in block.counters)
            for device in each((block.devices << counters.offset) & domain.usable):
                found[device] = left
    return found


def _size(problem: NodeProblem, device: int) -> list[int]:
    capacity = problem.view.devices[device].capacity or {}
    return [capacity[name].value.nanos for name in sorted(capacity)]


COMPARED_DEVICES: Final = 512
"""Devices that are compared; those behind them are tried in the order of the reference."""
STEPS_PER_DEVICE: Final = 1
"""What it costs to compare one, in steps of a search."""
ALL_BILLIONTHS: Final = 1_000_000_000
"""All requests of a class that a node could serve."""


Loss = Callable[[NodeSupply, Totals, Totals], int]
"""What it costs that a unit of a node changes: of the node, and of the unit before and after."""


class LeastLossOrder:
    """The order ``least-loss``. ``kinds`` is asked for each time: the mix changes as pods come."""

    def __init__(self, kinds: Callable[[], Kinds], loss: Loss | None = None) -> None:
        self._kinds, self._loss, self._of_partitions = kinds, loss or destroyed, loss or depleted

    def tried(self, problem: NodeProblem, grants: Sequence[Grant], domain: Domain, devices: int, missing: int) -> Tried:
        """By what is in vain afterwards; equal ones where least is idle."""
        kinds = self._kinds()
        mix = kinds.mix
        listed = list(each(devices))
        # Nothing is known that could be lost, or there is no choice.
        if not mix.classes or len(listed) < 2:
            return Tried(listed)
        supply = supply_of(problem.node, kinds)
        before = [taken_by(*grant[:2]) for grant in grants]
        begun = {supply.unit(it[0]) for it in before}
        loss: dict[int, tuple[int, int]] = {}
        alike: dict[object, tuple[int, int]] = {}
        for device in listed[:COMPARED_DEVICES]:
            unit = supply.unit(device)
            # A unit from which this decision took already is compared with what that has left of it.
            its = [it for it in before if supply.unit(it[0]) == unit] if unit in begun else []
            key = device if its else supply.state(device)
            # Equal devices with the same left lose the same: a node of one kind is looked at once.
            known = alike.get(key)
            if known is None:
                now, then = supply.of_unit(device, its), supply.of_unit(device, [*its, taken_by(domain, device)])
                loss_of = self._of_partitions if supply.is_partition(device) else self._loss
                known = alike[key] = loss_of(supply, now, then), then.idle
            loss[device] = known
        compared = sorted(loss, key=lambda device: (loss[device], device))
        return Tried(compared + listed[COMPARED_DEVICES:], len(compared) * STEPS_PER_DEVICE)


def destroyed(supply: NodeSupply, now: Totals, then: Totals) -> int:
    """What a unit's change costs the node, in billionths of what the mix may ask of it, times weights. Exact."""
    cost, takes = 0, supply.totals.takes
    for number, it in enumerate(supply.mix.classes):
        # Relative to the rest of the class on the node: the last chance for a class weighs most.
        cost += it.weight * (now.takes[number] - then.takes[number]) * ALL_BILLIONTHS // (takes[number] or 1)
    return cost


def depleted(supply: NodeSupply, now: Totals, then: Totals) -> int:
    """What a change of partitions costs the node: by how much each class gets scarcer (``NodeSupply``). Exact."""
    pairs = enumerate(zip(now.takes, then.takes, strict=True))
    return sum([supply.scarcer(number, before - after) for number, (before, after) in pairs if before != after])


def fragmented(supply: NodeSupply, now: Totals, then: Totals) -> int:
    """By how much the fragmentation of the study "Beware of Fragmentation" grows."""
    return wasted(supply.mix, then, lost=1, unused=0) - wasted(supply.mix, now, lost=1, unused=0)


def taken_by(domain: Domain, device: int) -> Taken:
    """What a request takes of a device."""
    amounts = domain.amounts.get(device)
    return device, None if amounts is None else {name: it.nanos for name, it in amounts.items()}


REFERENCE: Final = "reference"
DEVICE_ORDERS: Final = (REFERENCE, "best-fit", "least-loss", "aligned")
LEAST_FRAGMENTATION: Final = "least-fragmentation"
"""The order that goes with the strategy ``fgd``."""
LOOK_AT_MIX: Final = frozenset({"least-loss"})
"""Those that depend on what pods usually ask for."""


def device_order(name: str, kinds: Callable[[], Kinds]) -> DeviceOrder | None:
    """The order of a name; None for that of the reference."""
    match name:
        case "best-fit":
            return BestFitOrder()
        case "least-loss":
            return LeastLossOrder(kinds)
        case "least-fragmentation":
            return LeastLossOrder(kinds, fragmented)
        case "aligned":
            return AlignedOrder()
        case _:
            return None


SKETCH_STEPS: Final = 2_000
"""Steps after which a sketch gives up: where a decision is hard, nodes are tried without a score."""


class Sketch(NamedTuple):
    """The devices of a node before a decision, and after it; None if nothing was found within a few steps."""

    before: Totals
    after: Totals | None
    steps: int


def sketch(
    node: NodeState, program: ClaimProgram, kinds: Kinds, make_pruner: MakePruner, order: DeviceOrder | None
) -> Sketch:
    """One node's. Raises AllocationError where a decision would fail."""
    supply = supply_of(node, kinds)
    # A pod without claims takes no device: nothing has to be searched.
    if not program.stages:
        return Sketch(supply.totals, supply.totals, 0)
    key, units = _alike(node, program, kinds, supply, order), supply.units
    known: tuple[Sketch, object] | None = kinds.sketches.get(key) if key is not None else None
    if known is not None:
        return known[0]
    search = Search(NodeProblem(node, program), make_pruner, order)
    after = None
    if search.run(SKETCH_STEPS):
        after = supply.without([taken_by(domain, device) for domain, device, _, _ in search.state.grants])
    # If nothing was found within these steps the node is tried without a score; only a decision may refuse it.
    made = Sketch(supply.totals, after, search.steps)
    if key is not None:
        # The key has the ids of the units. They are kept with it, so that no other object can get their ids.
        kinds.sketches.put(key, (made._replace(steps=0), units))
    return made


def _alike(
    node: NodeState, program: ClaimProgram, kinds: Kinds, supply: NodeSupply, order: DeviceOrder | None
) -> Hashable | None:
    """Equal for nodes that are alike; None if no other node is known to be."""
    kept = kinds.kept(node.view)
    known: tuple[Hashable] | None = kept.get(program.stages)
    if known is None:
        known = (_offered(node, program),)
        kept.put(program.stages, known)
    offered = known[0]
    if offered is None or supply.has_partitions:
        return None
    return program.stages, order, offered, tuple(map(id, supply.units))


def _offered(node: NodeState, program: ClaimProgram) -> Hashable | None:
    """What the node has for the claims, whatever is allocated; None if that is not all that counts."""
    found = []
    for stage in program.stages:
        wanted = stage.alternatives[0]
        if program.fault is not None or len(stage.alternatives) > 1 or not _is_plain(wanted):
            return None
        offered = offer(node, Domain(wanted, 0, 0))
        # The decision may end with an error on one node and not on its twin if a selector fails.
        if offered.raised:
            return None
        shares = tuple([(it, *((name, a.nanos) for name, a in s.items())) for it, s in offered.shares.items()])
        found.append((offered.usable, node.shareable, shares))
    return tuple(found)


def _is_plain(wanted: Alternative) -> bool:
    return not (wanted.everything or wanted.admin or wanted.constraints)
