"""The checks behind ``/livez`` and ``/readyz``.

Ready: the cache is complete and up to date, and the operator may do its work. Every kind was listed, is watched, and
its watch gives signs of life; no right is missing. A late look at the claims is a warning: it holds up only pods whose
devices another scheduler allocates as well, and a tenant with many large claims may bring it about.

Live: only faults that a new process can mend count. An API server that is away or refuses us makes the operator
unready, but not dead. The operator is dead when its controllers ended, or when Kopf ended again and again for
``Limits.failing`` seconds and never delivered all kinds. A Kopf that ended once and asks in vain since is not at fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from dra_operator.app.leader import Leader
from dra_operator.app.operator import Operator


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

    def __init__(
        self, operator: Operator, clock: Callable[[], float] = time.monotonic, leader: Leader | None = None
    ) -> None:
        self._operator, self._clock, self._leader = operator, clock, leader
        self._failing_since: float | None = None
        self._ended_at = 0.0
        self._error = ""
        self.failures = 0
        """How often Kopf ended since all kinds were heard."""

    def kopf_ended(self, error: str) -> None:
        """Kopf ended, or was given up, for this reason."""
        self.failures += 1
        self._error = error
        self._ended_at = self._clock()
        if self._failing_since is None:
            self._failing_since = self._ended_at

    def look(self) -> None:
        """Forget past failures if Kopf delivers; to be called regularly."""
        if self.failures and not self._operator.streams.problems():
            self.failures, self._failing_since = 0, None

    def readiness(self) -> list[Check]:
        """Whether the operator decides, on a cache that is up to date."""
        checks: list[Check] = []
        if self._leader is not None:
            checks = [Check("lease", self._leader.obstacles()), Check("leading", self._leader.standing_by())]
        if obstacles(checks):
            return checks
        work, kopf = self.liveness()
        if not self._operator.is_running:
            return [*checks, work, Check("listing", [] if work.obstacles else ["the cluster is being listed"])]
        if self.failures and not kopf.obstacles:
            kopf = Check("kopf", [f"restarting Kopf: {self._error}"])
        missing = [f"{resource}: not served by the API server" for resource in self._operator.missing()]
        watches = [
            Check(f"watch-{resource.plural}", [f"{resource}: {problem}"] if problem else [])
            for resource, problem in self._operator.streams.states()
        ]
        release = Check("kubernetes", [], self._operator.in_force.note)
        rights = Check("rights", self._operator.lacks_rights())
        look = Check("last-look", [], warning=self._operator.late_look)
        return [*checks, work, Check("listing", []), release, Check("kinds", missing), rights, kopf, look, *watches]

    def liveness(self) -> tuple[Check, Check]:
        """Whether only a new process helps."""
        ended = ["the controllers ended"] if self._operator.has_failed else []
        limit, failing = self._operator.streams.limits.failing, []
        if self._failing_since is not None and self._ended_at - self._failing_since > limit:
            failing = [f"Kopf ended {self.failures} times without delivering in between, the last time: {self._error}"]
        return Check("controllers", ended), Check("kopf", failing)
