"""Changes that would help a waiting pod: as values, tried in the view, and told in a report.

A patch is a function of the object as it is, so that changes of one object add up in any order, and a change can be
left out again to see whether the others do without it. A trial makes changes in the pipeline's view, has the pod
decided again, and undoes them. Only a trial with a node is a fix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from typing import Any, Final, NamedTuple

from dra_api.core import Container, Pod, ResourceRequirements
from dra_api.meta import Object
from dra_api.resource import ResourceClaim, ResourceClaimStatus, ResourceClaimTemplate
from dra_api.values import Quantity
from msgspec.structs import replace

from dra_operator.allocator import AllocationError
from dra_operator.cache import Cluster
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.scheduling import CycleState, Faulty, NodeStatus, Plan, PodFilter, decided, plan, pre_filter
from dra_operator.scheduling.state import claim_behind, is_placeholder, placeholder_of
from dra_operator.wording import quantity


class Effort(IntEnum):
    """Price of changes for people: from devices that the author meant all along to smaller wishes."""

    MENDED_SELECTOR = 2
    OTHER_VALUE = 4
    WAIT_FOR_REPAIR = 5
    FEWER_TERMS = 6
    NO_SELECTOR = 8
    TOLERATED_BREAKAGE = 9


class Patch(NamedTuple):
    """``make`` returns the object as the change leaves it, or None if it is gone."""

    kind: type[Object]
    key: str
    make: Callable[[Any], Object | None]


class Edit(NamedTuple):
    """``after`` is the object as all changes leave it; None if it is gone."""

    kind: type[Object]
    key: str
    after: Object | None


@dataclass(frozen=True, slots=True)
class Change:
    """``text`` is an imperative. ``effort`` ranks changes: what a pod's author can do alone comes first.

    Of changes with the same ``group`` the first that helps is enough, such as the largest count of devices.
    """

    text: str
    patches: tuple[Patch, ...]
    effort: int
    group: str = ""


@dataclass(frozen=True, slots=True)
class Fix:
    """With all of the changes the pod gets the ``node``: it was tried, and that node was chosen."""

    node: str
    changes: tuple[Change, ...]
    edits: Sequence[Edit] = ()
    """What becomes of each object in the end."""

    @property
    def text(self) -> str:
        """One sentence without its full stop."""
        return ", and ".join(change.text for change in self.changes)

    @property
    def effort(self) -> int:
        """Of all changes together."""
        return sum(change.effort for change in self.changes)

    @property
    def rank(self) -> tuple[int, int, str]:
        """The most promising fix is the least."""
        return self.effort, len(self.changes), self.node


def applied(objects: Iterable[Object], edits: Sequence[Edit]) -> list[Object]:
    """The objects of a cluster after the edits."""
    left = {(edit.kind, edit.key): edit.after for edit in edits}
    found = (left.get((type(obj), obj.key), obj) for obj in objects)
    return [obj for obj in found if obj is not None]


def pod_change(pod: Pod, text: str, effort: int, make: Callable[[Pod], dict[str, Any]], group: str = "") -> Change:
    """The pod with the fields of its spec that ``make`` returns for it."""

    def changed(now: Pod) -> Pod:
        return replace(now, spec=replace(now.spec, **make(now)))

    return Change(text, (Patch(Pod, pod.key, changed),), effort, group)


def containers_of(pod: Pod) -> Iterator[tuple[str, Container]]:
    """Each container with the field of the spec that has it."""
    yield from (("init_containers", one) for one in pod.spec.init_containers or ())
    yield from (("containers", one) for one in pod.spec.containers or ())


def amount_of(container: Container, resource: str) -> Quantity | None:
    """What the container asks for; a limit stands for a request that is left out."""
    amounts = {**(container.resources.limits or {}), **(container.resources.requests or {})}
    return amounts.get(resource)


_BYTES: Final = ("memory", "ephemeral-storage", "hugepages-")


def quantity_of(resource: str, nanos: int) -> Quantity:
    """Return an amount of a resource; of bytes it is written in powers of 1024."""
    return quantity(nanos, binary=resource.startswith(_BYTES))


def less_in(pod: Pod, field: str, container: Container, resource: str, amount: Quantity) -> Change:
    """The pod with a container that asks for this amount."""
    kind = "init container" if field == "init_containers" else "container"
    asked = amount_of(container, resource)
    text = f"ask for at most {amount} {resource} instead of {asked} in {kind} {container.name}"

    def less(now: Container) -> Container:
        return replace(now, resources=_with_amount(now.resources, resource, amount))

    def make(now: Pod) -> dict[str, Any]:
        its: Sequence[Container] = getattr(now.spec, field) or ()
        return {field: tuple(less(it) if it.name == container.name else it for it in its)}

    return pod_change(pod, text, 3, make, f"room {resource}")


def less_in_pod(pod: Pod, resource: str, amount: Quantity) -> Change:
    """The pod that asks for this amount in its own resources. They count instead of its containers' resources."""
    asked = (pod.spec.resources.requests or {}).get(resource) if pod.spec.resources is not None else None
    text = f"ask for at most {amount} {resource} instead of {asked} in spec.resources of the pod"

    def make(now: Pod) -> dict[str, Any]:
        its = now.spec.resources
        return {"resources": _with_amount(its, resource, amount)} if its is not None else {}

    return pod_change(pod, text, 3, make, f"room {resource}")


