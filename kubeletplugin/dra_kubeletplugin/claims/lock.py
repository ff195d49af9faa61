"""Whose turn it is to work on claims: within the process, and across overlapping instances of the driver.

A turn belongs to the work, not to the call that asked for it. The kubelet gives up on a call after 45 s, or when the
pod is deleted; what the driver has begun, perhaps in a thread, goes on, and the next call waits for its end. A call
that is given up while it waits for its turn never starts. Work that is cancelled, which happens only when the process
ends, keeps its turn until then: a thread of the driver may still be at work, and another instance must not be told that
it is done.

Across processes the turn is an advisory lock on a file. Waiting polls for it: a blocking ``flock`` would stop the event
loop, and one in a thread could not be given up. The kernel drops the locks of a process that dies.

- One file is for all work, and stays: exclusive with ``serialize`` and for work on all claims, otherwise shared.
  Waiters first take a second file, the queue: only its holder tries to take the lock, so that an instance with many
  calls cannot keep another one out.
- Without ``serialize``, different claims are prepared at once, perhaps by two instances. A third file, with a queue of
  its own, is for the moment in which one of them finds a device free and records that it takes it.
- A claim's own lock is a file that its holder removes. Who gets the lock of a file that was removed meanwhile holds
  nothing, and begins again with the new one. A process that is killed leaves the file to the claim's next call. On a
  disk without room for the file, work on the claim is alone instead.

Work that asks for another turn, as a ``prepare`` that updates the metadata of its claim, would wait for itself. That is
an error at once. A task that the work has started may ask: it waits for the end of the work, unless the work waits for
the task. Nothing tells these two apart, so that after some seconds this is an error as well.

Spec: PH-07, PH-10.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from dra_kubeletplugin.errors import ClaimError

_LOCK_RETRY_SECONDS = 0.01
_GRACE_SECONDS = 5.0
_OWN_WORK_SECONDS = 10.0
"""Seconds that a task waits for the work that started it."""
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
        self._running: set[asyncio.Task[object]] = set()

    async def run(self, what: str, uids: Collection[str], work: Callable[[], Awaitable[Result]]) -> Result:
        """The result of ``work`` on these claims (none: on all), which ``what`` describes, done in its turn.

        Cancelled while it waits, this ends. Cancelled later, the work continues to its end, and keeps the turn.
        Raises OSError when the lock file cannot be opened, and ClaimError when it would wait for its own end.
        """
        turn = await self._turn_beside_own_work(what, uids)
        task = asyncio.create_task(_held(turn, work), name=what)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        started = time.monotonic()
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                log.warning("the call ended, but %s is still at work; the next call waits for it", what)
                task.add_done_callback(lambda task: _tell_end(what, task, time.monotonic() - started))
            raise

    @asynccontextmanager
    async def deciding(self) -> AsyncIterator[None]:
        """Within a turn, the moment of deciding who gets a device; of all instances, one decides at a time.

        Work without waiting while this is held: the others wait for it. Raises OSError when the lock file cannot be
        opened. A process that is killed in it holds nothing any more.
        """
        async with AsyncExitStack() as stack:
            if self._folder and not self._serialize:  # otherwise the turn is alone anyway
                await stack.enter_async_context(self._deciding)
                await _fair_lock(stack, self._folder / "devices.lock", fcntl.LOCK_EX)
            yield

    async def stop(self) -> None:
        """Let running work finish for a short time, then cancel it, and give it as long again."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=_GRACE_SECONDS)
            for task in late:
                log.warning("%s did not end within %.0f s, and is cancelled", task.get_name(), _GRACE_SECONDS)
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=_GRACE_SECONDS)

    async def _turn_beside_own_work(self, what: str, uids: Collection[str]) -> AsyncExitStack:
        """Take the turn. Raises ClaimError if it belongs to the work that asks for it."""
        own = _work.get()
        if own is None or own not in self._running:  # finished work has been removed
            return await self._turn(uids)
        remedy = (
            "the driver asked for it within its own work, which would wait for itself: ask when prepare or unprepare "
            "has returned, or return the metadata with the PreparedDevice"
        )
        if own is asyncio.current_task():
            raise ClaimError(f"{what} cannot begin during {own.get_name()}: {remedy}")
        turn = asyncio.create_task(self._turn(uids))
        try:
            await asyncio.wait([turn, own], timeout=_OWN_WORK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if turn.done() or own not in self._running:
                return await turn
            seconds = f"{_OWN_WORK_SECONDS:.0f} s"
            raise ClaimError(f"{what} could not begin within {seconds} of {own.get_name()}: {remedy}")
        except BaseException:
            turn.cancel()
            for stack in await asyncio.gather(turn, return_exceptions=True):
                if isinstance(stack, AsyncExitStack):  # it was taken at the same moment
                    await stack.aclose()
            raise

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
    async with AsyncExitStack() as queue:
        await _lock(queue, path.with_name(f"{path.name}.queue"))
        await _lock(stack, path, kind)


async def _claim_lock(stack: AsyncExitStack, folder: Path, uid: str) -> bool:
    """Take the lock of a claim until the end of ``stack``; False if there is no room for its file."""
    path = folder / f"claim-{hashlib.sha256(uid.encode()).hexdigest()[:32]}.lock"  # a uid may be no name of a file
    while True:
        async with AsyncExitStack() as own:
            try:
                descriptor = await _lock(own, path)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    return False
                raise
            if _is_at(descriptor, path):
                own.callback(path.unlink, missing_ok=True)  # before the lock is released
                stack.push_async_callback(own.pop_all().aclose)
                return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


async def _lock(stack: AsyncExitStack, path: Path, kind: int = fcntl.LOCK_EX) -> int:
    """Take the lock on a file until the end of ``stack``; returns its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    stack.callback(os.close, descriptor)  # which releases the lock
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(_LOCK_RETRY_SECONDS)
        else:
            return descriptor
