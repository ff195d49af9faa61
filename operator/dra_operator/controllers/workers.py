"""Who takes keys from the queues: several workers on most, and the dispatcher on that of pods to be placed.

*Workers.* Each takes a key, hands it to the controller, and reports back. After any error of a controller the key comes
back after its back-off and the worker takes the next one, so that an object that cannot be handled does not delay
others. Many keys need nothing but a look, which waits for nothing. So a worker pauses after ``WORK_STRETCH_SECONDS`` of
such keys, divided among the workers: ten thousand keys at once do not keep the event loop from other work.

*Dispatcher.* One decision at a time, in the queue's order; what the decisions call for is carried out concurrently. A
decision is quick and a write is slow, so the dispatcher decides on one key, leaves the writes to a task, and takes the
next key. Decisions never overlap: each sees what the one before has taken. The number of workers bounds the tasks, and
with them how far decisions run ahead of the writes. Decisions follow each other without a pause for
``DISPATCH_STRETCH_SECONDS``: with ten thousand pods of which most cannot be decided yet, a pause after each would be
long. Then the event loop has as much time, if it has that much to do. One turn of it would not be enough: Kopf takes
three for each new object, so that a pod would be heard of 15 s after a thousand others.

A decision that takes too long is postponed (``Postponed``): every shorter one goes first, and before it continues the
dispatcher pauses for as long as the last piece took, so that hard problems get at most half of the time. A key whose
decision took ``spent`` seconds then rests for ``rest`` times as long, whatever happens. What a decision takes is
charged to its namespace, and namespaces share the time before pods do (``fairness``).

Of a thousand pods that a freed device, or the room of a pod, may help the first one takes it. The keys of the others
are weak, and ``is_vain`` says of each at its turn that a decision would be in vain: one look instead of an attempt.

*Failures* are counted and logged, and the key is retried after its back-off. A server that asks for a pause
(Retry-After) gets it, and so does an attempt that gave claims up once more. A failure is a warning if its words are new
for the key. The same words again, and what passes by itself, are shown with ``-v`` only. So are writes that are held
back because another process may lead: the leader election logs that once.

*Log lines.* An attempt is one piece of work on a key, from the first look at a pod or claim to the last write that
follows. All its lines have the same id, including those of its requests, so that one ``grep`` shows its story::

    claim allocated claim=default/gpu pod=default/train node=n1 devices=gpu.example.com/n1/dev-0 attempt=5e1c-2f
    pod bound pod=default/train node=n1 attempt=5e1c-2f

A line that is switched off costs one look at the logger's level. A field that costs something to make is given as a
function, which is called when the line is written.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from enum import StrEnum
from typing import Final, NamedTuple

from dra_api.resource import AllocationResult
from dra_kube import (
    ApiError,
    Conflict,
    KubeError,
    NotLeading,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    gist,
)
from dra_kube.spans import Root, begin
from msgspec import json
from prometheus_client import CollectorRegistry, Counter

from dra_operator.allocator import DeviceId
from dra_operator.cache import Key
from dra_operator.controllers.errors import (
    BindingFailed,
    BindingRefused,
    BoundElsewhere,
    ControllerError,
    PlacementFailed,
    PodVanished,
)
from dra_operator.controllers.queue import PASSING_SECONDS, WorkQueue
from dra_operator.controllers.settings import TimeSettings, TimeSlices

_PROCESS = secrets.token_hex(2)  # distinguishes the attempts of one process from those of the next
_PLAIN = re.compile(r"[!#-<>-~]+").fullmatch  # printable ASCII without blanks, quotes and equal signs
_numbers = itertools.count(1)
_attempt: ContextVar[str] = ContextVar("attempt", default="")


def new_attempt() -> str:
    return f"{_PROCESS}-{next(_numbers):x}"


def enter_attempt(attempt: str) -> None:
    """From here on, log lines of this task and of tasks that it starts belong to the attempt."""
    _attempt.set(attempt)


_OBJECTS: Final = ("pod", "claim", "object", "group", "workload")
"""Fields that name an object of a namespace."""


class LogLine:
    """The message of a log record: what happened, in words that never change, and to what, in fields."""

    __slots__ = ("_fields", "what")

    def __init__(self, what: str, fields: Mapping[str, object]) -> None:
        self.what, self._fields = what, fields

    @property
    def namespace(self) -> str:
        """The namespace of the object that the line is about; empty if it is about none."""
        return self.about.rpartition("/")[0]

    @property
    def about(self) -> str:
        """The key of the object that the line is about; empty if it is about none."""
        return next((it for name in _OBJECTS if isinstance(it := self._fields.get(name), str)), "")

    def with_(self, **fields: object) -> LogLine:
        return LogLine(self.what, {**self._fields, **fields})

    def fields(self) -> dict[str, object]:
        """Return the fields, each made if it is given as a function."""
        return {name: value() if callable(value) else value for name, value in self._fields.items()}

    def __str__(self) -> str:
        text = self.what
        for name, value in self._fields.items():
            text += f" {name}={_text(value() if callable(value) else value)}"
        return text


def tell(logger: logging.Logger, level: int, what: str, **fields: object) -> None:
    """Log one line of the current attempt. With level ERROR the traceback of a field ``error`` follows."""
    if not logger.isEnabledFor(level):
        return
    if attempt := _attempt.get():
        fields["attempt"] = attempt
    error = fields.get("error")
    trace = None
    if level >= logging.ERROR and isinstance(error, BaseException):
        trace = type(error), error, error.__traceback__
    # Not by ``logger.log``: it searches the stack for the caller, which costs as much as all the rest.
    logger.handle(logging.LogRecord(logger.name, level, __file__, 0, LogLine(what, fields), (), trace))


def devices_in(allocation: AllocationResult | None) -> list[str]:
    """Return the devices of an allocation, as driver/pool/device."""
    return [str(DeviceId.of(result)) for result in allocation.results] if allocation is not None else []


def _text(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if _PLAIN(text) else json.encode(text).decode()


logger = logging.getLogger(__name__)

PASSING = (
    *(Unreachable, ServerError, TooManyRequests, Unauthorized, Conflict, NotLeading),
    *(PlacementFailed, BindingFailed),
)
"""Errors after which the same attempt may succeed a moment later."""


class Failures:
    """Reports the end of each piece of work to its queue."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._errors = Counter(
            "dra_operator_reconcile_errors",
            "Pieces of work that failed and are tried again; unexpected ones are bugs and leave a trace in the log",
            ["controller", "kind"],
            registry=registry,
        )
        self._told: dict[Key, str] = {}
        """What the last warning about a key said, in the words that stay the same; until the key is handled."""

    def report(
        self, queue: WorkQueue, key: Key, error: Exception | None, rest: float = 0.0, *, is_over: bool = True
    ) -> None:
        """Note that a piece of work ended. ``rest``: seconds until the key may be looked at again, whatever happens.

        ``is_over``: see ``WorkQueue.done``.
        """
        if error is None:
            if is_over:
                self._told.pop(key, None)
            queue.done(key, rest, is_over=is_over)
            return
        # A server that asks for a pause knows better than the back-off; a decision that took long rests as if it had
        # succeeded.
        seconds = queue.retry(key, max(rest, pause_asked_for(error)), _longest_wait(error))
        is_expected = isinstance(error, KubeError | ControllerError)
        self._errors.labels(key.controller, "expected" if is_expected else "unexpected").inc()
        fields = {"controller": key.controller, "object": key.object, "again_in": f"{seconds:.3g}s"}
        if not is_expected:
            tell(logger, logging.ERROR, "failed unexpectedly", error=error, **fields)
        else:
            level = logging.WARNING if self._is_news(key, error) else logging.DEBUG
            tell(logger, level, "failed", error=error, **fields)

    def _is_news(self, key: Key, error: Exception) -> bool:
        # They are part of ordinary life beside other writers: the next attempt succeeds, and nobody has to do anything.
        passes = isinstance(error, Conflict | PlacementFailed | BoundElsewhere | PodVanished)
        if passes or is_held_back(error) or self._told.get(key) == (words := _lasting_words(error)):
            return False
        self._told[key] = words
        return True


