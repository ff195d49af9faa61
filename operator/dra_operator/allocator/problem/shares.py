"""Consumable capacity: the shares of devices that allow multiple allocations (allocator.md section 9)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

from dra_ledger.basics import each

from .ledger import Ledger, Request, consumptions


class Shares(Ledger):
    """What is left of each device. ``start`` gives what the allocated state leaves of one.

    Filters have already dropped devices on which not even the first share fits, so only devices shared in this
    call need a look.
    """

    lasting = True

    def __init__(self, shareable: int, start: Callable[[int], dict[str, int]]) -> None:
        self._shareable = shareable
        self._start = start
        self._left: dict[int, dict[str, int]] = {}
        self._shared = 0
        self._holders: dict[int, int] = {}

    @property
    def consumable_capacity(self) -> Shares:
        return self

    def left(self, device: int) -> dict[str, int]:
        """What is currently left of each capacity of a device."""
        known = self._left.get(device)
        if known is None:
            known = self._left[device] = self._start(device)
        return known

    def __str__(self) -> str:
        return "consumable capacity"

    def admit(self, devices: int, request: Request) -> int:
        for device in each(devices & self._shared):
            left = self._left[device]
            if any(amount.nanos > left[name] for name, amount in request.amounts[device].items()):
                devices &= ~(1 << device)
        return devices

    def take(self, device: int, request: Request) -> None:
        if device not in request.amounts:
            return
        self._move(device, request, -1)
        self._holders[device] = self._holders.get(device, 0) + 1
        self._shared |= 1 << device

    def give_back(self, device: int, request: Request) -> None:
        if device not in request.amounts:
            return
        self._move(device, request, 1)
        self._holders[device] -= 1
        if not self._holders[device]:
            del self._holders[device]
            self._shared &= ~(1 << device)

    def state(self) -> Hashable:
        return tuple((device, *self._left[device].values()) for device in each(self._shared))

    def tells_apart(self, devices: int, requests: Sequence[Request]) -> Iterator[int]:
        """Devices by what a share consumes of them."""
        for amounts, usable in consumptions(requests):
            groups: dict[tuple[tuple[str, int], ...], int] = {}
            for device in each(usable):
                if device in amounts:
                    key = tuple((name, amount.nanos) for name, amount in amounts[device].items())
                    groups[key] = groups.get(key, 0) | 1 << device
            yield from groups.values()

    def alike_now(self, device: int, others: int) -> int:
        if self._shareable >> device & 1:
            mine = self.left(device)
            for other in each(others):
                if self.left(other) != mine:
                    others &= ~(1 << other)
        return others

    def treats(self, request: Request) -> Hashable:
        return id(request.amounts)

    def _move(self, device: int, request: Request, sign: int) -> None:
        left = self.left(device)
        for name, amount in request.amounts[device].items():
            left[name] += sign * amount.nanos
