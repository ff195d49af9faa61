"""Workloads and ResourceFlavors of ``kueue.x-k8s.io``, and the pods that a Workload means once Kueue has admitted it.

Kueue changes a pod template when it starts a job: each flavor that it assigned adds the labels of its nodes to the
node selector, and its tolerations; each admission check may add more. With topology-aware scheduling each domain gets
a number of pods. An addition may not contradict the template. ``pods_of`` does the same, so that the pods can be placed
before they exist.

Topology assignments have the shape of v1beta1 (``domains``) or of v1beta2 (``slices``); all else is alike in both.
Source: apis/kueue/v1beta2 and pkg/podset of kubernetes-sigs/kueue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Final

from msgspec.structs import replace

from .core import Pod, PodSpec, Toleration
from .meta import Condition, Object, ObjectMeta, OwnerReference, Part

GROUP: Final = "kueue.x-k8s.io"
GATES: Final = f"{GROUP}/"
"""Prefix of Kueue's scheduling gates: it removes them from admitted pods."""
MAIN: Final = "main"
WORKLOAD: Final = f"{GROUP}/workload"
"""The annotation of a pod that names its Workload."""
REPLACED_SLICE: Final = f"{GROUP}/workload-slice-replacement-for"
"""The annotation of a Workload by which an elastic job grows: the key of the one that it replaces."""
POD_SET: Final = f"{GROUP}/podset"
"""The label of a pod that names its set."""
POD_GROUP: Final = f"{GROUP}/pod-group-name"
PRIORITY_GROUP: Final = "scheduling.k8s.io"
POD_PRIORITY: Final = f"{PRIORITY_GROUP}/priorityclass"
"""The source of a priority in v1beta1, if it is a PriorityClass."""


class WorkloadError(Exception):
    """The pods of a Workload cannot be told. The message names the pod set and the fault."""


class FlavorMissing(WorkloadError):
    """A ResourceFlavor that Kueue assigned is not known."""


class TopologyDomain(Part, frozen=True):
    """A number of pods for the nodes with these values of the labels (v1beta1)."""

    values: tuple[str, ...] = ()
    count: int = 0


class DomainValues(Part, frozen=True):
    """The values of one label in the domains of a slice: roots between a prefix and a suffix."""

    prefix: str = ""
    suffix: str = ""
    roots: tuple[str, ...] | None = None


class LevelValues(Part, frozen=True):
    """The values of one label: ``universal`` in all domains of a slice, or ``individual`` ones."""

    universal: str | None = None
    individual: DomainValues | None = None

    def value(self, domain: int) -> str:
        """Return that of one domain. Raises IndexError."""
        if self.universal is not None:
            return self.universal
        its = self.individual or DomainValues()
        return f"{its.prefix}{(its.roots or ())[domain]}{its.suffix}"


class PodCounts(Part, frozen=True):
    """The pods of each domain of a slice: ``universal`` in all of them, or ``individual`` numbers."""

    universal: int | None = None
    individual: tuple[int, ...] | None = None

    def of(self, domain: int) -> int:
        """Return the number in one domain. Raises IndexError."""
        return self.universal if self.universal is not None else (self.individual or ())[domain]


class TopologySlice(Part, frozen=True):
    """Some of the domains (v1beta2)."""

    domain_count: int = 0
    values_per_level: tuple[LevelValues, ...] = ()
    pod_counts: PodCounts = PodCounts()

    def domains(self) -> Iterator[TopologyDomain]:
        """Yield them in the shape of v1beta1. Raises IndexError if the lists have different lengths."""
        for number in range(self.domain_count):
            values = tuple(level.value(number) for level in self.values_per_level)
            yield TopologyDomain(values=values, count=self.pod_counts.of(number))


class TopologyAssignment(Part, frozen=True):
    """``levels`` are labels of nodes, ``domains`` (v1beta1) or ``slices`` (v1beta2) their values."""

    levels: tuple[str, ...] = ()
    domains: tuple[TopologyDomain, ...] | None = None
    slices: tuple[TopologySlice, ...] | None = None

    def places(self) -> Iterator[tuple[dict[str, str], int]]:
        """Yield a node selector, and how many pods have it. Raises WorkloadError.

        One domain at a time: a few bytes may stand for billions.
        """
        try:
            for domain in chain(self.domains or (), *(each.domains() for each in self.slices or ())):
                yield dict(zip(self.levels, domain.values, strict=True)), domain.count
        except (IndexError, ValueError) as error:
            raise WorkloadError("topologyAssignment has fewer values or counts than domains and levels") from error


class PodSetAssignment(Part, frozen=True):
    """``flavors`` by resource. ``count`` is the number of admitted pods. It may be less than the set has."""

    name: str = MAIN
    flavors: dict[str, str] | None = None
    count: int | None = None
    topology_assignment: TopologyAssignment | None = None


class Admission(Part, frozen=True):
    """The quota that a Workload has reserved."""

    cluster_queue: str = ""
    pod_set_assignments: tuple[PodSetAssignment, ...] | None = None


