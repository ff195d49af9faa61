"""The checks behind ``/livez`` and ``/readyz``.

Ready: the cache is complete and up to date, and the operator may do its work. Every kind was listed, is watched, and
its watch gives signs of life; no right is missing. A late look at the claims is a warning: it holds up only pods whose
devices another scheduler allocates as well, and a tenant with many large claims may bring it about.

Live: only faults that a new process can mend count. An API server that is away or refuses us makes the operator
unready, but not dead. The operator is dead when its controllers ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dra_operator.app.leader import Leader
from dra_operator.app.operator import Operator
from dra_operator.sources.handlers import running


class Check(NamedTuple):
    """A check, and the obstacles that it found, as lines for people.

    ``note`` is shown beside a check that passed, and ``warning`` also to those who do not ask for each check.
    """

    name: str
    obstacles: list[str]
    note: str = ""
    warning: str = ""


def obstacles(checks: Iterable[Check]) -> list[str]:
    """One line per obstacle; empty if all checks pass."""
    return [line for check in checks for line in check.obstacles]


class Health:
    """The checks of liveness and readiness. A check that another one makes pointless is left out."""

    def __init__(self, operator: Operator, leader: Leader | None = None) -> None:
        self._operator, self._leader = operator, leader

    def readiness(self) -> list[Check]:
        """Return whether the operator decides, on a cache that is up to date."""
        checks: list[Check] = []
        if self._leader is not None:
            checks = [Check("lease", self._leader.obstacles()), Check("leading", self._leader.standing_by())]
        if obstacles(checks):
            return checks
        (work,) = self.liveness()
        if not running(self._operator):
            return [*checks, work, Check("listing", [] if work.obstacles else ["the cluster is being listed"])]
        missing = [f"{resource}: not served by the API server" for resource in self._operator.missing()]
        watches = [
            Check(f"watch-{resource.plural}", [f"{resource}: {problem}"] if problem else [])
            for resource, problem in self._operator.watches.states()
        ]
        release = Check("kubernetes", [], self._operator.in_force.note)
        rights = Check("rights", self._operator.lacks_rights())
        look = Check("last-look", [], warning=self._operator.late_look)
        return [*checks, work, Check("listing", []), release, Check("kinds", missing), rights, look, *watches]

    def liveness(self) -> list[Check]:
        """Return whether only a new process helps."""
        return [Check("controllers", ["the controllers ended"] if self._operator.has_failed else [])]
