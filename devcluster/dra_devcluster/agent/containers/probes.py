"""The probes of one run of a container: whether it has started, whether it is ready, whether it has to be restarted.

While there is a startup probe that has not succeeded, the others wait. A readiness probe decides whether the container
is ready. A startup or liveness probe that fails often enough in a row ends the container, and its restart policy says
what happens then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dra_devcluster.agent.spec.handlers import Probe

from .handlers import HandlerFailed, Target, perform


class Probes:
    """``failed`` is called with the kind of the probe and the reason for every failed check, ``changed`` when
    ``started`` or ``ready`` has changed. ``run`` returns the probe that condemns the container.
    """

    def __init__(
        self,
        startup: Probe | None,
        readiness: Probe | None,
        liveness: Probe | None,
        failed: Callable[[str, str], None],
        changed: Callable[[], None],
        least_timeout: float = 0.0,
    ) -> None:
        self.started = startup is None
        self.ready = startup is None and readiness is None
        self._startup = startup
        self._readiness = readiness
        self._liveness = liveness
        self._failed = failed
        self._changed = changed
        self._least_timeout = least_timeout

    async def run(self, target: Target) -> tuple[str, Probe]:
        """Check until a startup or liveness probe gives up; returns its kind and itself."""
        if self._startup is not None:
            if not await self._holds("Startup", self._startup, target, until_success=True):
                return "startup", self._startup
            self.started, self.ready = True, self._readiness is None
            self._changed()
        watching = asyncio.create_task(self._watch_readiness(target))
        try:
            if self._liveness is None:
                await watching
                await asyncio.Event().wait()  # nothing condemns the container
            assert self._liveness is not None
            await self._holds("Liveness", self._liveness, target)
            return "liveness", self._liveness
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch_readiness(self, target: Target) -> None:
        """Keep ``ready`` as the readiness probe says."""
        if self._readiness is None:
            return
        successes = failures = 0
        await asyncio.sleep(self._readiness.initial_delay_seconds)
        while True:
            good = await self._check("Readiness", self._readiness, target)
            successes, failures = (successes + 1, 0) if good else (0, failures + 1)
            if not self.ready and successes >= self._readiness.success_threshold:
                self._become(ready=True)
            elif self.ready and failures >= self._readiness.failure_threshold:
                self._become(ready=False)
            await asyncio.sleep(self._readiness.period_seconds)

    def _become(self, *, ready: bool) -> None:
        self.ready = ready
        self._changed()

    async def _holds(self, kind: str, probe: Probe, target: Target, *, until_success: bool = False) -> bool:
        """Check until the probe fails often enough in a row, or has its first success if that is enough."""
        failures = 0
        await asyncio.sleep(probe.initial_delay_seconds)
        while True:
            good = await self._check(kind, probe, target)
            if good and until_success:
                return True
            failures = 0 if good else failures + 1
            if failures >= probe.failure_threshold:
                return False
            await asyncio.sleep(probe.period_seconds)

    async def _check(self, kind: str, probe: Probe, target: Target) -> bool:
        try:
            await perform(probe, target, max(probe.timeout_seconds, self._least_timeout))
        except HandlerFailed as error:
            self._failed(kind, str(error))
            return False
        return True
