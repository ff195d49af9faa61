"""What the bad driver publishes: pools with their counters and devices, by the kind of driver that it is.

Without a kind it has something of all: plain devices, a shared one, a whole with its two parts, and a tainted one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bad_driver_node import NETWORK, PARTITIONS, SHARED_ONLY, TWO_POOLS, BadNode, Json

PLAIN = [f"gpu-{number}" for number in range(4)]
SHARED, PART, TAINTED, WHOLE = "shared-0", "part-0", "tainted-0", "whole-0"
_ROOT, _NUMA = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"


class Offer(NamedTuple):
    """A pool."""

    counters: list[Json]
    devices: list[Json]


def pools_of(node: BadNode) -> dict[str, Offer]:
    """The pools by name."""
    here = node.place.node
    if node.has(SHARED_ONLY):
        return {here: Offer([], [_shared(name) for name in PLAIN])}
    if node.has(PARTITIONS):
        boards = [_board(number) for number in range(2)]
        return {here: Offer([one for counters, _ in boards for one in counters], [d for _, ds in boards for d in ds])}
    if node.has(NETWORK):
        return {f"fabric-{here}": Offer([], _plain(node))}
    if node.has(TWO_POOLS):
        return {here: Offer([], _plain(node)[:2]), f"second-{here}": Offer([], _plain(node)[:2])}
    return {here: Offer(_counters(node), _mixed(node))}


def devices_of(node: BadNode) -> dict[tuple[str, str], Json]:
    """The devices by pool and name."""
    return {(pool, one["name"]): one for pool, offer in pools_of(node).items() for one in offer.devices}


def drawn(node: BadNode, held: list[Json]) -> bool:
    """Whether the devices draw more on a counter than there is."""
    known, total = devices_of(node), dict[Any, int]()
    for device in {(one["pool"], one["device"]) for one in held}:
        for use in known.get(device, {}).get("consumesCounters", []):
            for name, amount in use["counters"].items():
                key = (device[0], use["counterSet"], name)
                total[key] = total.get(key, 0) + int(amount["value"].removesuffix("Gi"))
    there = {
        (pool, one["name"], name): int(amount["value"].removesuffix("Gi"))
        for pool, offer in pools_of(node).items()
        for one in offer.counters
        for name, amount in one["counters"].items()
    }
    return any(amount > there.get(key, 0) for key, amount in total.items())


def _shared(name: str) -> Json:
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    memory = {"value": "8Gi", "requestPolicy": policy}
    return {"name": name, "allowMultipleAllocations": True, "capacity": {"memory": memory}}


def _board(number: int) -> tuple[list[Json], list[Json]]:
    name = f"board-{number}"
    parts = {f"gpu-{number}": 40}
    parts |= {f"gpu-{number}-half-{part}": 20 for part in range(2)}
    parts |= {f"gpu-{number}-quarter-{part}": 10 for part in range(4)}
    devices: list[Json] = [
        {"name": part, "consumesCounters": [{"counterSet": name, "counters": {"memory": {"value": f"{size}Gi"}}}]}
        for part, size in parts.items()
    ]
    return [{"name": name, "counters": {"memory": {"value": "40Gi"}}}], devices


def _plain(node: BadNode) -> list[Json]:
    root = "0000:00" if node.has("a standard attribute has an odd form") else "pci0000:00"
    if node.has("instances fight over slices"):
        root = f"pci0000:0{node.starts}"
    if node.has("a restart changes attributes") and node.starts > 1:
        root = "pci0000:99"
    numa = {"int": -1 if node.has("a NUMA node is -1") else 0}
    if node.has("variant: nothing tells devices apart"):
        return [{"name": name} for name in PLAIN]
    return [
        {"name": name, "attributes": {_ROOT: {"string": root}, _NUMA: numa, "serial": {"string": f"SN-7{name}"}}}
        for name in PLAIN
    ]


def _counters(node: BadNode) -> list[Json]:
    name = "others" if node.has("a counter is not defined") else "slices"
    return [{"name": "board", "counters": {name: {"value": "2"}}}]


def _mixed(node: BadNode) -> list[Json]:
    has = node.has
    devices = _plain(node)
    if has("it shares all devices"):
        devices = [{**device, "allowMultipleAllocations": True} for device in devices]
    taint = {"key": "bad.example.com/flaky", "effect": "NoSchedule"}
    if has("taints are new at each start"):
        taint["timeAdded"] = f"2026-01-0{node.starts}T00:00:00Z"
    uses = [
        [{"counterSet": "board", "counters": {"slices": {"value": str(amount)}}}] for amount in (1, 2)
    ]  # a part, the whole
    if has("it has no devices"):
        return []
    if has("all its devices exclude each other"):
        return [{"name": name, "consumesCounters": uses[1]} for name in PLAIN]
    if has("it has one device"):
        return devices[:1]
    return [
        *devices,
        _shared(SHARED),
        {"name": PART, "consumesCounters": uses[0]},
        {"name": WHOLE, "consumesCounters": uses[1]},
        {"name": TAINTED, "taints": [taint]},
    ]
