"""What a node answers when it is asked whether a pod can run on it: values, each with its words.

::

    NodeStatus
    ├── Fits             with these devices
    ├── Obstructed       by the node itself, or because claims of the pod are allocated elsewhere
    ├── Lacking          the node's devices do not serve the claims
    ├── Faulty           the claims cannot be decided there: a selector fails on a device, for instance
    └── Undecided        the allocator gave up, or its time is over

``kind`` is for programs and stable; ``text`` is a clause about the node, without its name. ``kubectl dra why``,
``dra-operator simulate`` and the log use them for every answer of which they have no more to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dra_operator.allocator import AllocationError, NodeFailure, Refusal, Refused
from dra_operator.scheduling.claims.demand import Demand
from dra_operator.scheduling.state.obstacle import Obstacle

from .result import Plan


@dataclass(frozen=True, slots=True)
class Fits:
    """``score`` is that of the chosen alternatives."""

    kind: ClassVar = "fits"
    text: ClassVar = "fits"
    plan: Plan
    score: int = 0


@dataclass(frozen=True, slots=True)
class Obstructed:
    """``elsewhere``: UIDs of claims that are allocated where this node cannot use them."""

    kind: ClassVar = "obstructed"
    obstacle: Obstacle
    elsewhere: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """What is in the way."""
        return self.obstacle.text


@dataclass(frozen=True, slots=True)
class Lacking:
    """``outcome`` knows why, and works it out when it is asked."""

    kind: ClassVar = "lacking"
    demand: Demand
    outcome: Refused | NodeFailure

    @property
    def refusal(self) -> Refusal:
        """Why, in the words of the pod's author."""
        return self.demand.in_terms_of_pod(self.outcome.refusal)

    @property
    def outline(self) -> Refusal:
        """The refusal without its hints, for comparing nodes."""
        return self.demand.in_terms_of_pod(self.outcome.outline)

    @property
    def text(self) -> str:
        """The refusal in one line."""
        return self.refusal.line()


@dataclass(frozen=True, slots=True)
class Faulty:
    """The claims cannot be decided there.

    ``is_of_node``: the fault is in what the node sees, and other nodes are tried. Otherwise it is the claims', and ends
    the attempt.
    """

    kind: ClassVar = "faulty"
    error: AllocationError
    is_of_node: bool = False

    @property
    def text(self) -> str:
        """The error, marked as one."""
        return f"error: {self.error}"


@dataclass(frozen=True, slots=True)
class Undecided:
    """The answer is not to be had within the budget, or within the time."""

    kind: ClassVar = "undecided"
    text: str


NodeStatus = Fits | Obstructed | Lacking | Faulty | Undecided
