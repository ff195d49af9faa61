"""Which nodes answer a program alike: the same devices of the same drivers are free, and selected.

In a large cluster nodes differ in little that a program looks at, so that one decision stands for hundreds. Nothing is
said of a node on which more counts than selectors and devices in use: taints, counters, capacity, pools in trouble.
"""

from __future__ import annotations

from collections.abc import Hashable

from dra_ledger.node_view import NodeView
from dra_ledger.predicates import Compiled
from dra_ledger.usage import Usage

from dra_operator.allocator.request.claim_program import Alternative, ClaimProgram


def likeness(view: NodeView, usage: Usage, program: ClaimProgram, compiled: Compiled) -> Hashable | None:
    """Equal for nodes on which a decision ends alike, but for the names of node, pools and devices. None: unknown.

    Raises AllocationError as the decision would.
    """
    if not view.is_plain or program.fault is not None:
        return None
    alternatives = [alternative for stage in program.stages for alternative in stage.alternatives]
    if not all(map(_is_plain, alternatives)):
        return None
    key: list[Hashable] = []
    for pool in view.pools:
        used = usage.pool(pool.pool)
        if used.shares or used.consumed:
            return None
        key.append((pool.pool.driver, len(pool.devices), pool.bits(used.exclusive)))
    for alternative in alternatives:
        selected = view.selected(alternative.expressions, compiled)
        if selected.raised:
            return None  # the error names the device
        key.append(selected.true)
    return tuple(key)


def _is_plain(alternative: Alternative) -> bool:
    """It asks for a number of devices, by selectors alone."""
    compares = alternative.constraints or alternative.capacity or alternative.derived or alternative.value is not None
    return not (alternative.everything or compares)
