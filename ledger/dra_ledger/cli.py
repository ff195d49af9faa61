"""``dra-ledger``: who has which device, from what ``kubectl get -o json`` says; as tables, or as metrics of Prometheus.

Exit codes: 0, 2 for wrong usage or input that cannot be read, and the codes of ``dra_api.console``.

The metrics are for dashboards. The number of series has a bound in a cluster of any size. Single devices and claims
have as many as their ``limit`` allows. Of classes, nodes and namespaces the largest are named, the others summed up as
``(others)``. A family of sums has at most ``MOST_SERIES``: drivers choose the names of capacities and counters, so that
their number has no other limit. ``dra_export_left_out`` counts what has no series.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from dra_api import VERSION
from dra_api.console import finish, printable, sentence
from dra_api.releases import BUILT, NEWEST
from dra_api.values import NANO, Quantity

if TYPE_CHECKING:
    from .entries import DeviceEntry, Holder
    from .ledger import Ledger

_KINDS = "kubectl get nodes,resourceslices,deviceclasses,resourceclaims,pods -A -o json"


_MISSING = {
    "ResourceSlice": "no device is known",
    "ResourceClaim": "devices count as free, though claims may hold them",
    "DeviceClass": "no class is known",
    "Node": "devices count as free, though their nodes may be gone",
    "Pod": "claims of a PodGroup show no pods",
}
"""What an answer is worth without a kind."""
_NEEDED = {"who": ("ResourceSlice", "ResourceClaim", "Pod"), "free": tuple(_MISSING)[:4], "export": tuple(_MISSING)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; returns the exit code."""
    options = parser().parse_args(arguments)
    return finish(lambda: _run(options))


def parser() -> argparse.ArgumentParser:
    """The command line; completion scripts are made from it (docs/completion.md)."""
    made = argparse.ArgumentParser(
        prog="dra-ledger",
        description="Who has which device, from lists of objects.",
        epilog="Example: kubectl get resourceslices,resourceclaims -A -o json | %(prog)s who",
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    commands = made.add_subparsers(dest="command", required=True)
    for name, text in (
        ("who", "each device that a claim has, one line for each claim"),
        ("free", "how many devices of each class are free"),
        ("export", "the same and more as metrics for Prometheus"),
    ):
        command = commands.add_parser(name, help=text, description=sentence(text), epilog=f"the input: {_KINDS}")
        command.add_argument(
            "-f", "--file", action="append", metavar="FILE", help="JSON of kubectl or of the API; - is standard input"
        )
        command.add_argument(
            "--kubernetes-version",
            choices=tuple(BUILT),
            default=str(NEWEST),
            help="whose rules count (default: newest)",
        )
        if name == "export":
            command.add_argument(
                "--limit", type=int, default=10_000, metavar="N", help="devices, and claims, with series of their own"
            )
    return made


def _run(options: argparse.Namespace) -> int:
    from dra_api.codec import DecodeError

    from .ledger import Ledger  # help does not need it

    ledger = Ledger(options.kubernetes_version)
    for name in options.file or ["-"]:
        try:
            ledger.feed(sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes())
        except (DecodeError, OSError) as error:
            print(f"dra-ledger: {name}: {error}", file=sys.stderr)
            return 2
    for name, fault in ledger.malformed.items():
        print(f"dra-ledger: left out, since it cannot be read: {printable(f'{name}: {fault}')}", file=sys.stderr)
    for kind in _NEEDED[options.command]:
        if kind in ledger.missing:
            print(f"dra-ledger: the input has no {kind}: {_MISSING[kind]}", file=sys.stderr)
    if options.command == "export":
        from .cli import prometheus

        # The format is UTF-8 whatever the locale of a timer is, and knows no other escapes than its own.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        print(prometheus(ledger, max(0, options.limit)), end="")
    elif options.command == "free":
        _print([["CLASS", "FREE", "DEVICES", "CLAIMS"]] + [
            [row.name, str(row.free), str(row.devices), str(row.claims)] for row in ledger.tally("class")
        ])  # fmt: skip
    else:
        rows = [
            [
                entry.node or "<several>",
                entry.id,
                holder.key,
                ",".join(holder.pods) or "<none>",
                holder.since or "<unknown>",
            ]
            for entry, holder in ledger.holders()
        ]
        _print([["NODE", "DEVICE", "CLAIM", "PODS", "SINCE"], *rows])
    return 0


def _print(rows: list[list[str]]) -> None:
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


MOST_OBJECTS: Final = 10_000
"""Devices, holders and claims with series of their own."""
MOST_NAMES: Final = 1_000
"""Classes, nodes and namespaces that are named."""
MOST_SERIES: Final = 20_000
"""Series of a family of sums."""
OTHERS: Final = "(others)"
LARGEST_FLOAT: Final = int(sys.float_info.max)
MOST_PODS: Final = 8
"""Pods of a claim that are named."""
_UUID: Final = ("uuid", "UUID", "gpuUUID")
_PCI: Final = ("resource.kubernetes.io/pciBusID", "pciBusID", "pciAddress")
_MODEL: Final = ("productName", "model", "type")

Labels = Mapping[str, str]
Groups: TypeAlias = "list[tuple[str, list[DeviceEntry]]]"
"""Devices by the name of what they belong to."""


class _Family:
    """One metric with its series: of two with the same labels the latter counts, as of two devices with one name."""

    def __init__(self, name: str, help_: str, most: int = MOST_SERIES) -> None:
        self.name, self.help = name, help_
        self.left_out = 0
        self._series: dict[str, int | float] = {}
        self._most = most

    def add(self, labels: Labels, value: int | float = 1) -> None:
        """Add a series, or count it as left out."""
        said = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        if len(self._series) < self._most or said in self._series:
            self._series[said] = value
        else:
            self.left_out += 1

    def __str__(self) -> str:
        head = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} gauge"]
        return "\n".join([*head, *(f"{self.name}{{{labels}}} {value!r}" for labels, value in self._series.items())])


