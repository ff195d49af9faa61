"""What Kopf feeds: the operator, as its handlers see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dra_kube import Connection, Observe, Resource

from .known import News
from .streams import Streams


class Fed(Protocol):
    """``app.operator.Operator`` is one. It outlives Kopf, unless Kopf starts it."""

    streams: Streams

    @property
    def requests(self) -> Observe:
        """Called for each request to the API server."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether the controllers are at work."""
        ...

    @property
    def served(self) -> Mapping[Resource, str]:
        """The kinds to watch, each with the version in which the server has it."""
        ...

    async def start(self, connection: Connection) -> None:
        """Connect, list everything, start to work. Raises KubeError."""
        ...

    async def stop(self) -> bool:
        """Stop to work and disconnect."""
        ...

    def kopf_begins(self) -> None:
        """A Kopf that begins has heard of no object."""
        ...

    def deals_with(self, resource: Resource, news: News) -> bool:
        """Whether an event is over before Kopf hears of it."""
        ...

    def received(self, resource: Resource, version: str, event_type: str | None, raw: dict[str, Any]) -> None:
        """A watch event, or with type None an item of a list that Kopf made."""
        ...
