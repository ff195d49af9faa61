"""Says in the status of a PodGroup whether its pods were placed, and why they wait until then.

The controller ``group-conditions``; kubernetes-1.37.md section 8. The condition is true once as many pods of ours as
the group needs are on nodes at the same time, or one pod of a group with the policy ``basic``, and stays true from then
on. Until then it says what a pod says for the gang, or one of the pods that are placed alone. That enough pods run is
seen in the cache, so that a condition that was not written before the operator ended is written afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from dra_api.core import Pod
from dra_api.scheduling import PodGroup, placed_condition
from dra_kube import KubeError, NotFound

from dra_operator.cache import Cluster, Key, Keys
from dra_operator.controllers.memory import GrowingPauses
from dra_operator.controllers.settings import OwnControllers
from dra_operator.kube import PodGroupChanged, PodGroupWriter
from dra_operator.scheduling.state import is_at_gate

PLACED = "Scheduled"


class Shown(NamedTuple):
    """What a condition says."""

    status: str
    reason: str
    message: str


class GroupConditions:
    """Handles ``group-conditions:`` keys. ``add`` puts keys on the queues."""

    def __init__(
        self,
        cluster: Cluster,
        groups: PodGroupWriter,
        controllers: OwnControllers,
        pauses: GrowingPauses,
        add: Callable[[Keys], None],
    ) -> None:
        self._cluster, self._groups, self._controllers = cluster, groups, controllers
        self._pauses, self._add = pauses, add
        self._kind = placed_condition(cluster.features.release)
        self._said: dict[str, Shown] = {}
        """By group: why its pods wait, until it is written."""

    def waits(self, pod: Pod, reason: str, message: str) -> None:
        """Why a pod of ours waits, or its gang: its group waits for the same reason.

        Pods of a large group say so all the time, so the group is looked at for it after growing pauses.
        """
        group = self._cluster.groups.of(pod)
        if group is None or is_at_gate(pod) or self._is_over(self._shown(group)):
            return
        key = Key("group-conditions", group.key)
        self._said[group.key] = Shown("False", reason, message)
        if not self._pauses.puts_off(group.metadata.uid, key):
            self._pauses.did(group.metadata.uid)
            self._add((key,))

    async def handle(self, key: str) -> None:
        """Write the condition of one group, if it does not show it."""
        group, said = self._cluster.groups.store.get(key), self._said.pop(key, None)
        if group is None or not self._controllers.placement or self._is_over(shown := self._shown(group)):
            return
        wanted = Shown("True", PLACED, "") if self._is_placed(group) else said
        if wanted is None or wanted == shown or (wanted == said and self._is_said(group, shown)):
            return
        try:
            await self._groups.report(group, self._kind, *wanted)
        except (NotFound, PodGroupChanged):
            return  # gone, or its successor was read, which has brought the key here again
        except KubeError:
            if said is not None:
                self._said.setdefault(key, said)
            raise

    def _is_over(self, shown: Shown | None) -> bool:
        """Whether the condition stays as it is."""
        return shown is not None and shown.status == "True"

    def _is_said(self, group: PodGroup, shown: Shown | None) -> bool:
        """Whether a pod still says what the condition says: then it stays."""
        return shown is not None and any(
            (it.type, *shown) == ("PodScheduled", it.status, it.reason, it.message)
            for pod in self._members(group)
            for it in pod.status.conditions or ()
        )

    def _shown(self, group: PodGroup) -> Shown | None:
        conditions = group.status.conditions or ()
        return next((Shown(it.status, it.reason, it.message) for it in conditions if it.type == self._kind), None)

    def _is_placed(self, group: PodGroup) -> bool:
        gang = group.spec.scheduling_policy.gang
        placed = sum(bool(pod.spec.node_name) for pod in self._members(group))
        return placed >= max(gang.min_count if gang is not None else 1, 1)

    def _members(self, group: PodGroup) -> Iterator[Pod]:
        """The pods of ours that have not failed."""
        for key in self._cluster.groups.members.keys(group.key):
            pod = self._cluster.pods.get(key)
            is_ours = pod is not None and pod.spec.scheduler_name == self._cluster.scheduler_name
            if pod is not None and is_ours and pod.status.phase != "Failed":
                yield pod
