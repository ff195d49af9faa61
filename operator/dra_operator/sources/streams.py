"""Whether Kopf still hears of each kind, judged by its HTTP traffic (``tracing`` reports it).

Kopf lists a kind and then watches it. Signs of life are answers to either request and every byte of a watch: events,
and the bookmarks that an idle server sends each minute. After 70 seconds without any, Kopf connects again. So a watch
that is silent for much longer, or a long gap between two watches, means that changes go unseen.

This answers three questions. Is the cache fresh (``problems``)? If not, readiness says so and names the reason. Is Kopf
working at all (``idle``)? Whatever the server answers, Kopf tries again within seconds. If it asks nothing and has
nothing open, its tasks have ended, and only a new Kopf helps. And may changes of a kind be going unseen right now
(``sees``)? That takes no time limit: no watch is open before the first one begins and after one ended, and when one
begins the events since the last list are on their way for a moment. A watch that stays open and brings nothing is not
found out by that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dra_kube import Resource


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits, in seconds."""

    silence: float = 90.0
    """An open watch is silent: Kopf itself would have connected again after 70."""
    gap: float = 10.0
    """A kind is not watched: a reconnection takes less."""
    idle: float = 20.0
    """Kopf does not ask: it waits at most 10 between two attempts."""
    start: float = 60.0
    """Kopf does not begin to ask."""
    failing: float = 300.0
    """Kopf was started repeatedly and never delivered: the process is not alive."""


CATCH_UP_SECONDS = 0.5
"""Seconds from the beginning of a watch until the events that were missed have come."""
Listener = Callable[[Resource], None]
"""Called when a watch of the kind begins, or its resourceVersion is refused: something may have been missed."""


class Stream:
    """What is known about the list and watch of one kind."""

    def __init__(self, path: str, now: float, limits: Limits) -> None:
        self.path, self._limits = path, limits
        self.life = now
        """The last sign of life."""
        self._open_since = math.inf
        """When the watch began that follows on a break, or on the start."""
        self.begin(now)

    def begin(self, now: float) -> None:
        """A new Kopf starts."""
        self._begun = now
        self.watch: object | None = None
        """The watch that is open: Kopf has one at a time."""
        self.is_watched = False
        """In this run of Kopf, at any time."""
        self.was_asked = False
        self.due = now + self._limits.start
        """If Kopf does nothing before this time, it has stopped working."""
        self.refusal = ""
        self.wrong_answers = 0
        """How many watches in a row brought what is no event."""

    def asked(self, now: float) -> None:
        """A request goes out; Kopf gets an answer in time, or gives it up."""
        self.was_asked = True
        self.due = max(self.due, now + self._limits.silence)

    def listed(self, now: float) -> None:
        """A list, or a page of one, comes in; what was watched before is over."""
        self.life, self.refusal = now, ""
        self.due = now + self._limits.silence
        self.watch = None

    def watched(self, now: float, watch: object) -> None:
        """A watch was granted."""
        self.life, self.refusal = now, ""
        self.due = now + self._limits.silence
        if self.watch is None:
            self._open_since = now
        self.watch, self.is_watched = watch, True

    def received(self, now: float) -> None:
        """Something came in: an event, a bookmark, a list."""
        self.life = now
        self.due = now + self._limits.silence if self.watch else now + self._limits.idle

    def refused(self, now: float, reason: str, retry_after: float = 0.0) -> None:
        """A request was refused or broke off; Kopf will try again, after ``retry_after`` if the server asks for it."""
        self.refusal = reason
        self.due = now + self._limits.idle + retry_after

    def ended(self, now: float, watch: object) -> None:
        """The watch ended; ignored if another one has replaced it."""
        if self.watch is watch:
            self.watch, self.life, self.due = None, now, now + self._limits.idle

    def is_unseen(self, now: float) -> bool:
        """Whether there was no sign of life for longer than a start or a reconnection takes."""
        return self.problem(now) is not None and now - max(self.life, self._begun) > self._limits.gap

    def is_broken(self, now: float) -> bool:
        """Whether no watch is open, or the one that is has not caught up yet.

        Before the first watch the pods of another scheduler come unseen, in the very second in which a new leader
        places all pods that waited for it.
        """
        return self.watch is None or now - self._open_since < CATCH_UP_SECONDS

    def problem(self, now: float) -> str | None:
        """Why changes of the kind go unseen; None if they are seen."""
        because = f": {self.refusal}" if self.refusal else ""
        silent = now - self.life
        if not self.is_watched:
            return f"not watched yet{because}"
        if silent <= (self._limits.silence if self.watch else self._limits.gap):
            return None
        return f"{'silent' if self.watch else 'not watched'} for {silent:.0f} s{because}"


