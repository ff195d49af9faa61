"""Makes changes in the pipeline's view, has the pod decided again, and takes the changes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Final

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import ResourceClaim, ResourceClaimStatus, ResourceClaimTemplate
from msgspec.structs import replace

from dra_operator.allocator import AllocationError
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.scheduling import CycleState, Faulty, NodeStatus, Plan, PodFilter, decided, plan, pre_filter
from dra_operator.scheduling.state import claim_behind, is_placeholder, placeholder_of

from .change import Change, Edit, Patch

_VERSIONS: Final = count(1)


class Trial:
    """One waiting pod, or the placeholder of an immediate claim, in a cluster that changes for a while.

    ``templates``: of claims that are in the view only, by their keys: what changes such a claim changes its template.
    """

    def __init__(
        self, pipeline: Pipeline, pod: Pod, templates: Mapping[str, ResourceClaimTemplate] | None = None
    ) -> None:
        self.cluster, self.pipeline, self._first = pipeline.cluster, pipeline, pod
        self._templates = templates or {}
        self.asked = 0
        """How many answers this has taken."""
        self.tried = 0
        """How many changes were made."""

    @property
    def pod(self) -> Pod:
        """As the changes leave it."""
        if is_placeholder(self._first):
            claim = self.cluster.claims.get(claim_behind(self._first))
            return placeholder_of(claim, self.cluster.scheduler_name) if claim is not None else self._first
        return self.cluster.pods.get(self._first.key) or self._first

    def cycle_state(self) -> CycleState | None:
        """For which nodes can be asked; None if something comes first."""
        found = pre_filter(self.pod, self.cluster.snapshot(self.pipeline.allocator, self.pipeline.now))
        return found if isinstance(found, CycleState) else None

    def answer(self, node: str) -> NodeStatus | None:
        """What one node says."""
        self.pipeline.pausing()
        self.asked += 1
        cycle_state = self.cycle_state()
        state = cycle_state.nodes.get(node) if cycle_state is not None else None
        if cycle_state is None or state is None:
            return None
        try:
            return decided(PodFilter(cycle_state).filter(state), self.pipeline.pausing)
        except AllocationError as error:
            return Faulty(error)

    def node(self) -> str:
        """The node that the whole attempt ends with, which proves a fix; empty if it ends without one."""
        cycle_state = self.cycle_state()
        if cycle_state is None:
            return ""
        found = decided(plan(cycle_state), self.pipeline.pausing)
        return found.node if isinstance(found, Plan) else ""

    @contextmanager
    def with_(self, *changes: Change) -> Iterator[None]:
        """Inside the block the changes are made."""
        with ExitStack() as undoing:
            for change in changes:
                self.tried += 1
                for patch in change.patches:
                    old = self.cluster.store_of(patch.kind).get(patch.key)
                    if old is not None:
                        undoing.callback(self._put, old)
                        self._put(_left(patch.make(old), old))
            yield

    def edits(self, changes: Iterable[Change]) -> list[Edit]:
        """What becomes of each object as it was observed; nothing is made."""
        left: dict[tuple[type[Object], str], Object | None] = {}
        for change in changes:
            for patch in change.patches:
                template = self._templates.get(patch.key) if patch.kind is ResourceClaim else None
                place = (ResourceClaimTemplate, template.key) if template is not None else (patch.kind, patch.key)
                before = left[place] if place in left else self.pipeline.seen.one(*place)
                if before is None:
                    before = self.cluster.store_of(patch.kind).get(patch.key)
                if isinstance(before, ResourceClaimTemplate):
                    left[place] = _changed(before, patch)
                elif before is not None:
                    left[place] = patch.make(before)
        return [Edit(kind, key, after) for (kind, key), after in left.items()]

    def _put(self, obj: Object) -> None:
        """As news: texts are no revisions, so that each differs from all others."""
        version = f"trial-{next(_VERSIONS)}"
        self.cluster.renew(replace(obj, metadata=replace(obj.metadata, resource_version=version)))


def _changed(template: ResourceClaimTemplate, patch: Patch) -> ResourceClaimTemplate:
    """The template with what the patch does to a claim that is made from it."""
    claim = patch.make(ResourceClaim(metadata=template.metadata, spec=template.spec.spec))
    if not isinstance(claim, ResourceClaim):
        return template
    return replace(template, spec=replace(template.spec, spec=claim.spec))


def _left(after: Object | None, old: Object) -> Object:
    """What is gone stays in the view, without effect: it has to come back after the trial."""
    if after is not None:
        return after
    if isinstance(old, Pod):
        return replace(old, status=replace(old.status, phase="Succeeded"))
    if isinstance(old, ResourceClaim):
        return replace(old, status=ResourceClaimStatus())
    raise TypeError(f"{type(old).__name__}: no fix removes such an object")
