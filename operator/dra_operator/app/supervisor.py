"""Runs the operator, and restarts Kopf inside it.

It starts, in this order: the port for probes and metrics, the lease, the operator (its own LIST of all kinds), Kopf.
The cache and the controllers do not depend on Kopf: they keep running while Kopf is replaced. Then Kopf lists
everything again, and the audit finds what was deleted meanwhile. Kopf is replaced when it ends (a watch stream brought
an error that it does not expect), when it stops asking for a kind (``streams``), and when there are more kinds to
watch. Only a signal, a failure of the controllers, or the loss of the lease ends the process.

The lease and the port have a thread of their own (``aside``): they never wait for a decision.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
import kopf
from dra_api.leases import MIX, SHARED
from dra_kube import Api, Connection, KubeError, Resource, ServerError, TooManyRequests, Unreachable

from dra_operator.sources.handlers import register
from dra_operator.sources.kopf_run import KopfRun, KopfStuck
from dra_operator.sources.stream_log import StreamLog
from dra_operator.wording import listed

from .aside import Aside
from .leader import Leader
from .operator import Operator
from .probes.answers import Answers
from .probes.health import Health
from .probes.main_loop import MainLoop
from .probes.server import serve

T = TypeVar("T")
logger = logging.getLogger(__name__)

RESTART_PAUSES_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)  # seconds before Kopf is started again, the last one for ever
STREAM_LOOK_SECONDS = 0.5  # seconds between two looks at the streams
SERVED_LOOK_SECONDS = 5.0  # seconds between two looks for kinds that the server serves no more


class OperatorFailed(Exception):
    """The controllers or Kopf cannot continue in this process; it must be started again."""


@dataclass(slots=True)
class Supervisor:
    """``run`` returns after SIGINT or SIGTERM. ``metrics_port`` None serves no HTTP; 0 takes any free one."""

    operator: Operator
    connection: Connection
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    leader: Leader | None = None
    restarts: int = 0
    health: Health = field(init=False)
    _stream_log: StreamLog = field(init=False)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _aside: Aside = field(default_factory=Aside)

    def __post_init__(self) -> None:
        self.health = Health(self.operator, leader=self.leader)
        self._stream_log = StreamLog(self.operator.streams)

    async def run(self) -> None:
        """Raises KubeError when the server cannot be used at start, CannotServe, OperatorFailed."""
        self._take_signals()
        async with self._aside, self._probes():
            try:
                if await self._unless_stopped(self._begin()):
                    await self._supervise()
            finally:
                await self._end()

    def stop(self) -> None:
        """Make ``run`` return, as a signal does."""
        self._stop.set()

    @asynccontextmanager
    async def _probes(self) -> AsyncIterator[None]:
        if self.metrics_port is None:
            yield
            return
        answers = Answers(MainLoop(lambda: self.operator.deciding), self.health, self.operator.registry)
        serving = serve(self.metrics_host, self.metrics_port, answers)
        port = await self._aside.call(_entered(serving))
        logger.info("metrics and probes on http://%s:%d", self.metrics_host, port)
        try:
            yield
        finally:
            await self._aside.call(_left(serving))

    async def _begin(self) -> None:
        """Find the server, lead, start. Only an unreachable server, or a refusal that cannot pass, ends the process.

        Otherwise a new leader would end at the first refusal of a busy server, and leave the cluster without one.
        """
        await self._until_done(self._look_for_server, ServerError, TooManyRequests)
        if self.leader is not None:
            await self._aside.call(self.leader.acquire())
            self.operator.mix.recall(self.leader.found.get(MIX, ""))
            self.operator.drivers.recall(self.leader.found.get(SHARED, ""))
        await self._until_done(self._start, Unreachable, ServerError, TooManyRequests)

    async def _look_for_server(self) -> None:
        async with Api(self.connection) as api:
            await api.raw_get("/version")

    async def _start(self) -> None:
        await self.operator.start(self.connection)

    async def _until_done(self, work: Callable[[], Awaitable[None]], *passing: type[KubeError]) -> None:
        """Repeat while the failure may pass by itself. Raises KubeError."""
        for pause in itertools.chain(RESTART_PAUSES_SECONDS, itertools.repeat(RESTART_PAUSES_SECONDS[-1])):
            self._check_lease()
            try:
                await work()
                break
            except passing as error:
                logger.warning("start failed, retrying in %g s: %s", pause, error)
            await asyncio.sleep(pause)

    async def _end(self) -> None:
        settled = await self.operator.stop()
        if self.leader is not None:
            if settled:
                await self._aside.call(self.leader.release())
            await self._aside.call(self.leader.close())

    def _check_lease(self) -> None:
        if self.leader is not None and self.leader.loss:
            raise OperatorFailed(self.leader.loss)

    async def _supervise(self) -> None:
        while not self._stop.is_set():
            error = await self._run_kopf()
            self._check_lease()
            if not self.operator.is_running:
                raise OperatorFailed("the controllers ended; see the log above")
            if self._stop.is_set():
                return
            self.restarts += 1
            pause = 0.0
            if error:
                self.health.kopf_ended(error)
                pause = RESTART_PAUSES_SECONDS[min(self.health.failures, len(RESTART_PAUSES_SECONDS)) - 1]
                logger.error("%s; restarting Kopf in %.3g s; the cache is kept", error, pause)
            self.operator.metrics.kopf_restarted(failed=bool(error))
            self.operator.outdated.clear()
            await self._unless_stopped(asyncio.sleep(pause))
            if self.operator.went_back:
                await self._start_over()

    async def _start_over(self) -> None:
        """Build the cache again; Kopf does not run meanwhile."""
        await self.operator.stop()
        await self._unless_stopped(self._until_done(self._start, KubeError))

    async def _run_kopf(self) -> str:
        """Run Kopf until it has to be replaced; returns the failure, empty for other reasons. Raises OperatorFailed."""
        registry = kopf.OperatorRegistry()
        sessions: list[aiohttp.ClientSession] = []
        register(self.operator, registry, sessions.append)
        self.operator.streams.begin()
        run = KopfRun(registry, self._take_signals)
        others = [self._stop.wait(), self.operator.ended(), self.operator.outdated.wait(), self._served_again()]
        others += [self._aside.call(self.leader.lost())] if self.leader is not None else []
        failures = [asyncio.create_task(failure) for failure in (run.ended(), self._silence())]
        tasks = [*failures, *(asyncio.create_task(other) for other in others)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next((self._explained(failure.result()) for failure in failures if failure.done()), "")
        finally:
            for task in tasks:
                task.cancel()
            try:
                await run.end()
            except KopfStuck as error:
                raise OperatorFailed(str(error)) from error
            for session in sessions:
                await session.close()
            await asyncio.sleep(0)  # lets aborted connections close their sockets
            self._take_signals()

    def _explained(self, error: str) -> str:
        refusals = self.operator.streams.refusals()
        return f"{error} ({listed(refusals)})" if refusals else error

    async def _silence(self) -> str:
        """Wait until Kopf no longer works on a kind; returns which."""
        while not (idle := self.operator.streams.idle()):
            self.health.look()
            self._stream_log.look()
            await asyncio.sleep(STREAM_LOOK_SECONDS)
        return f"Kopf stopped watching {', '.join(idle)}"

    async def _served_again(self) -> None:
        """Wait until the server serves kinds again that Kopf did not find: it looks for kinds at its start only.

        They may be back in another version, after an upgrade or a change of the server's ``--runtime-config``.
        """
        back: dict[Resource, str] = {}
        while not back:
            await asyncio.sleep(SERVED_LOOK_SECONDS)
            versions = [(resource, await self._version_of(resource)) for resource in self.operator.streams.unfound()]
            unfound = self.operator.streams.unfound()
            back = {resource: version for resource, version in versions if version and resource in unfound}
        for resource, version in back.items():
            logger.info("the API server serves %s again, in version %s", resource, version)
            self.operator.served_again(resource, version)

    async def _version_of(self, resource: Resource) -> str:
        """The version in which the server serves the kind now; empty for none, and if it cannot be asked."""
        try:
            async with Api(self.connection) as api:  # a new one, which remembers no version
                return await api.version_of(resource)
        except KubeError:
            return ""

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether the work was done before a signal came. Raises the error of the work."""
        task, stopped = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (task, stopped):
                one.cancel()
            await asyncio.wait((task, stopped))
        return not task.cancelled() and task.result() is None

    def _take_signals(self) -> None:
        """Kopf has its own handlers while it runs, and leaves dead ones behind."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)


async def _entered(context: AbstractAsyncContextManager[T]) -> T:
    """``call`` takes coroutines only."""
    return await context.__aenter__()


async def _left(context: AbstractAsyncContextManager[Any]) -> None:
    await context.__aexit__(None, None, None)
