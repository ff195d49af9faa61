"""What a driver author implements: one class, two asynchronous methods.

After a timeout or a restart the kubelet calls again, so both methods must be idempotent. Spec: plugin-helper.md section
2.1.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from dra_api.resource import DeviceRequestAllocationResult, ResourceClaim

from .errors import PluginError, Recoverable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """Which claim to unprepare. The ResourceClaim object itself may no longer exist."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One device that is ready for containers.

    ``requests`` are the requests of the claim that it serves (``request`` or ``request/subrequest``), ``cdi_ids``
    the fully qualified CDI names that containers using it are given, ``share_id`` the share of the allocation
    result, if that has one.
    """

    pool: str
    device: str
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()
    share_id: str | None = None

    @classmethod
    def of(cls, result: DeviceRequestAllocationResult, *cdi_ids: str) -> Self:
        """The device of an allocation result, with the CDI names that containers using it are given."""
        return cls(
            pool=result.pool,
            device=result.device,
            requests=(result.request,),
            cdi_ids=cdi_ids,
            share_id=result.share_id,
        )


Prepared = Sequence[PreparedDevice]
PrepareResults = Mapping[str, Prepared | Exception]
UnprepareResults = Mapping[str, Exception | None]


class Driver(ABC):
    """A DRA driver on one node.

    A call that the kubelet has given up on is cancelled: ``asyncio.CancelledError`` is raised at the next
    ``await``, and the kubelet will call again. Run long blocking work in ``asyncio.to_thread``, but remember
    that a thread keeps running after its call was cancelled, and may overlap with the next call.
    """

    @abstractmethod
    async def prepare(self, claims: Sequence[ResourceClaim]) -> PrepareResults:
        """Make the devices of the claims usable; returns by claim uid the prepared devices, or the error.

        The claims are allocated and were just read from the API server; some of their results may belong to other
        drivers. An exception fails all claims of the call.
        """

    @abstractmethod
    async def unprepare(self, claims: Sequence[ClaimRef]) -> UnprepareResults:
        """Undo ``prepare``; returns by claim uid None, or the error. Succeeds for unknown claims."""

    def handle_error(self, error: PluginError, message: str) -> None:
        """Handle a background error, ``Recoverable`` or ``Fatal``. The default logs it."""
        log.log(logging.WARNING if isinstance(error, Recoverable) else logging.CRITICAL, "%s: %s", message, error)


def results_for(driver: str, claim: ResourceClaim) -> list[DeviceRequestAllocationResult]:
    """The devices of this driver that a claim holds; a claim may hold devices of several drivers."""
    allocation = claim.status.allocation
    return [result for result in (allocation.devices.results if allocation else None) or () if result.driver == driver]


Claim = TypeVar("Claim", ResourceClaim, ClaimRef)
Result = TypeVar("Result")


async def each_claim(
    claims: Iterable[Claim], work: Callable[[Claim], Awaitable[Result]]
) -> dict[str, Result | Exception]:
    """Do ``work`` for one claim after the other; an exception becomes the result of its claim only."""
    results: dict[str, Result | Exception] = {}
    for claim in claims:
        uid = claim.metadata.uid if isinstance(claim, ResourceClaim) else claim.uid
        try:
            results[uid] = await work(claim)
        except Exception as error:
            log.warning("claim %s: %s", claim.key if isinstance(claim, ResourceClaim) else claim, error)
            results[uid] = error
    return results
