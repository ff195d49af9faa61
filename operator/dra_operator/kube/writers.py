"""Write the status of rules, pool requests and PodGroups, and start the binding of volumes.

Each writer decides on the object as the server has it at that moment, so a repetition finds its own write done and
writes nothing. Writes to volumes are never taken back: the PV controller completes what was begun, whatever becomes of
the pod. A volume that got another claim, or a claim that got another node, is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dra_api.codec import convert, to_dict
from dra_api.core import Pod, PodSpec, PodStatus
from dra_api.meta import Condition, ObjectMeta
from dra_api.meta import Object as Struct
from dra_api.references import group_name, pod_is_done
from dra_api.resource import DeviceTaintRule, ResourcePoolStatusRequest, ResourcePoolStatusRequestStatus
from dra_api.scheduling import PodGroup
from dra_api.storage import BOUND_BY_CONTROLLER, SELECTED_NODE, PersistentVolume, PersistentVolumeClaim
from dra_kube import (
    DEVICE_TAINT_RULES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_GROUPS,
    PODS,
    RESOURCE_POOL_STATUS_REQUESTS,
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
