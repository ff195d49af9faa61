"""What a decision would leave of a node's devices, without its result: for scores.

Nodes that are alike are sketched once: their units are equal, one by one, and offer the same to the claims. Where that
is more than units say (constraints, partitions, alternatives, selectors that fail), each node is sketched by itself.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

from dra_operator.allocator.claim_program import Alternative, ClaimProgram
from dra_operator.allocator.problem.filters import offer
from dra_operator.allocator.problem.node_state import Domain, NodeState
from dra_operator.allocator.problem.problem import NodeProblem
from dra_operator.allocator.search.frames import DeviceOrder, MakePruner
from dra_operator.allocator.search.search import Search

from .mix import Totals
from .orders import taken_by
from .supply import Kinds, NodeSupply, supply_of

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
    made = Sketch(supply.totals, after, search.steps)
    if key is not None:
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
        if offered.raised:
            return None
        shares = tuple([(it, *((name, a.nanos) for name, a in s.items())) for it, s in offered.shares.items()])
        found.append((offered.usable, node.shareable, shares))
    return tuple(found)


def _is_plain(wanted: Alternative) -> bool:
    return not (wanted.everything or wanted.admin or wanted.constraints)
