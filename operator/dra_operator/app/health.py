"""What ``/livez`` and ``/readyz`` say, and why.

Ready: the view is complete and up to date. Every kind was listed, is watched, and its watch gives signs of life.

Live: only what a new process can mend counts. So an API server that is away or refuses us makes the operator unready,
for as long as it lasts, but not dead. It is dead when its reconcilers ended, or when Kopf had to be started again and
again for ``Limits.failing`` seconds and did not deliver all kinds once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .leader import Leader
from .operator import Operator


class Health:
    """The obstacles to being live and ready, as lines for people."""

    def __init__(
        self, operator: Operator, clock: Callable[[], float] = time.monotonic, leader: Leader | None = None
    ) -> None:
        self._operator, self._clock, self._leader = operator, clock, leader
        self._failing_since: float | None = None
        self._error = ""
        self.failures = 0
        """How often Kopf ended since all kinds were heard."""

    def kopf_ended(self, error: str) -> None:
        """Kopf ended, or was given up, for this reason."""
        self.failures += 1
        self._error = error
        if self._failing_since is None:
            self._failing_since = self._clock()

    def look(self) -> None:
        """To be called now and then: a Kopf that delivers makes its failures forgotten."""
        if self.failures and not self._operator.streams.problems():
            self.failures, self._failing_since = 0, None

    def readiness(self) -> list[str]:
        """Why decisions may rest on an old view, or none are made."""
        if self._leader is not None and (obstacles := self._leader.obstacles()):
            return obstacles
        if not self._operator.is_running:
            return self.liveness() or ["the cluster is being listed"]
        failing = [f"Kopf is started again: {self._error}"] if self.failures else []
        missing = [f"{resource}: not served by the API server" for resource in self._operator.missing()]
        return [*failing, *missing, *self._operator.streams.problems()]

    def liveness(self) -> list[str]:
        """Why only a new process helps."""
        if self._operator.has_failed:
            return ["the reconcilers ended"]
        limit = self._operator.streams.limits.failing
        if self._failing_since is not None and self._clock() - self._failing_since > limit:
            return [f"Kopf ended {self.failures} times without delivering in between, the last time: {self._error}"]
        return []
