"""Who else changes things.

Kubelets end pods, the garbage collector deletes what has no owner any more, another scheduler binds its pods when no
gate holds them back, and a provisioner makes volumes on the nodes that were selected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from dra_kube import PERSISTENT_VOLUME_CLAIMS, PODS, RESOURCE_CLAIMS, Conflict, NotFound, Resource
from fake_store import key_of
from objects import Obj
from volume_lab import bind_volumes

from .rival import is_rival
from .script import OTHER
from .server import Server
from .weather import Weather

SLOWEST_SECONDS = 150.0
"""That a pod takes to end whose grace period is as long or longer; far more than a victim is waited for."""


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
            self._later(meta["uid"], obj, self._end_pod, self._grace(obj))
        elif resource == PODS and event != "DELETED" and _is_for_the_other(obj):
            self._later("schedule", obj, self._schedule)
        elif resource == PODS and event == "DELETED":
            for claim in self.server.of(RESOURCE_CLAIMS):
                self._later(meta["uid"], claim, self._collect)
        elif resource is PERSISTENT_VOLUME_CLAIMS and not obj["spec"].get("volumeName"):
            self._later("provision", obj, self._provision)
        elif resource == RESOURCE_CLAIMS and event == "ADDED":
            self._later(meta["uid"], obj, self._collect)

    def look_at_everything(self) -> None:
        """After the server went back in time."""
        for pod in self.server.of(PODS):
            self.changed("ADDED", PODS, pod)
        for resource in (RESOURCE_CLAIMS, PERSISTENT_VOLUME_CLAIMS):
            for claim in self.server.of(resource):
                self.changed("ADDED", resource, claim)

    def _grace(self, pod: Obj) -> float:
        """How long its containers take to end."""
        grace: float = pod["spec"].get("terminationGracePeriodSeconds", 0)
        return min(grace * self._weather.chance("grace", pod["metadata"]["uid"]), SLOWEST_SECONDS)

    def _later(self, why: str, obj: Obj, what: Callable[[Obj], None], more: float = 0.0) -> None:
        self.busy += 1
        chance = self._weather.chance("neighbour", why, obj["metadata"]["uid"])
        self._loop.call_later(0.02 + 1.5 * chance + more, what, obj)

    def _schedule(self, obj: Obj) -> None:
        """To the node of its devices, which is the only one that its affinity allows."""
        self.busy -= 1
        current = self._current(obj)
        if current is None or not _is_for_the_other(current):
            return
        required = current["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (field,) = required["nodeSelectorTerms"][0]["matchFields"]
        self.server.change(PODS, key_of(obj), lambda pod: pod["spec"].update(nodeName=field["values"][0]))

    def _provision(self, obj: Obj) -> None:
        """The volumes of all claims for which a node was selected."""
        self.busy -= 1
        bind_volumes(self.server)

    def _end_pod(self, obj: Obj) -> None:
        self.busy -= 1
        if self._current(obj) is not None:
            self.server.drop(PODS, key_of(obj))

    def _current(self, pod: Obj) -> Obj | None:
        """The pod as the server has it, if it is still the same."""
        current = self.server.objects.get((PODS, pod["metadata"]["namespace"], pod["metadata"]["name"]))
        return current if current is not None and current["metadata"]["uid"] == pod["metadata"]["uid"] else None

    def _collect(self, obj: Obj) -> None:
        self.busy -= 1
        owners = obj["metadata"].get("ownerReferences") or []
        alive = {pod["metadata"]["uid"] for pod in self.server.of(PODS)}
        if owners and not any(owner["uid"] in alive for owner in owners):
            with suppress(NotFound, Conflict):
                self.server.deleted(RESOURCE_CLAIMS, obj["metadata"]["name"], "ns", uid=obj["metadata"]["uid"])


def _is_for_the_other(pod: Obj) -> bool:
    """Whether it came through the gate, so that the other scheduler places it now."""
    spec = pod["spec"]
    is_open = not spec.get("schedulingGates") and not spec.get("nodeName")
    is_placed_by_it = spec["schedulerName"] == OTHER and not is_rival(pod)
    return is_placed_by_it and is_open and "deletionTimestamp" not in pod["metadata"]
