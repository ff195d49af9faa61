"""Writing pods: which claims they got, why they wait, where they go, and their end. Nothing else is ever touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dra_api.codec import convert, to_dict
from dra_api.core import NodeSelectorTerm, Pod, PodExtendedResourceClaimStatus, PodResourceClaimStatus
from dra_api.meta import Object as Struct
from dra_kube import PODS, Object

from .client import Client
from .gate import open_gate
from .rewrite import rewrite

CLAIMS_MANAGER = "ResourceClaimController"
PLACEMENT_MANAGER = "dra-scheduler"
EVICTION_MANAGER = "device-taint-eviction-controller"
DISRUPTION = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByDeviceTaintManager",
    "message": "Device Taint manager: deleting due to NoExecute taint",
}


class PodChanged(Exception):
    """The pod is not what was planned for any more."""


class PodWriter:
    """All writes to pods; every answer goes to ``seen`` at once, a pod that is gone to ``gone``.

    ``now`` is the time as RFC 3339 text.
    """

    def __init__(
        self,
        client: Client,
        seen: Callable[[Struct], None],
        gone: Callable[[Pod], None],
        now: Callable[[], str],
    ) -> None:
        self._client, self._seen, self._gone, self._now = client, seen, gone, now

    async def read(self, namespace: str, name: str) -> Pod:
        """The pod as the server has it now. Raises NotFound."""
        return self._took(await self._client.get(PODS, name, namespace))

    async def record_claims(self, pod: Pod, statuses: Sequence[PodResourceClaimStatus]) -> Pod:
        """Write the complete list of generated claims (claim-controller.md 5.6).

        Complete, because with server-side apply an entry that we wrote before and now leave out is removed.
        """
        return await self._apply(
            pod, {"resourceClaimStatuses": [to_dict(status) for status in statuses]}, CLAIMS_MANAGER
        )

    async def record_extended(self, pod: Pod, status: PodExtendedResourceClaimStatus | None) -> Pod:
        """Write which claim serves the pod's extended resources, before it is bound (scheduling.md 7.3).

        None removes what an attempt for another node may have left: the kubelet would wait for that claim in vain.
        """
        meta = pod.metadata
        value = to_dict(status) if status is not None else None
        patch = {"metadata": {"uid": meta.uid}, "status": {"extendedResourceClaimStatus": value}}
        return self._took(
            await self._client.patch(PODS, meta.name, patch, meta.namespace, kind="merge", subresource="status")
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
        """Assign the pod to a node. Raises Conflict when it has one already, NotFound when it is gone."""
        meta = pod.metadata
        body: Object = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._client.create_subresource(PODS, meta.name, "binding", body, meta.namespace)

    async def mark_disrupted(self, pod: Pod) -> None:
        """Say in a condition that its devices end this very pod, unless the pod says so already.

        Repeated, it changes nothing. Raises NotFound, and Conflict for another pod of the name.
        """
        known = next((entry for entry in pod.status.conditions or () if entry.type == DISRUPTION["type"]), None)
        stays = known is not None and known.status == DISRUPTION["status"]
        if (
            known is not None
            and stays
            and (known.reason, known.message) == (DISRUPTION["reason"], DISRUPTION["message"])
        ):
            return
        since = known.last_transition_time if known is not None and stays else None
        condition = {**DISRUPTION, "lastTransitionTime": since or self._now()}
        await self._apply(pod, {"conditions": [condition]}, EVICTION_MANAGER)

    async def delete(self, pod: Pod) -> None:
        """Delete this very pod with its own grace period. Raises NotFound, and Conflict for another pod of the name."""
        meta = pod.metadata
        answer = await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        if answer.get("metadata", {}).get("deletionTimestamp"):
            self._took(answer)
        else:
            self._gone(pod)  # no container and no finalizer holds it

    async def open_gate(self, pod: Pod, gate: str, reach: NodeSelectorTerm) -> Pod:
        """Remove a scheduling gate and have the pod run only where ``reach`` says, in one write.

        Nothing is written if the gate is open already. Raises PodChanged, and NotFound when the pod is gone.
        """
        meta = pod.metadata

        def edit(raw: Object) -> bool:
            current = convert(Pod, raw)
            if current.metadata.uid != meta.uid or current.metadata.deletion_timestamp is not None:
                self._seen(current)
                raise PodChanged(f"pod {pod.key} is being deleted, or was replaced by another one of the same name")
            if not any(item.name == gate for item in current.spec.scheduling_gates or ()):
                return False
            if current.spec != pod.spec:
                self._seen(current)
                raise PodChanged(f"pod {pod.key} got another spec in the meantime")
            return open_gate(raw["spec"], gate, reach)

        return self._took(await rewrite(self._client, PODS, meta.namespace, meta.name, edit))

    async def _apply(self, pod: Pod, status: Object, manager: str) -> Pod:
        meta = pod.metadata
        body = {"metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}, "status": status}
        return self._took(
            await self._client.patch(
                PODS,
                meta.name,
                body,
                meta.namespace,
                kind="apply",
                subresource="status",
                field_manager=manager,
                force=True,
            )
        )

    def _took(self, raw: Object) -> Pod:
        pod = convert(Pod, raw)
        self._seen(pod)
        return pod


def _since(pod: Pod) -> str | None:
    """When the pod started to wait, if it waits already: the time changes only together with the status."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.last_transition_time
    return None
