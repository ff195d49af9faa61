"""Whether ResourceQuotas in files leave room for the claims that pods in files would get."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from dra_api.core import Pod
from dra_api.relations.quota import ResourceQuota, charges, whole
from dra_api.resource import ResourceClaim

from dra_operator.scheduling.state import pod_requests

from .held_back import HeldBack, Hindrance

Charges = Counter[str]


@dataclass(frozen=True, slots=True)
class Limit:
    """What a quota allows, and what is used of it: as it says itself, or else as the claims in the files add up."""

    key: str
    hard: Mapping[str, int]
    used: Charges


class ClaimQuotas:
    """Lets claims in, one after the other. ``stored`` are those that the server has, and has charged already."""

    def __init__(
        self,
        quotas: Iterable[ResourceQuota],
        stored: Collection[ResourceClaim],
        extended_resource: Callable[[str], str],
    ) -> None:
        self._extended_resource = extended_resource
        self._stored = frozenset(claim.metadata.uid for claim in stored)
        self._let_in: set[str] = set()
        self._added: defaultdict[str, Charges] = defaultdict(Counter)
        self._limits: defaultdict[str, list[Limit]] = defaultdict(list)
        counted: defaultdict[str, Charges] = defaultdict(Counter)
        for claim in stored:
            counted[claim.metadata.namespace] += charges(claim, extended_resource)
        for quota in quotas:
            if not quota.spec.scopes and quota.spec.scope_selector is None:  # with scopes it counts pods, not claims
                namespace = quota.metadata.namespace
                self._limits[namespace].append(_limit(quota, counted[namespace]))

    def fork(self) -> ClaimQuotas:
        """An independent copy, which knows what was let in so far."""
        other = copy(self)
        other._let_in = set(self._let_in)
        other._added = defaultdict(Counter, {namespace: Counter(charged) for namespace, charged in self._added.items()})
        return other

    def __bool__(self) -> bool:
        """Whether there is any quota that counts claims."""
        return any(self._limits.values())

    def refusal(
        self, claims: Iterable[ResourceClaim], *, extended_of: Pod | None = None, lasting: bool
    ) -> HeldBack | None:
        """Why not all of the claims can be made; None if they can. ``lasting``: then later ones find these charged.

        ``extended_of``: the claim is that for the extended resources of this pod.
        """
        added: defaultdict[str, Charges] = defaultdict(Counter)
        new = [it for it in claims if it.metadata.uid not in self._stored and it.metadata.uid not in self._let_in]
        for claim in new:
            namespace, asked = claim.metadata.namespace, self._asked(claim, extended_of)
            for limit in self._limits[namespace]:
                used = limit.used + self._added[namespace] + added[namespace]
                if over := [name for name in sorted(asked) if _exceeds(limit, name, used, asked)]:
                    title = "the claim for extended resources" if extended_of is not None else f"claim {claim.key}"
                    return HeldBack(Hindrance.QUOTA, limit.key, f"{title}: {_said(limit, over, asked, used)}")
            added[namespace] += asked
        if lasting:
            self._let_in.update(claim.metadata.uid for claim in new)
            for namespace, amounts in added.items():
                self._added[namespace] += amounts
        return None

    def _asked(self, claim: ResourceClaim, extended_of: Pod | None) -> Charges:
        asked = charges(claim, self._extended_resource)
        for name in pod_requests(extended_of) if extended_of is not None else ():
            asked.pop(f"requests.{name}", None)  # the pod itself is charged with that
        return asked


def _limit(quota: ResourceQuota, counted: Charges) -> Limit:
    told = {name: whole(amount) for name, amount in (quota.status.used or {}).items()}
    hard = {name: whole(amount) for name, amount in (quota.spec.hard or {}).items()}
    return Limit(quota.key, hard, Counter({**counted, **told}))


def _exceeds(limit: Limit, name: str, used: Charges, asked: Charges) -> bool:
    return name in limit.hard and asked[name] > 0 and used[name] + asked[name] > limit.hard[name]


def _said(limit: Limit, over: Sequence[str], asked: Charges, used: Charges) -> str:
    """The words of the API server, and the remedy."""
    requested, in_use, limited = (
        ",".join(f"{name}={amounts[name]}" for name in over) for amounts in (asked, used, limit.hard)
    )
    name = limit.key.rpartition("/")[2]
    numbers = f"requested: {requested}, used: {in_use}, limited: {limited}"
    return f"exceeded quota: {name}, {numbers}: raise the quota, or delete claims of the namespace"
