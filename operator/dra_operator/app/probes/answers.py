"""What the port answers, from a thread beside the operator's loop.

Checks and figures are the loop's own, so it is asked for them. While it is busy the last answer counts, and the loop
itself becomes a check. Figures are rendered once a second at most, for all who scrape.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from .health import Check, Health
from .main_loop import SLOW_SECONDS, STUCK_SECONDS, MainLoop

RENDERING_SECONDS: Final = 1.0
"""Seconds for which all get the same figures."""
SCRAPE_SECONDS: Final = 5.0
"""Seconds that a scrape waits for new ones; Prometheus gives it 10 by default."""
LOOP: Final = "event-loop"


class Answers:
    """``main`` is the loop on which ``health`` and the collectors of ``registry`` live."""

    def __init__(self, main: MainLoop, health: Health, registry: CollectorRegistry) -> None:
        self._main, self._health, self._registry = main, health, registry
        self._live: Sequence[Check] = ()
        self._ready: Sequence[Check] = (Check("answer", ["the operator has not answered yet"]),)
        self._figures: bytes | None = None
        self._rendered_at = -RENDERING_SECONDS

    async def liveness(self) -> Sequence[Check]:
        """Whether only a new process helps."""
        self._live = await self._main.ask("live", self._health.liveness, self._live)
        return [*self._live, Check(LOOP, self._main.trouble(STUCK_SECONDS))]

    async def readiness(self) -> Sequence[Check]:
        """Whether the operator decides, on a cache that is up to date."""
        self._ready = await self._main.ask("ready", self._health.readiness, self._ready)
        return [*self._ready, Check(LOOP, self._main.trouble(SLOW_SECONDS))]

    async def metrics(self) -> bytes | None:
        """The figures; None if there are none yet."""
        if time.monotonic() - self._rendered_at >= RENDERING_SECONDS:
            rendered = await self._main.ask("figures", self._render, None, SCRAPE_SECONDS)
            if rendered is not None and rendered is not self._figures:
                self._figures, self._rendered_at = rendered, time.monotonic()
        return self._figures

    def _render(self) -> bytes:
        return generate_latest(self._registry)
