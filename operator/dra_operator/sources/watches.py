"""The operator's own watches: a reflector for each kind, each of which calls the handler of its kind.

``dra-operator run`` is fed by these, ``kopf run`` by Kopf's. Whether changes of a kind are seen now is known here: for
readiness, for the log, and for a pod that may be bound only if another scheduler cannot have come unseen.

There is one line in the log for each kind and reason for which its changes go unseen, and kinds with the same reason
share it. A watch that is made again within ``Limits.gap`` is not worth a line.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from dra_api.meta import ObjectVersion
from dra_kube import PODS, RESOURCE_CLAIMS, Api, ApiError, Change, Reflector, Resource
from dra_kube.reflector import TURN_BYTES

from dra_operator.kube import rights_for

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits, in seconds."""

    silence: float = 90.0
    """An open watch is silent."""
    gap: float = 10.0
    """A kind is not watched: a reconnection takes less."""


BYTELESS_SECONDS: Final = 70.0
"""Seconds without a byte after which a watch is made again: kube-apiserver sends a bookmark each minute."""
ANSWER_SECONDS: Final = 0.005
"""Seconds that an event waits: the answer to the operator's own write, which often comes behind it, makes it known."""
LOG_SECONDS: Final = 0.5
"""Seconds between two looks at the streams for the log."""
_RENEW: Final = "the credentials are no longer valid: renew them"
_REASON_CHARACTERS: Final = 240
"""Characters of a refusal that are told."""

Receive = Callable[[Change], Awaitable[None]]


class Watches:
    """``follow`` each kind, and ``run`` until cancelled; ``clear`` before another API server is followed."""

    def __init__(self, limits: Limits | None) -> None:
        self.limits = limits or Limits()
        self._reflectors: dict[Resource, Reflector] = {}
        self._new = asyncio.Queue[Reflector]()
        self._told: dict[Resource, set[str]] = {}
        """The reasons that were logged since the changes of the kind were seen."""
        self.failed: Callable[[Resource], None] = lambda _: None
        """Called when a list or watch of the kind fails: something may have been missed."""

    def follow(
        self, api: Api, resource: Resource, since: str, receive: Receive, knows: Callable[[], Iterable[ObjectVersion]]
    ) -> None:
        """Watch a kind from the version of a list on. ``knows`` gives the cached versions of its objects."""
        self._reflectors[resource] = Reflector(
            api,
            resource,
            receive,
            since=since,
            knows=knows,
            failed=partial(self._failed, resource),
            lag=_lag,
            silence=BYTELESS_SECONDS,
        )
        self._new.put_nowait(self._reflectors[resource])

    def clear(self) -> None:
        """No kind is to be watched any more."""
        self._reflectors.clear()
        self._new = asyncio.Queue()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_log(), name="log of watches")
            while True:
                reflector = await self._new.get()
                group.create_task(reflector.run(), name=f"watch of {reflector.resource}")

    def _failed(self, resource: Resource, error: Exception) -> None:
        reflector = self._reflectors.get(resource)
        if reflector is None:
            return  # the operator stops
        stream = reflector.stream
        remedy = {401: _RENEW, 403: rights_for(resource.group)}.get(error.code) if isinstance(error, ApiError) else None
        stream.refusal = f"{stream.refusal[:_REASON_CHARACTERS]}{f'; {remedy}' if remedy else ''}"
        self.failed(resource)

    # --- kinds that are seen ---

    def sees(self, resource: Resource) -> bool:
        """Return whether no change of the kind goes unseen for a reason that is known; False if it is not followed."""
        reflector = self._reflectors.get(resource)
        return reflector is not None and reflector.stream.sees(_now())

    def states(self) -> list[tuple[Resource, str]]:
        """Return each kind, and why its changes go unseen; empty if they are seen."""
        now, limits = _now(), self.limits
        return [
            (resource, reflector.stream.problem(now, gap=limits.gap, silence=limits.silence))
            for resource, reflector in self._reflectors.items()
        ]

    def ages(self) -> list[tuple[str, float]]:
        """Return the seconds since the last sign of life of each kind."""
        now = _now()
        return [(str(resource), now - reflector.stream.life) for resource, reflector in self._reflectors.items()]

    async def _keep_log(self) -> None:
        while True:
            await asyncio.sleep(LOG_SECONDS)
            self.log()

    def log(self) -> None:
        """Log what is new since the last look."""
        states, now = dict(self.states()), _now()
        news = defaultdict[str, list[Resource]](list)
        for resource, problem in states.items():
            stream = self._reflectors[resource].stream
            told = self._told.setdefault(resource, set())
            if problem and now - stream.life > self.limits.gap and stream.refusal not in told:
                told.add(stream.refusal)
                news[stream.refusal].append(resource)
        for kinds in news.values():
            logger.warning("%s: %s; retrying until it works", self._names(kinds), states[kinds[0]])
        if seen := [resource for resource, told in self._told.items() if told and not states.get(resource, "unknown")]:
            logger.info("%s: watched again", self._names(seen))
            for resource in seen:
                del self._told[resource]

    def _names(self, kinds: list[Resource]) -> str:
        return "all kinds" if len(kinds) == len(self._reflectors) else ", ".join(sorted(map(str, kinds)))


def _lag(changes: Sequence[Change]) -> float:
    """Return how long the changes wait for an answer that may make them known.

    A full batch does not wait, since more has come than was read in time. Nor does a new pod, as none is of our making.
    """
    resource = changes[0].resource
    if resource not in (PODS, RESOURCE_CLAIMS) or sum(len(change.content) for change in changes) > TURN_BYTES:
        return 0.0
    is_new = resource == PODS and all(change.event == "ADDED" for change in changes)
    return 0.0 if is_new else ANSWER_SECONDS


def _now() -> float:
    return asyncio.get_running_loop().time()