def prometheus(ledger: Ledger, limit: int = MOST_OBJECTS) -> str:
    """Return all metrics, each with its help; the text ends with a line break.

    ``limit``: how many devices, and how many claims, have series of their own.
    """
    with ledger.lock:
        devices = ledger.devices()
        families = [*_single(devices, limit), *_sums(ledger, devices)]
    left_out = next(family for family in families if family.name == "dra_export_left_out")
    left_out.add({"kind": "series"}, sum(family.left_out for family in families))
    missing = _Family("dra_export_missing", "A kind of which the input had nothing, as if there were none: 1")
    for kind in ledger.missing:
        missing.add({"kind": kind})
    families.append(missing)
    return "\n".join(map(str, families)) + "\n"


def _single(devices: list[DeviceEntry], limit: int) -> Iterator[_Family]:
    info = _Family("dra_device_info", "A device with its state: 1", limit)
    allocated = _Family("dra_device_allocated", "A device and a claim that has it, or a share of it: 1", limit)
    claims = _Family("dra_claim_info", "A claim that has devices, and a pod for which it is reserved: 1", sys.maxsize)
    left_out = _Family("dra_export_left_out", "Devices, claims and sums without series of their own")
    held: dict[str, Holder] = {}
    shown = 0
    for number, entry in enumerate(devices):
        for holder in (*entry.holders, *entry.observers):
            held.setdefault(holder.key, holder)
            if number < limit and shown < limit:
                shown += 1
                allocated.add(_about(entry) | _held_as(entry, holder))
            elif number < limit:
                allocated.left_out += 1
        if number < limit:
            info.add(_about(entry) | _details(entry))
    for key in sorted(held)[:limit]:
        for pod in _pods(held[key]):
            claims.add({"namespace": held[key].namespace, "claim": held[key].claim, "pod": pod})
    left_out.add({"kind": "device"}, max(0, len(devices) - limit))
    left_out.add({"kind": "claim"}, max(0, len(held) - limit))
    yield from (info, allocated, claims, left_out)