def _lasting_words(error: BaseException) -> str:
    """Return what is the same when the error comes again.

    A server that fails may name another port or request each time. Who refuses counts something: a quota, for example.
    """
    text = str(error)
    fails = any(isinstance(one, Unreachable | ServerError | TooManyRequests) for one in _causes(error))
    return gist(text) if fails else text


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, and the errors that caused it."""
    while error is not None:
        yield error
        error = error.__cause__


def _longest_wait(error: BaseException) -> float:
    """Return the longest back-off after the error: short, unless the server refuses for good."""
    # A refused binding is a failed one, which passes; but only a person can change what refuses.
    passes = any(isinstance(one, PASSING) for one in _causes(error)) and not isinstance(error, BindingRefused)
    return PASSING_SECONDS if passes else math.inf


def is_held_back(error: BaseException) -> bool:
    """Return whether a write was held back since another process may lead. Readiness and the leader's log say so."""
    return any(isinstance(one, NotLeading) for one in _causes(error))


def pause_asked_for(error: BaseException) -> float:
    """Return the seconds that the error asks for, or that the server asked for in one that caused it."""
    if isinstance(error, PlacementFailed) and error.pause:
        return error.pause
    pauses = (one.retry_after for one in _causes(error) if isinstance(one, ApiError) and one.retry_after)
    return next(pauses, 0.0)


