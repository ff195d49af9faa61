"""One run of Kopf, inside a process that outlives it.

Kopf is written to own its process. Three of its habits must not affect ours:

* it names itself after the user, and a container's uid has no passwd entry: ``identity`` names it here;
* when it ends, it cancels every younger task of the loop: ``_NotKopfs`` hides ours from it;
* while it runs, it handles signals itself: in ``spawned`` we take them back.

It leaves two kinds of tasks alone that it should end:

* When one watcher fails, the others run on while Kopf closes their connection, and try it again and again.
  ``_end_watchers`` ends them first.
* A watcher that is cancelled between two events leaves its pause waiter, for which Kopf then waits for seconds. ``end``
  ends that.

In another order, workers that were not started yet are dropped (``coroutine 'worker' was never awaited``), and a
callback of Kopf fails that cancels a request when its pause waiter ends.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, cast

import kopf

KOPF_END_SECONDS = 3.0  # seconds that Kopf has to end when it is asked to, and again after each cancellation
CANCELLATIONS = 3

_WATCHERS, _PAUSE_WAITERS = "watcher for ", "pause-waiter for "
"""How the names of these tasks of Kopf begin."""
_KOPF = str(Path(kopf.__file__).parent)
Task = asyncio.Task[Any]


class KopfStuck(Exception):
    """Kopf does not end, and a second one must not run beside it; the process must be restarted."""


def identity() -> str:
    """A name for this process that needs no user: that of the pod, which Kubernetes puts into HOSTNAME."""
    return os.environ.get("HOSTNAME") or f"dra-operator-{uuid.uuid4()}"


class KopfRun:
    """Runs from its making, inside a running loop, until ``end`` is called, or a task of Kopf ends by itself.

    Then Kopf tries to end the others, and sometimes waits for them forever (after an HTTP 410, for example). So
    ``ended`` looks at the tasks, not at Kopf as a whole. It calls ``spawned`` when Kopf has begun.
    """

    def __init__(self, registry: kopf.OperatorRegistry, spawned: Callable[[], None]) -> None:
        self._stop = asyncio.Event()
        self._has_begun = asyncio.Event()
        self._roots: list[Task] = []
        self._task: Task = asyncio.create_task(self._run(registry, spawned), name="Kopf")

    async def _run(self, registry: kopf.OperatorRegistry, spawned: Callable[[], None]) -> None:
        try:
            self._roots += await kopf.spawn_tasks(
                registry=registry,
                identity=cast(Any, identity()),  # a NewType that Kopf does not export
                clusterwide=True,
                standalone=True,
                stop_flag=self._stop,
            )
            for root in self._roots:
                root.add_done_callback(_end_watchers)
            spawned()
        finally:
            self._has_begun.set()
        await kopf.run_tasks(self._roots, ignored=_NotKopfs())

    async def ended(self) -> str:
        """Wait until Kopf ends by itself; returns why."""
        await self._has_begun.wait()
        done, _ = await asyncio.wait((self._task, *self._roots), return_when=asyncio.FIRST_COMPLETED)
        errors = [error for task in done if not task.cancelled() and (error := task.exception()) is not None]
        return f"Kopf ended with {errors[0]!r}" if errors else "Kopf ended"

    async def end(self) -> None:
        """End Kopf, first by its flag, because a cancelled Kopf leaves connections open. Raises KopfStuck."""
        self._stop.set()
        await _cancelled(_tasks_of_kopf(_WATCHERS))
        for waiter in _tasks_of_kopf(_PAUSE_WAITERS):
            _cancel(waiter)
        await asyncio.wait((self._task,), timeout=KOPF_END_SECONDS)
        for _ in range(CANCELLATIONS):
            await _cancelled(_tasks_of_kopf() | {task for task in (self._task,) if not task.done()})
        for task in (self._task, *self._roots):
            if not task.done():
                raise KopfStuck("Kopf does not end: restart the process")
            if not task.cancelled():
                task.exception()  # Kopf logged it; retrieved, so that asyncio does not complain


class _NotKopfs(Collection[Task]):
    """All tasks except those that run code of Kopf: Kopf must not cancel them when it cleans up."""

    def __contains__(self, task: object) -> bool:
        return not (isinstance(task, asyncio.Task) and _is_kopfs(task))

    def __iter__(self) -> Iterator[Task]:
        return (task for task in asyncio.all_tasks() if task in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _end_watchers(_: Task) -> None:
    for watcher in _tasks_of_kopf(_WATCHERS):
        _cancel(watcher)


def _cancel(task: Task) -> None:
    """Cancel it once it has begun; before, what Kopf lets it guard would be dropped: ``watcher was never awaited``."""
    if inspect.getcoroutinestate(cast(Any, task.get_coro())) == inspect.CORO_CREATED:
        asyncio.get_running_loop().call_soon(task.cancel)
    else:
        task.cancel()


async def _cancelled(tasks: set[Task]) -> None:
    """Cancel the tasks, and give them time to end."""
    for task in tasks:
        _cancel(task)
    if tasks:
        await asyncio.wait(tasks, timeout=KOPF_END_SECONDS)


def _tasks_of_kopf(prefix: str = "") -> set[Task]:
    return {task for task in asyncio.all_tasks() if _is_kopfs(task) and task.get_name().startswith(prefix)}


def _is_kopfs(task: Task) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith(_KOPF)