def _with_amount(its: ResourceRequirements, resource: str, amount: Quantity) -> ResourceRequirements:
    """What asks for this amount of a resource, without a limit of it."""
    limits = {key: limit for key, limit in (its.limits or {}).items() if key != resource}
    return replace(its, requests={**(its.requests or {}), resource: amount}, limits=limits or None)


_VERSIONS: Final = count(1)


def put_for_trial(cluster: Cluster, obj: Object) -> None:
    """Have another state of an object in the view, as news: texts are no revisions, so each differs from all others."""
    cluster.renew(replace(obj, metadata=replace(obj.metadata, resource_version=f"trial-{next(_VERSIONS)}")))


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
        """Return the node of the whole attempt, as the proof of a fix, or an empty text if there is none."""
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
                        undoing.callback(put_for_trial, self.cluster, old)
                        put_for_trial(self.cluster, _left(patch.make(old), old))
            yield

    def edits(self, changes: Iterable[Change]) -> list[Edit]:
        """What becomes of each object as it was observed; nothing is made."""
        left: dict[tuple[type[Object], str], Object | None] = {}
        for change in changes:
            for patch in change.patches:
                template = self._templates.get(patch.key) if patch.kind is ResourceClaim else None
                place = (ResourceClaimTemplate, template.key) if template is not None else (patch.kind, patch.key)
                before = left[place] if place in left else self.pipeline.observed(*place)
                if before is None:
                    before = self.cluster.store_of(patch.kind).get(patch.key)
                if isinstance(before, ResourceClaimTemplate):
                    left[place] = _changed(before, patch)
                elif before is not None:
                    left[place] = patch.make(before)
        return [Edit(kind, key, after) for (kind, key), after in left.items()]


def _changed(template: ResourceClaimTemplate, patch: Patch) -> ResourceClaimTemplate:
    """Return the template with the change that the patch makes to a claim."""
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


@dataclass(slots=True)
class Report:
    """Lines are added in the order in which they are read."""

    lines: list[str] = field(default_factory=list)
    is_clear: bool = True
    fixes: list[Fix] = field(default_factory=list)

    def say(self, *lines: str, indent: int = 0) -> None:
        self.lines += [" " * indent + line for line in lines]

    def add(self, lines: Iterable[str], indent: int = 2) -> None:
        """More lines, below what was said."""
        self.say(*lines, indent=indent)

    def object_to(self, *lines: str, indent: int = 2) -> None:
        """Lines about something that is in the way."""
        self.is_clear = False
        self.say(*lines, indent=indent)

    def take_in(self, other: Report, indent: int = 0) -> None:
        """The report on something that this depends on."""
        self.add(other.lines, indent)
        self.is_clear = self.is_clear and other.is_clear
        self.fixes += other.fixes
