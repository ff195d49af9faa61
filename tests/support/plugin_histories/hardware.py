"""The adapters of the host: each has a name that stays, and the node that the kernel gave it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dra_kubeletplugin.drivers.hostdev.facts import Number
from fake_host import FakeHost

from .script import ADAPTERS

T = TypeVar("T")


@dataclass(frozen=True)
class RememberingHost(FakeHost):
    """Reads each file once until something has changed: a thorough look reads a hundred of them."""

    known: dict[tuple[str, str], Any] = field(default_factory=dict, compare=False)

    def glob(self, pattern: str) -> list[str]:
        return list(self._once("glob", pattern, super().glob))

    def resolved(self, path: str) -> str | None:
        return self._once("resolved", path, super().resolved)

    def number(self, path: str) -> Number | None:
        return self._once("number", path, super().number)

    def identity(self, path: str) -> tuple[int, ...]:
        return self._once("identity", path, super().identity)

    def text(self, path: str) -> str | None:
        return self._once("text", path, super().text)

    def link(self, path: str) -> str | None:
        return self._once("link", path, super().link)

    def _once(self, what: str, path: str, read: Callable[[str], T]) -> T:
        if (what, path) not in self.known:
            self.known[what, path] = read(path)
        found: T = self.known[what, path]
        return found


class Hardware:
    """``nodes`` says where each adapter is that is there; ``had`` which nodes it ever had. Devices are ``s-<adapter>``.

    With a ``host`` they are in its files as well.
    """

    def __init__(self, folder: Path | None, *, is_fixed: bool) -> None:
        self.host = RememberingHost(folder) if folder else None
        self.is_fixed = is_fixed
        self.nodes: dict[str, str] = {}
        self.twins: dict[str, str] = {}
        self.had: dict[str, set[str]] = {}
        self.set_up: set[str] = set()
        """Uids of claims for which a driver has done something to devices."""
        for number, adapter in enumerate(ADAPTERS):
            self.plug(adapter, number)

    def plug(self, adapter: str, number: int) -> None:
        """It gets this node, or the next one that is free."""
        if adapter in self.nodes:
            return
        self.nodes[adapter] = node = self._free_node(number)
        self.had.setdefault(device_of(adapter), set()).add(node)
        if self.host:
            self.host.serial_adapter(node.rpartition("/")[2], f"1-{ADAPTERS.index(adapter) + 1}", serial=adapter)
            self.host.known.clear()

    def pull(self, adapter: str) -> None:
        """Its node is gone. Its twin, if it has one, is the adapter from now on."""
        if self.is_fixed or not (node := self.nodes.pop(adapter, None)):
            return
        if self.host:
            self.host.unplug(node.rpartition("/")[2])
            self.host.known.clear()
        if twin := self.twins.pop(adapter, None):
            self.nodes[adapter] = twin
            self.had[device_of(adapter)].add(twin)

    def plug_twin(self, adapter: str) -> None:
        """Another adapter has the same serial number: it is left out while the first one is there."""
        if self.host and adapter in self.nodes and adapter not in self.twins:
            self.twins[adapter] = node = self._free_node(0)
            self.host.serial_adapter(node.rpartition("/")[2], f"1-{ADAPTERS.index(adapter) + 5}", serial=adapter)
            self.host.known.clear()

    def pull_twin(self, adapter: str) -> None:
        """It is gone again."""
        if self.host and (node := self.twins.pop(adapter, None)):
            self.host.unplug(node.rpartition("/")[2])
            self.host.known.clear()

    def _free_node(self, number: int) -> str:
        names = [f"/dev/ttyUSB{(number + more) % 9}" for more in range(9)]
        return next(name for name in names if name not in (*self.nodes.values(), *self.twins.values()))

    def swap(self, adapter: str, other: str) -> None:
        """Both are pulled, and plugged in again in the other order."""
        if self.is_fixed or adapter == other or not {adapter, other} <= self.nodes.keys():
            return
        first, second = (int(self.nodes[each][-1]) for each in (adapter, other))
        self.pull(adapter)
        self.pull(other)
        self.plug(adapter, second)
        self.plug(other, first)

    def node_of(self, device: str) -> str | None:
        """Where a device is."""
        return self.nodes.get(device.removeprefix("s-"))

    def devices(self) -> list[str]:
        """Those that are there."""
        return sorted(map(device_of, self.nodes))


def device_of(adapter: str) -> str:
    """Its name in the pool."""
    return f"s-{adapter}"
