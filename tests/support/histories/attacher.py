"""The driver's controller that attaches devices once they are allocated, where pods are bound after that only.

It says of each allocated device by its conditions that it is attached, or broken, or it says nothing: then the operator
gives the device up ten minutes later. In good weather each device is attached, also those of which it said nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from dra_kube import RESOURCE_CLAIMS, Resource
from fake_store import FakeStore, key_of
from objects import Obj

from .script import ATTACHED, BROKEN
from .weather import Weather

FAILURES = 0.2
SILENCE = 0.15
MOST_SECONDS = 4.0


class Attacher:
    """``changed`` is told of every change at the server. It goes by what the server has, and nothing befalls it."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather
        self._loop = asyncio.get_running_loop()
        self._allocations = 0
        self.server: FakeStore
        self.busy = 0

    def changed(self, event: str, resource: Resource, obj: Obj) -> None:
        """A claim may have new devices."""
        if resource is RESOURCE_CLAIMS and event != "DELETED" and any(unready(obj)):
            self._allocations += 1
            self.busy += 1
            chance = self._weather.chance("attach", self._allocations)
            self._loop.call_later(0.05 + MOST_SECONDS * chance**3, self._look, key_of(obj), obj["metadata"]["uid"])

    def look_at_everything(self) -> None:
        """After the server went back in time, and in good weather."""
        for claim in self.server.of(RESOURCE_CLAIMS):
            self.changed("MODIFIED", RESOURCE_CLAIMS, claim)

    def _look(self, key: str, uid: str) -> None:
        self.busy -= 1
        claim = self.server.objects.get((RESOURCE_CLAIMS, "ns", key.removeprefix("ns/")))
        if claim is None or claim["metadata"]["uid"] != uid or not any(unready(claim)):
            return
        since = claim["status"]["allocation"].get("allocationTimestamp")
        for device in list(unready(claim)):
            dice = 1.0 if self._weather.is_over else self._weather.chance("attached", uid, since, *device.values())
            if dice >= FAILURES + SILENCE:
                self._report(key, device, ATTACHED)
            elif dice < FAILURES:
                self._report(key, device, BROKEN)

    def _report(self, key: str, device: Obj, kind: str) -> None:
        condition = {"type": kind, "status": "True", "reason": "Seen", "message": kind}

        def edit(claim: Obj) -> None:
            others = [it for it in claim["status"].get("devices") or () if _id(it) != device]
            claim["status"]["devices"] = [*others, {**device, "conditions": [condition]}]

        self.server.change(RESOURCE_CLAIMS, key, edit)


def unready(claim: Obj) -> Iterator[Obj]:
    """Devices of the claim that have to be attached, and of which it is not said that they are, or that they are
    broken."""
    status = claim.get("status") or {}
    said = {tuple(_id(it).values()) for it in status.get("devices") or () if it.get("conditions")}
    for result in ((status.get("allocation") or {}).get("devices") or {}).get("results") or ():
        if result.get("bindingConditions") and tuple(_id(result).values()) not in said:
            yield _id(result)


def not_attached(claim: Obj) -> list[str]:
    """Devices of the claim that have to be attached, and are not said to be."""
    status = claim.get("status") or {}
    attached = [
        _id(it)
        for it in status.get("devices") or ()
        if [condition["type"] for condition in it["conditions"]] == [ATTACHED]
    ]
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    return [f"{it['pool']}/{it['device']}" for it in results if it.get("bindingConditions") and _id(it) not in attached]


def _id(result: Obj) -> Obj:
    return {name: result[name] for name in ("driver", "pool", "device", "shareID") if name in result}
