"""The faults that strike at present."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from api_call import ApiCall

from .dice import Dice
from .event_fault import Event, EventFault
from .fault import Fault
from .journal import Entry

AnyFault = Fault | EventFault


class ActiveFaults:
    """Lists of faults, each with dice of its own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._numbers = itertools.count()
        self._lists: list[tuple[Dice, Sequence[AnyFault]]] = []

    @contextmanager
    def suffering(self, faults: Sequence[AnyFault]) -> Iterator[None]:
        """They strike meanwhile."""
        entry = (Dice(f"{self._seed}/{next(self._numbers)}"), faults)
        self._lists.append(entry)
        try:
            yield
        finally:
            self._lists.remove(entry)

    def for_request(self, entry: Entry) -> tuple[Fault, random.Random] | None:
        """The first fault that strikes this request, and the generator for its details."""
        for dice, number, fault in self._all():
            if not isinstance(fault, Fault) or (entry.call.verb == "watch" and not fault.for_watches):
                continue
            if generator := dice.strikes(number, fault, entry.client, entry.call):
                entry.faults.append(type(fault).__name__)
                return fault, generator
        return None

    def alter(self, entry: Entry, event_of: ApiCall, event: Event) -> None:
        """Everything that strikes an event of a watch, in order."""
        for dice, number, fault in self._all():
            if not isinstance(fault, EventFault):
                continue
            if generator := dice.strikes(number, fault, entry.client, event_of):
                entry.faults.append(type(fault).__name__)
                fault.alter(event, generator)

    def _all(self) -> Iterator[tuple[Dice, int, AnyFault]]:
        return ((dice, number, fault) for dice, faults in self._lists for number, fault in enumerate(faults))