class Streams:
    """The streams of all kinds that should be watched."""

    def __init__(self, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or Limits()
        self.clock = clock
        self._streams: dict[Resource, Stream] = {}
        self._loaded: dict[Resource, str] = {}
        self.listeners: list[Listener] = []

    def expect(self, resource: Resource, version: str) -> None:
        """From now on this kind should be watched, in this version; what is known about it in another one stays."""
        path = resource.path(version, None, None)
        self._streams.setdefault(resource, Stream(path, self.clock(), self.limits)).path = path

    def loaded(self, resource: Resource, version: str) -> None:
        """The cache has the kind as of a list of this resourceVersion, from where it can be watched."""
        self._loaded[resource] = version

    def take_loaded(self, resource: Resource) -> str:
        """Return that version, once: later the server may not keep what happened since; empty if there is none."""
        return self._loaded.pop(resource, "")

    def clear(self) -> None:
        """No kind is to be watched any more."""
        self._streams.clear()
        self._loaded.clear()

    def begin(self) -> None:
        """A new Kopf starts: it has to list and watch every kind again."""
        for stream in self._streams.values():
            stream.begin(self.clock())

    def of_path(self, path: str) -> Iterator[tuple[Resource, Stream]]:
        """The stream that a request belongs to, if it lists or watches one of the kinds."""
        return ((resource, stream) for resource, stream in self._streams.items() if path.endswith(stream.path))

    def busy(self) -> None:
        """Kopf makes another request, such as discovery: it will ask for the kinds later."""
        for stream in self._streams.values():
            if not stream.was_asked:
                stream.due = self.clock() + self.limits.start

    def interrupted(self, resource: Resource) -> None:
        """A watch of the kind begins, or cannot continue from where it was."""
        for listener in self.listeners:
            listener(resource)

    def sees(self, resource: Resource) -> bool:
        """Whether no change of the kind goes unseen for a reason that is known. None is seen that is not expected."""
        stream = self._streams.get(resource)
        return stream is not None and not stream.is_broken(self.clock())

    def states(self) -> list[tuple[Resource, str | None]]:
        """Each kind, and why its changes go unseen; None if they are seen."""
        now = self.clock()
        return [(resource, stream.problem(now)) for resource, stream in self._streams.items()]

    def problems(self) -> list[str]:
        """One line per kind whose changes go unseen."""
        return [f"{resource}: {problem}" for resource, problem in self.states() if problem is not None]

    def unseen(self) -> dict[Resource, tuple[str, str]]:
        """The kinds whose changes go unseen for longer than usual: the last refusal, and the problem as a whole."""
        now, unfound = self.clock(), self.unfound()
        return {
            resource: (stream.refusal, stream.problem(now) or "")
            for resource, stream in self._streams.items()
            if stream.is_unseen(now) and resource not in unfound
        }

    def refusals(self) -> list[str]:
        """One line per kind whose last request failed."""
        return [f"{resource}: {stream.refusal}" for resource, stream in self._streams.items() if stream.refusal]

    def idle(self) -> list[str]:
        """The kinds on which Kopf no longer works."""
        now, unfound = self.clock(), self.unfound()
        late = [resource for resource, stream in self._streams.items() if now > stream.due]
        return [str(resource) for resource in late if resource not in unfound]

    def unfound(self) -> list[Resource]:
        """The kinds that the server did not serve when Kopf looked: it asks for the others, all at once."""
        asked = [stream.was_asked for stream in self._streams.values()]
        return [resource for resource, stream in self._streams.items() if any(asked) and not stream.was_asked]

    def ages(self) -> Iterable[tuple[str, float]]:
        """Seconds since the last sign of life of each kind."""
        now = self.clock()
        return [(str(resource), now - stream.life) for resource, stream in self._streams.items()]