WORK_STRETCH_SECONDS = 0.005  # seconds

Handler = Callable[[str], Awaitable[None]]


class Workers:
    """``run`` works until cancelled; ``after`` is called after every handled key; ``started`` is set when all workers
    run."""

    def __init__(
        self, queue: WorkQueue, handle: Handler, count: int, failures: Failures, after: Callable[[], None]
    ) -> None:
        self._queue, self._handle, self._count = queue, handle, count
        self._failures, self._after = failures, after
        self.started = asyncio.Event()

    async def run(self) -> None:
        """Start all workers; ends only by cancellation."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._count):
                group.create_task(self._work(), name=f"worker {number}")
            self.started.set()

    async def _work(self) -> None:
        resumed = time.perf_counter()
        while True:
            # The seconds of waiting for a key are none of work: they must not count as a stretch.
            had_to_wait = not self._queue.depth
            key = await self._queue.get()
            if had_to_wait:
                resumed = time.perf_counter()
            enter_attempt(new_attempt())
            try:
                await self._handle(key.object)
            except Exception as error:  # a bug in one piece of work must not stop the worker
                # Here, where the error ends: it has the frames of the work, which may have read a claim of a megabyte.
                self._failures.report(self._queue, key, error)
            else:
                self._failures.report(self._queue, key, None)
            self._after()
            if time.perf_counter() - resumed > WORK_STRETCH_SECONDS / self._count:
                await asyncio.sleep(0)  # with no key in hand: a pause changes the order of no two
                resumed = time.perf_counter()


DISPATCH_STRETCH_SECONDS = 0.005  # seconds
CHEAP_FACTOR = 0.1  # a decision of up to this part of a turn is not charged to the namespace
IDLE_TURN_SECONDS = 0.00001  # seconds; a turn of the event loop in which no other task did anything takes less


class AttemptResult(StrEnum):
    """How an attempt ended, in the words of kube-scheduler's metrics."""

    SCHEDULED = "scheduled"
    UNSCHEDULABLE = "unschedulable"
    ERROR = "error"


FollowUp = Callable[[], Awaitable[AttemptResult | None]]
"""Returns how the attempt ended, or None if it continues another time."""


class Decided(NamedTuple):
    """The end of a decision: what to carry out, and the seconds that it took to search.

    ``clears_up``: this only clears up what an earlier failure left, and does not end its back-off. Otherwise a write
    that the server never answers would be repeated without a pause. ``waits_for``: why nothing is done for a pod that
    is put off, as a clause about the pod; it says so itself when that lasts.
    """

    follow_up: FollowUp | None = None
    spent: float = 0.0
    clears_up: bool = False
    waits_for: str = ""


NOTHING = Decided()


class Postponed(NamedTuple):
    """The decision continues later; ``spent`` are its seconds so far. ``note``: what to tell people meanwhile."""

    spent: float
    note: Callable[[], Awaitable[None]] | None = None


class _Begun(NamedTuple):
    """An attempt: its id, when it began, its span, and the seconds of search that were charged."""

    attempt: str
    at: float
    trace: Root
    charged: float = 0.0


def rest_after(slices: TimeSlices, spent: float) -> float:
    """Return how long a key is left alone after so many seconds of search; not at all when they were one turn at
    most."""
    # Cheap decisions do not rest: a pod that a change may help is tried at once.
    return spent * slices.rest if spent > slices.turn else 0.0


def level_after(slices: TimeSlices, spent: float) -> int:
    """Return the place in the queue of a decision that continues later: what took longer comes later."""
    # Never level 0: a decision that was postponed comes after all that have not begun.
    return max(1, int(spent / slices.turn))


async def _turns_of_others() -> None:
    """Let the others on the event loop do what they have to, for as long as decisions took at most."""
    before, end = 0.0, time.perf_counter() + DISPATCH_STRETCH_SECONDS
    now = end - DISPATCH_STRETCH_SECONDS
    while now < end and now - before >= IDLE_TURN_SECONDS:
        before = now
        await asyncio.sleep(0)
        now = time.perf_counter()


