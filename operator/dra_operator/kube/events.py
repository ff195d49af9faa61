"""Writes Event objects, which tell people what happened to an object.

Every event has a reason of the catalogue ``EventReason``; ``docs/operator.md`` lists them for people, and a test keeps
the two alike. No decision depends on events: they are written in the background, never waited for, and lost rather than
retried. The same message about the same object is one Event with a count. Each object may cause a burst of events and
then only one every few minutes, so that a pod that fails ten times a second does not flood the cluster. What the object
itself shows (``SHOWN``: a placed pod has its node and its condition) is written ten times a second at most, after a
burst of 25. Otherwise ten thousand pods placed at once would cost a write more each, and the events that say why others
still wait would queue behind.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dra_api.cache import Cache
from dra_api.core import Pod
from dra_api.meta import Object as Struct
from dra_api.resource import GROUP
from dra_api.scheduling import PodGroup
from dra_kube import EVENTS, POD_GROUPS, KubeError, NotFound

from dra_operator.kube.client import Client


class EventReason(Enum):
    """Type, reason and meaning; reasons that kube-scheduler or the claim controller has are theirs."""

    SCHEDULED = (
        "Normal",
        "Scheduled",
        "The pod has its node; written at most ten times a second, since the pod shows it.",
    )
    BINDING_CONDITIONS_PENDING = (
        "Normal",
        "BindingConditionsPending",
        "The pod has its devices and waits for their binding conditions.",
    )
    GATE_REMOVED = (
        "Normal",
        "SchedulingGateRemoved",
        "The pod has its devices, and its scheduler may place it.",
    )
    VOLUMES_PENDING = (
        "Normal",
        "VolumeBindingPending",
        "The pod has its node and waits for its PersistentVolumeClaims to be bound there.",
    )
    FAILED_SCHEDULING = (
        "Warning",
        "FailedScheduling",
        "The pod waits, and why; written when the condition `PodScheduled` changes.",
    )
    CLAIM_ALLOCATED = (
        "Normal",
        "ClaimAllocated",
        "An immediate claim has its devices.",
    )
    FAILED_ALLOCATION = (
        "Warning",
        "FailedAllocation",
        "An immediate claim waits for devices, and why; or the annotation of a claim is wrong.",
    )
    CLAIM_PARKED = (
        "Warning",
        "ResourceClaimParked",
        "Another scheduler gave a device of the claim away as well; the claim keeps it, and no pod runs with it.",
    )
    FAILED_CLAIM_CREATION = (
        "Warning",
        "FailedResourceClaimCreation",
        "The operator cannot make a claim of the pod from its template, or cannot record its name.",
    )

    PREEMPTING = (
        "Normal",
        "Preempting",
        "The pod fits nowhere; pods of lower priority are preempted, with `--preemption`.",
    )
    PREEMPTED = (
        "Normal",
        "Preempted",
        "The pod is ended, because one of higher priority needs its devices or its room on the node.",
    )
    DEVICE_TAINT_EVICTION = (
        "Normal",
        "DeviceTaintManagerEviction",
        "`Marking for deletion`: the pod is deleted, because a device of it has a taint with the effect NoExecute; "
        "`Cancelling deletion`: it was due later, and may stay.",
    )

    def __init__(self, kind: str, reason: str, meaning: str) -> None:
        self.kind, self.reason, self.meaning = kind, reason, meaning


logger = logging.getLogger(__name__)

BURST_EVENTS = 25
REFILL_SECONDS = 300.0  # seconds until an object may cause one more event
SHOWN = frozenset({EventReason.SCHEDULED})
SHOWN_BURST_EVENTS = 25
SHOWN_REFILL_SECONDS = 0.1  # seconds until there may be one more event of such a reason
REMEMBERED_OBJECTS = 4096  # objects remembered
KEPT_MESSAGE_BYTES = 4 << 20  # of messages remembered
LONGEST_MESSAGE_CHARACTERS = 1024  # characters of a message
BACKLOG_EVENTS = 1000  # events that may wait to be written


_API_VERSIONS: Final[dict[type[Struct], str]] = {Pod: "v1", PodGroup: POD_GROUPS.api_version()}
"""Of the objects that are in other groups than ``resource.k8s.io``."""


@dataclass(frozen=True, slots=True)
class _Note:
    about: Struct
    reason: EventReason
    message: str

    @property
    def identity(self) -> tuple[str, EventReason, str]:
        return (self.about.metadata.uid or self.about.key, self.reason, self.message[:LONGEST_MESSAGE_CHARACTERS])


@dataclass(slots=True)
class _Written:
    name: str
    count: int


class EventRecorder:
    """``post`` from anywhere; ``run`` as a task writes. ``clock`` counts seconds, ``now`` is RFC 3339 text."""

    def __init__(self, client: Client, component: str, *, clock: Callable[[], float], now: Callable[[], str]) -> None:
        self._client, self._component, self._clock, self._now = client, component, clock, now
        self._notes: asyncio.Queue[_Note] = asyncio.Queue(BACKLOG_EVENTS)
        self._written: Cache[tuple[str, EventReason, str], _Written] = Cache(
            KEPT_MESSAGE_BYTES, lambda identity, written: 512 + 4 * (len(identity[2]) + len(written.name))
        )
        self._allowance: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._last_name = 0

    def post(self, about: Struct, reason: EventReason, message: str) -> None:
        """Queue an event about an object."""
        if reason in SHOWN and not self._may_post(reason.reason, SHOWN_BURST_EVENTS, SHOWN_REFILL_SECONDS):
            return
        if not self._may_post(about.metadata.uid or about.key, BURST_EVENTS, REFILL_SECONDS):
            return
        try:
            self._notes.put_nowait(_Note(about, reason, message))
        except asyncio.QueueFull:
            logger.debug("event dropped, too many are waiting: %s %s", reason.reason, about.key)

    async def run(self) -> None:
        """Write what was posted, until cancelled."""
        while True:
            await self._write(await self._notes.get())
            self._notes.task_done()

    async def flush(self, seconds: float) -> None:
        """Give ``run`` a last chance to write what is left."""
        try:
            async with asyncio.timeout(seconds):
                await self._notes.join()
        except TimeoutError:
            logger.info("%d events were not written before the end", self._notes.qsize())

    def _may_post(self, subject: str, burst: float, refill: float) -> bool:
        now = self._clock()
        tokens, at = self._allowance.pop(subject, (burst, now))
        tokens = min(burst, tokens + (now - at) / refill)
        allowed = tokens >= 1
        self._allowance[subject] = (tokens - 1 if allowed else tokens, now)
        if len(self._allowance) > REMEMBERED_OBJECTS:
            self._allowance.popitem(last=False)
        return allowed

    async def _write(self, note: _Note) -> None:
        try:
            if not await self._count_up(note):
                await self._create(note)
        except KubeError as error:
            logger.debug("event %s for %s not written: %s", note.reason.reason, note.about.key, error)

    async def _count_up(self, note: _Note) -> bool:
        known = self._written.get(note.identity)
        if known is None:
            return False
        patch = {"count": known.count + 1, "lastTimestamp": self._now()}
        try:
            await self._client.patch(EVENTS, known.name, patch, note.about.metadata.namespace or "default")
        except NotFound:  # events expire on the server
            self._written.pop(note.identity)
            return False
        known.count += 1
        return True

    def _name(self, about: str) -> str:
        """As client-go names events: the nanosecond in hexadecimal, so that names sort by time; never the same twice.

        The first 200 characters of the object's name suffice, without what may not stand before a dot.
        """
        self._last_name = max(time.time_ns(), self._last_name + 1)
        return f"{about[:200].rstrip('-.')}.{self._last_name:x}"

    async def _create(self, note: _Note) -> None:
        meta, now = note.about.metadata, self._now()
        namespace = meta.namespace or "default"
        name = self._name(meta.name)
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": _API_VERSIONS.get(type(note.about), f"{GROUP}/v1"),
                "kind": type(note.about).__name__,  # the items of a list do not say their kind
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
            },
            "type": note.reason.kind,
            "reason": note.reason.reason,
            "message": note.message[:LONGEST_MESSAGE_CHARACTERS],
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._client.create(EVENTS, body, namespace)
        self._written.put(note.identity, _Written(name, 1))