def _about(entry: DeviceEntry) -> dict[str, str]:
    known = _attribute(entry, _UUID)
    return {"driver": entry.driver, "pool": entry.pool, "device": entry.name, "node": entry.node, "uuid": known}


def _details(entry: DeviceEntry) -> dict[str, str]:
    return {
        "pci_bus_id": _attribute(entry, _PCI),
        "model": _attribute(entry, _MODEL),
        "state": entry.state,
        "health": entry.health,
    }


def _held_as(entry: DeviceEntry, holder: Holder) -> dict[str, str]:
    access = "admin" if holder.is_admin else "shared" if entry.state == "shared" else "exclusive"
    pods = holder.pods
    return {
        "namespace": holder.namespace,
        "claim": holder.claim,
        "request": holder.request,
        "pod": pods[0] if len(pods) == 1 else OTHERS if pods else "",
        "share": holder.share,
        "access": access,
    }


def _pods(holder: Holder) -> list[str]:
    """The pods that are named; a claim without any has one series all the same."""
    named = list(holder.pods[:MOST_PODS])
    return [*named, OTHERS] if len(holder.pods) > MOST_PODS else named or [""]


def _sums(ledger: Ledger, devices: list[DeviceEntry]) -> Iterator[_Family]:
    draws = ledger.draws()
    groups: dict[str, Groups] = {
        "class": [(name, ledger.devices(device_class=name)) for name in ledger.classes],
        "node": _grouped(devices, lambda entry: {entry.node}),
        "namespace": _grouped(devices, lambda entry: {holder.namespace for holder in entry.holders}),
    }
    known: dict[int, Shares] = {}  # by the identity of an entry, all of which ``devices`` keeps
    for by, found in groups.items():
        yield from _sums_by(by, _largest(found), draws, known)
    yield from _pool_sums(ledger)


def _sums_by(
    by: str, groups: Groups, draws: Mapping[str, Mapping[str, int]], known: dict[int, Shares]
) -> Iterator[_Family]:
    counts = _Family(f"dra_{by}_devices", f"Devices of a {by} by their state")
    available = _Family(f"dra_{by}_devices_available", f"Devices of a {by} that a plain request could get now")
    total = _Family(f"dra_{by}_capacity", f"Capacity of the devices of a {by}")
    taken = _Family(f"dra_{by}_capacity_taken", f"What is taken of the capacity of the devices of a {by}")
    drawn = _Family(f"dra_{by}_counter_drawn", f"What the devices in use of a {by} draw from shared counters")
    for name, entries in groups:
        said = {by: name}
        states: dict[tuple[str, str], int] = {}
        amounts: dict[tuple[str, str], list[int]] = {}
        counters: dict[tuple[str, str], int] = {}
        for entry in entries:
            states[entry.driver, entry.state] = states.get((entry.driver, entry.state), 0) + 1
            for capacity, (whole, used) in _capacities(entry, name if by == "namespace" else None, known).items():
                pair = amounts.setdefault((entry.driver, capacity), [0, 0])
                pair[0] += whole
                pair[1] += used
            for counter, amount in draws.get(entry.id, {}).items():
                counters[entry.driver, counter] = counters.get((entry.driver, counter), 0) + amount
        for (driver, state), number in sorted(states.items()):
            counts.add({**said, "driver": driver, "state": state}, number)
        if by != "namespace":
            available.add(said, sum(entry.available for entry in entries))
        for (driver, capacity), (whole, used) in sorted(amounts.items()):
            about = {**said, "driver": driver, "capacity": capacity}
            total.add(about, _number(whole))
            taken.add(about, _number(used))
        for (driver, counter), amount in sorted(counters.items()):
            drawn.add({**said, "driver": driver, "counter": counter}, _number(amount))
    yield from (counts, available, total, taken, drawn) if by != "namespace" else (counts, total, taken, drawn)


