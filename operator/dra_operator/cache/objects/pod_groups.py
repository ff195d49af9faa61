"""PodGroups, the pods in them, and who of those relies on a claim that is reserved for the group.

Empty in a cluster where the gate GenericWorkload is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dra_api.core import Pod
from dra_api.relations.references import claims_of_group, group_name, pod_is_done
from dra_api.resource import ResourceClaim, ResourceClaimConsumerReference
from dra_api.scheduling import PodGroup

from .index import Index
from .store import Change, Store


class PodGroupView:
    """``find_pod`` looks a pod up by its key. ``is_placed``: whether it has a node, or is on its way to one.

    ``users_of``: the keys of the pods that use a claim.
    """

    def __init__(
        self,
        find_pod: Callable[[str], Pod | None],
        is_placed: Callable[[Pod], bool],
        users_of: Callable[[str], tuple[str, ...]],
    ) -> None:
        self._find_pod, self._is_placed, self._users_of = find_pod, is_placed, users_of
        self.store: Store[PodGroup] = Store()
        self.members: Index[str] = Index()
        """Pods by the ``namespace/name`` of their group, which need not exist."""
        self.by_claim: Index[str] = Index()
        """Groups by the claims that their pods share."""
        self.by_template: Index[str] = Index()
        self.releasing: set[str] = set()
        """UIDs of claims whose reservation for a group is being taken off: no pod may rely on it any more."""

    def file(self, change: Change[PodGroup]) -> None:
        """Keep the indexes."""
        old, new = change
        if new is not None:
            namespace = new.metadata.namespace
            self.by_claim.file(new.key, (f"{namespace}/{name}" for name in claims_of_group(new)))
            templates = (entry.resource_claim_template_name for entry in new.spec.resource_claims or ())
            self.by_template.file(new.key, (f"{namespace}/{name}" for name in templates if name))
        elif old is not None:
            self.by_claim.file(old.key, ())
            self.by_template.file(old.key, ())

    def of(self, pod: Pod) -> PodGroup | None:
        """The group of the pod; None if the pod is in none, or if it does not exist."""
        name = group_name(pod)
        return None if name is None else self.store.get(f"{pod.metadata.namespace}/{name}")

    def active(self, group: str) -> Iterator[Pod]:
        """The known pods of a group (``namespace/name``) that have not ended."""
        for key in self.members.keys(group):
            pod = self._find_pod(key)
            if pod is not None and not pod_is_done(pod):
                yield pod

    def has_active(self, group: str) -> bool:
        """Whether any pod of the group is known that has not ended."""
        return any(True for _ in self.active(group))

    def has_placed(self, pod: Pod) -> bool:
        """Whether another pod of the pod's group has a node, or is on its way to one (K37-WL-25)."""
        others = self.active(f"{pod.metadata.namespace}/{group_name(pod)}")
        return any(it.metadata.uid != pod.metadata.uid and self._is_placed(it) for it in others)

    def needs(self, claim: ResourceClaim, group: ResourceClaimConsumerReference) -> bool:
        """Whether a known pod needs the reservation of the claim for a group: any active one of the group, or after the
        end of the group any that uses the claim.

        DEVIATE: Kubernetes drops the reservation with the group, also while pods run with the devices.
        """
        key = f"{claim.metadata.namespace}/{group.name}"
        if self.store.get(key, group.uid) is not None:
            return self.has_active(key)
        users = self._users_of(claim.key)
        return any(pod.key in users for pod in self.active(key))
