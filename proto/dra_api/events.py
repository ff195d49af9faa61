"""core/v1 Event: what a component says of an object, as far as people are shown it."""

from __future__ import annotations

from .meta import Object, Part


class ObjectReference(Part, frozen=True):
    """The object that an event is about."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class Event(Object, frozen=True):
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def when(self) -> str:
        """When it last happened, as an RFC 3339 text; empty if the event does not say."""
        return self.last_timestamp or self.event_time or self.metadata.creation_timestamp or ""
