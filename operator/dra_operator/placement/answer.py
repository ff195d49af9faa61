"""The results of an attempt to place a pod."""

from __future__ import annotations

from dataclasses import dataclass

from dra_api.resource import AllocationResult, ResourceClaim

from .extended import ExtendedClaim, Served
from .hints import Hint
from .unbound import NO_BINDINGS, Bindings


@dataclass(frozen=True, slots=True)
class Plan:
    """The pod goes to ``node``; ``allocations`` by claim UID are those that have to be written."""

    node: str
    allocations: dict[str, AllocationResult]
    served: Served = ()
    """Extended resources that devices serve there: the pod takes nothing of what the node counts of them."""
    extended: ExtendedClaim | None = None
    """The claim for them that has to be made; it has its allocation among the others."""
    volumes: Bindings = NO_BINDINGS
    """How the unbound claims of volumes get theirs."""
    points: tuple[tuple[str, int], ...] = ()
    """Why this node among those that fit: what it got for each of the pod's preferences, and for its room."""


@dataclass(frozen=True, slots=True)
class NoPlace:
    """No node takes the pod. ``message`` is for people; the rest decides when to try again."""

    message: str
    reason: str = "error"
    """What most nodes lack, or what is wrong with the pod: a word that fits a metric's label."""
    is_error: bool = False
    """Try again after a while, without waiting for a change: the attempt itself failed."""
    short_of_room: bool = False
    """The end of another pod may help, even if that frees no devices."""
    hints: frozenset[Hint] = frozenset()
    """Which pods may help by their coming, going or change, and what else matters to rules between pods."""
    unavailable: frozenset[str] = frozenset()
    """UIDs of claims that are allocated where the pod cannot run; giving their devices back may help."""
    leftovers: tuple[ResourceClaim, ...] = ()
    """Claims for extended resources that earlier attempts left half made: they have to go first (scheduling.md 4.3)."""
