"""Runs the operator, and Kopf inside it again and again.

Kopf ends when a watch stream brings an error it does not expect (an HTTP 500 in the stream, for one). The view and the
reconcilers do not depend on it: they keep running, Kopf is started anew, lists everything again, and the audit finds
what was deleted meanwhile. Only a stop by signal, or a failure of the reconcilers themselves, ends the process.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import dataclass
from typing import Any

import kopf
from dra_kube import Connection

from .handlers import register
from .operator import Operator
from .server import serve

logger = logging.getLogger(__name__)

PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)  # seconds before Kopf is started again, the last one for ever
GOODBYE = 10.0  # seconds that Kopf has to end
STEADY = 60.0  # seconds after which a run counts as good


class OperatorFailed(Exception):
    """The reconcilers ended, which they never should; the process must be restarted."""


@dataclass(slots=True)
class Supervisor:
    """``run`` returns after SIGINT or SIGTERM. ``metrics_port`` None serves no HTTP; 0 takes any free port."""

    operator: Operator
    connection: Connection
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    restarts: int = 0

    async def run(self) -> None:
        """Raises KubeError when the server cannot be used at start, OSError when the port is taken, OperatorFailed."""
        await self.operator.start(self.connection)
        try:
            if self.metrics_port is None:
                await self._supervise()
            else:
                await self._serve_and_supervise(self.metrics_port)
        finally:
            await self.operator.stop()

    async def _serve_and_supervise(self, port: int) -> None:
        def is_running() -> bool:
            return self.operator.is_running

        async with serve(
            self.metrics_host, port, self.operator.registry, is_live=is_running, is_ready=is_running
        ) as taken:
            logger.info("metrics and probes on http://%s:%d", self.metrics_host, taken)
            await self._supervise()

    async def _supervise(self) -> None:
        stop = asyncio.Event()
        failures = 0
        while not stop.is_set():
            _on_signals(stop)  # Kopf replaces these while it runs, and leaves its own dead ones behind
            began = asyncio.get_running_loop().time()
            if await self._run_kopf():
                return
            self.restarts += 1
            failures = 0 if asyncio.get_running_loop().time() - began > STEADY else failures + 1
            _on_signals(stop)
            await _wait(stop, PAUSES[min(failures, len(PAUSES)) - 1])

    async def _run_kopf(self) -> bool:
        """True if Kopf ended because it was told to. Raises OperatorFailed."""
        stop_kopf = asyncio.Event()
        registry = kopf.OperatorRegistry()
        register(self.operator, registry)

        @kopf.on.cleanup(id="flag", registry=registry)
        async def flag(**_: Any) -> None:
            stop_kopf.set()  # when a signal ends Kopf, its own waiting for the flag would hold it up for five seconds

        kopf_run = asyncio.create_task(
            kopf.operator(registry=registry, clusterwide=True, standalone=True, stop_flag=stop_kopf)
        )
        reconcilers = asyncio.create_task(self.operator.ended())
        try:
            await asyncio.wait((kopf_run, reconcilers), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reconcilers.cancel()
            stop_kopf.set()  # not by cancellation: a cancelled Kopf leaves its connections open
            await asyncio.wait((kopf_run, reconcilers), timeout=GOODBYE)
            kopf_run.cancel()
            await asyncio.wait((kopf_run,))
        if not self.operator.is_running:
            raise OperatorFailed("the reconcilers ended; see the log above")
        error = kopf_run.exception()
        if error is not None:
            logger.error("Kopf ended with %r; it is started again, the view is kept", error)
        return error is None


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
