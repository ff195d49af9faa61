"""How much of a device claims consume, and whether what others want still fits: no device gives more than it has.

A device that claims do not share is a whole one, and so is what a claim takes of it. Of a card that comes whole or as
two halves a claim may have either, so a half is what it needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dra_kube import RESOURCE_CLAIMS, RESOURCE_SLICES
from fake_store import FakeStore
from objects import Obj

from .script import CAPACITY, HALF, USUAL


def usual_amount(store: FakeStore) -> int:
    """What a claim takes of a device if it does not say so."""
    shares = any(
        device.get("allowMultipleAllocations") or device.get("consumesCounters")
        for part in store.of(RESOURCE_SLICES)
        for device in part["spec"].get("devices") or ()
    )
    return USUAL if shares else CAPACITY


def amount_of(claim: Obj, usual: int) -> int:
    """What the claim takes of its device."""
    exactly = claim["spec"]["devices"]["requests"][0]["exactly"]
    return int(((exactly.get("capacity") or {}).get("requests") or {}).get("memory", usual))


def consumed(store: FakeStore, *, parked: bool = True) -> Counter[str]:
    """How much of each device, by node and name, all claims have together, with or without parked ones."""
    amounts: Counter[str] = Counter()
    for claim in store.of(RESOURCE_CLAIMS):
        users = (claim.get("status") or {}).get("reservedFor") or ()
        if not parked and any(it["resource"] == "contests" for it in users):
            continue
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in allocation.get("devices", {}).get("results") or ():
            kind, _, number = result["device"].partition("-")
            if kind == HALF:
                amounts[f"{result['pool']}/dev-{number[0]}"] += USUAL
            else:
                memory = (result.get("consumedCapacity") or {}).get("memory", CAPACITY)
                amounts[f"{result['pool']}/{result['device']}"] += int(memory)
    return amounts


def overdrawn(store: FakeStore) -> Iterator[str]:
    """Devices of which claims that pods may use have more than there is."""
    yield from (
        f"{of} of device {it} are consumed" for it, of in consumed(store, parked=False).items() if of > CAPACITY
    )


def fit(wanted: Sequence[int], free: Mapping[str, int]) -> bool:
    """Whether each of these amounts finds a device that has it left: all ways are tried."""
    if not wanted:
        return True
    first, *others = wanted
    return any(fit(others, {**free, device: left - first}) for device, left in free.items() if left >= first)
