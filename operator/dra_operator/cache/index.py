"""Look-ups that are kept up to date instead of scans: a value, and the keys of the objects that have it.

An index files an object under values that follow from the object alone, so a new version can be filed without the
old one. ``PodGroups`` is a look-up of the same kind with two sides: the pods of a group, and those among
them that rely on a claim that is reserved for the group. It is empty where the gate GenericWorkload is off.

A pod may have got two generated claims for one entry, and ``duplicates`` says which of the two counts. That happens
when the answer to a creation is lost, or while two claim controllers work. The status of the pod records one claim per
entry, and the kubelet uses that one: a pod never starts if another claim was allocated and reserved for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar

from dra_api.core import Pod
from dra_api.references import (
    claims_of_group,
    claims_of_pod,
    group_name,
    is_pod_group,
    is_reserved_for,
    owning_group,
    owning_pod,
    pod_is_done,
    volume_uses,
)
from dra_api.resource import POD_CLAIM_NAME_ANNOTATION, ResourceClaim, ResourceClaimConsumerReference
from dra_api.scheduling import PodGroup

from dra_operator.allocator import DeviceId
from dra_operator.cache.store import ObjectChange, Store
from dra_operator.scheduling.state import asks_for_more, is_parked

V = TypeVar("V", bound=Hashable)
_NONE: Final[frozenset[Any]] = frozenset()
_MOST_LATE_PIECES: Final = 64
"""Batches of filings that may wait."""


class Index(Generic[V]):
    """Each object key is filed under any number of values; filing it again replaces what was there.

    Keys come out in the order in which they were filed, so that everything built on it is reproducible. What is filed
    late waits for the first look-up: an answer about one pod needs few of the indexes over all.
    """

    def __init__(self) -> None:
        self._filed: dict[str, frozenset[V]] = {}
        self._found: dict[V, dict[str, None]] = {}
        self._late: list[Iterable[tuple[str, Iterable[V]]]] = []

    def file(self, key: str, values: Iterable[V]) -> None:
        """File ``key`` under exactly these values; under none to forget it."""
        # Filings that wait are older. They must not come after this one, which may be of the same key.
        if self._late:
            self.file_late([(key, frozenset(values))])
            return
        new, old = frozenset(values), self._filed.get(key, _NONE)
        if new == old:
            return
        # Only differences are touched: a key that stays keeps its place in the order of arrival.
        for value in old - new if old else ():
            keys = self._found[value]
            del keys[key]
            if not keys:
                del self._found[value]
        for value in new - old if old else new:
            self._found.setdefault(value, {})[key] = None
        if new:
            self._filed[key] = new
        else:
            self._filed.pop(key, None)

    def file_late(self, filings: Iterable[tuple[str, Iterable[V]]]) -> None:
        """As ``file`` for each, at the next look-up. What the filings are made of must not change until then."""
        # Each piece holds the objects of one batch of changes: too many of them would keep old versions alive.
        if len(self._late) == _MOST_LATE_PIECES:
            self._catch_up()
        self._late.append(filings)

    def _catch_up(self) -> None:
        late, self._late = self._late, []  # emptied first: ``file`` would put each of them off again
        for filings in late:
            for key, values in filings:
                self.file(key, values)

    def keys(self, value: V) -> tuple[str, ...]:
        """The keys filed under ``value``."""
        if self._late:
            self._catch_up()
        return tuple(self._found.get(value, ()))

    def count(self, value: V) -> int:
        """How many keys are filed under ``value``."""
        if self._late:
            self._catch_up()
        return len(self._found.get(value, ()))

    def has(self, value: V) -> bool:
        """Whether anything is filed under ``value``."""
        if self._late:
            self._catch_up()
        return value in self._found

    def values_of(self, key: str) -> frozenset[V]:
        """The values under which ``key`` is filed."""
        if self._late:
            self._catch_up()
        return self._filed.get(key, _NONE)

    def values(self) -> Iterable[V]:
        """The values under which anything is filed."""
        if self._late:
            self._catch_up()
        return self._found

    def __contains__(self, key: str) -> bool:
        if self._late:
            self._catch_up()
        return key in self._filed

    def __iter__(self) -> Iterator[str]:
        if self._late:
            self._catch_up()
        return iter(self._filed)

    def __len__(self) -> int:
        if self._late:
            self._catch_up()
        return len(self._filed)


def owner_id(namespace: str, uid: str) -> str:
    """A pod's UID beside its namespace: a claim of another one may name the UID as its owner, and is not the pod's."""
    return f"{namespace}/{uid}"


def claims_used(pod: Pod) -> Iterable[str]:
    """The keys of the claims that the pod uses; with ``any_claim`` if it waits and asks for more than is kept."""
    keys = [f"{pod.metadata.namespace}/{use.name}" for use in claims_of_pod(pod)]
    # What a pod with a node has is reserved for it.
    if pod.spec.node_selector and not pod.spec.node_name and asks_for_more(pod):
        keys.append(any_claim(pod.metadata.namespace))
    return keys


def any_claim(namespace: str) -> str:
    """Return the key by which pods are filed of whose claims not all are kept: any of the namespace may be theirs."""
    return f"{namespace}/"


def templates_named(pod: Pod) -> Iterable[str]:
    """The keys of the templates that the pod names."""
    entries, namespace = pod.spec.resource_claims or (), pod.metadata.namespace
    return [f"{namespace}/{name}" for entry in entries if (name := entry.resource_claim_template_name)]


def volume_claims_used(pod: Pod) -> Iterable[str]:
    """The keys of the PersistentVolumeClaims that the pod uses until it is done."""
    return [use.key for use in volume_uses(pod)] if pod.spec.volumes and not pod_is_done(pod) else ()


def groups_served(pod: Pod) -> Iterable[str]:
    """The key of the PodGroup that the pod is in until it is done."""
    return () if pod_is_done(pod) else groups_named(pod)


def groups_named(pod: Pod) -> Iterable[str]:
    """The key of the PodGroup that the pod is in."""
    group = group_name(pod)
    return (f"{pod.metadata.namespace}/{group}",) if group else ()


def owners_of(claim: ResourceClaim) -> Iterable[str]:
    """The pod or the PodGroup that the claim was made for."""
    # A claim has at most one controller, so it is filed once.
    owner = owning_pod(claim) or owning_group(claim)
    return () if owner is None else (owner_id(claim.metadata.namespace, owner.uid),)


def consumers_of(claim: ResourceClaim) -> Iterable[str]:
    """The UIDs of the pods, and the keys of the PodGroups, for which the claim is reserved."""
    namespace = claim.metadata.namespace
    return [f"{namespace}/{it.name}" if is_pod_group(it) else it.uid for it in claim.status.reserved_for or ()]


def devices_of(claim: ResourceClaim) -> Iterable[DeviceId]:
    """The devices that the claim has, with admin access too."""
    return map(DeviceId.of, claim.results)


class PodGroupView:
    """``find_pod`` looks a pod up by its key. ``is_placed``: whether it has a node, or is on its way to one.

    ``uses``: whether a pod uses a claim that is reserved for its group.
    """

    def __init__(
        self,
        find_pod: Callable[[str], Pod | None],
        is_placed: Callable[[Pod], bool],
        uses: Callable[[Pod, ResourceClaim], bool],
    ) -> None:
        self._find_pod, self._is_placed, self._uses = find_pod, is_placed, uses
        self.store: Store[PodGroup] = Store()
        self.members: Index[str] = Index()
        """Pods by the ``namespace/name`` of their group, which need not exist."""
        self.active_members: Index[str] = Index()
        """Those of them that have not ended: of a long job nearly all have."""
        self.by_claim: Index[str] = Index()
        """Groups by the claims that their pods share."""
        self.by_template: Index[str] = Index()
        self.releasing: set[str] = set()
        """UIDs of claims whose reservation for a group is being taken off: no pod may rely on it any more."""

    def file(self, change: ObjectChange[PodGroup]) -> None:
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
        for key in self.active_members.keys(group):
            pod = self._find_pod(key)
            if pod is not None:
                yield pod

    def has_active(self, group: str) -> bool:
        """Whether any pod of the group is known that has not ended."""
        return self.active_members.has(group)

    def has_placed(self, pod: Pod) -> bool:
        """Whether another pod of the pod's group has a node, or is on its way to one (K37-WL-25)."""
        # By the group's name, since it may be gone while its pods run.
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
        # The group is gone, and its pods may still run with the devices.
        return any(self._uses(pod, claim) for pod in self.active(key))


