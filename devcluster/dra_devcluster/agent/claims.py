"""The claims that this node holds, and for which pods (kubelet-manager.md section 5).

A claim enters when the first pod refers to it (the checkpoint is written then, so that a crash leads to
an unprepare), becomes *prepared* when all its drivers have answered, and leaves when its last pod is
gone and all its drivers have unprepared it. No I/O here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .errors import ClaimError


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device as its driver reported it; no request names mean that it serves every request."""

    pool: str
    device: str
    share_id: str | None = None
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class ClaimInfo:
    """What the node knows about one claim: the pods that use it, and what each of its drivers prepared."""

    uid: str
    name: str
    namespace: str
    pods: set[str] = field(default_factory=set)
    drivers: dict[str, tuple[PreparedDevice, ...]] = field(default_factory=dict)
    prepared: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name: how the cache finds it."""
        return (self.namespace, self.name)


class ClaimCache:
    """The node's claims by namespace and name."""

    def __init__(self, claims: Iterable[ClaimInfo] = ()) -> None:
        self._claims = {claim.key: claim for claim in claims}

    def __iter__(self) -> Iterator[ClaimInfo]:
        return iter(self._claims.values())

    def get(self, namespace: str, name: str) -> ClaimInfo | None:
        """The claim of that name, if the node holds it."""
        return self._claims.get((namespace, name))

    def refer(self, pod_uid: str, uid: str, namespace: str, name: str, drivers: Iterable[str]) -> ClaimInfo:
        """Note that a pod uses a claim; every driver of its allocation gets an entry (KM-13).

        Raises ClaimError while a claim of the same name and another UID is still held (KM-21).
        """
        claim = self._claims.get((namespace, name))
        if claim is None:
            claim = self._claims[(namespace, name)] = ClaimInfo(uid, name, namespace)
        elif claim.uid != uid:
            raise ClaimError(
                f"old ResourceClaim with same name {name} and different UID {claim.uid} still exists "
                "(previous pod force-deleted?!)"
            )
        claim.pods.add(pod_uid)
        for driver in drivers:
            claim.drivers.setdefault(driver, ())
        return claim

    def of_pod(self, pod_uid: str) -> list[ClaimInfo]:
        """The claims to which the pod refers."""
        return [claim for claim in self if pod_uid in claim.pods]

    def pods(self) -> set[str]:
        """UIDs of all pods that refer to a claim."""
        return {uid for claim in self for uid in claim.pods}

    def remove(self, claim: ClaimInfo) -> None:
        """Forget a claim; does nothing if it is gone or its name belongs to another claim."""
        if self._claims.get(claim.key) is claim:
            del self._claims[claim.key]
