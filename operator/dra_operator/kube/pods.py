"""Writing pods: which claims they got, why they wait, where they go, and their end. Nothing else is ever touched.

A scheduling gate is opened in the pod as the server has it: the gate goes, and the choice of nodes is narrowed in the
same write. The API server lets the required node affinity of a gated pod only be narrowed: a pod without terms may get
any, otherwise requirements may be appended to the terms that are there. Terms are alternatives, so each gets them; a
term without requirements selects no node and stays as it is.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from dra_api.codec import convert, to_dict
from dra_api.core import NodeAllocatableResourceClaimStatus, NodeSelectorTerm, Pod, PodExtendedResourceClaimStatus
from dra_api.meta import Object as Struct
from dra_kube import PODS, NotFound, Object

from dra_operator.kube.client import Client, Fresh, PodChanged, may_have_happened, rewrite
from dra_operator.scheduling.state import pod_without_bulk

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def open_gate(spec: Object, gate: str, reach: NodeSelectorTerm) -> bool:
    """Change the spec of a pod in place; False if the gate is open already."""
    gates = spec.get("schedulingGates") or []
    rest = [item for item in gates if item.get("name") != gate]
    if len(rest) == len(gates):
        return False
    spec["schedulingGates"] = rest
    wanted = {field: items for field, items in to_dict(reach).items() if items}
    if wanted:
        _narrow(spec, wanted)
    return True


def _narrow(spec: Object, wanted: Object) -> None:
    affinity = spec["affinity"] = spec.get("affinity") or {}
    nodes = affinity["nodeAffinity"] = affinity.get("nodeAffinity") or {}
    terms = (nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    if not terms:
        nodes[_REQUIRED] = {"nodeSelectorTerms": [wanted]}
    for term in terms:
        if term.get("matchExpressions") or term.get("matchFields"):
            for field, items in wanted.items():
                before = term.get(field) or []
                term[field] = [*before, *(item for item in items if item not in before)]


PLACEMENT_MANAGER = "dra-scheduler"
DISRUPTION_TARGET = "DisruptionTarget"


RECORDED_CLAIMS = 10_000  # claims remembered whose record in a pod got no answer
LARGE_PODS_AT_ONCE = 2  # pods that are read whole, of which each may have 1.4 MB
UNANSWERED_PODS = 10_000  # pods remembered whose last write for placement got no answer


class Unanswered(NamedTuple):
    """Writes that give a pod its node, or open its gate, and got no answer.

    ``times``: how many; of the last one, ``resource_version``: on which version of the pod it is based, and ``error``:
    what came instead of an answer.
    """

    times: int
    resource_version: str
    error: str


class Disruption(NamedTuple):
    """Why a pod is ended, as its condition ``DisruptionTarget`` says it. ``manager`` owns the condition."""

    manager: str
    reason: str
    message: str


DEVICE_TAINT = Disruption(
    "device-taint-eviction-controller",
    "DeletionByDeviceTaintManager",
    "Device Taint manager: deleting due to NoExecute taint",
)


class PodWriter:
    """All writes to pods; every answer goes to ``seen`` at once, a pod that is gone to ``gone``.

    A pod that the server does not find is gone: the event that says so may come late, and meanwhile claims would be
    made for the pod again and again. But a webhook may refuse by the same code, without naming the pod. ``now`` is the
    time as RFC 3339 text.
    """

    def __init__(
        self,
        client: Client,
        seen: Callable[[Struct], None],
        gone: Callable[[Pod], None],
        now: Callable[[], str],
    ) -> None:
        self._client, self._seen, self._gone, self._now = client, seen, gone, now
        self._unanswered: OrderedDict[str, Unanswered] = OrderedDict()
        self._fresh = Fresh()  # pods that just came, until their claims are recorded
        self._recorded: OrderedDict[tuple[str, str], None] = OrderedDict()  # UIDs of pods, and names of claims
        self._large = asyncio.Semaphore(LARGE_PODS_AT_ONCE)

    def came(self, pod: Pod, raw: Object) -> None:
        """Keep what the watch sent of a pod that gets claims from templates, until they are recorded."""
        if (statuses := pod.status.resource_claim_statuses) is not None:
            self._fresh.take(pod)
            self._forget_recorded((pod.metadata.uid, it.resource_claim_name or "") for it in statuses)
        elif any(entry.resource_claim_template_name is not None for entry in pod.spec.resource_claims or ()):
            self._fresh.keep(raw)

    def unanswered(self, pod: Pod) -> Unanswered | None:
        """Return the binding or the opening of the gate that got no answer, until ``settled``.

        It may have happened, and it still may until the pod has another version than the one on which it is based.
        """
        known = self._unanswered.get(pod.metadata.uid)
        return known if known is not None and known.resource_version else None

    def settled(self, pod: Pod) -> None:
        """Note that what became of the write is known; its number is not used again."""
        known = self._unanswered.get(pod.metadata.uid)
        if known is not None:
            self._unanswered[pod.metadata.uid] = known._replace(resource_version="")

    def _note(self, pod: Pod, based_on: str, error: BaseException) -> None:
        if isinstance(error, PodChanged) or not may_have_happened(error):
            return
        known = self._unanswered.pop(pod.metadata.uid, None)
        times = known.times + 1 if known is not None else 1
        self._unanswered[pod.metadata.uid] = Unanswered(times, based_on, str(error))
        if len(self._unanswered) > UNANSWERED_PODS:
            self._unanswered.popitem(last=False)

    async def read(self, namespace: str, name: str) -> Pod:
        """Return the pod as the server has it now. Raises NotFound."""
        return self._took(await self._client.get(PODS, name, namespace))

    async def read_whole(self, pod: Pod, lend: Callable[[Pod], None]) -> None:
        """Read a pod that is set aside, and have it held whole. Raises NotFound."""
        with self._gone_if_not_found(pod):
            raw = await self._client.get(PODS, pod.metadata.name, pod.metadata.namespace)
        lend(pod_without_bulk(convert(Pod, raw)))
        self._took(raw)  # a newer version than the one that was set aside

    async def whole(self, pod: Pod) -> Pod:
        """Return the pod with all its claims, of which the cache has the first ones only. Raises PodVanished.

        The answer is not put into the cache, where there is no room for it.
        """
        async with self._large:
            with self._gone_if_not_found(pod):
                raw = await self._client.get(PODS, pod.metadata.name, pod.metadata.namespace)
            found = convert(Pod, raw)
        if found.metadata.uid != pod.metadata.uid:
            raise PodChanged(f"pod {pod.key} was replaced by another one of the same name")
        return found

    async def record_claims(self, pod: Pod, claims: Mapping[str, str]) -> Pod:
        """Write the names of generated claims, each under its entry of the pod (claim-controller.md 5.6).

        An update costs the API server less than half of an apply. Other entries stay as the server has them. Raises
        PodChanged when another pod has the name by now.
        """
        meta = pod.metadata

        def edit(raw: Object) -> bool:
            if raw["metadata"]["uid"] != meta.uid:
                self._took(raw)
                raise PodChanged(f"pod {pod.key} was replaced by another one of the same name")
            return record_names(raw, claims)

        known = self._fresh.take(pod)
        with self._gone_if_not_found(pod), self._recording(pod, claims.values()):
            raw = await rewrite(self._client, PODS, meta.namespace, meta.name, edit, subresource="status", known=known)
            return self._took(raw)

    def records(self, pod: Pod, claim: str) -> bool:
        """Return whether the claim of this name is being recorded in the pod from here, or may have been."""
        return (pod.metadata.uid, claim) in self._recorded

    @contextmanager
    def _recording(self, pod: Pod, claims: Iterable[str]) -> Iterator[None]:
        """Inside the block the claims are being recorded; afterwards they may have been, if there was no answer."""
        names = {(pod.metadata.uid, claim): None for claim in claims}
        self._forget_recorded(names)  # names that are recorded again are the youngest
        self._recorded |= names
        try:
            yield
        except BaseException as error:
            if isinstance(error, PodChanged) or not may_have_happened(error):
                self._forget_recorded(names)
            raise
        else:
            self._forget_recorded(names)
        finally:
            while len(self._recorded) > RECORDED_CLAIMS:
                self._recorded.popitem(last=False)

    def _forget_recorded(self, names: Iterable[tuple[str, str]]) -> None:
        for name in names:
            self._recorded.pop(name, None)

    async def record_extended(self, pod: Pod, status: PodExtendedResourceClaimStatus | None) -> Pod:
        """Write which claim serves the pod's extended resources, before it is bound (scheduling.md 7.3).

        None removes what an attempt for another node may have left: the kubelet would wait for that claim in vain.
        """
        value = to_dict(status) if status is not None else None
        return await self._merge(pod, {"extendedResourceClaimStatus": value})

    async def record_node_use(self, pod: Pod, statuses: Sequence[NodeAllocatableResourceClaimStatus]) -> Pod:
        """Write what devices take of the node's own resources; nothing is an empty list, since a list that is left out
        is kept (K37-EXT-04). Raises NotFound, and Conflict for another pod of the name."""
        return await self._merge(
            pod, {"nodeAllocatableResourceClaimStatuses": [to_dict(status) for status in statuses]}
        )

    async def report_waiting(self, pod: Pod, reason: str, message: str) -> Pod:
        """Set the condition ``PodScheduled`` to False with a reason that a person can act on."""
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": _since(pod) or self._now(),
        }
        return await self._apply(pod, {"conditions": [condition]}, PLACEMENT_MANAGER)

    async def bind(self, pod: Pod, node: str) -> None:
        """Assign this version of the pod to a node.

        Raises Conflict when it has a node already or another version, NotFound when it is gone.
        """
        meta = pod.metadata
        version = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        body: Object = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, **version},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            with self._gone_if_not_found(pod):
                await self._client.create_subresource(PODS, meta.name, "binding", body, meta.namespace)
        except BaseException as error:
            self._note(pod, meta.resource_version, error)
            raise

    async def nominate(self, pod: Pod, node: str) -> Pod:
        """Say in the status for which node the pod is nominated; an empty name: for none.

        Raises NotFound, and Conflict for another pod of the name.
        """
        return await self._merge(pod, {"nominatedNodeName": node or None})

    async def mark_disrupted(self, pod: Pod, why: Disruption) -> None:
        """Say in a condition why this very pod is ended, unless the pod says so already.

        Repeated, it changes nothing. Raises NotFound, and Conflict for another pod of the name.
        """
        known = next((entry for entry in pod.status.conditions or () if entry.type == DISRUPTION_TARGET), None)
        stays = known is not None and known.status == "True"
        if known is not None and stays and (known.reason, known.message) == (why.reason, why.message):
            return
        since = known.last_transition_time if known is not None and stays else None
        condition = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": why.reason,
            "message": why.message,
            "lastTransitionTime": since or self._now(),
        }
        await self._apply(pod, {"conditions": [condition]}, why.manager)

    async def delete(self, pod: Pod) -> None:
        """Delete this very pod with its own grace period. Raises NotFound, and Conflict for another pod of the name."""
        meta = pod.metadata
        with self._gone_if_not_found(pod):
            answer = await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        if answer.get("metadata", {}).get("deletionTimestamp"):
            self._took(answer)
        else:
            self._gone(pod)  # no container and no finalizer holds it

    async def open_gate(self, pod: Pod, gate: str, reach: NodeSelectorTerm) -> Pod:
        """Remove a scheduling gate and have the pod run only where ``reach`` says, in one write.

        Nothing is written if the gate is open already. Raises PodChanged, and NotFound when the pod is gone.
        """
        meta, based_on = pod.metadata, ""

        def edit(raw: Object) -> bool:
            nonlocal based_on
            current = convert(Pod, raw)
            based_on = current.metadata.resource_version
            if current.metadata.uid != meta.uid or current.metadata.deletion_timestamp is not None:
                self._seen(current)
                raise PodChanged(f"pod {pod.key} is being deleted, or was replaced by another one of the same name")
            if not any(item.name == gate for item in current.spec.scheduling_gates or ()):
                return False
            if current.spec != pod.spec:
                self._seen(current)
                raise PodChanged(f"pod {pod.key} got another spec in the meantime")
            return open_gate(raw["spec"], gate, reach)

        try:
            with self._gone_if_not_found(pod):
                raw = await rewrite(self._client, PODS, meta.namespace, meta.name, edit)
            return self._took(raw)
        except BaseException as error:
            self._note(pod, based_on, error)
            raise

    async def _merge(self, pod: Pod, status: Object) -> Pod:
        """Return a merge patch of this very pod's status."""
        meta = pod.metadata
        patch = {"metadata": {"uid": meta.uid}, "status": status}
        with self._gone_if_not_found(pod):
            raw = await self._client.patch(PODS, meta.name, patch, meta.namespace, kind="merge", subresource="status")
        return self._took(raw)

    async def _apply(self, pod: Pod, status: Object, manager: str) -> Pod:
        meta = pod.metadata
        body = {"metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}, "status": status}
        with self._gone_if_not_found(pod):
            raw = await self._client.patch(
                PODS,
                meta.name,
                body,
                meta.namespace,
                kind="apply",
                subresource="status",
                field_manager=manager,
                force=True,
            )
        return self._took(raw)

    @contextmanager
    def _gone_if_not_found(self, pod: Pod) -> Iterator[None]:
        """Inside the block the pod is written to. Raises what is raised there."""
        try:
            yield
        except NotFound as error:
            if error.is_about(PODS.plural, pod.metadata.name):
                self._gone(pod)
            raise

    def _took(self, raw: Object) -> Pod:
        pod = convert(Pod, raw)
        self._seen(pod)
        return pod


def record_names(raw: Object, claims: Mapping[str, str]) -> bool:
    """Put the names of claims, by entry, into the status of a pod or PodGroup; whether that changes it."""
    status = raw["status"] = dict(raw.get("status") or {})
    before = status.get("resourceClaimStatuses") or []
    entries = {entry["name"]: entry for entry in before}
    entries |= {entry: {"name": entry, "resourceClaimName": claim} for entry, claim in claims.items()}
    status["resourceClaimStatuses"] = recorded = list(entries.values())
    return bool(recorded != before)


def _since(pod: Pod) -> str | None:
    """When the pod started to wait, if it waits already: the time changes only together with the status."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.last_transition_time
    return None
