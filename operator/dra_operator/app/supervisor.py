"""Runs the operator until a signal, a failure of the controllers, or the loss of the lease.

It starts, in this order: the port for probes and metrics, the lease, the operator. When the API server went back in
time, the operator is stopped and started, with a new cache. Watches fail and begin again inside the operator.

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

from dra_api.leases import MIX, SHARED
from dra_kube import Api, Connection, KubeError, ServerError, TooManyRequests, Unreachable

from dra_operator.sources.handlers import CannotStart, start, stop

from .aside import Aside
from .leader import Leader
from .operator import Operator
from .probes.answers import Answers
from .probes.health import Health
from .probes.main_loop import MainLoop
from .probes.server import serve

T = TypeVar("T")
logger = logging.getLogger(__name__)

START_PAUSES_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)  # seconds before another start, the last one for ever


class OperatorFailed(Exception):
    """The controllers cannot continue in this process; it must be started again."""


@dataclass(slots=True)
class Supervisor:
    """``run`` returns after SIGINT or SIGTERM. ``metrics_port`` None serves no HTTP; 0 takes any free one."""

    operator: Operator
    connection: Connection
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    leader: Leader | None = None
    health: Health = field(init=False)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _aside: Aside = field(default_factory=Aside)

    def __post_init__(self) -> None:
        self.health = Health(self.operator, self.leader)

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
        try:
            await start(self.operator, self.connection, watches=True)
        except CannotStart as failure:
            raise failure.error from None

    async def _until_done(self, work: Callable[[], Awaitable[None]], *passing: type[KubeError]) -> None:
        """Repeat while the failure may pass by itself. Raises KubeError."""
        for pause in itertools.chain(START_PAUSES_SECONDS, itertools.repeat(START_PAUSES_SECONDS[-1])):
            self._check_lease()
            try:
                await work()
                break
            except passing as error:
                logger.warning("start failed, retrying in %g s: %s", pause, error)
            await asyncio.sleep(pause)

    async def _end(self) -> None:
        settled = await stop(self.operator)
        if self.leader is not None:
            if settled:
                await self._aside.call(self.leader.release())
            await self._aside.call(self.leader.close())

    def _check_lease(self) -> None:
        if self.leader is not None and self.leader.loss:
            raise OperatorFailed(self.leader.loss)

    async def _supervise(self) -> None:
        while not self._stop.is_set():
            await self._wait()
            self._check_lease()
            if not self.operator.is_running:
                raise OperatorFailed("the controllers ended; see the log above")
            if self.operator.went_back:
                await stop(self.operator)
                await self._unless_stopped(self._until_done(self._start, KubeError))

    async def _wait(self) -> None:
        """Wait until the operator has to stop, for whatever reason."""
        reasons = [self._stop.wait(), self.operator.ended(), self.operator.outdated.wait()]
        reasons += [self._aside.call(self.leader.lost())] if self.leader is not None else []
        tasks = [asyncio.ensure_future(reason) for reason in reasons]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

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
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)


async def _entered(context: AbstractAsyncContextManager[T]) -> T:
    """``call`` takes coroutines only."""
    return await context.__aenter__()


async def _left(context: AbstractAsyncContextManager[Any]) -> None:
    await context.__aexit__(None, None, None)
