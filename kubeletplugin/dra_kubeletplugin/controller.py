"""The controller part of a driver whose devices are attached to a network: it publishes them, and attaches claims.

One process leads, by a Lease; others wait. The leader publishes the pools without a node, and watches all
claims. A claim that is allocated devices of the driver is attached: the driver tells the network which node gets which
device, and returns the conditions of the devices. They are written to the claim's status under a field manager of the
controller's own. A claim that has lost its devices, or is gone, is detached. Both are repeated until they succeed, and
a new leader attaches all claims once more, so both must be fit to be done twice.

A leader that loses the Lease ends its process: nothing that it has begun may go on beside the next leader. One that is
told to end keeps the Lease until its calls of the driver have ended. A thread of a call that takes too long cannot be
stopped: then the Lease stays as it is, and the next leader waits until it runs out.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from dra_api.codec import DecodeError, convert
from dra_api.resource import AllocationResult, ResourceClaim
from dra_kube import (
    RESOURCE_CLAIMS,
    Api,
    Change,
    Election,
    KubeError,
    LeaseLock,
    Reflector,
    connection,
)

from .claims.device_status import DeviceStatus, report_devices
from .driver import ClaimRef, answer_of, check_awaitable, results_for
from .errors import ClaimError, Fatal, PluginError, Recoverable, with_remedy
from .slices import Resources, SlicePublisher

log = logging.getLogger(__name__)

_FIRST_ATTACH_PAUSE_SECONDS: Final = 1.0
_LONGEST_ATTACH_PAUSE_SECONDS: Final = 60.0
_LAST_CALLS_SECONDS: Final = 5.0
"""Seconds in which the driver's calls can come to their end; shorter than a Lease, and than a pod's grace period."""


class Controller(ABC):
    """What a driver author implements; all methods may be called twice for the same claim."""

    @abstractmethod
    async def attach(self, claim: ResourceClaim) -> Iterable[DeviceStatus]:
        """Attach the devices that a claim is allocated, and return their status, such as a condition of each.

        Called again when the allocation changes. What this raises is logged, and it is called again.
        """

    async def detach(self, claim: ClaimRef) -> None:  # noqa: B027  # optional
        """Undo ``attach`` for a claim that has no devices of the driver any more."""

    async def started(self, claims: Sequence[ResourceClaim]) -> None:  # noqa: B027  # optional
        """Learn which claims are allocated devices of the driver, when this process has begun to lead.

        Attachments for other claims were left while no controller ran, and can be undone here. What this raises ends
        the process.
        """

    def __init_subclass__(cls, **others: Any) -> None:
        """Raise TypeError for methods that cannot be waited for."""
        super().__init_subclass__(**others)
        check_awaitable(cls, "attach", "detach", "started")


class LeadershipLost(Fatal):
    """Another process leads, or may: this one has to end."""


async def control(
    controller: Controller,
    driver: str,
    resources: Resources | AsyncIterable[Resources],
    api: Api,
    *,
    part: str = "controller",
) -> None:
    """Publish and attach until cancelled, as the one process that may. Raises what an iterator of resources raises."""

    await _control(_Claims(controller, driver, api, part), driver, resources, api)


async def _control(claims: _Claims, driver: str, resources: Resources | AsyncIterable[Resources], api: Api) -> None:
    def report(error: Recoverable, message: str) -> None:
        log.warning("%s: %s", message, error)

    async with SlicePublisher(api, driver, on_error=report) as publisher:
        tasks = [asyncio.create_task(_publish(publisher, resources)), asyncio.create_task(claims.run())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _publish(publisher: SlicePublisher, resources: Resources | AsyncIterable[Resources]) -> None:
    if isinstance(resources, AsyncIterable):
        async for current in resources:
            publisher.publish(current)
    else:
        publisher.publish(resources)


class _Claims:
    """The claims of a driver, and a task for each that has something to be done."""

    def __init__(self, controller: Controller, driver: str, api: Api, part: str) -> None:
        self._controller, self._driver, self._api, self._part = controller, driver, api, part
        self._claims: dict[str, ResourceClaim] = {}  # by uid, those with devices of the driver
        self._attached: dict[str, ClaimRef] = {}
        self._told: dict[str, tuple[AllocationResult | None, tuple[DeviceStatus, ...]]] = {}
        """The attached allocation and the driver's answer, by uid."""
        self._changed: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._calls: set[asyncio.Task[Any]] = set()  # of the controller, those that run
        self._seen: dict[str, Change] = {}
        self._is_listed = False
        self.grace_seconds = _LAST_CALLS_SECONDS
        self.have_ended = True

    async def run(self) -> None:
        """Watch until cancelled, and let calls of the controller end then; ``have_ended`` says whether all did."""
        reflector = Reflector(
            self._api,
            RESOURCE_CLAIMS,
            self._receive,
            listed=self._listed,
            knows=lambda: (change.version for change in self._seen.values()),
            failed=lambda error: log.warning("cannot watch ResourceClaims: %s", _in_words(error)),
        )
        try:
            await reflector.run()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            if calls := set(self._calls):
                _, late = await asyncio.wait(calls, timeout=self.grace_seconds)
                self.have_ended = not late
                for call in late:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)

    async def _call(self, answer: Any) -> Any:
        """Return the controller's answer. The call goes on when its claim's task is cancelled: see ``run``."""
        call = asyncio.ensure_future(answer_of(answer))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return await asyncio.shield(call)

    async def _receive(self, change: Change) -> None:
        uid = change.version.uid
        claim = None
        if not change.is_end:
            try:
                claim = convert(ResourceClaim, change.object())
            except DecodeError as error:
                log.warning("a claim is malformed and left alone: %s", error)
                return
        if claim is not None and results_for(self._driver, claim):
            self._seen[uid] = change
            self._claims[uid] = claim
        elif self._seen.pop(uid, None) is None:
            return  # a claim of other drivers
        else:
            self._claims.pop(uid, None)
        if self._is_listed:
            self._work_on(uid)

    async def _listed(self, _: str) -> None:
        if not self._is_listed:
            self._is_listed = True
            await answer_of(self._controller.started(list(self._claims.values())))
        for uid in self._claims.keys() | self._attached.keys():
            self._work_on(uid)

    def _work_on(self, uid: str) -> None:
        self._changed.setdefault(uid, asyncio.Event()).set()
        if uid not in self._tasks:
            self._tasks[uid] = asyncio.create_task(self._settle(uid))

    async def _settle(self, uid: str) -> None:
        """Attach or detach a claim, again after each change and each failure, until there is nothing to do."""
        pause, changed = _FIRST_ATTACH_PAUSE_SECONDS, self._changed[uid]
        try:
            while changed.is_set():
                changed.clear()
                try:
                    await self._do(uid)
                    pause = _FIRST_ATTACH_PAUSE_SECONDS
                except Exception as error:
                    expected = isinstance(error, PluginError | KubeError)
                    ref = self._attached.get(uid, f"with the uid {uid}")
                    log.warning("claim %s: %s", ref, _in_words(error), exc_info=None if expected else error)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await changed.wait()
                    pause = min(2 * pause, _LONGEST_ATTACH_PAUSE_SECONDS)
                    changed.set()
        finally:
            del self._tasks[uid]
            if uid not in self._claims:
                self._changed.pop(uid, None)

    async def _do(self, uid: str) -> None:
        claim = self._claims.get(uid)
        if claim is None:
            if ref := self._attached.get(uid):
                await self._call(self._controller.detach(ref))
                del self._attached[uid]
                self._told.pop(uid, None)
            return
        ref = ClaimRef(claim.metadata.namespace, claim.metadata.name, uid)
        self._attached[uid] = ref  # before: what fails half way has to be undone
        allocation, statuses = self._told.get(uid, (None, ()))
        if allocation != claim.status.allocation:  # otherwise only the status was written, perhaps by this controller
            statuses = _statuses(await self._call(self._controller.attach(claim)))
            self._told[uid] = claim.status.allocation, statuses
        await report_devices(self._api, self._driver, ref, statuses, part=self._part)


