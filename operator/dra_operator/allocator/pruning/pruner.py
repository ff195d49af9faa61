"""What a long search learns about its problem.

Four methods cut branches that cannot hold the first solution: looking ahead, trying one of several interchangeable
devices, serving equal requests in order, and remembering failures. A remembered failure is a
place in the search together with everything that its future depends on: devices still available to what
follows, and the ledgers of what follows.
"""

from __future__ import annotations

from collections.abc import Hashable

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.ledger import Ledger
from dra_operator.allocator.problem.problem import Problem
from dra_operator.allocator.search.state import BranchEnd, BranchState, Remaining

from .propagation import Propagation
from .symmetry import interchangeable, introduce


class Pruner:
    """Knowledge about one problem, gathered during its search."""

    def __init__(self, problem: Problem) -> None:
        problem.own_domains()
        self._problem = problem
        self._propagation = Propagation(problem)
        self._ledgers = tuple(problem.ledgers)
        self._classes = interchangeable(problem)
        introduce(problem, self._propagation.cannot_raise_from)
        self.nogoods: dict[Hashable, BranchEnd] = {}
        self._behind = _behind(problem)

    def may_prune(self, stage: int) -> bool:
        """Looking ahead is allowed: no fatal error can be met at the stage itself."""
        return self._propagation.may_prune(stage)

    def start(self) -> Remaining | None:
        """What remains before the first choice; None when there is no solution."""
        return self._propagation.start()

    def propagate(
        self, remaining: Remaining | None, state: BranchState, stage: int, domain: Domain, missing: int, behind: int
    ) -> Remaining | None:
        """What remains after a choice; None when there is no solution behind it."""
        if remaining is None:
            remaining = self._propagation.everything()
        return self._propagation.propagate(remaining, state, stage, domain, missing, behind)

    def interchangeable_with(self, state: BranchState, device: int) -> int:
        """The devices that fail when this one fails, which has just been given back.

        Admin access takes devices that another claim of this call has taken already: those are different.
        """
        members = self._classes.get(device, 0)
        members &= state.taken if state.taken >> device & 1 else ~state.taken
        for ledger in self._ledgers if members & ~(1 << device) else ():
            members &= ledger.alike_now(device, members)
        return members

    def key(self, state: BranchState, stage: int, domain: Domain, missing: int, rest: int) -> Hashable:
        """Equal for two places in the search only if what follows is equal."""
        behind, ledgers = self._behind[stage]
        return (
            domain.number,
            missing,
            rest,
            state.results[domain.claim],
            tuple(devices & ~state.blocked(later) for devices, later in behind),
            tuple(ledger.state() for ledger in ledgers),
        )


Behind = list[tuple[int, Domain]]


def _behind(problem: Problem) -> list[tuple[Behind, list[Ledger]]]:
    """For each stage the devices that the domains behind it may take, and the ledgers of the stage and behind.

    Of domains that may take the same devices, and that the same devices in use concern, one is enough.
    """
    found: list[tuple[Behind, list[Ledger]]] = []
    behind: dict[object, tuple[int, Domain]] = {}
    ledgers: dict[int, Ledger] = {}
    for domains in reversed(problem.domains):
        ledgers = ledgers | {id(ledger): ledger for domain in domains for ledger in domain.ledgers}
        found.append((list(behind.values()), list(ledgers.values())))
        for domain in domains:
            devices = domain.usable | domain.raised
            behind.setdefault((devices, domain.claim, domain.alternative.admin), (devices, domain))
    return found[::-1]