class Dispatcher:
    """``run`` works until cancelled; ``after`` is called after every decision and every follow-up.

    ``is_vain`` is asked about weak keys only.
    """

    def __init__(
        self,
        queue: WorkQueue,
        decide: Callable[[str], Awaitable[Decided | Postponed]],
        times: TimeSettings,
        failures: Failures,
        after: Callable[[], None],
        ended: Callable[[AttemptResult, float], None],
        is_vain: Callable[[str], bool],
    ) -> None:
        self._queue, self._decide, self._time_slices, self._is_vain = queue, decide, times.time_slices, is_vain
        self._failures, self._after, self._ended = failures, after, ended
        """``ended`` gets each attempt's end, and its seconds from the first decision to the last write."""
        self._slots = asyncio.Semaphore(times.workers["placement"])
        self._postponed: dict[Key, _Begun] = {}
        self._paused_at = -math.inf
        self.started = asyncio.Event()

    async def run(self) -> None:
        """Decide for ever; ends only by cancellation, and ends what is being carried out."""
        async with asyncio.TaskGroup() as group:
            self.started.set()
            while True:
                # The slot comes before the key: which pod is next is decided when it can be served, not while it waits.
                await self._slots.acquire()
                key = await self._queue.get()
                await self._pause(key)
                # Only freed devices or room led to the pod, and others may have them by now: an attempt would fail.
                if self._queue.is_weak(key) and self._is_vain(key.object):
                    self._slots.release()
                    self._queue.fairness.looked_at(key, 0.0, 0.0)
                    self._queue.done(key, is_over=False)
                    continue
                begun = self._postponed.pop(key, None)
                if begun is None:
                    attempt = new_attempt()
                    begun = _Begun(attempt, time.perf_counter(), begin("attempt", pod=key.object, attempt=attempt))
                # Log lines and spans of all pieces of an attempt have its id, however many others run in between.
                enter_attempt(begun.attempt)
                began, used_before = time.perf_counter(), time.thread_time()
                try:
                    with begun.trace.within():
                        decided = await self._decide(key.object)
                except Exception as error:
                    self._queue.fairness.looked_at(key, time.perf_counter() - began, time.thread_time() - used_before)
                    self._finish(key, begun, error)
                    continue
                seconds, use = time.perf_counter() - began, time.thread_time() - used_before
                is_much = self._queue.fairness.looked_at(key, seconds, use)
                self._charge(key, begun, decided, is_much=is_much)
                if isinstance(decided, Postponed):
                    # No write is under way for it, so it must not keep a worker from keys with writes.
                    self._slots.release()
                    self._postponed[key] = begun._replace(charged=decided.spent)
                    if decided.note is not None:
                        # Beside the next decisions: a slow server must not stop planning.
                        group.create_task(self._tell(key, decided.note()), name=f"note about {key}")
                    self._queue.postpone(key, level_after(self._time_slices, decided.spent))
                elif decided.follow_up is None:
                    self._finish(key, begun, None, decided)
                else:
                    # The key stays with its worker until the writes are over, so no other decision about the pod comes
                    # between.
                    group.create_task(self._follow_up(key, begun, decided, decided.follow_up()), name=str(key))
                self._after()

    def _charge(self, key: Key, begun: _Begun, decided: Decided | Postponed, *, is_much: bool) -> None:
        # Charged before the key goes back: the debt decides about its namespace's next turn.
        # The last piece only; a plan made anew begins with 0 seconds. Cheap decisions make no debt, unless a namespace
        # has had much of a round: priorities and the use of namespaces decide who is next.
        piece = decided.spent - begun.charged if decided.spent >= begun.charged else decided.spent
        if is_much or piece > self._time_slices.turn * CHEAP_FACTOR:
            self._queue.fairness.charge(key, piece)

    async def _tell(self, key: Key, note: Awaitable[None]) -> None:
        """Write a note. One that cannot be written is not worth another try: the end of the attempt tells more."""
        try:
            await note
        except (KubeError, ControllerError) as error:
            logger.debug("%s: cannot record why it waits: %s", key, error)

    async def _pause(self, key: Key) -> None:
        # Planning in pieces gets at most half of the time: others have as much between two pieces.
        if key in self._postponed:
            await asyncio.sleep(self._time_slices.turn)
        # Between two stretches and not after each decision: with ten thousand pods that cannot be decided, pauses would
        # add up.
        elif time.perf_counter() - self._paused_at >= DISPATCH_STRETCH_SECONDS:
            await _turns_of_others()
        else:
            return
        # After the pause: how long others took is not part of the next stretch.
        self._paused_at = time.perf_counter()

    async def _follow_up(
        self, key: Key, begun: _Begun, decided: Decided, work: Awaitable[AttemptResult | None]
    ) -> None:
        try:
            with begun.trace.within():
                result = await work
        except Exception as error:
            self._finish(key, begun, error, decided)
        else:
            self._finish(key, begun, None, decided, result)
        self._after()

    def _finish(
        self,
        key: Key,
        begun: _Begun,
        error: Exception | None,
        decided: Decided = NOTHING,
        result: AttemptResult | None = None,
    ) -> None:
        self._slots.release()
        begun.trace.end(error)
        result = result if error is None else AttemptResult.ERROR
        if result is not None:
            self._ended(result, time.perf_counter() - begun.at)
        # Also after a failure: a hard pod that fails must not come back before a hard pod that does not.
        rest = rest_after(self._time_slices, decided.spent)
        self._failures.report(self._queue, key, error, rest, is_over=not decided.clears_up)
