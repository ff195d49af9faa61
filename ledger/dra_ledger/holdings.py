"""Claims and pods: holders of devices, and the health that kubelets report.

Claims and pods come one at a time. Each change returns the pools about which an answer may be different now. A PodGroup
in ``reservedFor`` stands for those of its pods that use the claim and have not finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from .basics import PoolId
from .entries import Holder
from .sources import HeldClaim, SeenPod

_Keys = str | dict[str, None]
"""The key of a claim, or of several: most devices have one holder, and a shared one may have thousands."""


class Holdings:
    """The holders of devices, by pool and device."""

    def __init__(self) -> None:
        self.claims: dict[str, HeldClaim] = {}
        """Claims by ``namespace/name``, which is the key of the following maps as well."""
        self.pods: dict[str, SeenPod] = {}
        """The pods that use claims."""
        self._groups: dict[str, dict[str, None]] = {}
        """The pods of each PodGroup."""
        self._held: dict[PoolId, dict[str, _Keys]] = {}
        """The claims that have a device, with admin access as well."""

    @property
    def pools(self) -> Set[PoolId]:
        """The pools of which a claim holds a device."""
        return self._held.keys()

    def put_claim(self, key: str, now: HeldClaim | None) -> Iterable[PoolId]:
        """Take in a claim, or its deletion (None)."""
        before = self.claims.pop(key, None)
        pools = {*_pools(before), *_pools(now)}
        if before is not None:
            for pool, device in _devices(before):
                self._take_out(pool, device, key)
        if now is not None:
            self.claims[key] = now
            for pool, device in _devices(now):
                self._file(pool, device, key)
        return pools

    def put_pod(self, key: str, now: SeenPod | None) -> Iterable[PoolId]:
        """Take in a pod, or its deletion (None). A pod without claims says nothing about devices, and is not kept."""
        before = self.pods.pop(key, None)
        now = now if now is not None and now.claims else None
        pools: set[PoolId] = set()
        for pod in (before, now):
            if pod is None:
                continue
            if pod.group:
                group = self._groups.setdefault(f"{pod.namespace}/{pod.group}", {})
                if pod is now:
                    group[key] = None
                else:
                    group.pop(key, None)
                    if not group:
                        del self._groups[f"{pod.namespace}/{pod.group}"]
            for name in pod.claims:
                pools |= _pools(self.claims.get(f"{pod.namespace}/{name}"))
        if now is not None:
            self.pods[key] = now
        return pools

    def holders(self, pool: PoolId) -> dict[str, tuple[Holder, ...]]:
        """Return the holders of each device of the pool that a claim holds."""
        return {
            device: tuple(holder for claim in self._claims_of(keys) for holder in self._holders(pool, device, claim))
            for device, keys in self._held.get(pool, {}).items()
        }

    def health(self, pool: PoolId) -> dict[str, str]:
        """Return what kubelets say of the devices of a pool. The name tells one of several resources of a request."""
        found: dict[str, str] = {}
        if not self.pods:
            return found
        held = self._held.get(pool, {})
        for claim in {claim.key: claim for keys in held.values() for claim in self._claims_of(keys)}.values():
            results = claim.allocation.results if claim.allocation is not None else ()
            for name in self._pods_of(claim):
                pod = self.pods.get(f"{claim.namespace}/{name}")
                for said in pod.health if pod is not None else ():
                    meant = [it for it in results if said.claim == claim.name and said.request in ("", it.request)]
                    if len(meant) > 1:
                        meant = [it for it in meant if said.resource.endswith((f"/{it.device}", f"={it.device}"))]
                    for result in meant[:1]:
                        if (result.driver, result.pool) == pool and found.get(result.device) != "Unhealthy":
                            found[result.device] = said.health
        return found

    def _file(self, pool: PoolId, device: str, key: str) -> None:
        devices = self._held.setdefault(pool, {})
        others = devices.get(device)
        if others is None:
            devices[device] = key
        elif isinstance(others, dict):
            others[key] = None
        elif others != key:
            devices[device] = {others: None, key: None}

    def _take_out(self, pool: PoolId, device: str, key: str) -> None:
        devices = self._held.get(pool, {})
        others = devices.get(device)
        if isinstance(others, dict):
            others.pop(key, None)
        if not others or others == key:
            devices.pop(device, None)
            if not devices:
                self._held.pop(pool, None)

    def _claims_of(self, keys: _Keys) -> Iterator[HeldClaim]:
        for key in (keys,) if isinstance(keys, str) else keys:
            yield self.claims[key]

    def _holders(self, pool: PoolId, device: str, claim: HeldClaim) -> Iterator[Holder]:
        if claim.allocation is None:
            return
        for result in claim.allocation.results:
            if (result.driver, result.pool, result.device) == (*pool, device):
                yield Holder(
                    namespace=claim.namespace,
                    claim=claim.name,
                    request=result.request,
                    pods=self._pods_of(claim),
                    since=claim.allocation.allocation_timestamp or claim.created,
                    share=result.share_id or "",
                    consumed={name: str(amount) for name, amount in (result.consumed_capacity or {}).items()},
                    is_admin=bool(result.admin_access),
                )

    def _pods_of(self, claim: HeldClaim) -> tuple[str, ...]:
        if not claim.groups:
            return claim.pods
        names = dict.fromkeys(claim.pods)
        for group in claim.groups:
            for key in self._groups.get(f"{claim.namespace}/{group}", ()):
                pod = self.pods[key]
                if not pod.is_done and claim.name in pod.claims:
                    names[pod.name] = None
        return tuple(names)


def _devices(claim: HeldClaim) -> Iterator[tuple[PoolId, str]]:
    for result in claim.allocation.results if claim.allocation is not None else ():
        yield PoolId(result.driver, result.pool), result.device


def _pools(claim: HeldClaim | None) -> set[PoolId]:
    return {pool for pool, _ in _devices(claim)} if claim is not None else set()