def _pool_sums(ledger: Ledger) -> Iterator[_Family]:
    pools = _Family("dra_pools", "Resource pools by their status")
    counters = _Family("dra_counter", "Shared counters, summed up over the pools of a driver")
    left = _Family("dra_counter_left", "What is left of them")
    states: dict[tuple[str, str], int] = {}
    for pool in ledger.pools():
        states[pool.driver, pool.status] = states.get((pool.driver, pool.status), 0) + 1
    for (driver, status), number in sorted(states.items()):
        pools.add({"driver": driver, "status": status}, number)
    sums: dict[tuple[str, str], list[int]] = {}
    for counter in ledger.counters():
        pair = sums.setdefault((counter.driver, counter.name), [0, 0])
        pair[0] += Quantity(counter.total).nanos
        pair[1] += max(0, Quantity(counter.left).nanos)
    counters.left_out = left.left_out = max(0, len(sums) - MOST_NAMES)
    for (driver, name), (whole, rest) in sorted(sums.items())[:MOST_NAMES]:
        counters.add({"driver": driver, "counter": name}, _number(whole))
        left.add({"driver": driver, "counter": name}, _number(rest))
    yield from (pools, counters, left)


Shares = dict[str, dict[str, int]]
"""What the claims of each namespace consume of each capacity of a device."""


def _shares(entry: DeviceEntry) -> Shares:
    found: Shares = {}
    for holder in entry.holders:
        for name, amount in holder.consumed.items():
            its = found.setdefault(name, {})
            its[holder.namespace] = its.get(holder.namespace, 0) + Quantity(amount).nanos
    return found


def _capacities(entry: DeviceEntry, namespace: str | None, known: dict[int, Shares]) -> dict[str, tuple[int, int]]:
    """Return the total of each capacity and its taken part. With a namespace only its own claims count.

    ``known`` keeps what is worked out of a device: it may have thousands of holders, in hundreds of namespaces.
    """
    published = (entry.published.capacity or {}) if entry.published is not None else {}
    if published and id(entry) not in known:
        known[id(entry)] = _shares(entry)
    found = {}
    for name, capacity in published.items():
        whole, shares = capacity.value.nanos, known[id(entry)].get(name, {})
        own = sum(shares.values()) if namespace in (None, OTHERS) else shares.get(namespace, 0)
        found[name] = (whole, whole if entry.state == "taken" else own)
    return found


def _grouped(devices: Iterable[DeviceEntry], names_of: Callable[[DeviceEntry], set[str]]) -> Groups:
    groups: dict[str, list[DeviceEntry]] = {}
    for entry in devices:
        for name in names_of(entry):
            groups.setdefault(name, []).append(entry)
    return sorted(groups.items())


def _largest(groups: Groups) -> Groups:
    """Those with most devices, by name; a device that several others have counts once among them."""
    if len(groups) <= MOST_NAMES:
        return groups
    by_size = sorted(groups, key=lambda group: (-len(group[1]), group[0]))
    others = {entry.id: entry for _, entries in by_size[MOST_NAMES:] for entry in entries}
    return [*sorted(by_size[:MOST_NAMES], key=lambda group: group[0]), (OTHERS, list(others.values()))]


def _attribute(entry: DeviceEntry, names: Iterable[str]) -> str:
    """The first of these attributes that the device publishes as text, under its bare name or the driver's domain."""
    known = entry.attributes
    for name in names:
        value = known.get(name, known.get(f"{entry.driver}/{name}"))
        if isinstance(value, str):
            return value
    return ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(nanos: int) -> int | float:
    is_whole = nanos % NANO == 0 or abs(nanos) > LARGEST_FLOAT
    return nanos // NANO if is_whole else nanos / NANO


if __name__ == "__main__":
    sys.exit(main())
