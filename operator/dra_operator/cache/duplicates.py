"""Pods that got two generated claims for one entry, and which of the two counts.

That happens when the answer to a creation is lost, or while two claim controllers work. The status of the pod records
one claim per entry, and the kubelet uses that one: a pod never starts if another claim was allocated and reserved for
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dra_api.core import Pod
from dra_api.references import is_reserved_for
from dra_api.resource import POD_CLAIM_NAME_ANNOTATION, ResourceClaim
from dra_api.scheduling import PodGroup

from dra_operator.scheduling.state import is_parked


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
    if len(owned) < 2:
        return
    made = by_entry(owned)
    recorded = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses or ()}
    for item in pod.spec.resource_claims or ():
        claims = made.get(item.name, ())
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
