"""What may happen to an event of a watch: value objects that alter it on its way."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import orjson

from .answer import status
from .fault import Span
from .target import Target


@dataclass(slots=True)
class Event:
    """What the client gets for one line of the server: lines after a delay, and perhaps the stream's end."""

    lines: list[bytes] = field(default_factory=list)
    delay: float = 0.0
    ends: bool = False
    """The stream ends properly after the lines."""
    breaks: bool = False
    """The connection is closed in the middle of things after the lines."""


@dataclass(frozen=True, slots=True)
class EventFault:
    """A fault of watches; name and resource of ``on`` are those of the event's object.

    It strikes with ``probability``, not the first ``skip`` times, at most ``count`` times.
    """

    on: Target
    probability: float = 1.0
    skip: int = 0
    count: int | None = None

    def alter(self, event: Event, generator: random.Random) -> None:
        """Change what the client gets."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayEvents(EventFault):
    """The event comes late, and so do all that follow it: a stream keeps its order."""

    seconds: Span

    def alter(self, event: Event, generator: random.Random) -> None:
        event.delay += generator.uniform(*self.seconds)


@dataclass(frozen=True, slots=True)
class DropEvents(EventFault):
    """The event never comes, the stream stays open; also bookmarks, so that the stream looks dead."""

    def alter(self, event: Event, generator: random.Random) -> None:
        event.lines.clear()


@dataclass(frozen=True, slots=True)
class DoubleEvents(EventFault):
    """The event comes twice."""

    def alter(self, event: Event, generator: random.Random) -> None:
        event.lines *= 2


@dataclass(frozen=True, slots=True)
class BreakStream(EventFault):
    """The connection breaks instead of bringing the event."""

    def alter(self, event: Event, generator: random.Random) -> None:
        event.lines.clear()
        event.breaks = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent(EventFault):
    """An ERROR event comes instead of the event, and ends the stream."""

    code: int

    def alter(self, event: Event, generator: random.Random) -> None:
        event.lines[:] = [b'{"type":"ERROR","object":%s}\n' % orjson.dumps(status(self.code))]
        event.ends = True
