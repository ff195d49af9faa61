"""One candidate for one Lease object on the server: single attempts to get or renew it."""

from __future__ import annotations

from typing import Any, Protocol

from dra_api.api_resources import LEASES, Resource

from .election import Election
from .errors import AlreadyExists, Conflict, NotFound

Object = dict[str, Any]
_ROUNDS = 3  # writes per attempt: with the known version, with the one read after a conflict, and once more


class LeaseClient(Protocol):
    """The part of ``dra_kube.Api`` that leader election uses."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """The object. Raises NotFound."""
        ...

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        """Raises AlreadyExists."""
        ...

    async def update(self, resource: Resource, body: Object) -> Object:
        """Raises Conflict."""
        ...


class LeaseLock:
    """``api`` must not be guarded by this very election, and should give up before the leader's time is over."""

    def __init__(self, api: LeaseClient, namespace: str, name: str, election: Election) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self.election = election
        self._known: Object | None = None  # our own last version: renewing it takes one request

    async def attempt(self) -> bool:
        """Get the lease or renew it; False while another one holds it. Raises LeaseLost, and KubeError as ``Api``."""
        for _ in range(_ROUNDS):
            lease = self._known or await self._read()
            body = self.election.bid(lease)
            if body is None:
                return False
            self._known = None  # until this write is answered, only the server knows its version
            sent_at = self.election.clock()
            try:
                self._known = await self._write(lease, body)
            except (Conflict, NotFound) as error:
                if lease is None and not isinstance(error, AlreadyExists):
                    raise  # no such namespace
                continue
            self.election.won(self._known, sent_at)
            return True
        return self.election.leads

    async def release(self) -> None:
        """Give the lease up at once if it is ours. Nothing may be written after this. Raises KubeError."""
        if self.election.leads:
            lease = self._known or await self._read()
            if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self.election.identity:
                await self._api.update(LEASES, self.election.release(lease))

    async def _read(self) -> Object | None:
        try:
            return await self._api.get(LEASES, self._name, self._namespace)
        except NotFound:
            return None

    async def _write(self, lease: Object | None, body: Object) -> Object:
        if lease is not None:
            return await self._api.update(LEASES, body)
        body["metadata"].update(name=self._name, namespace=self._namespace)
        return await self._api.create(LEASES, body, self._namespace)
