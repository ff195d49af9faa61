"""Which plugin sockets there are, and which of them are registered (KM-02, KM-03).

*Desired* is the content of the directory: each socket, with a new identity when it is created again. *Actual* is what
has been registered, and under which identity. Every tick compares the two: it unregisters what is gone or was created
again, then registers what is new. No I/O here.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from dra_devcluster.agent.settings import Backoff


@dataclass(slots=True)
class _Failures:
    count: int = 0
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class Registered:
    """An entry of the actual state: which socket of that path, and what it said about itself."""

    identity: uuid.UUID
    type: str
    name: str
    endpoint: str


@dataclass(slots=True)
class PluginSockets:
    """Desired and actual state, operations in progress and failures, all by socket path."""

    backoff: Backoff
    desired: dict[str, uuid.UUID] = field(default_factory=dict)
    actual: dict[str, Registered] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    _failures: dict[str, _Failures] = field(default_factory=dict)

    def created(self, path: str) -> None:
        """A socket appeared at the path, maybe in place of an older one."""
        self.desired[path] = uuid.uuid4()

    def removed(self, path: str) -> None:
        """The socket is gone, or the directory it was in."""
        for known in [known for known in self.desired if known == path or known.startswith(f"{path}/")]:
            del self.desired[known]

    def failed(self, path: str, now: float) -> None:
        """An operation failed: the next attempt waits longer each time."""
        failures = self._failures.setdefault(path, _Failures())
        failures.count += 1
        failures.not_before = now + self.backoff.pause(failures.count)

    def succeeded(self, path: str) -> None:
        """An operation succeeded: the path's failures are forgotten."""
        self._failures.pop(path, None)

    def to_unregister(self, now: float) -> list[str]:
        """Paths whose registration is outdated."""
        stale = (path for path, known in self.actual.items() if self.desired.get(path) != known.identity)
        return [path for path in stale if self._may_start(path, now)]

    def to_register(self, now: float) -> list[str]:
        """Paths that wait for registration."""
        waiting = (path for path in self.desired if path not in self.actual)
        return [path for path in waiting if self._may_start(path, now)]

    def _may_start(self, path: str, now: float) -> bool:
        failures = self._failures.get(path)
        return path not in self.busy and (failures is None or now >= failures.not_before)
