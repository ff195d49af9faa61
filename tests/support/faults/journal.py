"""What was asked, what was done to it, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from api_call import ApiCall

from .target import Target

EVERYTHING = Target()


@dataclass(slots=True)
class Entry:
    """One request: ``code`` is what the client got, ``carried_out`` what the server answered; None for nothing."""

    at: float
    client: str
    call: ApiCall
    faults: list[str] = field(default_factory=list)
    code: int | None = None
    carried_out: int | None = None
    carried_out_at: float | None = None


class Journal:
    """All requests in the order in which they came; times are those of the event loop."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def find(self, target: Target = EVERYTHING, since: float = 0.0) -> Iterator[Entry]:
        """Requests that came at this time or later."""
        return (entry for entry in self.entries if entry.at >= since and target.includes(entry.client, entry.call))

    def begun_since(self, woken: float, client: str) -> list[Entry]:
        """Writes, other than of leases, that a process began when it was woken from a pause at this time.

        The first write is the one that it was sending in the moment of the pause. Reads, and what the thread of the
        lease sends, may overtake it on their own connections.
        """
        found = self.find(Target(client=client), woken)
        return [entry for entry in found if entry.call.is_write and entry.call.resource != "leases"][1:]

    def count(self, target: Target = EVERYTHING, since: float = 0.0) -> int:
        """How many there were."""
        return sum(1 for _ in self.find(target, since))

    def writes(self, since: float = 0.0) -> Counter[str]:
        """Writes by verb, resource and what the client got: ``update resourceclaims/status 409``."""
        return Counter(
            f"{entry.call.verb} {entry.call.resource} {entry.code or 'nothing'}"
            for entry in self.find(since=since)
            if entry.call.is_write
        )

    def about(self, names: set[str]) -> list[str]:
        """What was done to objects of these names, one line each, with the seconds since the first request."""
        lines = []
        for entry in self.entries:
            if entry.call.name in names:
                late = (
                    f", carried out at {entry.carried_out_at - self.entries[0].at:.2f} s"
                    if entry.carried_out_at
                    else ""
                )
                what = (
                    f"{entry.client} {entry.call}: {'+'.join(entry.faults) or 'no fault'}, {entry.code or 'no answer'}"
                )
                lines.append(f"{entry.at - self.entries[0].at:.2f} s {what} ({entry.carried_out}{late})")
        return lines

    def faults(self) -> Counter[str]:
        """How often each fault struck."""
        return Counter(fault for entry in self.entries for fault in entry.faults)
