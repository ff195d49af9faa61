"""Logs and counts each violated invariant once, and again only after it was gone."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter

logger = logging.getLogger(__name__)


class ViolationLog:
    """``report`` is given all violations that hold at the moment."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._known: set[str] = set()
        self._count = Counter(
            "dra_operator_invariant_violations", "Violations of invariants that appeared", registry=registry
        )

    def report(self, violations: Iterable[str]) -> None:
        """Log and count those that are new."""
        found = dict.fromkeys(violations)
        for violation in [one for one in found if one not in self._known]:
            logger.error("invariant violated: %s", violation)
            self._count.inc()
        self._known = set(found)
