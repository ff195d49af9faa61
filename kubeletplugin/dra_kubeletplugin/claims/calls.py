"""The kubelet's calls about claims, and whose turn it is to work on which claim.

``DRAService`` speaks the gRPC service in each version that kubelets know; the versions differ in names and in
``share_id``. ``NodeCalls`` fetches the claims, waits for a turn, and prepares or unprepares each. A claim that cannot
be fetched fails the whole call, which the kubelet repeats; a claim that the driver cannot handle fails alone.

Turns count within the process, and across overlapping instances of the driver. A turn belongs to the work, not to the
call that asked for it. The kubelet gives up on a call after 45 s, or when the pod is deleted; what the driver has
begun, perhaps in a thread, goes on, and the next call waits for its end. A call that is given up while it waits for its
turn never starts. Work that is cancelled, which happens only when the process ends, keeps its turn until then: a thread
of the driver may still be at work, and another instance must not be told that it is done.

Across processes the turn is an advisory lock on a file. Waiting polls for it: a blocking ``flock`` would stop the event
loop, and one in a thread could not be given up. The kernel drops the locks of a process that dies.

- One file is for all work, and stays: exclusive with ``serialize`` and for work on all claims, otherwise shared.
  Waiters first take a second file, the queue: only its holder tries to take the lock, so that an instance with many
  calls cannot keep another one out.
- Without ``serialize``, different claims are prepared at once, perhaps by two instances. A third file, with a queue of
  its own, is for the moment in which one of them finds a device free and records that it takes it.
- A claim's own lock is a file that its holder removes. Who gets the lock of a file that was removed meanwhile holds
  nothing, and begins again with the new one. A process that is killed leaves the file to the claim's next call. On a
  disk without room for the file, or a read-only one, work on the claim is alone instead.

Work that asks for another turn, as a ``prepare`` that updates the metadata of its claim, would wait for itself. That is
an error at once. A task that the work has started may ask: it waits for the end of the work, unless the work waits for
the task. Nothing tells these two apart, so that after some seconds this is an error as well.

A driver whose work never ends holds up all calls that need the same turn. Each of them fails before the kubelet gives
it up, with the name of that work: people see it in the events of their pods. So does the call that began the work, and
one for which the API server does not answer. The time runs from the beginning of the call.

Spec: PH-07 to PH-10, plugin-helper.md sections 2.5 and 9.2.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import grpc
from dra_api.resource import ResourceClaim
from dra_kube import Api
from dra_proto.dra.v1 import api_pb2 as v1_pb2
from dra_proto.dra.v1beta1 import api_pb2 as v1beta1_pb2

from dra_kubeletplugin.claims.device_status import fetch_claim
from dra_kubeletplugin.claims.prepared import PreparedClaims
from dra_kubeletplugin.driver import ClaimRef, PreparedDevice, PrepareResults, UnprepareResults, text_of
from dra_kubeletplugin.errors import ClaimError

_PACKAGE = "k8s.io.kubelet.pkg.apis.dra"


_LOCK_RETRY_SECONDS = 0.01
_GRACE_SECONDS = 5.0
_OWN_WORK_SECONDS = 10.0
"""Seconds that a task waits for the work that started it."""
_OWN_WORK_REMEDY = (
    "the driver asked for it within its own work, which would wait for itself: ask when prepare or unprepare has "
    "returned, or return the metadata with the PreparedDevice"
)
_NAMED_CLAIMS = 8
_CALL_SECONDS = 40.0
"""Seconds in which a call of the kubelet is answered. It gives up after 45 s, and would not know why."""
_ARRIVED_SECONDS = 0.1
"""Seconds after which an answer has reached its caller."""
_ANSWER_SECONDS = 5.0
"""Seconds before the kubelet gives up at which it is answered, at most half of the rest of its time."""
_work: ContextVar[asyncio.Task[Any] | None] = ContextVar("work", default=None)
"""The work in whose turn this task was started."""

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class Turns:
    """Runs work one at a time: all of it with ``serialize``, otherwise that on the same claim.

    ``folder`` has the lock files, which extend this to the other instances of the driver.
    """

    def __init__(self, *, serialize: bool, folder: Path | None) -> None:
        self._serialize = serialize
        self._folder = folder
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._deciding = asyncio.Lock()
        self._running: dict[asyncio.Task[Any], tuple[frozenset[str], float]] = {}  # with its claims and its start
        self._begun = 0

    async def run(
        self,
        what: str,
        uids: Collection[str],
        work: Callable[[], Awaitable[Result]],
        *,
        until: float | None = None,
    ) -> Result:
        """The result of ``work`` on these claims (none: on all), which ``what`` describes, done in its turn.

        Cancelled while it waits, this ends. Cancelled later, the work continues to its end, and keeps the turn.
        Raises OSError when the lock file cannot be opened, and ClaimError when it would wait for its own end, or has
        no result ``until`` that time of the loop.
        """
        began = time.monotonic()
        try:
            async with asyncio.timeout_at(until) as waiting:
                turn = await self._turn_beside_own_work(what, uids)
        except TimeoutError:
            if not waiting.expired():
                raise
            raise ClaimError(
                f"{what} has waited {time.monotonic() - began:.0f} s for {self._busy(uids)}; if that does not end, "
                "restart the driver's pod on this node"
            ) from None
        self._begun += 1
        task = asyncio.create_task(_held(turn, work), name=what)
        started = time.monotonic()
        self._running[task] = frozenset(uids), started
        task.add_done_callback(self._running.pop)
        try:
            async with asyncio.timeout_at(until) as working:
                return await asyncio.shield(task)
        except (asyncio.CancelledError, TimeoutError) as error:
            if task.done():
                raise
            log.warning("the call ended, but %s is still at work; the next call waits for it", what)
            task.add_done_callback(lambda task: _tell_end(what, task, time.monotonic() - started))
            if not working.expired():
                raise
            raise ClaimError(
                f"{what} is still at work after {time.monotonic() - started:.0f} s; the next call gets its result. If "
                "that does not end, restart the driver's pod on this node"
            ) from error

    @asynccontextmanager
    async def deciding(self) -> AsyncIterator[int | None]:
        """Within a turn, the moment of deciding who gets a device; of all instances, one decides at a time.

        Gives the number of the turn if no other one runs beside it, neither here nor in another instance, else None.
        Work without waiting while this is held: the others wait for it. Raises OSError when the lock file cannot be
        opened. A process that is killed in it holds nothing any more.
        """
        async with AsyncExitStack() as stack:
            if self._folder and not self._serialize:  # otherwise the turn is alone anyway
                await stack.enter_async_context(self._deciding)
                await _fair_lock(stack, self._folder / "devices.lock", fcntl.LOCK_EX)
            yield self._begun if self._serialize else None

    async def stop(self) -> None:
        """Let running work finish for a short time, then cancel it, and give it as long again."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=_GRACE_SECONDS)
            for task in late:
                log.warning("%s did not end within %.0f s, and is cancelled", task.get_name(), _GRACE_SECONDS)
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=_GRACE_SECONDS)

    def _busy(self, uids: Collection[str]) -> str:
        """Name the work for which work on these claims waits.

        That on other claims may be in the way as well, if one of them has no lock file of its own.
        """
        now = time.monotonic()
        same: list[str] = []
        others: list[str] = []
        for task, (claims, started) in self._running.items():
            is_same = self._serialize or not uids or not claims or not claims.isdisjoint(uids)
            (same if is_same else others).append(f"{task.get_name()}, at work for {now - started:.0f} s")
        return "; ".join(same) or " or ".join(["another instance of the driver", *others])

    async def _turn_beside_own_work(self, what: str, uids: Collection[str]) -> AsyncExitStack:
        """Take the turn. Raises ClaimError if it belongs to the work that asks for it."""
        self.refuse_within_work(what)
        own = _work.get()
        if own is None or own not in self._running:  # finished work has been removed
            return await self._turn(uids)
        turn = asyncio.create_task(self._turn(uids))
        try:
            await asyncio.wait([turn, own], timeout=_OWN_WORK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if turn.done() or own not in self._running:
                return await turn
            seconds = f"{_OWN_WORK_SECONDS:.0f} s"
            raise ClaimError(f"{what} could not begin within {seconds} of {own.get_name()}: {_OWN_WORK_REMEDY}")
        except BaseException:
            turn.cancel()
            for stack in await asyncio.gather(turn, return_exceptions=True):
                if isinstance(stack, AsyncExitStack):  # it was taken at the same moment
                    await stack.aclose()
            raise

    def refuse_within_work(self, what: str) -> None:
        """Raise ClaimError in the work of a turn itself, which would wait for its own end."""
        own = _work.get()
        if own is not None and own in self._running and own is asyncio.current_task():
            raise ClaimError(f"{what} cannot begin during {own.get_name()}: {_OWN_WORK_REMEDY}")

    async def _turn(self, uids: Collection[str]) -> AsyncExitStack:
        alone = self._serialize or not uids
        async with AsyncExitStack() as stack:
            for key in [""] if self._serialize else sorted(set(uids)):  # sorted: two calls cannot wait for each other
                await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
                if self._folder and key and not await _claim_lock(stack, self._folder, key):
                    alone = True
            if self._folder:
                await _fair_lock(stack, self._folder / "serialize.lock", fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            return stack.pop_all()


async def _held(turn: AsyncExitStack, work: Callable[[], Awaitable[Result]]) -> Result:
    _work.set(asyncio.current_task())
    try:
        return await work()
    except asyncio.CancelledError:
        turn.pop_all()  # these stay open until the process ends
        raise
    finally:
        await turn.aclose()


def _tell_end(what: str, task: asyncio.Task[Result], seconds: float) -> None:
    if task.cancelled():
        return  # at the end of the process, which says so itself
    if error := task.exception():
        log.error("%s failed after %.1f s, when its call had ended: %s", what, seconds, error, exc_info=error)
    else:
        log.warning("%s ended after %.1f s; the kubelet's next call gets the result", what, seconds)


async def _fair_lock(stack: AsyncExitStack, path: Path, kind: int) -> None:
    while True:
        async with AsyncExitStack() as queue, AsyncExitStack() as own:
            await _lock(queue, path.with_name(f"{path.name}.queue"))
            if _is_at(await _lock(own, path, kind), path):  # otherwise the folder was removed, and is another one now
                stack.push_async_callback(own.pop_all().aclose)
                return


async def _claim_lock(stack: AsyncExitStack, folder: Path, uid: str) -> bool:
    """Take the lock of a claim until the end of ``stack``; False if there is no room for its file."""
    path = folder / f"claim-{hashlib.sha256(uid.encode()).hexdigest()[:32]}.lock"  # a uid may be no name of a file
    while True:
        async with AsyncExitStack() as own:
            try:
                descriptor = await _lock(own, path)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                    return False
                raise
            if _is_at(descriptor, path):
                own.callback(_removed, path)  # before the lock is released
                stack.push_async_callback(own.pop_all().aclose)
                return True


def _removed(path: Path) -> None:
    """Remove the file of a lock that is held. On a disk that has become read-only it stays, to the next call."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _opened(path: Path) -> int:
    """Open a file to lock it, and make it if it is missing. On a disk that has become read-only it can be locked.

    A folder that was removed is made again: all calls would fail until the plugin is restarted.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        log.error("the folder %s of the lock files was removed; it is made again", path.parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS or not path.exists():
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC, 0o600)


async def _lock(stack: AsyncExitStack, path: Path, kind: int = fcntl.LOCK_EX) -> int:
    """Take the lock on a file until the end of ``stack``; returns its descriptor."""
    descriptor = _opened(path)
    stack.callback(os.close, descriptor)  # which releases the lock
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(_LOCK_RETRY_SECONDS)
        else:
            return descriptor


class NodeCalls:
    """What all versions of the gRPC service do."""

    def __init__(self, prepared: PreparedClaims, api: Api, turns: Turns) -> None:
        self._prepared = prepared
        self._api = api
        self._turns = turns
        self._recording: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()

    async def stop(self) -> None:
        """Record the answers at once, when no more calls come; those behind a call that hangs are left out."""
        self._stopped.set()
        if self._recording:
            _, late = await asyncio.wait(self._recording, timeout=_GRACE_SECONDS)
            for task in late:
                log.warning("%s waits for work that does not end, and is left out", task.get_name())
                task.cancel()

    async def prepare(self, refs: Sequence[ClaimRef], seconds: float = _CALL_SECONDS) -> PrepareResults:
        """The devices of each claim, or its error. Raises ClaimError or KubeError when the whole call fails.

        Fails within ``seconds``, although the work on the claims may go on.
        """
        until = asyncio.get_running_loop().time() + seconds
        claims = await self._fetched(refs, seconds)
        try:
            what = f"prepare of claim {_names(refs)}"
            work = partial(self._prepare, claims)
            results = await self._turns.run(what, [ref.uid for ref in refs], work, until=until)
        except BaseException:
            self._prepared.given_up(ref.uid for ref in refs)
            raise
        self._prepared.answered(results)
        recording = asyncio.create_task(self._record_answers(results), name="record of answers")
        self._recording.add(recording)
        recording.add_done_callback(self._recording.discard)
        return results

    async def _record_answers(self, results: PrepareResults) -> None:
        """Record that the kubelet has these, when it has: if this process is killed before, no container may run."""
        if uids := [uid for uid, result in results.items() if not isinstance(result, Exception)]:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ARRIVED_SECONDS):
                    await self._stopped.wait()
            work = partial(asyncio.to_thread, self._prepared.record_answered, uids)
            try:
                await self._turns.run("record of answers", uids, work)
            except (ClaimError, OSError) as error:
                log.warning("%d claims are answered without recording that: %s", len(uids), error)

    async def _fetched(self, refs: Sequence[ClaimRef], seconds: float) -> list[ResourceClaim]:
        fetching = [asyncio.ensure_future(fetch_claim(self._api, ref)) for ref in refs]
        try:
            async with asyncio.timeout(seconds) as waiting:
                return await asyncio.gather(*fetching)
        except TimeoutError:
            if not waiting.expired():
                raise
            late = _names([ref for ref, task in zip(refs, fetching, strict=True) if task.cancelled()])
            raise ClaimError(
                f"claim {late} cannot be read: the API server has not answered within {seconds:.0f} s; is it reachable "
                "from this node?"
            ) from None
        finally:
            for task in fetching:
                task.cancel()

    async def _prepare(self, claims: Sequence[ResourceClaim]) -> PrepareResults:
        if self._prepared.together and claims:
            return await self._prepared.prepare_all(list(claims))
        return {claim.metadata.uid: await self._prepared.prepare(claim) for claim in claims}

    async def unprepare(self, refs: Sequence[ClaimRef], seconds: float = _CALL_SECONDS) -> UnprepareResults:
        """None or the error for each claim. Raises ClaimError after ``seconds``."""
        until = asyncio.get_running_loop().time() + seconds

        async def work() -> UnprepareResults:
            return {ref.uid: await self._prepared.unprepare(ref) for ref in refs}

        what = f"unprepare of claim {_names(refs)}"
        return await self._turns.run(what, [ref.uid for ref in refs], work, until=until)


@dataclass(frozen=True)
class WireVersion:
    """One version of the service: its name in registrations and on the wire, and its messages."""

    name: str
    service: str
    messages: ModuleType
    has_shares: bool = False


V1 = WireVersion("v1.DRAPlugin", f"{_PACKAGE}.v1.DRAPlugin", v1_pb2, has_shares=True)
V1BETA1 = WireVersion("v1beta1.DRAPlugin", f"{_PACKAGE}.v1beta1.DRAPlugin", v1beta1_pb2)
LEGACY = WireVersion("v1alpha3.NodeService", "v1alpha3.Node", v1beta1_pb2)
"""Of Kubernetes 1.31 and before, with names of its own and the messages of v1beta1 (9.6)."""


class DRAService:
    """Translates between the messages of one version and ``NodeCalls``."""

    def __init__(self, version: WireVersion, calls: NodeCalls) -> None:
        self._version = version
        self._calls = calls

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve this version."""
        methods = {method.__name__: method for method in (self.NodePrepareResources, self.NodeUnprepareResources)}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                method,
                request_deserializer=getattr(self._version.messages, f"{name}Request").FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, method in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self._version.service, handlers),))

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802  # grpc's name
        """Prepare the claims of the request."""
        messages = self._version.messages
        answer = messages.NodePrepareResourcesResponse()
        for uid, result in (await self._calls.prepare(_refs(request), _seconds(context))).items():
            if isinstance(result, Exception):
                answer.claims[uid].error = text_of(result)
            else:
                answer.claims[uid].devices.extend(self._device(device) for device in result)
                answer.claims[uid].SetInParent()
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802  # grpc's name
        """Unprepare the claims of the request."""
        answer = self._version.messages.NodeUnprepareResourcesResponse()
        for uid, error in (await self._calls.unprepare(_refs(request), _seconds(context))).items():
            answer.claims[uid].error = "" if error is None else text_of(error)
        return answer

    def _device(self, device: PreparedDevice) -> Any:
        message = self._version.messages.Device(
            request_names=[name.partition("/")[0] for name in device.requests],
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi_ids,
        )
        if self._version.has_shares and device.share_id is not None:
            message.share_id = device.share_id
        return message


def _names(refs: Sequence[ClaimRef]) -> str:
    """Return the first few: after the names of 1,000 claims an error is cut off before it says what failed."""
    first = ", ".join(map(str, refs[:_NAMED_CLAIMS]))
    return first if len(refs) <= _NAMED_CLAIMS else f"{first} and {len(refs) - _NAMED_CLAIMS} more"


def _seconds(context: Any) -> float:
    """Return the seconds in which a call is to be answered: before its caller gives it up, if that is known."""
    left: float | None = context.time_remaining()
    return _CALL_SECONDS if left is None else min(_CALL_SECONDS, left - min(_ANSWER_SECONDS, left / 2))


def _refs(request: Any) -> list[ClaimRef]:
    return [ClaimRef(claim.namespace, claim.name, claim.uid) for claim in request.claims]
