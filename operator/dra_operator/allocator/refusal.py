"""Why claims do not fit a node, as a value (design.md section 3).

A refusal names the node, the claim and request that could not be served, the rule that stopped it, and how
many devices were left after each check. Events, logs, metrics and the command line all render the same
value: ``line()`` for one line, ``explain()`` for everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from .basics.ids import DeviceId
from .basics.wording import counted, listed


class Rule(StrEnum):
    """What stopped the allocation; values are stable and fit metric labels."""

    NO_DEVICES = "no-devices"
    SELECTOR = "selector"
    IN_USE = "in-use"
    BINDING_CONDITIONS = "binding-conditions"
    NODE = "node"
    CAPACITY = "capacity"
    COUNTERS = "counters"
    TAINTS = "taints"
    CONSTRAINT = "constraint"
    COMBINATION = "combination"
    """Each request can be served alone, but not all of them together."""
    INVALID_POOL = "invalid-pool"


@dataclass(frozen=True, slots=True)
class Tally:
    """How many devices one check took out of a request's candidates."""

    rule: Rule
    devices: int

    def __str__(self) -> str:
        if self.rule is Rule.BINDING_CONDITIONS:
            return f"{counted(self.devices, 'needs', 'need')} binding conditions, which are off"
        return f"{self.devices} {_LOST[self.rule]}"


_LOST = {
    Rule.IN_USE: "in use",
    Rule.NODE: "for other nodes",
    Rule.CAPACITY: "without the capacity asked for",
    Rule.COUNTERS: "without enough shared counters",
    Rule.TAINTS: "tainted",
    Rule.CONSTRAINT: "without the attribute of a constraint",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """One node's "no". ``devices`` counts what the usable pools offer; each tally what a check removed."""

    node: str
    rule: Rule
    claim: str
    request: str
    needs: int = 0
    devices: int = 0
    matching: int = 0
    lost: tuple[Tally, ...] = ()
    detail: str = ""
    """What the rule found, for a reader of one line; goes on from "needs 2"."""
    fix: str = ""
    """The nearest change that would help, as far as one look tells."""
    pools: tuple[str, ...] = ()
    """Pools that could not be used, with the reason."""
    held: tuple[DeviceId, ...] = ()
    """The first matching devices that are in use."""

    @property
    def closeness(self) -> tuple[int, int, int]:
        """How near the node is to serving the request, for comparing nodes: devices left, matching ones, all."""
        return (self.matching - sum(tally.devices for tally in self.lost), self.matching, self.devices)

    def line(self) -> str:
        """One line for an event, without the node."""
        pools = f" ({listed(self.pools, 2, '; ')})" if self.pools else ""
        offered = "no devices"
        if self.devices:
            numbers = [counted(self.matching, "matches", "match"), *map(str, self.lost)]
            offered = f"{counted(self.devices, 'device')}: {', '.join(numbers)}"
        return f"{self.claim}, request {self.request}: {offered}; needs {self.needs}{self.detail}{pools}"

    def explain(self, more: Iterable[str] = ()) -> str:
        """Everything that is known, on several lines; with what the caller knows besides."""
        lines = [f"node {self.node}: does not fit ({self.rule.value})"]
        lines.append(f"  {self.claim}, request {self.request} needs {counted(self.needs, 'device')}{self.detail}")
        lines.append(f"    the node has {counted(self.devices, 'device') if self.devices else 'no devices'}")
        if self.devices:
            lines.append(f"    {counted(self.matching, 'matches', 'match')} the selectors")
        lines += [f"    {tally}" for tally in self.lost]
        lines += [f"    {line}" for line in more]
        lines += [f"  {pool}" for pool in self.pools]
        if self.fix:
            lines.append(f"  nearest fix: {self.fix}")
        return "\n".join(lines)
