"""The interface for features of single devices: what a search holds while it tries, and what pruning may assume.

A ``Ledger`` answers which of some devices may be taken now (``admit``, on sets, so that a check costs the same for one
device and for a thousand), records that a device was taken, and gives it back. ``give_back`` is the exact inverse of
``take``, last taken first returned. What depends on the allocated state and the request alone is no ledger but a
filter (``filters``), applied once before the search.

These three methods make a complete feature. All others only make the search faster, by what pruning may assume. Their
defaults are safe: nothing is interchangeable, nothing lasts, nothing is bounded. A ledger's claims must be true, or
answers change; ``tests/allocator/test_ledgers.py`` compares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import ClassVar, Protocol

from dra_api.quantity import Quantity
from dra_ledger.basics import each
from dra_ledger.columns import Column
from dra_ledger.counters import Block, Charges, CounterKind

from dra_operator.allocator.claim_program import Alternative


class Request(Protocol):
    """What a ledger sees of a request: one alternative on one node."""

    @property
    def claim(self) -> int:
        """Its claim."""

    @property
    def number(self) -> int:
        """Position among all alternatives of the problem."""

    @property
    def usable(self) -> int:
        """Devices that it may take at all."""

    @property
    def name(self) -> str:
        """The request in results and messages."""

    @property
    def alternative(self) -> Alternative:
        """All that it asks for."""

    @property
    def amounts(self) -> Mapping[int, Mapping[str, Quantity]]:
        """What one share of a device consumes, for devices that allow multiple allocations."""


class SharedCounters(Protocol):
    """Amounts that devices draw from common counters. Taking devices never makes more available."""

    @property
    def offset(self) -> int:
        """The number of the first device: the sets in ``blocks`` count from there."""

    @property
    def left(self) -> Sequence[int]:
        """What is left of each counter at the moment."""

    @property
    def blocks(self) -> Sequence[Block]:
        """The counters in independent parts, with the devices that draw on them."""

    @property
    def kinds(self) -> Sequence[tuple[CounterKind, ...]]:
        """The kinds of each counter; amounts of one kind may be added up."""

    @property
    def groups(self) -> Sequence[tuple[Charges, int]]:
        """The devices by what they draw."""

    @property
    def costs_by_kind(self) -> Sequence[tuple[Mapping[CounterKind, int], int]]:
        """The devices by what they draw of each kind."""

    @property
    def already_charged(self) -> int:
        """Devices that draw nothing more."""

    def left_by_name(self) -> Mapping[str, int]:
        """What is left of all counters of one name."""

    def cost_by_name(self, device: int) -> Mapping[str, int]:
        """What a device draws of all counters of one name; nothing if that may already be charged."""


class ConsumableCapacity(Protocol):
    """Amounts that requests consume of a device itself. Taking a device never makes more available."""

    def left(self, device: int) -> Mapping[str, int]:
        """What is currently left of each capacity of a device, in billionths."""


class Ledger(ABC):
    """One feature: what taking devices does to later choices."""

    @abstractmethod
    def admit(self, devices: int, request: Request) -> int:
        """Those of the devices that may be taken now."""

    @abstractmethod
    def take(self, device: int, request: Request) -> None:
        """Records an admitted device."""

    @abstractmethod
    def give_back(self, device: int, request: Request) -> None:
        """Undoes the latest ``take``, which was of this device."""

    # --- what it means ---

    ends_attempt: ClassVar[bool] = False
    """If it refuses a device to a request for all devices, the attempt ends with an error; this text says what the
    device lacks."""

    def __str__(self) -> str:
        """What all devices must have, for errors and refusals."""
        return type(self).__name__

    def may_fail(self, request: Request) -> bool:
        """Taking some device for the request ends the attempt with an error."""
        return False

    # --- what pruning may take for granted ---

    lasting: ClassVar[bool] = False
    """A device that is refused stays refused to that request until something is given back."""
    agrees_on: Column | None = None
    """All devices taken have a value of this attribute in common."""
    differs_in: Column | None = None
    """No two devices taken have a value of this attribute in common, and each has some value."""

    @property
    def shared_counters(self) -> SharedCounters | None:
        """A device is only admitted when the counters suffice for what it draws."""
        return None

    @property
    def consumable_capacity(self) -> ConsumableCapacity | None:
        """A device is only admitted when what is left of it suffices for the amounts of the request."""
        return None

    def state(self) -> Hashable:
        """All that later answers depend on: equal states give equal answers."""
        return object()

    def tells_apart(self, devices: int, requests: Sequence[Request]) -> Iterable[int]:
        """Sets of devices. Two devices in the same sets can be exchanged in all that was and will be taken."""
        return (1 << device for device in each(devices))

    def alike_now(self, device: int, others: int) -> int:
        """The other devices that neither ``tells_apart`` nor what was taken so far distinguishes from the device."""
        return 0

    def treats(self, request: Request) -> Hashable:
        """Equal for two requests that can be exchanged in all that was and will be taken."""
        return request.number


Consumption = tuple[Mapping[int, Mapping[str, Quantity]], int]


def consumptions(requests: Iterable[Request]) -> list[Consumption]:
    """What a share of each device consumes, and the devices of which such shares may be taken; each once."""
    found: dict[int, Consumption] = {}
    for request in requests:
        amounts, usable = found.get(id(request.amounts), (request.amounts, 0))
        if amounts:
            found[id(amounts)] = amounts, usable | request.usable
    return list(found.values())
