"""Puts scenes on a real API server, and compares what kube-scheduler does with each pod with what we say of it."""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dra_api.codec import convert, encode
from dra_api.core import Namespace, Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_kube import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AlreadyExists,
    Api,
    Invalid,
    NotFound,
    Resource,
)
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.cache import Cluster
from dra_operator.scheduling import CycleState, Fits, NoPlace, PodFilter, decided, plan, pre_filter, total

from like_scheduler.scenes import Json, Probe, Scene

Devices = dict[str, list[Any]]
"""By claim UID: what each request got."""
_TYPES: dict[Resource, type[Object]] = {
    NAMESPACES: Namespace,
    DEVICE_CLASSES: DeviceClass,
    RESOURCE_SLICES: ResourceSlice,
    NODES: Node,
    RESOURCE_CLAIMS: ResourceClaim,
    PODS: Pod,
}
_ROOM = 6
"""What the rest of a node's room may count, which kube-scheduler counts in another way (NR-26)."""
_AGAIN = 10


@dataclass(frozen=True)
class Verdict:
    """What kube-scheduler said: a node, or why there is none."""

    node: str | None
    message: str = ""

    @property
    def is_error(self) -> bool:
        return self.message.startswith("SchedulerError")


@dataclass(frozen=True)
class Answer:
    """What we say: the nodes that fit, with their scores without room, and the devices there."""

    scores: dict[str, int]
    devices: dict[str, Devices]
    is_error: bool
    text: str


