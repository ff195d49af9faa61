"""Who else changes things: kubelets end pods, and the garbage collector deletes what has no owner any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from dra_kube import PODS, RESOURCE_CLAIMS, Conflict, NotFound, Resource
from fake_store import key_of
from objects import Obj

from .server import Server
from .weather import Weather


class Neighbours:
    """``changed`` is told of every change at the server. They go by what the server has, and nothing befalls them."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather
        self._loop = asyncio.get_running_loop()
        self.server: Server
        self.busy = 0

    def changed(self, event: str, resource: Resource, obj: Obj) -> None:
        """Something is to be done later."""
        meta = obj["metadata"]
        if resource == PODS and event != "DELETED" and "deletionTimestamp" in meta:
            self._later(meta["uid"], obj, self._end_pod)
        elif resource == PODS and event == "DELETED":
            for claim in self.server.of(RESOURCE_CLAIMS):
                self._later(meta["uid"], claim, self._collect)
        elif resource == RESOURCE_CLAIMS and event == "ADDED":
            self._later(meta["uid"], obj, self._collect)

    def look_at_everything(self) -> None:
        """After the server went back in time."""
        for pod in self.server.of(PODS):
            self.changed("ADDED", PODS, pod)
        for claim in self.server.of(RESOURCE_CLAIMS):
            self.changed("ADDED", RESOURCE_CLAIMS, claim)

    def _later(self, why: str, obj: Obj, what: Callable[[Obj], None]) -> None:
        self.busy += 1
        self._loop.call_later(0.02 + 1.5 * self._weather.chance("neighbour", why, obj["metadata"]["uid"]), what, obj)

    def _end_pod(self, obj: Obj) -> None:
        self.busy -= 1
        current = self.server.objects.get((PODS, obj["metadata"]["namespace"], obj["metadata"]["name"]))
        if current is not None and current["metadata"]["uid"] == obj["metadata"]["uid"]:
            self.server.drop(PODS, key_of(obj))

    def _collect(self, obj: Obj) -> None:
        self.busy -= 1
        owners = obj["metadata"].get("ownerReferences") or []
        alive = {pod["metadata"]["uid"] for pod in self.server.of(PODS)}
        if owners and not any(owner["uid"] in alive for owner in owners):
            with suppress(NotFound, Conflict):
                self.server.deleted(RESOURCE_CLAIMS, obj["metadata"]["name"], "ns", obj["metadata"]["uid"])
