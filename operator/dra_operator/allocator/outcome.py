"""What a decision can end with (allocator.md section 1, scheduling.md 4.2).

| Outcome | Meaning for the caller |
|---|---|
| ``Allocated`` | one result per claim, in the order of the claims |
| ``Refused`` | these claims do not fit this node |
| ``NodeFailure`` | the same, and invalid pools were met on the way; other nodes may still fit |
| ``Failed`` | bad input (claim, class, selector, slice): the attempt ends for all nodes, or for this one only |
| ``GaveUp`` | the budget of steps is spent: whether it fits is not known |

A ``Refusal`` says why claims do not fit a node (design.md section 3): the node, the claim and request that could not be
served, the rule that stopped it, and how many devices were left after each check. Events, logs, metrics and the command
line all render the same value: ``line()`` for one line, ``explain()`` for everything. Nothing decides by these texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple, Protocol

from dra_api.resource import AllocationResult
from dra_ledger.basics import DeviceId
from dra_ledger.errors import AllocationError

from dra_operator.wording import counted, listed


class Rule(StrEnum):
    """What stopped the allocation; values are stable and fit metric labels."""

    NO_DEVICES = "no-devices"
    SELECTOR = "selector"
    IN_USE = "in-use"
    BINDING_CONDITIONS = "binding-conditions"
    NODE = "node"
    CAPACITY = "capacity"
    NODE_OPERATIONS = "node-operations"
    """The node does not declare that it can leave out calls to drivers, or the feature is off."""
    COMPATIBILITY = "compatibility"
    """The devices have no compatibility group in common with those in use."""
    COUNTERS = "counters"
    TAINTS = "taints"
    CONSTRAINT = "constraint"
    VALUE = "value"
    """The devices have another value of an attribute than those of the pod's gang."""
    COMBINATION = "combination"
    """Each request can be served alone, but not all of them together."""
    INVALID_POOL = "invalid-pool"


@dataclass(frozen=True, slots=True)
class Tally:
    """How many devices one check took out of a request's candidates."""

    rule: Rule
    devices: int

    def __str__(self) -> str:
        return self.of(self.devices + 1)

    def of(self, matching: int) -> str:
        """The tally beside so many devices that match: ``3 in use``, ``all in use``."""
        # Nothing is wrong with these devices: it is the feature that is lacking, so the sentence is another one.
        if self.rule is Rule.BINDING_CONDITIONS:
            lost = f"{'needs' if self.devices == 1 else 'need'} binding conditions, which are off"
        else:
            lost = _LOST[self.rule]
        return f"{'all' if self.devices == matching > 1 else self.devices} {lost}"


_LOST = {
    Rule.IN_USE: "in use",
    Rule.NODE: "for other nodes",
    Rule.CAPACITY: "without the capacity asked for",
    Rule.NODE_OPERATIONS: "with calls to skip, which the node does not declare",
    Rule.COMPATIBILITY: "not compatible with devices in use",
    Rule.COUNTERS: "without enough shared counters",
    Rule.TAINTS: "tainted",
    Rule.CONSTRAINT: "without the attribute of a constraint",
    Rule.VALUE: "without the value of the gang",
}


