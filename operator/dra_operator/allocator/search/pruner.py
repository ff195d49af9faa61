"""The interface of a pruner, which is all that a search knows of it; the room ``pruning`` implements it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum
from typing import Protocol

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.problem import Problem

from .state import State

Remaining = dict[int, int]
"""Number of an alternative -> devices it may still use; alternatives that are ruled out are missing."""


class BranchEnd(Enum):
    """How a branch ended."""

    FAILED = "failed"
    LIMIT = "limit exceeded"


class Pruner(Protocol):
    """Knowledge about one problem that cuts branches without changing the answer."""

    nogoods: dict[Hashable, BranchEnd]
    """How the places of the search ended that have failed, by their ``key``."""

    def may_prune(self, stage: int) -> bool:
        """Looking ahead is allowed: no fatal error can be met at the stage itself."""

    def start(self) -> Remaining | None:
        """What remains before the first choice; None when there is no solution."""

    def propagate(
        self, remaining: Remaining | None, state: State, stage: int, domain: Domain, missing: int, behind: int
    ) -> Remaining | None:
        """What remains after a choice; None when there is no solution behind it."""

    def interchangeable_with(self, state: State, device: int) -> int:
        """The devices that fail when this one fails, which has just been given back."""

    def key(self, state: State, stage: int, domain: Domain, missing: int, rest: int) -> Hashable:
        """Equal for two places in the search only if what follows is equal."""


MakePruner = Callable[[Problem], Pruner]
