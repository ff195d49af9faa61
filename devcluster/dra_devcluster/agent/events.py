"""Events on pods, written in the background and counted when they repeat.

An event that cannot be written is dropped, because nothing depends on events.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from dra_api.core import Pod
from dra_api.values import now
from dra_kube import EVENTS, Api, KubeError, NotFound

logger = logging.getLogger(__name__)
_PENDING_EVENTS = 1000
_REMEMBERED_EVENTS = 1000


@dataclass(frozen=True, slots=True)
class _Event:
    namespace: str
    name: str
    uid: str
    field: str
    type: str
    reason: str
    message: str


class EventRecorder:
    """Writes events in the name of the node; ``run`` must be running."""

    def __init__(self, api: Api, node_name: str) -> None:
        self._api = api
        self._node = node_name
        self._queue: asyncio.Queue[_Event] = asyncio.Queue(_PENDING_EVENTS)
        self._written: dict[_Event, tuple[str, int]] = {}

    def warning(self, pod: Pod, reason: str, message: str, container: str = "") -> None:
        """Post a warning: a step failed and is tried again."""
        self._record("Warning", pod, reason, message, container)

    def normal(self, pod: Pod, reason: str, message: str, container: str = "") -> None:
        """Post that a step succeeded."""
        self._record("Normal", pod, reason, message, container)

    def _record(self, kind: str, pod: Pod, reason: str, message: str, container: str) -> None:
        field = f"spec.containers{{{container}}}" if container else ""
        meta = pod.metadata
        try:
            self._queue.put_nowait(_Event(meta.namespace, meta.name, meta.uid, field, kind, reason, message))
        except asyncio.QueueFull:
            logger.warning("event dropped, too many are pending: %s %s", reason, message)

    async def run(self) -> None:
        while True:
            event = await self._queue.get()
            try:
                await self._write(event)
            except KubeError as error:
                logger.warning("event %s on %s/%s not written: %s", event.reason, event.namespace, event.name, error)

    async def _write(self, event: _Event) -> None:
        moment = now()
        name, count = self._written.pop(event, ("", 0))
        if name:
            try:
                update = {"count": count + 1, "lastTimestamp": moment}
                await self._api.patch(EVENTS, name, update, event.namespace)
                self._written[event] = (name, count + 1)
                return
            except NotFound:
                count = 0  # it has expired
        name = f"{event.name}.{time.time_ns():x}"  # as client-go: names in the order of time
        involved = {"apiVersion": "v1", "kind": "Pod", "namespace": event.namespace, "name": event.name}
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": event.namespace},
            "involvedObject": involved | {"uid": event.uid} | ({"fieldPath": event.field} if event.field else {}),
            "type": event.type,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": "kubelet", "host": self._node},
            "reportingComponent": "kubelet",
            "reportingInstance": self._node,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
        await self._api.create(EVENTS, body, event.namespace)
        self._written[event] = (name, 1)
        if len(self._written) > _REMEMBERED_EVENTS:
            del self._written[next(iter(self._written))]
