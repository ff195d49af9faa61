"""Workloads, templates and claims that are set aside (``cache.bulk``): they are read when it is their Workload's turn.

Objects that were read are kept until the next round. Most likely it needs them as well: each round looks at a promise
until its pods run. A promise keeps its room of the last round beside newer promises: otherwise its place would be given
away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

from dra_api.codec import DecodeError, convert, encode
from dra_api.kueue import Workload
from dra_api.meta import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, WORKLOADS, Object, Resource
from dra_api.resource import ResourceClaim
from dra_kube import KubeError, NotFound
from msgspec.structs import replace

from dra_operator.cache import ClaimTemplate, Cluster, without_bulk
from dra_operator.kube import Client
from dra_operator.scheduling.state import is_set_aside, is_workload_set_aside

from .workloads import CheckStage, rank

T = TypeVar("T", bound=Object)

READ_BYTES: Final = 4 << 20
"""Of all that has been read for a round, as JSON."""
_ORDER: Final = (CheckStage.PROMISED, CheckStage.LATE, CheckStage.CANDIDATE, CheckStage.BACKING_OFF)
"""What has been promised comes first."""


class AsideReader:
    """Call ``whole`` before each round. ``templates`` and ``claims`` have what was read for it, or why it was not."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self._cluster, self._client = cluster, client
        self._known: dict[tuple[type[Object], str], Object | str] = {}
        self._before: dict[tuple[type[Object], str], Object | str] = {}
        self._sums: defaultdict[str, int] = defaultdict(int)
        self._failure = ""
        self.templates: dict[str, ClaimTemplate | str] = {}
        self.claims: dict[str, ResourceClaim | str] = {}

    async def whole(self, stages: Mapping[CheckStage, list[Workload]]) -> Mapping[CheckStage, list[Workload]]:
        """Return the Workloads whole, as many as there is room for, and read the templates and claims that they name.

        Raises KubeError if something cannot be read that was promised a place: without it, others would get that place.
        """
        self._before, self._known, self.templates, self.claims = self._known, {}, {}, {}
        self._sums.clear()
        self._failure = ""
        # Nearly all clusters end here.
        if self._cluster.bulk is None or not self._cluster.bulk.has_aside:
            return stages
        found: dict[CheckStage, list[Workload]] = {stage: [] for stage in CheckStage}
        for stage in _ORDER:
            read = partial(self._read, is_needed=stage is CheckStage.PROMISED)
            for workload in sorted(stages[stage], key=self._is_new if stage is CheckStage.PROMISED else rank):
                it = await read(WORKLOADS, Workload, workload) if is_workload_set_aside(workload) else workload
                # The server may have a newer version than the cache, by which the Workload has this stage. What is
                # decided by the older one is not written then, and a promise must not lose its place meanwhile.
                whole = workload if not isinstance(it, Workload) else replace(workload, spec=it.spec)
                found[stage].append(whole)
                for key in templates_named(whole):
                    template = self._cluster.templates.get(key)
                    if template is not None and template.is_set_aside and key not in self.templates:
                        content = await read(RESOURCE_CLAIM_TEMPLATES, ClaimTemplate, template)
                        if content is not None:
                            self.templates[key] = content
                for key in claims_named(whole):
                    claim = self._cluster.claims.get(key)
                    # An allocated claim has its devices: its requests do not matter any more.
                    is_open = claim is not None and claim.status.allocation is None
                    if claim is not None and is_open and is_set_aside(claim) and key not in self.claims:
                        asked = await read(RESOURCE_CLAIMS, ResourceClaim, claim)
                        if asked is not None:
                            self.claims[key] = asked
        self._before = {}
        return found

    def _is_new(self, workload: Workload) -> tuple[bool, tuple[int, str, str]]:
        """Return the order of promises: what was read before counts first."""
        return (Workload, workload.key) not in self._before, rank(workload)

    async def _read(self, resource: Resource, kind: type[T], aside: T, *, is_needed: bool) -> T | str | None:
        """Return the object as the server has it, or why it cannot be read; None if there is no room for it."""
        meta = aside.metadata
        found = self._before.get((kind, aside.key))
        is_kept = is_needed and found is not None
        # A namespace gets half of the rest, as of everything that is shared.
        if not is_kept and 2 * self._sums[meta.namespace] >= READ_BYTES - sum(self._sums.values()):
            return None
        if not isinstance(found, kind) or found.metadata.resource_version != meta.resource_version:
            # A server that does not answer is not asked a thousand times.
            if self._failure:
                return self._failure
            try:
                found = without_bulk(convert(kind, await self._client.get(resource, meta.name, meta.namespace)))
            except (NotFound, DecodeError) as error:
                return str(error)
            except KubeError as error:
                if is_needed:
                    self._known = {**self._before, **self._known}
                    raise
                self._failure = str(error)
                return self._failure
        self._known[kind, aside.key] = found
        self._sums[meta.namespace] += len(encode(found))
        return found


def templates_named(workload: Workload) -> Iterator[str]:
    """Yield the keys of the ResourceClaimTemplates that its pods name."""
    for pod_set in workload.spec.pod_sets or ():
        for entry in pod_set.template.spec.resource_claims or ():
            if entry.resource_claim_template_name is not None:
                yield f"{workload.metadata.namespace}/{entry.resource_claim_template_name}"


def claims_named(workload: Workload) -> Iterator[str]:
    """Yield the keys of the ResourceClaims that its pods share with each other, or with others."""
    for pod_set in workload.spec.pod_sets or ():
        for entry in pod_set.template.spec.resource_claims or ():
            if entry.resource_claim_name is not None:
                yield f"{workload.metadata.namespace}/{entry.resource_claim_name}"
