"""Names of generated claims: how they are made, recorded in pods, and told from another controller's names.

A name is ``<pod>-<entry>-`` and five characters, at most 63 in all (claim-controller.md 5.7). Long parts are shortened
in proportion, so that both can still be recognized. The five characters look like those that the API server appends to
a ``generateName``, but follow from the pod's UID and the entry. So a repeated creation, for example after a lost
answer, meets the existing claim instead of making a second one.

To record the names in a pod's status and to allocate the claims are two writes to two objects, and neither needs the
other. So where devices are abundant they go out together (``NamesBeingWritten``) and save a pod one of four round
trips. The binding waits for both: the kubelet reads the names, and a pod that records other claims than it has would
never start. If the recording fails, the binding cycle finds the pod without them, and gives the devices back. Where
devices are scarce the names come first. A pod that gets none is told so in its status, and that write and the recording
would make each other conflict.

Another name in the status of a pod is the work of another claim controller (``records_claim_of_others``). Only what a
status says counts, since users of a namespace may not write it, while they may make claims that look like any; and only
the status of a pod without a node, since a node may write that of its own pods. What this process records shows
nothing, although the watch may be faster than the answer: users may make a claim for a pod of theirs, which is recorded
like any other. A pod of a PodGroup shows nothing: it may record a claim of the group, whose name follows from that.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from dra_api.core import Pod, PodResourceClaimStatus
from dra_api.references import claims_of_pod
from dra_api.resource import ResourceClaim
from msgspec import structs

from dra_operator.kube import ClaimChanged

NAME_ATTEMPTS = 5
"""So many names are tried for a claim: objects of other owners may have the first ones."""
LONGEST_BASE_CHARACTERS = 57
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # those of the API server: without vowels, so that no words appear
_LETTERS = bytes(ord(_ALPHABET[byte % len(_ALPHABET)]) for byte in range(256))
"""A letter for each byte."""
_SUFFIX_CHARACTERS = 5


def generated_name(base: str, pod_uid: str, entry: str, attempt: int) -> str:
    """Return the name for an entry's claim; another one for each attempt, for when a name is taken by something
    else."""
    digest = hashlib.sha256(f"{pod_uid}/{entry}/{attempt}".encode()).digest()
    return base + digest[:_SUFFIX_CHARACTERS].translate(_LETTERS).decode()


def is_ours(claim: str, pod: str, pod_uid: str, entry: str) -> bool:
    """Return whether an operator like this one makes or records a claim of that name for the entry."""
    base = generated_name_base(pod, entry)
    names = (generated_name(base, pod_uid, entry, attempt) for attempt in range(NAME_ATTEMPTS))
    return claim == legacy_name(pod, entry) or claim in names


def without_suffix(text: str, base: str) -> str:
    """Return the text with ``base*`` for each name made from the base, so that two attempts that fail alike say the
    same."""
    return re.sub(rf"{re.escape(base)}[a-z0-9]{{{_SUFFIX_CHARACTERS}}}\b", f"{base}*", text)


def legacy_name(pod: str, entry: str) -> str:
    """Return the name that Kubernetes up to 1.27 gave to the claim of an entry (claim-controller.md 5.8)."""
    return f"{pod}-{entry}"


def generated_name_base(pod: str, entry: str) -> str:
    """Return what goes into ``metadata.generateName``; keeps the hyphen before the random part."""
    base = f"{pod}-{entry}-"
    if len(base) <= LONGEST_BASE_CHARACTERS:
        return base
    room = LONGEST_BASE_CHARACTERS - 2  # for the two hyphens
    tail = _cut(entry, max(1, len(entry) * room // len(base)))
    head = _cut(pod, min(max(1, len(pod) * room // len(base)), room - len(tail)))
    return f"{head}-{tail}-"


def _cut(name: str, length: int) -> str:
    """Return the first characters, without those at the end that must not stand before a hyphen."""
    return name[:length].rstrip(".-")


@dataclass(eq=False, slots=True)
class _UnderWay:
    statuses: tuple[PodResourceClaimStatus, ...]
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class NamesBeingWritten:
    """``wanted``: whether a pod is to be planned before its claims are recorded; ``wake`` has that done."""

    def __init__(self, wanted: Callable[[Pod], bool], wake: Callable[[Pod], None]) -> None:
        self._wanted, self._wake = wanted, wake
        self._under_way: dict[str, _UnderWay] = {}

    @contextmanager
    def of(self, pod: Pod, claims: Mapping[str, str]) -> Iterator[None]:
        """Inside the block the names of ``claims``, by entry, are being written."""
        if not self._wanted(pod):
            yield
            return
        known = {status.name: status for status in pod.status.resource_claim_statuses or ()}
        known |= {entry: PodResourceClaimStatus(name=entry, resource_claim_name=name) for entry, name in claims.items()}
        self._under_way[pod.metadata.uid] = under_way = _UnderWay(tuple(known.values()))
        self._wake(pod)
        try:
            yield
        finally:
            del self._under_way[pod.metadata.uid]
            under_way.is_over.set()

    def foreseen(self, pod: Pod) -> Pod:
        """Return the pod as it will be when its claims are recorded."""
        under_way = self._under_way.get(pod.metadata.uid)
        if under_way is None:
            return pod
        return structs.replace(pod, status=structs.replace(pod.status, resource_claim_statuses=under_way.statuses))

    async def over(self, pod: Pod) -> None:
        """Wait until nothing is being recorded in the pod, whether that succeeded or not."""
        if (under_way := self._under_way.get(pod.metadata.uid)) is not None:
            await under_way.is_over.wait()


def check_recorded(pod: Pod, claims: Iterable[ResourceClaim]) -> None:
    """Raises ClaimChanged unless this version of the pod records all of the claims that were allocated for it.

    To record them may have failed, another controller may have recorded others, or a write that got no answer may have
    landed late.
    """
    recorded = {use.name for use in claims_of_pod(pod)}
    for claim in claims:
        if claim.metadata.name not in recorded:
            raise ClaimChanged(f"pod {pod.key} does not record claim {claim.metadata.name}")


def records_claim_of_others(before: Pod | None, now: Pod, records_here: Callable[[Pod, str], bool]) -> bool:
    """Return whether between these two versions of a pod another controller recorded a claim for one of its entries.

    ``records_here``: whether the claim of that name is being recorded in the pod by this process, or may have been.
    """
    if before is None or before.metadata.uid != now.metadata.uid:
        return False
    if now.spec.node_name or now.spec.scheduling_group is not None:
        return False
    known, new = _recorded(before), _recorded(now)
    meta = now.metadata
    changed = [(entry, claim) for entry, claim in new.items() if claim and known.get(entry) != claim]
    return any(
        not is_ours(claim, meta.name, meta.uid, entry) and not records_here(now, claim) for entry, claim in changed
    )


def _recorded(pod: Pod) -> dict[str, str | None]:
    return {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses or ()}