class Duplicates(NamedTuple):
    """The claims of one entry of a pod: the one that counts, whether the pod records it, and the superfluous ones."""

    entry: str
    keep: ResourceClaim
    is_recorded: bool
    superfluous: tuple[ResourceClaim, ...]


def duplicates(pod: Pod, owned: Iterable[ResourceClaim]) -> Iterator[Duplicates]:
    """What has to be repaired; nothing for entries with one claim, or with the right one recorded. The pod owns
    ``owned``."""
    owned = tuple(owned)
    # Nearly every pod owns one claim for each entry at most: nothing to compare.
    if len(owned) < 2:
        return
    made = by_entry(owned)
    recorded = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses or ()}
    for item in pod.spec.resource_claims or ():
        claims = made.get(item.name, ())
        # Before anything is recorded the generator chooses, and no repair is needed.
        if item.resource_claim_template_name is None or len(claims) < 2 or item.name not in recorded:
            continue
        found = _of_entry(pod, item.name, claims, recorded[item.name])
        if not found.is_recorded or found.superfluous:
            yield found


def by_entry(owned: Iterable[ResourceClaim]) -> dict[str, list[ResourceClaim]]:
    """The claims that a pod or a group owns, by the entry for which they were made."""
    made: dict[str, list[ResourceClaim]] = {}
    for claim in owned:
        entry = (claim.metadata.annotations or {}).get(POD_CLAIM_NAME_ANNOTATION)
        if entry is not None:
            made.setdefault(entry, []).append(claim)
    return made


