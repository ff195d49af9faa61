"""Logs and counts each violated invariant once, and again only after it was gone.

The news of two objects may come in either order: a device that one claim has given back and another one got has two
holders for a moment. So a violation is reported when it has lasted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from dra_operator.controllers.shared.timing import ROUNDING_SECONDS

logger = logging.getLogger(__name__)

LASTING_SECONDS: Final = 1.0


class ViolationLog:
    """``report`` is given all violations that hold at the moment; ``clock`` gives seconds."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: set[str] = set()
        self._count = Counter(
            "dra_operator_invariant_violations", "Violations of invariants that lasted", registry=registry
        )

    def report(self, violations: Iterable[str]) -> float | None:
        """Log and count those that have lasted. The seconds after which to look again; None if none is younger."""
        now = self._clock()
        self._since = {violation: self._since.get(violation, now) for violation in violations}
        self._told &= self._since.keys()
        for violation in [one for one in self._since if one not in self._told]:
            if now - self._since[violation] >= LASTING_SECONDS:
                logger.error("invariant violated: %s", violation)
                self._count.inc()
                self._told.add(violation)
        young = [since for one, since in self._since.items() if one not in self._told]
        return min(young) + LASTING_SECONDS - now + ROUNDING_SECONDS if young else None
