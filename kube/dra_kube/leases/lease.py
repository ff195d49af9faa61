"""One candidate for one Lease object on the server: single attempts to get or renew it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dra_api.api_resources import LEASES, Resource

from dra_kube.errors import AlreadyExists, Conflict, NotFound

from .election import Election

Object = dict[str, Any]
_MOST_WRITES = 3  # writes per attempt: with the known version, with the one read after a conflict, and once more


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
    """``api`` must not be guarded by this very election, and should give up before the leader's time is over.

    ``annotations`` is asked before each write for what the leader says of itself; other annotations stay.
    """

    def __init__(
        self,
        api: LeaseClient,
        namespace: str,
        name: str,
        election: Election,
        annotations: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._api, self._namespace, self._name, self._annotations = api, namespace, name, annotations
        self.election = election
        self.found: Mapping[str, str] = {}
        """What the Lease said when it was won: the word of the leader before, where this one had none."""
        self._known: Object | None = None  # our own last version: renewing it takes one request

    async def attempt(self) -> bool:
        """Get the lease or renew it; False while another one holds it. Raises LeaseLost, and KubeError as ``Api``."""
        for _ in range(_MOST_WRITES):
            lease = self._known or await self._read()
            body = self.election.bid(lease)
            if body is None:
                return False
            self._known = None  # until this write is answered, only the server knows its version
            sent_at = self.election.clock()
            try:
                self._known = await self._write(lease, self._annotated(body))
            except (Conflict, NotFound) as error:
                if lease is None and not isinstance(error, AlreadyExists):
                    raise  # no such namespace
                continue
            if not self.election.leads:
                self.found = self._known["metadata"].get("annotations") or {}
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

    def _annotated(self, body: Object) -> Object:
        said = self._annotations()
        if not said:
            return body
        meta = body["metadata"]
        return {**body, "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), **said}}}

    async def _write(self, lease: Object | None, body: Object) -> Object:
        if lease is not None:
            return await self._api.update(LEASES, body)
        body["metadata"].update(name=self._name, namespace=self._namespace)
        return await self._api.create(LEASES, body, self._namespace)
