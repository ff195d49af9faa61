"""Names of generated claims on their way into a pod's status: the pod is planned meanwhile, and bound afterwards.

To record the names and to allocate the claims are two writes to two objects, and neither needs the other. So where
devices are abundant they go out together, which saves a pod one of four round trips. The binding waits for both: the
kubelet goes by the names. If the recording fails, the binding cycle finds the pod without them, and gives the devices
back.

Where devices are scarce the names come first. A pod that gets none is told so in its status, and that write and the
recording would make each other conflict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from dra_api.core import Pod, PodResourceClaimStatus
from msgspec import structs


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
        """The pod as it will be when its claims are recorded."""
        under_way = self._under_way.get(pod.metadata.uid)
        if under_way is None:
            return pod
        return structs.replace(pod, status=structs.replace(pod.status, resource_claim_statuses=under_way.statuses))

    async def over(self, pod: Pod) -> None:
        """Wait until nothing is being recorded in the pod, whether that succeeded or not."""
        if (under_way := self._under_way.get(pod.metadata.uid)) is not None:
            await under_way.is_over.wait()