@dataclass(frozen=True, slots=True)
class RefusedClaim:
    """The claim that a node cannot serve. Messages name a claim for an extended resource by that resource."""

    key: str
    """Namespace and name."""
    resource: str = ""
    device_class: str = ""
    """The class that serves the resource."""

    def __str__(self) -> str:
        # The author of the pod never wrote the claim: the resource is the name that he knows.
        if self.resource:
            return f"extended resource {self.resource} (device class {self.device_class})"
        return f"claim {self.key}"

    def named(self, request: str) -> str:
        """One of its requests, in a sentence."""
        return f'{self} request "{request}"'


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one node cannot serve claims. ``devices`` counts what the usable pools offer, of the drivers that the request
    can mean; each tally what a check removed."""

    node: str
    rule: Rule
    claim: RefusedClaim
    request: str
    needs: int = 0
    devices: int = 0
    matching: int = 0
    lost: tuple[Tally, ...] = ()
    detail: str = ""
    """What the rule found; continues "needs 2 devices". What concerns other devices comes after a semicolon."""
    fix: str = ""
    """The nearest change that would help, found by one look."""
    pools: tuple[str, ...] = ()
    """Pools that could not be used, with the reason."""
    held: tuple[DeviceId, ...] = ()
    """The first matching devices that are in use."""
    names_driver: bool = False
    """The selectors name drivers; devices of others are not counted."""
    mixed: bool = False
    """The selectors name no driver, and there are devices of several. Their number changes with each slice of any, so
    the line for an event has it not."""

    @property
    def closeness(self) -> tuple[int, int, bool, int]:
        """How near the node is to serving the request, for comparing nodes: devices left, matching ones, all.

        An unusable pool may have the devices, so it counts more than devices that do not match.
        """
        # Each check looks at the devices that earlier checks have left, so no device is counted twice.
        left = self.matching - sum(tally.devices for tally in self.lost)
        return (left, self.matching, bool(self.pools), self.devices)

    @property
    def has_prospects(self) -> bool:
        """The node has devices that match, or a pool that may have some."""
        return bool(self.matching or self.pools)

    def line(self, *more: str) -> str:
        """One line for an event, without the node: what the node cannot do, as a number of nodes would say it."""
        # The request stands before the semicolon, the finding behind it: the counts belong between them.
        amount, _, found = self.detail.partition("; ")
        clauses = [f"{self._needed}{amount}", self._offered(), found, listed(self.pools, 2, "; "), *more]
        return self._cannot(*filter(None, clauses))

    def without_numbers(self, remark: str) -> str:
        """The same without numbers, for nodes whose numbers differ."""
        return self._cannot(self._needed, remark)

    def explain(self, more: Iterable[str] = ()) -> str:
        """All details on several lines, followed by what the caller adds."""
        lines = [f"node {self.node}: does not fit ({self._rule})"]
        lines.append(f"  {self.claim.named(self.request)} {self._needed}{self.detail}")
        lines.append(
            f"    the node has {counted(self.devices, 'device') + self._asked if self.devices else self._none}"
        )
        if self.devices:
            lines.append(f"    {counted(self.matching, 'matches', 'match')} the selectors")
        lines += [f"    {tally}" for tally in self.lost]
        lines += [f"    {line}" for line in more]
        lines += [f"  {pool}" for pool in self.pools]
        if self.fix:
            lines.append(f"  nearest fix: {self.fix}")
        return "\n".join(lines)

    @property
    def _rule(self) -> str:
        """Where devices match, the selectors are not to blame."""
        return "too few devices match" if self.rule is Rule.SELECTOR and self.matching else self.rule.value

    @property
    def _needed(self) -> str:
        return f"needs {counted(self.needs, 'device')}"

    @property
    def _none(self) -> str:
        return f"no {'usable ' if self.pools else ''}devices{self._asked}"

    @property
    def _asked(self) -> str:
        return " of a driver that is asked for" if self.names_driver else ""

    def _offered(self) -> str:
        if not self.devices:
            return self._none
        # The number of devices that do not match would change with each slice of any driver, and make the event news.
        if not self.matching and (self.devices == 1 or self.mixed):
            return "no device matches" if self.mixed else "the only device does not match"
        # The number of all devices is that of several drivers then, and changes with each slice of any.
        all_ = "" if self.mixed else f" of {self.devices}"
        matching = f"{self.matching or 'none'}{all_} {'matches' if self.matching == 1 else 'match'}"
        return ", ".join([matching, *(tally.of(self.matching) for tally in self.lost)])

    def _cannot(self, *clauses: str) -> str:
        return f"cannot satisfy {self.claim.named(self.request)} ({'; '.join(clauses)})"


@dataclass(frozen=True, slots=True)
class ChosenAlternative:
    """Which subrequest of a ``firstAvailable`` request was used; ``index`` 0 is the most preferred."""

    claim: int
    request: str
    index: int


class Allocated(NamedTuple):
    """Success. ``chosen`` lists the requests with alternatives, for the score of the node (scheduling.md 4.4)."""

    node: str
    results: tuple[AllocationResult, ...]
    chosen: tuple[ChosenAlternative, ...] = ()
    steps: int = 0


class Explain(Protocol):
    """Works out why a problem has no solution."""

    def __call__(self, *, hints: bool = True) -> Refusal:
        """``hints``: also what would help."""


@dataclass(eq=False)  # not frozen: most decisions end like this, and a frozen one takes twice as long to make
class Unfit:
    """The claims do not fit the node. Why is worked out when it is asked for: mostly another node fits.

    ``explain`` looks at what the decision was made from, which never changes, so the answer is always the same.
    """

    node: str
    explain: Explain
    steps: int = 0

    @cached_property
    def refusal(self) -> Refusal:
        """Which request could not be served, and what was in the way."""
        return self.explain()

    @cached_property
    def outline(self) -> Refusal:
        """The refusal without its hints, which take as long as all the rest: for comparing many nodes."""
        return self.explain(hints=False)


class Refused(Unfit):
    """The claims do not fit the node; the refusal says why."""


class NodeFailure(Unfit):
    """The claims do not fit, and pools of the node are invalid: repairing them may help."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The claims cannot be decided; ``error`` names claim, class, selector or slice."""

    node: str
    error: AllocationError
    steps: int = 0
    is_of_node: bool = False
    """The fault is in what this node sees: another node may do. Otherwise no node is tried any more."""


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The search was stopped by its budget after so many steps, without an answer."""

    node: str
    steps: int = 0

    @property
    def text(self) -> str:
        """What happened and what helps, without the node."""
        return (
            f"gave up after {counted(self.steps, 'step')} without an answer: the requests can be combined in too many "
            "ways; ask for fewer devices in one claim, or loosen its constraints"
        )

    def __str__(self) -> str:
        return f"node {self.node}: {self.text}"


Outcome = Allocated | Refused | NodeFailure | Failed | GaveUp
