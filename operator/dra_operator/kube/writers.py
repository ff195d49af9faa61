"""Write the status of rules, pool requests and PodGroups, bindings of volumes, and Events.

Each writer of a status decides on the object as the server has it at that moment, so a repetition finds its own write
done and writes nothing. Writes to volumes are never taken back: the PV controller completes a binding even if the pod
is gone. A volume that got another claim, or a claim that got another node, is left alone.

Events tell people what happened to an object. Every event has a reason of the catalogue ``EventReason``;
``docs/how-it-works.md`` lists them for people, and a test keeps the two alike. No decision depends on events: they are
written in the background, never waited for, and lost rather than retried. The same message about the same object is one
Event with a count. Each object may cause a burst of events and then only one every few minutes, so that a pod that
fails ten times a second does not flood the cluster. An event that the object itself shows (``SHOWN``: a placed pod has
its node and its condition) is written at most ten times a second, after a burst of 25. Otherwise ten thousand pods
placed at once would cost a write more each, and the events that say why others still wait would queue behind.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dra_api.cache import Cache
from dra_api.codec import convert, to_dict
from dra_api.core import Pod, PodSpec, PodStatus
from dra_api.meta import Condition, ObjectMeta
from dra_api.meta import Object as Struct
from dra_api.references import group_name, pod_is_done
from dra_api.resource import GROUP, DeviceTaintRule, ResourcePoolStatusRequest, ResourcePoolStatusRequestStatus
from dra_api.scheduling import PodGroup
from dra_api.storage import BOUND_BY_CONTROLLER, SELECTED_NODE, PersistentVolume, PersistentVolumeClaim
from dra_kube import (
    DEVICE_TAINT_RULES,
    EVENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_GROUPS,
    PODS,
    RESOURCE_POOL_STATUS_REQUESTS,
    KubeError,
    NotFound,
    Object,
)
from dra_ledger.errors import shortened

from dra_operator.kube.client import Client, PodGroupChanged, VolumeChanged, rewrite
from dra_operator.kube.pods import DEVICE_TAINT, record_names


class RuleWriter:
    """Every answer goes to ``seen`` at once."""

    def __init__(self, client: Client, seen: Callable[[Struct], None]) -> None:
        self._client, self._seen = client, seen

    async def report(self, rule: DeviceTaintRule, condition: Condition) -> None:
        """Set one condition of this very rule; others stay (scheduling.md 10.5).

        Under the field manager that kube-controller-manager uses, so that either can take over from the other. Raises
        NotFound, and Conflict for another rule of the name.
        """
        meta = rule.metadata
        written = {"message": "", **to_dict(condition)}  # the API requires a message, even an empty one
        raw = await self._client.patch(
            DEVICE_TAINT_RULES,
            meta.name,
            {"metadata": {"name": meta.name, "uid": meta.uid}, "status": {"conditions": [written]}},
            kind="apply",
            subresource="status",
            field_manager=DEVICE_TAINT.manager,
            force=True,
        )
        self._seen(convert(DeviceTaintRule, raw))


class PoolRequestWriter:
    """Every answer of the server goes to ``seen`` at once."""

    def __init__(self, client: Client, seen: Callable[[Struct], None]) -> None:
        self._client, self._seen = client, seen

    async def answer(self, request: ResourcePoolStatusRequest, status: ResourcePoolStatusRequestStatus) -> bool:
        """Give this very request its status, unless it has one by now; whether it was given.

        Raises NotFound.
        """
        given = False

        def edit(raw: Object) -> bool:
            nonlocal given
            given = raw["metadata"]["uid"] == request.metadata.uid and not raw.get("status")
            if given:
                raw["status"] = to_dict(status)
            return given

        name = request.metadata.name
        raw = await rewrite(self._client, RESOURCE_POOL_STATUS_REQUESTS, "", name, edit, subresource="status")
        self._seen(convert(ResourcePoolStatusRequest, raw))
        return given

    async def delete(self, request: ResourcePoolStatusRequest) -> None:
        """Delete this very request; that it is gone is fine. Raises Conflict for another one of the name."""
        meta = request.metadata
        try:
            await self._client.delete(RESOURCE_POOL_STATUS_REQUESTS, meta.name, uid=meta.uid)
        except NotFound:
            return


LONGEST_CONDITION_CHARACTERS = 8000  # characters of a message: the API server takes 32,768 bytes, four for a character


class PodGroupWriter:
    """Every answer goes to ``seen`` at once. ``now`` is the time as RFC 3339 text."""

    def __init__(self, client: Client, seen: Callable[[Struct], None], now: Callable[[], str]) -> None:
        self._client, self._seen, self._now = client, seen, now

    async def read(self, namespace: str, name: str) -> PodGroup:
        """Return the group as the server has it now. Raises NotFound, and DecodeError for one that is malformed."""
        return self._took(await self._client.get(POD_GROUPS, name, namespace))

    async def has_active_pods(self, namespace: str, name: str) -> bool:
        """Return whether the server has a pod of the group that has not ended; one that cannot be read may be one.

        Little is kept of each pod of the namespace meanwhile: users decide how many there are, and how large.
        """
        listed = await self._client.list_as(PODS, Pod, namespace, keep=_brief)
        members = (pod for pod in listed.items if group_name(pod) == name)
        return bool(listed.malformed) or not all(map(pod_is_done, members))

    async def record_claims(self, group: PodGroup, claims: Mapping[str, str]) -> PodGroup:
        """Write the names of generated claims, each under its entry; others stay as they are (claim-controller.md 5.6).

        Raises NotFound, and PodGroupChanged when another group has the name by now.
        """
        return await self._rewrite(group, lambda raw: record_names(raw, claims))

    async def report(self, group: PodGroup, kind: str, status: str, reason: str, message: str) -> PodGroup:
        """Write a condition of this type, unless one with the status True is there: that stays. Raises as above.

        A message that the API server would refuse for its length is cut.
        """

        def edit(raw: Object) -> bool:
            shown = raw["status"] = dict(raw.get("status") or {})
            conditions = shown.get("conditions") or []
            before = next((it for it in conditions if it["type"] == kind), None)
            if before is not None and before["status"] == "True":
                return False
            text = shortened(message, LONGEST_CONDITION_CHARACTERS)
            made = {"type": kind, "status": status, "reason": reason, "message": text}
            if before is not None and all(before.get(name) == value for name, value in made.items()):
                return False
            is_old = before is not None and before["status"] == status
            made["lastTransitionTime"] = before["lastTransitionTime"] if before is not None and is_old else self._now()
            made["observedGeneration"] = raw["metadata"].get("generation", 0)
            shown["conditions"] = [*(it for it in conditions if it["type"] != kind), made]
            return True

        return await self._rewrite(group, edit)

    async def _rewrite(self, group: PodGroup, change: Callable[[Object], bool]) -> PodGroup:
        meta = group.metadata

        def edit(raw: Object) -> bool:
            if raw["metadata"]["uid"] != meta.uid:
                self._took(raw)
                raise PodGroupChanged(f"PodGroup {group.key} was replaced by another one of the same name")
            return change(raw)

        return self._took(
            await rewrite(self._client, POD_GROUPS, meta.namespace, meta.name, edit, subresource="status")
        )

    def _took(self, raw: Object) -> PodGroup:
        group = convert(PodGroup, raw)
        self._seen(group)
        return group


def _brief(pod: Pod) -> Pod:
    """Return what says of which group the pod is, and whether it has ended."""
    meta, spec = pod.metadata, pod.spec
    return Pod(
        metadata=ObjectMeta(
            name=meta.name, namespace=meta.namespace, uid=meta.uid, deletion_timestamp=meta.deletion_timestamp
        ),
        spec=PodSpec(node_name=spec.node_name, scheduling_group=spec.scheduling_group),
        status=PodStatus(phase=pod.status.phase),
    )


class VolumeWriter:
    """All writes to volumes; every answer goes to ``seen`` at once."""

    def __init__(self, client: Client, seen: Callable[[Struct], None]) -> None:
        self._client, self._seen = client, seen

    async def reserve(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> None:
        """Have this very volume be for the claim and no other. Raises VolumeChanged, NotFound."""

        def edit(raw: Object) -> bool:
            current = convert(PersistentVolume, raw)
            if current.metadata.uid != volume.metadata.uid:
                raise VolumeChanged(f"PersistentVolume {volume.key} was replaced by another one of the same name")
            if current.spec.claim_ref is not None and not current.is_reserved_for(claim):
                raise VolumeChanged(f"PersistentVolume {volume.key} got another claim in the meantime")
            if current.metadata.deletion_timestamp is not None:
                raise VolumeChanged(f"PersistentVolume {volume.key} got deleted in the meantime")
            if current.spec.claim_ref is None:
                raw["metadata"].setdefault("annotations", {})[BOUND_BY_CONTROLLER] = "yes"
            elif current.spec.claim_ref.uid:
                return False
            raw["spec"]["claimRef"] = _reference(claim)
            return True

        raw = await rewrite(self._client, PERSISTENT_VOLUMES, "", volume.metadata.name, edit)
        self._seen(convert(PersistentVolume, raw))

    async def select_node(self, claim: PersistentVolumeClaim, node: str) -> None:
        """Have the class of the claim make a volume for the node. Raises VolumeChanged, NotFound."""
        meta = claim.metadata

        def edit(raw: Object) -> bool:
            current = convert(PersistentVolumeClaim, raw)
            if current.metadata.uid != meta.uid or current.metadata.deletion_timestamp is not None:
                raise VolumeChanged(f"PersistentVolumeClaim {claim.key} got deleted in the meantime")
            selected = (current.metadata.annotations or {}).get(SELECTED_NODE)
            if selected == node or current.spec.volume_name:
                return False
            if selected is not None:
                raise VolumeChanged(f"PersistentVolumeClaim {claim.key} got node {selected} in the meantime")
            raw["metadata"].setdefault("annotations", {})[SELECTED_NODE] = node
            return True

        raw = await rewrite(self._client, PERSISTENT_VOLUME_CLAIMS, meta.namespace, meta.name, edit)
        self._seen(convert(PersistentVolumeClaim, raw))


def _reference(claim: PersistentVolumeClaim) -> Object:
    meta = claim.metadata
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
    }


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
        except NotFound:  # events expire on the server; the next one takes the place of this one
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
