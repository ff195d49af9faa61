"""Reads PodGroups and their pods, and writes the names of generated claims into their status."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dra_api.codec import DecodeError, convert
from dra_api.core import Pod
from dra_api.meta import Object as Struct
from dra_api.relations.references import group_name, pod_is_done
from dra_api.scheduling import PodGroup
from dra_kube import POD_GROUPS, PODS, Object

from .changed import PodGroupChanged
from .client import Client
from .pods import record_names
from .rewrite import rewrite


class PodGroupWriter:
    """Every answer goes to ``seen`` at once."""

    def __init__(self, client: Client, seen: Callable[[Struct], None]) -> None:
        self._client, self._seen = client, seen

    async def read(self, namespace: str, name: str) -> PodGroup:
        """The group as the server has it now. Raises NotFound, and DecodeError for one that is malformed."""
        return self._took(await self._client.get(POD_GROUPS, name, namespace))

    async def has_active_pods(self, namespace: str, name: str) -> bool:
        """Whether the server has a pod of the group that has not ended; one that cannot be read may be one."""
        for raw in await self._client.list_in(PODS, namespace):
            try:
                pod = convert(Pod, raw)
            except DecodeError:
                return True
            if group_name(pod) == name and not pod_is_done(pod):
                return True
        return False

    async def record_claims(self, group: PodGroup, claims: Mapping[str, str]) -> PodGroup:
        """Write the names of generated claims, each under its entry; others stay as they are (claim-controller.md 5.6).

        Raises NotFound, and PodGroupChanged when another group has the name by now.
        """
        meta = group.metadata

        def edit(raw: Object) -> bool:
            if raw["metadata"]["uid"] != meta.uid:
                self._took(raw)
                raise PodGroupChanged(f"PodGroup {group.key} was replaced by another one of the same name")
            return record_names(raw, claims)

        return self._took(
            await rewrite(self._client, POD_GROUPS, meta.namespace, meta.name, edit, subresource="status")
        )

    def _took(self, raw: Object) -> PodGroup:
        group = convert(PodGroup, raw)
        self._seen(group)
        return group
