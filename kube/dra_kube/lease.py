"""Leader election: who leads by what a Lease says, and one candidate for it.

Leader election: who may write, decided from what a Lease says. Knows no server and has no clock.

Candidates share one Lease object. The leader renews it every ``retry`` seconds. Three rules make sure that no two
candidates write at the same time, whatever their clocks, their network and their scheduling do:

**A candidate waits by its own clock.** It takes the lease over when the record has not changed for the record's
duration, counted from the moment when this candidate first saw that record. Times in the record are for people; no
candidate compares them with its own clock. A deleted lease counts as unchanged, and so does one that was made anew and
that has had no holder yet. A candidate waits for no holder whose process has certainly ended (``has_ended``).

**A leader counts from before.** Its time starts when it *sent* the last renewal that was answered, so it always ends
before that of every candidate, who saw the renewal later. It writes only within the first part (``renew``) of its time,
and asks the server to drop each write at the end (``allowance``). The clock counts while the process is stopped and
while the machine is suspended: a leader that wakes up late knows it, and begins no write. Only a write whose last check
was passed in the very moment of the pause, and whose bytes go out after it, no clock can stop. There is one at most,
since one thread sends them all, and what it replaces may have another version by then.

**The resourceVersion proves the rest.** Every write of the lease replaces exactly the version that was read. If the API
server was away until a leader's time was over, and the leader's next renewal still replaces its own last version, then
no other leader was in between: it may continue, with everything it knows. If the record names another holder, or is
gone, its leadership is lost for good.

client-go's ``leaderelection`` works on the same records, with the same rules for candidates.

One candidate for one Lease object on the server: single attempts to get or renew it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, Self

from dra_api.meta import LEASES, Resource
from dra_api.values import format_micro_time

from dra_kube.errors import AlreadyExists, Conflict, KubeError, NotFound, NotSent
from dra_kube.http.sending import boot_time

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: others wait ``lease``, the leader writes for ``renew``, each candidate retries after ``retry``.

    The defaults and their proportions are those of client-go. A leader renews without a gap while each request takes
    up to ``request`` seconds: two of them fit into ``renew``, and the last one is over before others take the lease.
    """

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0

    @classmethod
    def of(cls, lease: float) -> Self:
        """Return the usual proportions for this duration of a lease."""
        return cls(lease, lease * 2 / 3, lease * 2 / 15)

    @property
    def request(self) -> float:
        """Seconds that one request for the Lease may take."""
        return self.renew / 2


LONGEST_LEASE_SECONDS = 3600.0
"""Limit on the duration of a record that a candidate waits for. No operator may be given a longer one, and whoever may
write Leases could keep all candidates waiting for 68 years."""
_LARGEST_TRANSITION_COUNT = 2**31 - 1  # leaseTransitions is an int32: the API server refuses a larger number
_KIND = {"apiVersion": LEASES.api_version(), "kind": LEASES.kind}
DROP_EARLY_SECONDS = 0.5
"""Seconds before the end of the leader's time at which the server has to drop a write: clocks do not run equally."""


class NotLeading(NotSent):
    """A write was held back, because this process does not hold the lease, or is no longer sure of it."""


class LeaseLost(KubeError):
    """This process led, and another one may have led since. What it knows may be outdated."""


class Election:
    """One candidate. ``bid`` says what to write, ``won`` that it was written; ``allowance`` guards all other writes.

    ``has_ended``: return whether the process of that identity certainly writes no more.
    """

    def __init__(
        self,
        identity: str,
        timing: Timing | None = None,
        *,
        clock: Callable[[], float] = boot_time,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        has_ended: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.identity = identity
        self.timing = timing or Timing()
        self.clock = clock
        self._now, self._has_ended = now, has_ended
        self._seen: Object | None = None  # the spec that was seen last
        self._seen_at = -math.inf
        self._renewed_at: float | None = None  # None: does not lead
        self.former = ""
        """The holder that this candidate saw last before itself; empty if there was none."""

    @property
    def leads(self) -> bool:
        """Whether this candidate won and did not lose since. It may write only while ``allowance`` says so."""
        return self._renewed_at is not None

    @property
    def holder(self) -> str:
        """The holder of the lease when it was last seen; empty if there was none."""
        return str((self._seen or {}).get("holderIdentity") or "")

    def allowance(self) -> float:
        """Seconds within which a write that is sent now must take effect. Raises NotLeading if none may be sent."""
        if self._renewed_at is None:
            raise NotLeading(f"{self.identity} does not hold the lease")
        age = self.clock() - self._renewed_at
        if age >= self.timing.renew:
            raise NotLeading(f"the lease was last renewed {age:.1f} s ago, too long ago for a write")
        return self.timing.lease - DROP_EARLY_SECONDS - age

    def bid(self, lease: Object | None) -> Object | None:
        """The lease to write, given the one on the server (None: there is none); None while another holds it.

        Raises LeaseLost.
        """
        self._see(lease)
        if not self.leads and self.holder != self.identity:
            self.former = self.holder
        spec = (lease or {}).get("spec") or {}
        if lease is None or not spec:
            return self._bid_for_nothing(lease or {**_KIND, "metadata": {}})
        if spec.get("holderIdentity") == self.identity:
            return self._written(lease, spec)
        if self.leads:
            self._lose(f"{self.holder} holds it now" if self.holder else "it has no holder now")
        if self.holder and not self._is_over():
            return None
        transitions = min((spec.get("leaseTransitions") or 0) + 1, _LARGEST_TRANSITION_COUNT)
        return self._written(lease, {**spec, "acquireTime": self._time(), "leaseTransitions": transitions})

    def won(self, lease: Object, sent_at: float) -> None:
        """The lease that ``bid`` gave was sent at this time of ``clock`` and stored as ``lease``."""
        self._see(lease)
        self._renewed_at = sent_at

    def release(self, lease: Object) -> Object:
        """The lease to write when everything has ended, so that others need not wait. Ends the leadership."""
        self._renewed_at = None
        spec = {**(lease.get("spec") or {}), "leaseDurationSeconds": 1, "renewTime": self._time()}
        return {**lease, "spec": {**spec, "holderIdentity": ""}}

    def _see(self, lease: Object | None) -> None:
        spec = (lease or {}).get("spec")
        if spec and spec != self._seen:
            self._seen, self._seen_at = copy.deepcopy(spec), self.clock()

    def _is_over(self) -> bool:
        if self._has_ended(self.holder):
            return True
        seconds = (self._seen or {}).get("leaseDurationSeconds") or self.timing.lease
        return self.clock() - self._seen_at >= min(float(seconds), LONGEST_LEASE_SECONDS)

    def _bid_for_nothing(self, lease: Object) -> Object | None:
        if self._renewed_at is not None and self.clock() - self._renewed_at >= self.timing.renew:
            self._lose("the Lease was deleted")
        if not self.leads and self.holder and not self._is_over():
            return None  # its holder may still write
        fresh = {"acquireTime": self._time(), "leaseTransitions": 0}
        return self._written(lease, fresh)

    def _written(self, lease: Object, spec: Object) -> Object:
        seconds = max(1, math.ceil(self.timing.lease))
        own = {"holderIdentity": self.identity, "leaseDurationSeconds": seconds, "renewTime": self._time()}
        return {**lease, "spec": {**spec, **own}}

    def _lose(self, why: str) -> None:
        assert self._renewed_at is not None
        age, self._renewed_at = self.clock() - self._renewed_at, None
        raise LeaseLost(f"the lease is lost: {why}; it was last renewed {age:.1f} s ago")

    def _time(self) -> str:
        return format_micro_time(self._now())


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