@dataclass
class Trial:
    """``decided`` counts the pods that were compared, ``bound`` those that got a node, ``refused`` what was invalid."""

    api: Api
    decided: int = 0
    bound: int = 0
    refused: int = 0
    _stored: dict[Resource, dict[str, Json]] = field(default_factory=dict)

    async def differences(self, scene: Scene) -> list[str]:
        """What is not as kube-scheduler has it. Leaves nothing behind but the namespaces."""
        self._stored = {resource: {} for resource in _TYPES}
        try:
            await self._furnish(scene)
            found = [await self._difference(probe) for probe in scene.probes]
        finally:
            await self._clear()
        return [text for text in found if text]

    # --- the scene ---

    async def _furnish(self, scene: Scene) -> None:
        for name, team in scene.teams.items():
            with suppress(AlreadyExists):
                await self.api.create(NAMESPACES, {"metadata": {"name": name}})
            self._keep(NAMESPACES, await self.api.patch(NAMESPACES, name, {"metadata": {"labels": {"team": team}}}))
        parts = ((NODES, scene.nodes), (DEVICE_CLASSES, scene.classes), (RESOURCE_SLICES, scene.slices))
        for resource, bodies in parts:
            await asyncio.gather(*(self._make(resource, body) for body in bodies))
        await asyncio.gather(*map(self._add_resident, scene.pods_by_node))

    async def _make(self, resource: Resource, body: Json) -> Json | None:
        """The object as it is stored; None if the server finds it invalid."""
        try:
            return self._keep(resource, await self.api.create(resource, body))
        except Invalid:
            self.refused += 1
            return None

    async def _add_resident(self, pod: Json) -> None:
        if await self._make(PODS, pod) is None:
            return
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if "status" in pod:
            await self.api.patch(PODS, name, {"status": pod["status"]}, namespace, subresource="status")
        if "finalizers" in pod["metadata"]:
            await self.api.delete(PODS, name, namespace, grace_seconds=30)
        self._keep(PODS, await self.api.get(PODS, name, namespace))

    def _keep(self, resource: Resource, obj: Json) -> Json:
        self._stored[resource][f"{obj['metadata'].get('namespace')}/{obj['metadata']['name']}"] = obj
        return obj

    async def _clear(self) -> None:
        for resource in (PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_CLASSES, NODES):
            await asyncio.gather(*(self._drop(resource, obj) for obj in list(self._stored[resource].values())))

    async def _drop(self, resource: Resource, obj: Json) -> None:
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
        self._stored[resource].pop(f"{namespace}/{name}", None)
        with suppress(NotFound):
            await self.api.delete(resource, name, namespace, grace_seconds=0)
            await self.api.patch(resource, name, {"metadata": {"finalizers": None}}, namespace)

    # --- a pod ---

    async def _difference(self, probe: Probe) -> str:
        """Empty if all is alike. What differs is tried again: kube-scheduler's watches may be behind."""
        found = [await self._compared(probe)]
        while found[0] and len(found) <= _AGAIN:
            found.append(await self._compared(probe))
        self.decided += 1
        return next(filter(None, found[_AGAIN // 2 :]), "")

    async def _compared(self, probe: Probe) -> str:
        """The pod is gone afterwards, unless it stays."""
        claims = [await self._make(RESOURCE_CLAIMS, claim) for claim in copy.deepcopy(probe.claims)]
        made = [claim for claim in claims if claim is not None]
        pod = await self._make(PODS, self._usable(probe.pod)) if len(made) == len(claims) else None
        difference, stays = "", False
        if pod is not None:
            verdict = await self._verdict(pod)
            answer = self._answer(pod)
            difference = _difference(verdict, answer) or await self._other_devices(verdict, answer, made)
            if difference and verdict.is_error and self._uses_devices(pod):
                difference = ""  # an error on a node where the pod cannot go: DEVIATE of scheduling.md 4.2
            stays = probe.stays and verdict.node is not None and not difference
            self.bound += verdict.node is not None
        if stays and pod is not None:
            self._keep(PODS, await self.api.get(PODS, pod["metadata"]["name"], "ns"))
            return ""
        for resource, obj in [(PODS, pod), *((RESOURCE_CLAIMS, claim) for claim in made)]:
            if obj is not None:
                await self._drop(resource, obj)
        return difference

    def _usable(self, pod: Json) -> Json:
        """Without claims that are not there any more, because the pod that was to keep them got no node."""
        entries = pod["spec"].get("resourceClaims", ())
        there = [it for it in entries if f"ns/{it['resourceClaimName']}" in self._stored[RESOURCE_CLAIMS]]
        return {**pod, "spec": {**pod["spec"], "resourceClaims": there}}

    def _uses_devices(self, pod: Json) -> bool:
        keys = [f"ns/{it['resourceClaimName']}" for it in pod["spec"].get("resourceClaims", ())]
        return any("allocation" in self._stored[RESOURCE_CLAIMS][key].get("status", {}) for key in keys)

    async def _verdict(self, pod: Json) -> Verdict:
        meta = pod["metadata"]
        since, only = meta["resourceVersion"], f"metadata.name={meta['name']}"
        events = self.api.watch(PODS, meta["namespace"], resource_version=since, fieldSelector=only)
        async with asyncio.timeout(60), aclosing(events) as changes:  # type: ignore[type-var]  # is a generator
            async for event in changes:
                if event.object.get("spec", {}).get("nodeName"):
                    return Verdict(event.object["spec"]["nodeName"])
                for it in event.object.get("status", {}).get("conditions", ()):
                    if it["type"] == "PodScheduled" and it["status"] == "False":
                        return Verdict(None, f"{it['reason']}: {it['message']}")
        raise AssertionError(f"the watch of pod {meta['name']} ended")

    def _answer(self, pod: Json) -> Answer:
        features = Features()
        cluster = Cluster(Inventory(features, language=CelSelectors(features)))
        for resource, type_ in _TYPES.items():
            for obj in self._stored[resource].values():
                cluster.apply(convert(type_, obj))
        allocator = Allocator(cluster.inventory, new_share_id=lambda: str(uuid.uuid4()))
        examined = pre_filter(convert(Pod, pod), cluster.snapshot(allocator, datetime.now(UTC)))
        if not isinstance(examined, CycleState):
            return Answer({}, {}, False, examined.text)
        question = PodFilter(examined)
        answers = [(state, decided(question.filter(state))) for state in examined.nodes]
        fits = [(state, answer) for state, answer in answers if isinstance(answer, Fits)]
        raw = [question.scores.raw(state) for state, _ in fits]
        scores = map(total, question.scores.weighted(raw)) if question.scores and fits else [0] * len(fits)
        found = decided(plan(examined))
        return Answer(
            {state.name: its for (state, _), its in zip(fits, scores, strict=True)},
            {state.name: {uid: _results(its) for uid, its in fit.plan.allocations.items()} for state, fit in fits},
            isinstance(found, NoPlace) and found.is_error,
            "; ".join(f"{state.name}: {answer.text}" for state, answer in answers),
        )

    async def _other_devices(self, verdict: Verdict, answer: Answer, claims: Sequence[Json]) -> str:
        """Reads the claims of a bound pod again."""
        if verdict.node is None:
            return ""
        read = [await self.api.get(RESOURCE_CLAIMS, claim["metadata"]["name"], "ns") for claim in claims]
        theirs = {it["metadata"]["uid"]: _devices(it["status"]["allocation"]) for it in read}
        ours = answer.devices[verdict.node]
        if theirs != ours:
            return f"kube-scheduler gives {theirs}, we give {ours} on {verdict.node}"
        for claim in read:
            self._keep(RESOURCE_CLAIMS, claim)
        return ""


def _difference(verdict: Verdict, answer: Answer) -> str:
    if verdict.node is not None and verdict.node in answer.scores and not answer.is_error:
        most = max(answer.scores.values())
        alike = answer.scores[verdict.node] >= most - _ROOM
        return "" if alike else f"kube-scheduler takes {verdict.node}, which has a lower score: {answer.scores}"
    if verdict.node is None and verdict.is_error == answer.is_error and (answer.is_error or not answer.scores):
        return ""
    return f"kube-scheduler: {verdict.node or verdict.message}; we: {answer.text}"


def _results(allocation: Any) -> list[Any]:
    return _devices(json.loads(encode(allocation)))


def _devices(allocation: Json) -> list[Any]:
    """Without the ids of shares, which are random."""
    results = allocation.get("devices", {}).get("results") or []
    return [
        [it["request"], it["driver"], it["pool"], it["device"], sorted((it.get("consumedCapacity") or {}).items())]
        for it in results
    ]
