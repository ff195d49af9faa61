"""``dra-operator run``: the operator with its settings, until a signal, a failure, or the loss of the lease.

It starts, in this order: the port for probes and metrics, the lease, the operator. When the API server went back in
time, the operator is stopped and started, with a new cache. Watches fail and begin again inside the operator.

The lease and the port have a thread of their own (``Aside``): they never wait for a decision. Decisions are Python and
hold the interpreter for at most 5 ms at a time, so the other thread has its turn then. What runs there only reads what
the operator's loop writes, or asks that loop.

Exit codes: 0 after a stop by signal, 1 when the operator failed or the API server cannot be used, 2 for wrong usage or
settings (no kubeconfig, a port in use).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from dra_api.codec import encode
from dra_api.gates import GateError
from dra_api.leases import MIX, SETTINGS, SHARED, PublishedSettings
from dra_kube import (
    Api,
    Connection,
    ConnectionSettingsError,
    Forbidden,
    KubeError,
    ServerError,
    Timing,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    connection,
    for_people,
    unguarded,
)
from dra_kube.spans import start_traces
from prometheus_client import CollectorRegistry, disable_created_metrics

from dra_operator.app.leader import CannotElect, Leader, lease_name
from dra_operator.app.operator import Operator
from dra_operator.app.probes import Answers, CannotServe, Health, MainLoop, serve
from dra_operator.app.settings import OperatorSettings
from dra_operator.app.telemetry import LeaderGauge, Requests, configure_logs
from dra_operator.controllers.scheduling.mix import Asked, MixMemory, read_mix
from dra_operator.controllers.scheduling.other_schedulers import DriverMemory
from dra_operator.kube import RIGHTS
from dra_operator.sources.handlers import CannotStart, start, stop

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Aside:
    """An async context manager, entered and left on the operator's loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="aside", daemon=True)

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs there. A cancellation reaches it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
                self._loop.run_until_complete(asyncio.wait((task,)))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


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
        """Wait until the operator has to stop, for any reason."""
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


def main(settings: OperatorSettings, warnings: Iterable[str] = ()) -> int:
    """Run until SIGINT or SIGTERM; return the exit code. ``warnings``: what to log of the settings."""
    configure_logs(settings.verbosity, settings.log_format)
    fail = partial(_fail, settings.log_format)
    for warning in warnings:
        logger.warning(warning)
    start_traces("dra-operator")
    # Or each counter and histogram has another series, with the time at which it was made.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    if settings.kubeconfig:
        os.environ["KUBECONFIG"] = settings.kubeconfig  # Kopf logs in again on its own when the server says 401
    try:
        mix = MixMemory(_mix(settings.placement_mix))
    except (OSError, ValueError) as error:
        return fail(f"--placement-mix: cannot read {settings.placement_mix}: {error}", 2)
    try:
        asyncio.run(_supervise(settings, connection(), mix))
    except CannotElect as error:
        return fail(str(error), 1)
    except GateError as error:
        return fail(f"--feature-gates: {error}, or choose another release with --kubernetes-version", 2)
    except (ConnectionSettingsError, CannotServe) as error:
        return fail(str(error), 2)
    except (Unreachable, Unauthorized) as error:
        return fail(for_people(error), 1)
    except Forbidden as error:
        return fail(f"{error}; {RIGHTS}", 1)
    except KubeError as error:
        return fail(f"the API server cannot be used: {error}", 1)
    except OperatorFailed as error:
        return fail(str(error), 1)
    return 0


def _mix(path: str) -> Sequence[Asked]:
    """Raises OSError, and MixError and UnicodeDecodeError, which are ValueErrors."""
    return read_mix(Path(path).read_text(encoding="utf-8")) if path else ()


async def _supervise(settings: OperatorSettings, to: Connection, mix: MixMemory) -> None:
    leader, registry, drivers = None, CollectorRegistry(), DriverMemory()
    requests = Requests(registry)
    if settings.leader_elect:
        timing = Timing.of(settings.leader_elect_lease_duration)
        name, namespace = lease_name(settings.scheduler_name), settings.leader_elect_namespace
        said = {SETTINGS: encode(published(settings)).decode()}

        def annotations() -> dict[str, str]:
            learned = {MIX: mix.text, SHARED: drivers.text}
            return said | {name: text for name, text in learned.items() if text}

        leader = Leader(to, name, namespace, timing, requests, annotations)
        registry.register(LeaderGauge(leader, settings.scheduler_name))
    allowance = leader.allowance if leader is not None else unguarded

    def is_settled() -> bool:
        return leader is None or leader.is_settled

    operator = Operator(settings, registry, allowance, requests, mix, is_settled, drivers)
    await Supervisor(operator, to, settings.metrics_host, settings.metrics_port, leader).run()


def published(settings: OperatorSettings) -> PublishedSettings:
    """What the Lease says, so that ``kubectl dra`` decides as this operator without being told."""
    return PublishedSettings(
        feature_gates=settings.feature_gates,
        kubernetes_version=settings.kubernetes_version,
        controllers=settings.controllers,
        scoring_strategy=settings.scoring_strategy,
        placement_strategy=settings.placement_strategy,
        device_order=settings.device_order,
        preemption=settings.preemption,
        preempt_other_schedulers=settings.preempt_other_schedulers,
        preemption_patience=settings.preemption_patience,
        own_devices_only=settings.own_devices_only,
        leave_drivers=settings.leave_drivers,
        leave_nodes=settings.leave_nodes,
    )


def _fail(log_format: str, text: str, code: int) -> int:
    """The reason is the last line, for people; among JSON lines it is one of them, so that it is collected as well."""
    if log_format == "json":
        logger.error(text)
    else:
        print(f"dra-operator: {text}", file=sys.stderr)
    return code
