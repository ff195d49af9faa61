"""How fast the reconcilers work, and how long they wait. The values are settings of the operator; all times in seconds.

A *turn* is what one decision may take before others have theirs. A decision that took longer comes later, and its key
then rests for ``rest`` times as long, so that one key gets at most a twentieth of the time: three seconds a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_operator.cluster import Concern
from dra_operator.placement import BINDING_TIMEOUT


@dataclass(frozen=True, slots=True)
class Waits:
    """Before a failed key is tried again: its wait doubles from ``first`` to ``longest`` with each failure in a row.

    All keys of a queue together are tried again ``rate`` times a second at most, after the first ``burst``.
    """

    first: float = 0.005
    longest: float = 1000.0
    rate: float = 10.0
    burst: int = 100


@dataclass(frozen=True, slots=True)
class Turns:
    """How decisions share the time."""

    turn: float = 0.02
    rest: float = 20.0

    def rest_after(self, spent: float) -> float:
        """How long a key is left alone after so many seconds of search; not at all when they were one turn at most."""
        return spent * self.rest if spent > self.turn else 0.0

    def level(self, spent: float) -> int:
        """The place in the queue of a decision that continues later: what took longer comes later."""
        return max(1, int(spent / self.turn))


@dataclass(frozen=True, slots=True)
class Pace:
    """Everything about time that can be set on the reconcilers."""

    workers: Mapping[Concern, int] = field(
        default_factory=lambda: {"pod": 20, "claim": 20, "place": 50, "evict": 8, "rule": 1, "pools": 1}
    )
    """How many keys of a concern are worked on at the same time."""
    retries: Waits = Waits()
    placement_retries: Waits = Waits(first=0.05, longest=60.0, rate=100.0)
    turns: Turns = Turns()
    grace: float = 1.0
    """From seeing our own write on contested devices to trusting it: what others decided before is written by then."""
    filter_timeout: float = 10.0
    """What the allocator may take for one node; 0: no limit."""
    volume_binding_timeout: float = 600.0
    """From the choice of a node until a claim of a volume that is not bound there counts as failed."""
    binding_timeout: float = BINDING_TIMEOUT
    """From the allocation until a device that is not ready counts as failed."""
