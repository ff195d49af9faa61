"""Reads PodGroups and their pods, and writes the names of generated claims and conditions into their status."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dra_api.codec import convert
from dra_api.core import Pod, PodSpec, PodStatus
from dra_api.meta import Object as Struct
from dra_api.meta import ObjectMeta
from dra_api.relations.references import group_name, pod_is_done
from dra_api.scheduling import PodGroup
from dra_kube import POD_GROUPS, PODS, Object
from dra_ledger.errors import shortened

from .changed import PodGroupChanged
from .client import Client
from .pods import record_names
from .rewrite import rewrite

LONGEST_CONDITION_CHARACTERS = 8000  # characters of a message: the API server takes 32,768 bytes, four for a character


class PodGroupWriter:
    """Every answer goes to ``seen`` at once. ``now`` is the time as RFC 3339 text."""

    def __init__(self, client: Client, seen: Callable[[Struct], None], now: Callable[[], str]) -> None:
        self._client, self._seen, self._now = client, seen, now

    async def read(self, namespace: str, name: str) -> PodGroup:
        """The group as the server has it now. Raises NotFound, and DecodeError for one that is malformed."""
        return self._took(await self._client.get(POD_GROUPS, name, namespace))

    async def has_active_pods(self, namespace: str, name: str) -> bool:
        """Whether the server has a pod of the group that has not ended; one that cannot be read may be one.

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
    """What says of which group the pod is, and whether it has ended."""
    meta, spec = pod.metadata, pod.spec
    return Pod(
        metadata=ObjectMeta(
            name=meta.name, namespace=meta.namespace, uid=meta.uid, deletion_timestamp=meta.deletion_timestamp
        ),
        spec=PodSpec(node_name=spec.node_name, scheduling_group=spec.scheduling_group),
        status=PodStatus(phase=pod.status.phase),
    )