class PodSetTemplate(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class PodSet(Part, frozen=True):
    """A number of equal pods. Kueue may admit fewer, but at least ``min_count``, if there is one."""

    name: str = MAIN
    count: int = 1
    min_count: int | None = None
    template: PodSetTemplate = PodSetTemplate()


class PodSetUpdate(Part, frozen=True):
    """What an admission check adds to the pods of a set."""

    name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None


class AdmissionCheckState(Part, frozen=True):
    """What one check says of a Workload. Kueue counts the retries, and waits ``requeue_after_seconds`` after each."""

    name: str = ""
    state: str = ""
    message: str = ""
    last_transition_time: str | None = None
    requeue_after_seconds: int | None = None
    retry_count: int | None = None
    pod_set_updates: tuple[PodSetUpdate, ...] | None = None


class ReclaimablePod(Part, frozen=True):
    """``count`` pods of the set have ended, or are not needed any more."""

    name: str = ""
    count: int = 0


class PriorityClassRef(Part, frozen=True):
    group: str = ""
    kind: str = ""
    name: str = ""


class RequeueState(Part, frozen=True):
    """``requeue_at``: Kueue considers the Workload again at this time."""

    count: int | None = None
    requeue_at: str | None = None


class WorkloadSpec(Part, frozen=True):
    """``priority`` is that of the queue. It is that of the pods as well if it comes from a PriorityClass."""

    pod_sets: tuple[PodSet, ...] | None = None
    active: bool | None = None
    priority: int | None = None
    priority_class_ref: PriorityClassRef | None = None
    priority_class_source: str = ""


class WorkloadStatus(Part, frozen=True):
    """``cluster_name``: where MultiKueue runs it, if that is another cluster."""

    conditions: tuple[Condition, ...] | None = None
    admission: Admission | None = None
    admission_checks: tuple[AdmissionCheckState, ...] | None = None
    reclaimable_pods: tuple[ReclaimablePod, ...] | None = None
    requeue_state: RequeueState | None = None
    cluster_name: str | None = None


class Workload(Object, frozen=True):
    """A job as Kueue sees it: sets of pods that start together."""

    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    def has(self, condition: str) -> bool:
        """Return whether the condition is True."""
        return any(it.type == condition and it.status == "True" for it in self.status.conditions or ())

    @property
    def has_quota(self) -> bool:
        """Whether quota is reserved for it, and it is not being evicted."""
        return self.status.admission is not None and self.has("QuotaReserved") and not self.has("Evicted")

    @property
    def flavors(self) -> set[str]:
        """The names of the flavors that Kueue has assigned."""
        admission = self.status.admission
        sets = admission.pod_set_assignments or () if admission is not None else ()
        return {name for each in sets for name in (each.flavors or {}).values()}

    @property
    def pod_priority(self) -> int | None:
        """The priority that its pods get from the PriorityClass of the job, or None if the templates say it."""
        ref = self.spec.priority_class_ref
        is_of_pods = self.spec.priority_class_source == POD_PRIORITY or (
            ref is not None and ref.group == PRIORITY_GROUP
        )
        return self.spec.priority if is_of_pods else None

    @property
    def settled(self) -> str:
        """Why no further pods come of it, as a clause without its name; empty if they may."""
        if self.has("Finished"):
            return "has finished"
        if self.has("Admitted") and self.has("PodsReady"):
            return "is admitted, and its pods are ready"
        return "is not active (spec.active)" if self.spec.active is False else ""

    def owns(self, pod: Pod) -> bool:
        """Return whether it is a pod of this Workload: it says so, or has the same controller, or is the controller."""
        meta, owner = pod.metadata, self.metadata.controller
        if meta.namespace != self.metadata.namespace:
            return False
        named = ((meta.annotations or {}).get(WORKLOAD), (meta.labels or {}).get(POD_GROUP))
        if self.metadata.name in named:
            return True
        of_pod = meta.controller.uid if meta.controller is not None else meta.uid
        return owner is not None and bool(owner.uid) and owner.uid in (of_pod, meta.uid)


class ResourceFlavorSpec(Part, frozen=True):
    node_labels: dict[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None


class ResourceFlavor(Object, frozen=True):
    """The nodes that a part of a quota is for, by their labels, and what its pods tolerate there."""

    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class AdmissionCheckParameters(Part, frozen=True):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class AdmissionCheckSpec(Part, frozen=True):
    controller_name: str = ""
    parameters: AdmissionCheckParameters | None = None


class AdmissionCheckStatus(Part, frozen=True):
    conditions: tuple[Condition, ...] | None = None


class AdmissionCheck(Object, frozen=True):
    """A condition for the admission of Workloads, and who decides about it."""

    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: AdmissionCheckStatus = AdmissionCheckStatus()


def pod_count(workload: Workload) -> int:
    """Return the number of pods that start when the Workload is admitted."""
    assigned, ended = _assigned(workload), _ended(workload)
    return sum(_left(each, assigned.get(each.name), ended.get(each.name, 0)) for each in workload.spec.pod_sets or ())


def pods_of(workload: Workload, flavor: Callable[[str], ResourceFlavor | None]) -> list[tuple[Pod, int]]:
    """Return the pods that start when the Workload is admitted, equal ones once with their number.

    Without an admission they are as their templates say. Raises WorkloadError.
    """
    assigned, ended = _assigned(workload), _ended(workload)
    found: list[tuple[Pod, int]] = []
    for each in workload.spec.pod_sets or ():
        try:
            found += _pods_of_set(workload, each, assigned.get(each.name), ended.get(each.name, 0), flavor)
        except WorkloadError as error:
            raise type(error)(f"pod set {each.name}: {error}") from error
    return found


def _assigned(workload: Workload) -> Mapping[str, PodSetAssignment]:
    admission = workload.status.admission
    return {it.name: it for it in (admission.pod_set_assignments or () if admission is not None else ())}


def _ended(workload: Workload) -> Mapping[str, int]:
    return {it.name: it.count for it in workload.status.reclaimable_pods or ()}


def _left(pod_set: PodSet, assignment: PodSetAssignment | None, ended: int) -> int:
    """Return the number of admitted pods of a set, without the finished ones."""
    count = pod_set.count if assignment is None or assignment.count is None else assignment.count
    return max(count - ended, 0)


def _pods_of_set(
    workload: Workload,
    pod_set: PodSet,
    assignment: PodSetAssignment | None,
    ended: int,
    flavor: Callable[[str], ResourceFlavor | None],
) -> Iterator[tuple[Pod, int]]:
    updates = [
        (f"admission check {check.name}", update)
        for check in workload.status.admission_checks or ()
        for update in check.pod_set_updates or ()
        if update.name == pod_set.name
    ]
    if assignment is not None:
        updates.insert(0, _of_flavors(pod_set.name, assignment, flavor))
    pod = _pod(workload, pod_set)
    for source, update in updates:
        pod = _updated(pod, update, source)
    left = _left(pod_set, assignment, ended)
    topology = assignment.topology_assignment if assignment is not None else None
    for selector, number in topology.places() if topology is not None else ():
        if not left:
            return
        if number < 1:
            raise WorkloadError("topologyAssignment has a domain without pods")
        placed = min(number, left)
        left -= placed
        update = PodSetUpdate(name=pod_set.name, node_selector=selector)
        yield _updated(pod, update, "topologyAssignment"), placed
    if left:
        yield pod, left


def _pod(workload: Workload, pod_set: PodSet) -> Pod:
    """A pod of the set without Kueue's gates; whoever controls the Workload controls its pods."""
    meta, spec = workload.metadata, pod_set.template.spec
    owner = meta.controller or OwnerReference(
        api_version=f"{GROUP}/v1beta2",
        kind="Workload",
        name=meta.name,
        uid=meta.uid or f"workload {meta.name}",
        controller=True,
    )
    gates = tuple(gate for gate in spec.scheduling_gates or () if not gate.name.startswith(GATES))
    return Pod(
        metadata=replace(
            pod_set.template.metadata,
            name=f"{meta.name}-{pod_set.name}",
            namespace=meta.namespace,
            labels={**(pod_set.template.metadata.labels or {}), POD_SET: pod_set.name},
            owner_references=(owner,),
        ),
        spec=replace(spec, scheduling_gates=gates or None),
    )


def _of_flavors(
    name: str, assignment: PodSetAssignment, flavor: Callable[[str], ResourceFlavor | None]
) -> tuple[str, PodSetUpdate]:
    """What all flavors of a set add; of a label that several have, the value of the first one counts."""
    labels: dict[str, str] = {}
    tolerations: list[Toleration] = []
    names = list(dict.fromkeys((assignment.flavors or {}).values()))
    for each in names:
        found = flavor(each)
        if found is None:
            raise FlavorMissing(f"its ResourceFlavor {each} is missing")
        labels = {**(found.spec.node_labels or {}), **labels}
        tolerations += found.spec.tolerations or ()
    update = PodSetUpdate(name=name, node_selector=labels, tolerations=tuple(tolerations))
    return f"ResourceFlavor {', '.join(names)}", update


def _updated(pod: Pod, update: PodSetUpdate, source: str) -> Pod:
    """Return the pod with the additions. Kueue refuses to change fields that are set."""
    meta, spec = pod.metadata, pod.spec
    return replace(
        pod,
        metadata=replace(
            meta,
            labels=_joined("label", meta.labels, update.labels, source),
            annotations=_joined("annotation", meta.annotations, update.annotations, source),
        ),
        spec=replace(
            spec,
            node_selector=_joined("node selector", spec.node_selector, update.node_selector, source),
            tolerations=(*(spec.tolerations or ()), *(update.tolerations or ())) or None,
        ),
    )


def _joined(
    what: str, before: Mapping[str, str] | None, added: Mapping[str, str] | None, source: str
) -> dict[str, str] | None:
    for key, value in (added or {}).items():
        if (before or {}).get(key, value) != value:
            raise WorkloadError(f"{what} {key} is {(before or {})[key]}, and {source} sets {value}")
    return {**(before or {}), **(added or {})} or None
