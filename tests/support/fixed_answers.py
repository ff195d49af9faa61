"""Answers of the port that are known at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dra_operator.app.probes import Check
from prometheus_client import CollectorRegistry, generate_latest


@dataclass
class Fixed:
    """What each probe finds, and what is exposed."""

    live: Sequence[Check]
    ready: Sequence[Check]
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    async def liveness(self) -> Sequence[Check]:
        return self.live

    async def readiness(self) -> Sequence[Check]:
        return self.ready

    async def metrics(self) -> bytes:
        return generate_latest(self.registry)
