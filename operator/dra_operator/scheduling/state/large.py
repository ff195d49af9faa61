"""Pods and claims that are too large to be placed or allocated, and the little that is kept of them.

The API server admits pods of more than a megabyte. A pod that is read takes four to eight times as much memory: two
hundred of them, which one user makes in a minute, would be more than the operator has. So a pod with more than
``LARGEST_OBJECT_BYTES`` of fields that the operator reads is not placed (``unsupported``). The parts that count on any
node are kept: name and UID, the room on its node, its labels and claims unless there are very many. Its rules keep no
other pod away, and its host ports and volumes do not count.

A pod that waits for a node may name thousands of claims and resources that do not exist, and each name takes a kilobyte
with all that is filed by it. Of such a pod that is set aside the first ones are kept, and a mark. It is read when
claims may have to be made for it. A pod with a node has at most the few resources of its node.

A claim first loses the labels, annotations and owners that the operator does not look at, and the device status of
drivers; labels and annotations go from ``BULKY_BYTES`` on, since a namespace may hold a hundred thousand claims. If the
spec alone has more than ``LARGEST_OBJECT_BYTES``, its requests are kept by their names and classes: other schedulers
may allocate such a claim. Its devices and consumers count as those of any other claim, so it is protected, released and
deleted.

A Workload of Kueue that is not small loses the annotations of its templates that the operator does not look at. If its
templates still have more than ``LARGEST_OBJECT_BYTES`` together, they are left without everything that counts, and no
place is looked for.

Ten thousand objects are too much in sum, though each is short enough. Objects for which there is no room are *set
aside* (``cache.bulk``): of a claim the names and classes of its requests are kept, of a pod what counts on any node
and in its namespace. Such a pod or claim is read from the server when its turn comes. Of a Workload the numbers of its
pods are kept, and what Kueue says of it; of a claim of a volume and of a budget all but the selector.

Marks say that little is kept of an object. A mark is known by its Python type, and decoded JSON never has that type:
``Marks``, ``SpecMark`` and ``MarkedSelector`` are subclasses of the type of the field. So no tenant can write an object
that looks marked, also where the API server validates nothing, as in the templates of a Workload. A copy through JSON
loses the marks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from dra_api.codec import encode
from dra_api.core import Container, Pod, PodSpec, PodStatus, ResourceRequirements, Taint, Volume
from dra_api.kueue import AdmissionCheckState, PodSet, PodSetAssignment, PodSetTemplate, Workload
from dra_api.meta import Condition, LabelSelector, ObjectMeta
from dra_api.resource import (
    FINALIZER,
    NULL,
    AllocatedDeviceStatus,
    DeviceClaim,
    DeviceClaimConfiguration,
    DeviceRequest,
    DeviceSubRequest,
    ExactDeviceRequest,
    OpaqueDeviceConfiguration,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
)
from dra_api.storage import PersistentVolumeClaim
from dra_api.values import Quantity
from msgspec import Raw, structs
from msgspec.structs import replace

from dra_operator.scheduling.state.applicants import GATE, HOLD, OPENED_LAST
from dra_operator.scheduling.state.node import POD_SLOTS, pod_requests

LARGEST_OBJECT_BYTES: Final = 64 << 10
"""Bytes as JSON. An ordinary pod has one to three thousand."""
BULKY_BYTES: Final = 8 << 10
"""Bytes from which an object is kept without what nobody reads of its metadata: tenants store them by the thousand."""
SMALL_BYTES: Final = 2 << 10
"""Bytes up to which an object is always kept whole."""
LENT_BYTES: Final = 4 << 20
"""Of the objects that are set aside and held whole for a while; equal parts count once."""
MOST_CLAIMS: Final = 256
_MOST_CLASSES: Final = 4
"""Of a claim that is set aside. One with more may be of any driver."""
_NO_NODE: Final = "dra.kopf.dev/too large"
"""The pod is left with the selector of a label that no node has: the API server admits no blank in the key of one."""
_SET_ASIDE: Final = "dra.kopf.dev/set aside"
"""A label that no node has, a driver that no claim can name, and a class that does not exist."""
_MORE: Final = "dra.kopf.dev/asks for more"
"""As ``_SET_ASIDE``: the pod asks for more claims or resources than are kept."""
_NAME_LETTERS: Final = 253
"""Letters of the longest name of an object. The API server limits neither a scheduler's name nor a volume's."""
_FEW_CLAIMS: Final = 2
_BASIC: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_FEW_RESOURCES: Final = 2
"""Resources beside the basic ones."""
_FEW_BYTES: Final = SMALL_BYTES // 2
"""Bytes of the names of claims, or of resources. A pod with more keeps ``_FEW_CLAIMS`` or ``_FEW_RESOURCES``."""
_MOST_RESOURCES: Final = 32
"""Resources of a pod with a node, beside the basic ones."""
LONGEST_WORDS: Final = 500
"""Length to which a message in a Workload is cut that is set aside."""


class Marks(dict[str, str]):
    """A node selector or labels, of which the keys are marks."""

    __slots__ = ()


def _marks(*names: str) -> Marks:
    return Marks(dict.fromkeys(names, "true"))


_ASIDE: Final = _marks(_SET_ASIDE)


def _bears(words: Mapping[str, str] | None, mark: str) -> bool:
    return isinstance(words, Marks) and mark in words


class SpecMark(OpaqueDeviceConfiguration, frozen=True):
    """The configuration of a spec of which little is kept; the driver says why, the parameters are its bytes."""

    @property
    def is_aside(self) -> bool:
        """Whether there was no room for the spec; otherwise it is too large."""
        return self.driver == _SET_ASIDE

    def on(self, spec: ResourceClaimSpec) -> ResourceClaimSpec:
        """Return the spec with the mark: it lost its own as JSON."""
        configs = (DeviceClaimConfiguration(opaque=self),)
        return replace(spec, devices=replace(spec.devices, config=configs))


class MarkedSelector(LabelSelector, frozen=True):
    """A selector in the place of one that is not kept. None that is decoded is equal to it."""


class MarkedTaint(Taint, frozen=True):
    """The taint of a node that is too large. Nothing tolerates it."""


NODE_MARK: Final = MarkedTaint(key=_NO_NODE, effect="NoSchedule")


def is_node_too_large(taints: Sequence[Taint]) -> bool:
    """Return whether little is kept of a node with these taints."""
    return bool(taints) and isinstance(taints[-1], MarkedTaint)


def short_name(name: str) -> str:
    """Return the name, or its beginning if it is too long to be one: then nothing has it."""
    return name[: _NAME_LETTERS + 1]


NO_VOLUME: Final = MarkedSelector(match_labels={_NO_NODE: "true"})
"""No volume has the label, so a claim with a selector that is not kept is not bound."""


def pod_without_bulk(pod: Pod) -> Pod:
    """The pod itself, or what is kept of it if it is too large. Annotations and owners do not make it so."""
    if len(encode(pod)) <= BULKY_BYTES:
        return pod
    # A large annotation is no reason to refuse a pod, nor to forget its gang.
    meta = structs.replace(pod.metadata, annotations=annotations_read(pod.metadata))
    pod = structs.replace(pod, metadata=meta)
    if len(encode(pod)) <= LARGEST_OBJECT_BYTES:
        return pod
    pod = structs.replace(pod, metadata=metadata_read(meta))
    return pod if len(encode(pod)) <= LARGEST_OBJECT_BYTES else _kept(pod)


def is_too_large(pod: Pod) -> bool:
    """Whether little is kept of the pod."""
    return _bears(pod.spec.node_selector, _NO_NODE)


def pod_set_aside(pod: Pod, *, is_placed: bool) -> Pod:
    """Return the short form of a pod for which there is no room.

    ``is_placed``: it has a node, or is on its way to one. Then others are kept away by its rules and host ports, if
    these are short.
    """
    pod = structs.replace(pod, spec=structs.replace(pod.spec, scheduler_name=short_name(pod.spec.scheduler_name)))
    labels, meta = pod.metadata.labels, metadata_read(pod.metadata)
    short_meta = meta if len(encode(labels)) <= SMALL_BYTES // 2 else structs.replace(meta, labels=None)
    short = structs.replace(pod, metadata=short_meta, status=_status_read(pod.status))
    if is_placed and not pod.is_terminal:
        placed = structs.replace(short, metadata=meta, spec=_placed(pod))
        if len(encode(placed)) <= 2 * SMALL_BYTES:
            return placed
    kept = _with_few_names(_kept(short), counts_on_node=is_placed and not pod.is_terminal)
    if is_too_large(pod):
        return kept
    selector = _marks(_SET_ASIDE, _MORE) if asks_for_more(kept) else _ASIDE
    return structs.replace(kept, spec=structs.replace(kept.spec, node_selector=selector))


def asks_for_more(pod: Pod) -> bool:
    """Return whether the pod asks for more claims or resources than are kept."""
    return _bears(pod.spec.node_selector, _MORE)


def _with_few_names(pod: Pod, *, counts_on_node: bool) -> Pod:
    """Return a pod that ``_kept`` has made short, with few claims, and with few resources if no node lacks them."""
    spec, status = pod.spec, pod.status
    claims, statuses, room = spec.resource_claims or (), status.resource_claim_statuses or (), _room(pod)
    if len(encode((claims, statuses))) > _FEW_BYTES:
        claims = claims[:_FEW_CLAIMS]
        names = {it.name for it in claims}
        statuses = tuple([it for it in statuses if it.name in names])
    if not counts_on_node and len(encode(tuple(room))) > _FEW_BYTES:
        room = _cut(room, _FEW_RESOURCES)
    if len(claims) == len(spec.resource_claims or ()) and len(room) == len(_room(pod)):
        return pod
    return structs.replace(
        pod,
        spec=structs.replace(
            spec,
            containers=(Container(resources=ResourceRequirements(requests=room)),),
            resource_claims=claims or None,
            node_selector=_marks(*(spec.node_selector or ()), _MORE),
        ),
        status=structs.replace(status, resource_claim_statuses=statuses or None),
    )


def is_set_aside(obj: Pod | ResourceClaim) -> bool:
    """Return whether little is kept of the object until its turn comes."""
    if isinstance(obj, Pod):
        return _bears(obj.spec.node_selector, _SET_ASIDE)
    mark = spec_mark(obj.spec)
    return mark is not None and mark.is_aside


def spec_mark(spec: ResourceClaimSpec) -> SpecMark | None:
    """Return the mark of a spec of which little is kept, or None if it is whole."""
    if not spec.devices.config:
        return None
    return next((it.opaque for it in spec.devices.config if isinstance(it.opaque, SpecMark)), None)


def _placed(pod: Pod) -> PodSpec:
    """Return what others ask of a pod that has its node."""
    spec, affinity = pod.spec, pod.spec.affinity
    ports = tuple([port for container in spec.containers or () for port in container.ports or () if port.host_port])
    room = ResourceRequirements(requests=_room(pod))
    return structs.replace(
        spec,
        containers=(Container(ports=ports or None, resources=room),),
        init_containers=None,
        resources=None,
        overhead=None,
        node_selector=_ASIDE,
        affinity=None if affinity is None else structs.replace(affinity, node_affinity=None),
        tolerations=None,
        topology_spread_constraints=None,
        volumes=tuple([it for it in spec.volumes or () if it != Volume(name=it.name)]) or None,
        scheduling_gates=None,
    )


def _status_read(status: PodStatus) -> PodStatus:
    """Return the status without the words of others than schedulers, and without containers, which nobody reads."""
    read = [it for it in status.conditions or () if it.type == "PodScheduled" and len(it.message) <= SMALL_BYTES]
    return structs.replace(
        status,
        message="",
        conditions=tuple(read) or None,
        container_statuses=None,
        init_container_statuses=None,
    )


def workload_without_bulk(workload: Workload) -> Workload:
    """Return the Workload itself, or the part of it that is kept if its templates are too large."""
    sets = workload.spec.pod_sets
    if len(encode(sets)) <= SMALL_BYTES:
        return workload
    sets = tuple(map(_with_our_annotations, sets or ()))
    if len(encode(sets)) > LARGEST_OBJECT_BYTES:
        sets = tuple([_without_template(it, _NO_NODE) for it in sets])
    return replace(workload, spec=replace(workload.spec, pod_sets=sets))


def workload_set_aside(workload: Workload) -> Workload:
    """Return the short form of a Workload for which there is no room."""
    spec, status, admission = workload.spec, workload.status, workload.status.admission
    sets = [
        _without_template(it, _NO_NODE if _bears(it.template.spec.node_selector, _NO_NODE) else _SET_ASIDE)
        for it in spec.pod_sets or ()
    ]
    if admission is not None:
        assigned = tuple(map(_without_domains, admission.pod_set_assignments or ()))
        admission = replace(admission, pod_set_assignments=assigned or None)
    return replace(
        workload,
        spec=replace(spec, pod_sets=tuple(sets) or None),
        status=replace(
            status,
            admission=admission,
            conditions=tuple(map(_with_short_words, status.conditions or ())) or None,
            admission_checks=tuple(map(_without_updates, status.admission_checks or ())) or None,
        ),
    )


def is_workload_set_aside(workload: Workload) -> bool:
    """Return whether the templates of the Workload are not kept for lack of room."""
    return any(_bears(it.template.spec.node_selector, _SET_ASIDE) for it in workload.spec.pod_sets or ())


def is_workload_too_large(workload: Workload) -> bool:
    """Return whether the templates of the Workload are not kept since they are too large."""
    return any(_bears(it.template.spec.node_selector, _NO_NODE) for it in workload.spec.pod_sets or ())


def _without_domains(assignment: PodSetAssignment) -> PodSetAssignment:
    return replace(assignment, topology_assignment=None)


def _without_updates(check: AdmissionCheckState) -> AdmissionCheckState:
    return replace(check, pod_set_updates=None, message=check.message[:LONGEST_WORDS])


def _with_short_words(condition: Condition) -> Condition:
    return replace(condition, message=condition.message[:LONGEST_WORDS])


def _with_our_annotations(pod_set: PodSet) -> PodSet:
    meta = pod_set.template.metadata
    kept = replace(meta, annotations=annotations_read(meta), finalizers=None, owner_references=None)
    return replace(pod_set, template=replace(pod_set.template, metadata=kept))


def _without_template(pod_set: PodSet, mark: str) -> PodSet:
    return replace(pod_set, template=PodSetTemplate(spec=PodSpec(node_selector=_marks(mark))))


def _kept(pod: Pod) -> Pod:
    spec, status = pod.spec, pod.status
    # They count for other pods' rules; very many of them are dropped all the same.
    labels = pod.metadata.labels if len(encode(pod.metadata.labels)) <= LARGEST_OBJECT_BYTES // 4 else None
    # The room on its node counts, whoever placed it there.
    room = _cut(_room(pod), _MOST_RESOURCES)
    # It matters which gates are ours, and whether there is another one.
    gates = spec.scheduling_gates or ()
    others = [it for it in gates if it.name != GATE and it.name not in OPENED_LAST]
    gates = (*[it for it in gates if it.name == GATE][:1], *others[:1])
    # As long as they are few they are kept: the claims of a pod that runs must not be released.
    has_few_claims = len(spec.resource_claims or ()) <= MOST_CLAIMS
    return structs.replace(
        pod,
        metadata=structs.replace(pod.metadata, labels=labels),
        spec=structs.replace(
            spec,
            scheduler_name=short_name(spec.scheduler_name),
            containers=(Container(resources=ResourceRequirements(requests=room)),),
            init_containers=None,
            resources=None,
            overhead=None,
            resource_claims=spec.resource_claims if has_few_claims else None,
            # Should any path try to place it all the same, no node matches.
            node_selector=_marks(_NO_NODE, *([_MORE] if asks_for_more(pod) else ())),
            affinity=None,
            tolerations=None,
            topology_spread_constraints=None,
            volumes=None,
            scheduling_gates=gates or None,
        ),
        status=structs.replace(
            status, resource_claim_statuses=status.resource_claim_statuses if has_few_claims else None
        ),
    )


def _room(pod: Pod) -> dict[str, Quantity]:
    return {name: Quantity.from_nanos(amount) for name, amount in pod_requests(pod).items() if name != POD_SLOTS}


def _cut(room: dict[str, Quantity], most: int) -> dict[str, Quantity]:
    """Return the room with the basic resources and ``most`` others."""
    others = set(islice((name for name in room if name not in _BASIC), most))
    return {name: amount for name, amount in room.items() if name in _BASIC or name in others}


_READ: Final = re.compile(
    r"(dra\.kopf\.dev|resource\.kubernetes\.io|kueue\.x-k8s\.io|leaderworkerset\.sigs\.k8s\.io"
    r"|(pv|volume)(\.beta)?\.kubernetes\.io)/|kubernetes\.io/config\.mirror$"
)
_MOST_READ_NAMES: Final = 16
_LONGEST_CHARACTERS: Final = 320
"""Length of a value. A topology is the key of a label, at most 317. A longer value stays wrong when it is cut."""


def annotations_read(meta: ObjectMeta) -> dict[str, str] | None:
    """Some annotations, each cut: who makes an object may give ours any values, of 256 KiB in all."""
    read = ((name, text) for name, text in (meta.annotations or {}).items() if _READ.match(name))
    return {name: text[:_LONGEST_CHARACTERS] for name, text in islice(read, _MOST_READ_NAMES)} or None


_OURS: Final = (FINALIZER, HOLD)
_TOO_LARGE: Final = "dra.kopf.dev/too-large"
"""The driver of the configuration with which the claim is left; its parameters are the bytes of the whole spec."""


_LARGE: Final = "dra.kopf.dev/large"
"""The only label of a claim of which not all is kept. Nothing reads the labels of claims."""


def claim_without_bulk(claim: ResourceClaim) -> ResourceClaim:
    """The claim itself, or what is kept of it if it is large."""
    bulk = len(encode(claim))
    if bulk <= BULKY_BYTES:
        return claim
    if bulk <= LARGEST_OBJECT_BYTES:
        kept = replace(claim.metadata, labels=None, annotations=annotations_read(claim.metadata))
        return claim if kept == claim.metadata else replace(claim, metadata=kept)
    spec, meta = claim.spec, metadata_without_bulk(claim.metadata)
    # The spec alone: status and metadata are small already.
    size = len(encode(spec))
    return replace(
        claim,
        metadata=replace(meta, labels=_marks(_LARGE)),
        spec=spec if size <= LARGEST_OBJECT_BYTES else spec_without_bulk(spec, size),
        status=_read(claim.status),
    )


def claim_set_aside(claim: ResourceClaim) -> ResourceClaim:
    """Return the short form of a claim for which there is no room."""
    status = _read(claim.status)
    if status.devices is not None:
        status = replace(status, devices=tuple(map(_without_words, status.devices)))
    return replace(
        claim,
        metadata=replace(metadata_without_bulk(claim.metadata), labels=_marks(_LARGE)),
        spec=spec_set_aside(claim.spec),
        status=status,
    )


def spec_set_aside(spec: ResourceClaimSpec) -> ResourceClaimSpec:
    """Return the classes of the requests, with a mark."""
    mark = spec_mark(spec)
    if mark is not None and mark.is_aside:
        return spec
    named = dict.fromkeys(
        name
        for it in spec.devices.requests or ()
        for name in (
            *([it.exactly.device_class_name] if it.exactly is not None else ()),
            *(sub.device_class_name for sub in it.first_available or ()),
        )
    )
    # A class that does not exist stands for every driver.
    classes = list(named) if len(named) <= _MOST_CLASSES else [*list(named)[:_MOST_CLASSES], _SET_ASIDE]
    is_admin = any(it.exactly is not None and it.exactly.admin_access for it in spec.devices.requests or ()) or None
    requests = [
        DeviceRequest(name=f"r{it}", exactly=ExactDeviceRequest(device_class_name=name, admin_access=is_admin))
        for it, name in enumerate(classes)
    ]
    # One that is too large stays so, which is said of it without a look at the server.
    return (mark or SpecMark(_SET_ASIDE)).on(ResourceClaimSpec(DeviceClaim(tuple(requests))))


def _without_words(device: AllocatedDeviceStatus) -> AllocatedDeviceStatus:
    return replace(device, conditions=tuple([replace(it, message="") for it in device.conditions or ()]) or None)


def has_lost_selector(claim: PersistentVolumeClaim) -> bool:
    """Return whether the claim has a selector that is not kept."""
    return claim.spec.selector == NO_VOLUME


def is_large(claim: ResourceClaim) -> bool:
    """Whether the server has far more of the claim than is kept here, so that to read it takes much memory."""
    return _bears(claim.metadata.labels, _LARGE)


def metadata_read(meta: ObjectMeta) -> ObjectMeta:
    """Return the metadata with its labels, and with the annotations and the owner that are read."""
    # The controller stays: evictions and budgets look for pods by their owner.
    owner = meta.controller
    owners = None if owner is None else (owner,)
    return replace(meta, annotations=annotations_read(meta), finalizers=None, owner_references=owners)


def metadata_without_bulk(meta: ObjectMeta) -> ObjectMeta:
    """Return what is read of the metadata of a claim or template: no labels, but finalizers."""
    finalizers = meta.finalizers or ()
    # It matters whether there is another finalizer, not which one.
    other = next((name for name in finalizers if name not in _OURS), None)
    kept = tuple([name for name in finalizers if name in _OURS or name is other])
    return replace(metadata_read(meta), labels=None, finalizers=kept or None)


def spec_without_bulk(spec: ResourceClaimSpec, size: int) -> ResourceClaimSpec:
    """The names and classes of the requests, and the bytes of the whole."""
    # Inside the claim, so that the size goes wherever the claim goes.
    mark = SpecMark(_TOO_LARGE, Raw(str(size).encode()))
    return mark.on(ResourceClaimSpec(DeviceClaim(tuple(map(_named, spec.devices.requests or ())))))


def bytes_of_large(spec: ResourceClaimSpec) -> int | None:
    """The bytes of a spec of which little is kept; None if it is whole."""
    mark = spec_mark(spec)
    return None if mark is None or mark.is_aside else int(bytes(mark.parameters))


def size_refusal(size: int) -> str:
    """What is said of a spec of so many bytes, as the end of a sentence about it."""
    return (
        f"has a spec of {-(-size // 1024)} KiB, and dra-operator allocates at most "
        f"{LARGEST_OBJECT_BYTES >> 10} KiB: shorten "
        "selectors, tolerations, opaque parameters and a template's annotations, put what all claims share into the "
        "DeviceClass, or ask for some of the devices by another claim"
    )


def _named(request: DeviceRequest) -> DeviceRequest:
    exactly = request.exactly
    return DeviceRequest(
        name=request.name,
        exactly=None if exactly is None else ExactDeviceRequest(exactly.device_class_name),
        first_available=tuple(
            [DeviceSubRequest(it.name, it.device_class_name) for it in request.first_available or ()]
        ),
    )


def _read(status: ResourceClaimStatus) -> ResourceClaimStatus:
    """Without the configuration, which plugins read from the server, and what drivers say of networks."""
    allocation = status.allocation
    if allocation is not None:
        # Opaque parameters may be ten kilobytes for each request.
        allocation = replace(allocation, devices=replace(allocation.devices, config=None))
    devices = status.devices
    if devices is not None:
        devices = tuple([replace(device, data=NULL, network_data=None) for device in devices])
    return replace(status, allocation=allocation, devices=devices)