def counting_claim(owner: Pod | PodGroup, claims: Iterable[ResourceClaim]) -> ResourceClaim | None:
    """Of the claims made for one entry, the one that counts; None if there is none."""
    return min(claims, key=lambda claim: _rank(owner, claim, None), default=None)


def is_in_use(claim: ResourceClaim) -> bool:
    """Whether a claim has devices or consumers."""
    return claim.status.allocation is not None or bool(claim.status.reserved_for)


def _of_entry(pod: Pod, entry: str, claims: Iterable[ResourceClaim], recorded: str | None) -> Duplicates:
    ranked = sorted(claims, key=lambda claim: _rank(pod, claim, recorded))
    keep, *others = ranked
    # One in use stays: a pod may run with its devices, although the status does not record it.
    superfluous = (claim for claim in others if not is_in_use(claim) and claim.metadata.deletion_timestamp is None)
    return Duplicates(entry, keep, keep.metadata.name == recorded, tuple(superfluous))


def _is_in_use_by(owner: Pod | PodGroup, claim: ResourceClaim) -> bool:
    if isinstance(owner, Pod):
        return is_reserved_for(owner, claim)
    return any(consumer.uid == owner.metadata.uid for consumer in claim.status.reserved_for or ())


def _rank(owner: Pod | PodGroup, claim: ResourceClaim, recorded: str | None) -> tuple[bool | str, ...]:
    """Smallest for the claim that counts: the one in use by its owner, then the recorded one, then the oldest.

    A parked one never counts beside another.
    """
    meta = claim.metadata
    return (
        is_parked(claim),
        not _is_in_use_by(owner, claim),
        claim.status.allocation is None,
        meta.deletion_timestamp is not None,
        meta.name != recorded,
        meta.creation_timestamp or "",
        meta.name,
    )