def _statuses(answer: Any) -> tuple[DeviceStatus, ...]:
    """What ``attach`` returned. Raises ClaimError."""
    if not isinstance(answer, Iterable) or isinstance(answer, str | Mapping):
        raise ClaimError(f"attach returned {answer!r}: return a list of DeviceStatus, empty for nothing to say")
    statuses = tuple(answer)
    for status in statuses:
        if not isinstance(status, DeviceStatus):
            raise ClaimError(f"attach returned {status!r} as a status: use DeviceStatus.of(result, ...)")
    return statuses


def _in_words(error: BaseException) -> str:
    return with_remedy(error, of_a_controller=True) if isinstance(error, Exception) else str(error)


async def lead(
    controller: Controller,
    name: str,
    resources: Resources | AsyncIterable[Resources],
    *,
    kubeconfig: str | None = None,
    namespace: str | None = None,
) -> None:
    """Wait for the Lease ``<name>-controller`` and ``control`` until SIGTERM. Raises LeadershipLost.

    The Lease is in ``namespace``, or in that of the variable POD_NAMESPACE, or in ``default``.
    """
    namespace = namespace or os.environ.get("POD_NAMESPACE") or "default"
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    election = Election(f"{socket.gethostname()}_{uuid.uuid4()}")
    place = connection(kubeconfig)
    async with (
        Api(place, user_agent=name, timeout=election.timing.request) as leases,
        Api(place, user_agent=name, guard=election.allowance) as api,
    ):
        lock = LeaseLock(leases, namespace, f"{name}-controller", election)
        end = asyncio.create_task(stopped.wait())
        while not stopped.is_set() and not await _attempt(lock):
            await asyncio.wait([end], timeout=election.timing.retry)
        if not stopped.is_set():
            log.info("%s leads", election.identity)
            claims = _Claims(controller, name, api, "controller")
            keeping = asyncio.create_task(_keep(lock))
            work = [asyncio.create_task(_control(claims, name, resources, api)), keeping]
            await asyncio.wait([end, *work], return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                claims.grace_seconds = 0  # another process may lead
            results: list[object] = []
            for task in work:  # the Lease is kept until the last call has ended
                task.cancel()
                results += await asyncio.gather(task, return_exceptions=True)
            if claims.have_ended:
                with suppress(KubeError):
                    await lock.release()
            else:
                log.warning("a call of the controller has not ended: the next process leads when the Lease has run out")
            for error in results:
                if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
                    raise error
        end.cancel()


async def _attempt(lock: LeaseLock) -> bool:
    try:
        return await lock.attempt()
    except KubeError as error:
        log.warning("cannot get the Lease: %s", _in_words(error))
        return False


async def _keep(lock: LeaseLock) -> None:
    """Renew the Lease. Raises LeadershipLost."""
    election = lock.election
    while True:
        await asyncio.sleep(election.timing.retry)
        try:
            await lock.attempt()
            election.allowance()
        except KubeError as error:
            with suppress(KubeError):
                election.allowance()  # there is time for another attempt
                continue
            raise LeadershipLost(f"the Lease is lost: {error}; the next process leads") from error
