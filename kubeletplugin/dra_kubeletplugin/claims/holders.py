"""What the claims of a node hold, found by its name: devices, counters, and parts of the host.

A call may prepare 1,000 claims beside as many others. Whether a claim can have a device must not cost a look at each of
these: the devices of all claims are listed once, and a claim that changes is listed anew.

The lists keep the boots apart. Devices that an administrator only watches are in none. Pools are named like the node,
or begin with its name: when the node gets another name, the devices of a record are listed under the names that their
pools have since.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping

from msgspec.structs import replace

from dra_kubeletplugin.files.claim_record import ClaimRecord, HeldDevice, Remainder
from dra_kubeletplugin.slices import PoolCounters

_List = dict[tuple[str, ...], dict[Hashable, dict[str, HeldDevice | None]]]
"""The uids of the claims: by the name of a device, counter or part, and by the thing that tells its holders apart."""


class Holders:
    """The claims as their records were found last: records, and the rest of damaged ones."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._entries: dict[str, ClaimRecord | Remainder] = {}
        self._places: dict[str, list[tuple[_List, tuple[str, ...], Hashable]]] = {}
        self._held: _List = {}  # by boot, pool and device; by share
        self._drawn: _List = {}  # by boot, pool, counter set and counter; by device
        self._undrawn: _List = {}  # by boot and pool, held devices of which no draw is recorded; by device
        self._owned: _List = {}  # by boot and part of the host; by pool and device
        self._had: _List = {}  # by boot and part of the host
        self._unknown: _List = {}  # by boot, the claims that may hold any device

    def replace(self, found: Mapping[str, ClaimRecord | Remainder]) -> None:
        """Take these for all claims; a record that is the one from before is listed already."""
        for uid in self._entries.keys() - found.keys():
            self._put(uid, None)
        for uid, entry in found.items():
            if self._entries.get(uid) is not entry:
                self._put(uid, entry)

    def update(self, changed: Mapping[str, ClaimRecord | Remainder | None]) -> None:
        """Take these for what is known of some claims; None is one without a record."""
        for uid, entry in changed.items():
            self._put(uid, entry)

    def __len__(self) -> int:
        """Return how many claims are known."""
        return len(self._entries)

    def __getitem__(self, uid: str) -> ClaimRecord | Remainder:
        """Return what is known of a claim that one of the methods named."""
        return self._entries[uid]

    def of_device(self, boot: str, device: HeldDevice) -> Iterator[str]:
        """Yield the claims that hold a device, or the same share of it."""
        if device.admin_access:
            return
        shares = self._held.get((boot, device.pool, device.device), {})
        for share in shares if device.share_id is None else (None, device.share_id):
            yield from shares.get(share, ())

    def of_any_device(self, boot: str) -> Iterator[str]:
        """Yield the claims that may hold any device."""
        for uids in self._unknown.get((boot,), {}).values():
            yield from uids

    def drawing(
        self, boot: str, pool: str, counter: tuple[str, str], published: PoolCounters, *, beside: Collection[str]
    ) -> Iterator[tuple[str, HeldDevice]]:
        """Yield, with its claim, each of the held devices that draw from a counter, once for each of its claims.

        Records of a former version do not say what their devices draw; the pool as it is published may.
        """
        undrawn = self._undrawn.get((boot, pool), {})
        without = {device: undrawn[device] for device in published.draws.keys() & undrawn.keys()}
        name, key = counter
        drawn = self._drawn.get((boot, pool, name, key), {})
        for device, claims in [*drawn.items(), *without.items()]:
            if device in beside:
                continue
            for uid, held in claims.items():
                if held and (held.draws or key in published.draws[held.device].get(name, {})):
                    yield uid, held

    def of_part(self, boot: str, part: str, *, beside: tuple[str, str]) -> Iterator[str]:
        """Yield the claims that own a part of the host, but by another device than that ``beside``."""
        for device, uids in self._owned.get((boot, part), {}).items():
            if device != beside:
                yield from uids

    def of_former_part(self, boot: str, part: str) -> Iterator[str]:
        """Yield the claims that owned a part of the host before their devices moved."""
        for uids in self._had.get((boot, part), {}).values():
            yield from uids

    def _put(self, uid: str, entry: ClaimRecord | Remainder | None) -> None:
        for by_name, name, kind in self._places.pop(uid, ()):
            kinds = by_name[name]
            kinds[kind].pop(uid, None)
            if not kinds[kind]:
                del kinds[kind]
            if not kinds:
                del by_name[name]
        self._entries.pop(uid, None)
        if entry is None:
            return
        self._entries[uid] = entry
        places = self._places[uid] = []
        for by_name, name, kind, held in self._listed(entry if isinstance(entry, Remainder) else Remainder.of(entry)):
            claims = by_name.setdefault(name, {}).setdefault(kind, {})
            if uid not in claims:
                places.append((by_name, name, kind))
            claims[uid] = held

    def _listed(self, rest: Remainder) -> Iterator[tuple[_List, tuple[str, ...], Hashable, HeldDevice | None]]:
        """Yield where a claim belongs."""
        boot = rest.boot_id
        if rest.holds is None:
            yield self._unknown, (boot,), "", None
        for held in _here(rest.holds or (), rest.node, self._node):
            if held.admin_access:
                continue
            yield self._held, (boot, held.pool, held.device), held.share_id, held
            for name, of_set in held.draws.items():
                for counter in of_set:
                    yield self._drawn, (boot, held.pool, name, counter), held.device, held
            if not held.draws:
                yield self._undrawn, (boot, held.pool), held.device, held
        if isinstance(rest.owned, tuple):  # a former version did not say by which device
            for part in rest.owned:
                yield self._had, (boot, part), "", None
        else:
            for part, device in rest.owned.items():
                yield self._owned, (boot, part), device, None
        for part in rest.had:
            yield self._had, (boot, part), "", None


def _here(holds: Iterable[HeldDevice], node: str, now: str) -> Iterable[HeldDevice]:
    """Return devices with the names that their pools have since the node has another name: they are the same."""
    if not node or node == now:
        return holds
    return (replace(held, pool=now + held.pool[len(node) :]) if _is_of(held.pool, node) else held for held in holds)


def _is_of(pool: str, node: str) -> bool:
    """Return whether a pool is that of a node, or one of several of it, such as ``node-1/gpus``."""
    return pool == node or pool.startswith(f"{node}/")
