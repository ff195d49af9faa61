"""Why claims do not fit a node, as a value (design section 3).

A refusal names the node, the claim and request that could not be served, the rule that stopped it, and how
many devices were left after each check. Events, logs, metrics and the command line all render the same
value: ``line()`` for one line, ``explain()`` for everything, ``summarize()`` for many nodes at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


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
    LIMIT = "limit"
    COMBINATION = "combination"
    """Each request can be served alone, but not all of them together."""
    INVALID_POOL = "invalid-pool"


@dataclass(frozen=True, slots=True)
class Tally:
    """How many devices one check took out of a request's candidates."""

    rule: Rule
    devices: int

    def __str__(self) -> str:
        return f"{self.devices} {_LOST[self.rule]}"


_LOST = {
    Rule.NO_DEVICES: "not published",
    Rule.SELECTOR: "do not match",
    Rule.IN_USE: "in use",
    Rule.BINDING_CONDITIONS: "need binding conditions, which are off",
    Rule.NODE: "for other nodes",
    Rule.CAPACITY: "without enough capacity",
    Rule.COUNTERS: "without enough shared counters",
    Rule.TAINTS: "tainted",
    Rule.CONSTRAINT: "excluded by a constraint",
    Rule.LIMIT: "over the limit of results",
    Rule.COMBINATION: "needed by other requests",
    Rule.INVALID_POOL: "in invalid pools",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """One node's "no". ``devices`` counts what the usable pools offer; each tally what a check removed."""

    node: str
    rule: Rule
    claim: str = ""
    request: str = ""
    needs: int = 0
    devices: int = 0
    matching: int = 0
    lost: tuple[Tally, ...] = ()
    detail: str = ""
    fix: str = ""
    pools: tuple[str, ...] = ()
    """Pools that could not be used, with the reason."""

    @property
    def closeness(self) -> tuple[int, int, int]:
        """How near the node is to serving the request, for comparing nodes: devices left, matching ones, all."""
        lost = sum(tally.devices for tally in self.lost if tally.rule is not Rule.SELECTOR)
        return (self.matching - lost, self.matching, self.devices)

    def line(self) -> str:
        """One line for an event, without the node (see ``summarize``)."""
        subject = f"{self.claim}, request {self.request}: " if self.request else ""
        if not self.devices:
            return f"{subject}no devices; needs {self.needs}{self._pools()}"
        numbers = ", ".join([f"{self.matching} match", *map(str, self.lost)])
        detail = f" {self.detail}" if self.detail else ""
        return f"{subject}{self.devices} devices: {numbers}; needs {self.needs}{detail}{self._pools()}"

    def explain(self) -> str:
        """Everything that is known, on several lines."""
        lines = [f"node {self.node}: does not fit ({self.rule.value})"]
        if self.request:
            lines.append(f"  {self.claim}, request {self.request}")
            lines.append(f"    needs {self.needs} of {self.devices} devices {self.detail}".rstrip())
            lines.append(f"    {self.matching} match the selectors")
            lines += [f"    {tally}" for tally in self.lost]
        lines += [f"  {pool}" for pool in self.pools]
        if self.fix:
            lines.append(f"  nearest fix: {self.fix}")
        return "\n".join(lines)

    def _pools(self) -> str:
        return f" ({'; '.join(self.pools)})" if self.pools else ""


def summarize(refusals: Iterable[Refusal], nodes: int, *, at_most: int = 3) -> str:
    """All nodes' answers in one line: ``0/3 nodes are available: 2 <reason>; 1 <reason>``.

    ``nodes`` is the number of nodes looked at or excluded by the index; equal reasons are counted together,
    the most frequent first, and at most so many different ones are spelled out.
    """
    reasons = Counter(refusal.line() for refusal in refusals)
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{count} {reason}" for reason, count in ordered[:at_most]]
    hidden = sum(count for _, count in ordered[at_most:])
    if hidden:
        parts.append(f"{hidden} for other reasons")
    return f"0/{nodes} nodes are available" + (f": {'; '.join(parts)}" if parts else "")
