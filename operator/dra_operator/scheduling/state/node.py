"""A node as placement sees it: the object with its taints, what its pods take of it, and the nominations on it.

A pod takes cpu, memory, host ports, volumes, and all else that nodes count; devices are apart. The rules of Kubernetes:
containers and sidecars (restartable init containers) run at the same time, so they add up. An ordinary init container
runs alone beside the sidecars started before it, so it counts only if it alone is larger. The pod's own requests
(``spec.resources``) replace that sum, name by name; the runtime's overhead comes on top. A limit without a request is
the request. Amounts are billionths, as in ``Quantity.nanos``.

Volumes and ports are amounts like cpu, so all three come and go together, from the moment that the node is decided:

* The claims to volumes of CSI drivers that attach to a node. A claim without a volume stands for the one that its class
  will make.
* Host ports. Each counts twice: under its address, and under all addresses together. So a port on every address
  (0.0.0.0, also if no address is given) conflicts with that port on any one, and a port on one address only with the
  same and with every address. A pod in the network of its node holds every port that it names: the API server writes
  that into the pod, and objects that it has not seen yet are read so.

A nomination is the node, the room there and the devices that a waiting pod gets once others have ended. Until then no
pod of the same or a lower priority may take them: to such a pod they count as used. A pod of a higher priority ignores
the nomination, and the nominated pod itself is asked about its node first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple, Protocol

from dra_api.core import (
    Container,
    Node,
    NodeAllocatableResourceClaimStatus,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    ResourceRequirements,
    Taint,
    Toleration,
)
from dra_api.kueue import Workload
from dra_api.quota import may_be_devices
from dra_api.references import volume_uses
from dra_api.resource import AllocationResult
from dra_api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from dra_api.values import NANO
from msgspec import structs

from dra_operator.allocator import Usage, tolerates
from dra_operator.scheduling.state.applicants import is_at_gate, of_nodes

_CLAIM: Final = "volume of claim "


class Attachable(NamedTuple):
    """A volume of a CSI driver."""

    driver: str
    handle: str


class AttachedVolumes(Protocol):
    """What nodes have, and the look-ups that lead from a claim to its volume."""

    def claim(self, key: str) -> PersistentVolumeClaim | None:
        """By ``namespace/name``."""
        ...

    def volume(self, name: str) -> PersistentVolume | None: ...

    def storage_class(self, name: str) -> StorageClass | None: ...

    def attach_limits(self, node: str) -> Mapping[str, int]:
        """How many volumes each driver attaches to the node; none for drivers without limit."""
        ...

    def attachments(self, node: str) -> Iterable[Attachable]:
        """The volumes that are attached to the node, or are being attached or detached."""
        ...


def claims_in(used: Iterable[str]) -> list[str]:
    """The claims among the names of amounts, by ``namespace/name``."""
    return [name.removeprefix(_CLAIM) for name in used if name.startswith(_CLAIM)]


def attachable(claims: Iterable[str], storage: AttachedVolumes) -> Iterator[Attachable]:
    """The volumes of these claims that a driver attaches."""
    for key in claims:
        claim = storage.claim(key)
        if claim is None:
            continue
        volume = storage.volume(claim.spec.volume_name)
        if volume is not None:
            # Only CSI drivers have limits that the node reports.
            if volume.spec.csi is not None:
                yield Attachable(volume.spec.csi.driver, volume.spec.csi.volume_handle)
        # The volume is yet to be made, and takes a place on the node all the same.
        elif (found := storage.storage_class(claim.storage_class)) is not None:
            yield Attachable(found.provisioner, f"to be made for {key}")


_EVERY_ADDRESS = "0.0.0.0"


class HostPort(NamedTuple):
    """One port of one address of the node."""

    protocol: str
    number: int
    address: str

    @property
    def name(self) -> str:
        """As people write it; on all addresses together, it is the name of an amount as well."""
        return f"host port {self.number}/{self.protocol}"

    @property
    def on_address(self) -> str:
        """The name of its amount on its address alone."""
        return f"{self.name} of {self.address}"

    def is_taken(self, used: Mapping[str, int]) -> bool:
        """Whether a pod on the node holds it."""
        # A port on every address conflicts with that port on any one, so the sum over all addresses is asked.
        if self.address == _EVERY_ADDRESS:
            return self.name in used
        return self.on_address in used or self._replace(address=_EVERY_ADDRESS).on_address in used


def host_ports(pod: Pod) -> Iterator[HostPort]:
    """What containers and sidecars hold; an ordinary init container is gone when others run."""
    sidecars = (it for it in pod.spec.init_containers or () if it.restart_policy == "Always")
    for container in (*sidecars, *(pod.spec.containers or ())):
        for port in container.ports or ():
            # In the network of the node a container port is a port of the node.
            number = port.host_port or (port.container_port if pod.spec.host_network else 0)
            if number > 0:
                yield HostPort(port.protocol or "TCP", number, port.host_ip or _EVERY_ADDRESS)


Amounts = Mapping[str, int]
POD_SLOTS = "pods"
MILLI_BILLIONTHS = 1_000_000
"""Billionths in a thousandth."""
_POD_LEVEL = ("cpu", "memory")
_HUGE_PAGES = "hugepages-"


def pod_requests(pod: Pod) -> dict[str, int]:
    """Amount per resource name, the pod's own slot (``pods: 1``) included."""
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.spec.init_containers or ():
        wanted = _container_requests(container)
        # A sidecar goes on running beside all that start after it.
        if container.restart_policy == "Always":
            running = add(running, wanted)
            peak = _largest(peak, running)
        else:
            # An ordinary init container runs beside the sidecars before it, and is gone when the next one starts.
            peak = _largest(peak, add(running, wanted))
    for container in pod.spec.containers or ():
        wanted = _container_requests(container)
        running = add(running, wanted) if running else wanted
    wanted = _with_pod_level(_largest(peak, running) if peak else running, pod.spec.resources)
    # The runtime's own, on top of the requests of the pod as a whole.
    for name, quantity in (pod.spec.overhead or {}).items():
        wanted[name] = wanted.get(name, 0) + quantity.nanos
    wanted[POD_SLOTS] = NANO
    return wanted


def milli_cpu_of(pod: Pod) -> int:
    """What the pod requests of cpu, in thousandths of a core."""
    return pod_requests(pod).get("cpu", 0) // MILLI_BILLIONTHS


def extended_resources(pod: Pod) -> list[str]:
    """The resources that the pod asks for and that devices might serve."""
    # Asked of every pod that waits, at each of its changes; nearly none names such a resource.
    if not any(map(may_be_devices, _names(pod))):
        return []  # the sums are not needed
    return [name for name, amount in pod_requests(pod).items() if amount > 0 and may_be_devices(name)]


def _names(pod: Pod) -> Iterator[str]:
    """The resources that are named anywhere; some more than once."""
    spec = pod.spec
    for container in chain(spec.init_containers or (), spec.containers or ()):
        yield from container.resources.limits or ()
        yield from container.resources.requests or ()
    yield from spec.overhead or ()


def node_requests(pod: Pod, served: Collection[str], of_devices: Amounts | None = None) -> dict[str, int]:
    """What the pod takes of its node: also ports and volumes; no resources that devices serve (scheduling.md 7.3).

    ``of_devices``: what its devices bring of the node's resources, or cost; as its status records it unless given.
    """
    wanted = pod_requests(pod)
    # A device serves the resource, so the node does not count it for this pod.
    if served:
        wanted = {name: amount for name, amount in wanted.items() if name not in served}
    # A plan knows better than the status, which is written after it.
    amounts = recorded_amounts(pod) if of_devices is None else of_devices
    if amounts:
        wanted = add(wanted, amounts)
    for port in host_ports(pod):
        # Under both names, so that one look-up finds a conflict with any address, and one with this address.
        for name in (port.name, port.on_address):
            wanted[name] = wanted.get(name, 0) + NANO
    for use in volume_uses(pod) if pod.spec.volumes else ():
        wanted[f"{_CLAIM}{use.key}"] = NANO
    return wanted


def recorded_amounts(pod: Pod) -> dict[str, int]:
    """What its status says that devices bring of the node's resources, or cost (K37-NA-03)."""
    total: dict[str, int] = {}
    if not pod.status.node_allocatable_resource_claim_statuses:
        return total
    for status in pod.status.node_allocatable_resource_claim_statuses:
        total = add(total, amounts_of(status))
    # The pod-level requests cover its devices as well: they must not count twice.
    covered = pod_level_resources(pod)
    return {name: amount for name, amount in total.items() if name not in covered}


def amounts_of(status: NodeAllocatableResourceClaimStatus) -> dict[str, int]:
    """What one claim adds to what its pod takes: the mapping, and overhead of the pod and of containers."""
    total = {it.name: it.quantity.nanos for it in status.mapping or () if it.quantity is not None}
    for it in status.overhead or ():
        per_pod = it.per_pod.nanos if it.per_pod is not None else 0
        # It comes with each container that names the claim (K37-NA-03).
        per_container = it.per_container.nanos if it.per_container is not None else 0
        total = add(total, {it.name: per_pod + per_container * len(status.containers or ())})
    return total


def pod_level_resources(pod: Pod) -> frozenset[str]:
    """The resources that the pod requests, or limits, as a whole."""
    resources = pod.spec.resources
    return frozenset() if resources is None else frozenset({*(resources.requests or {}), *(resources.limits or {})})


def container_sum(pod: Pod) -> dict[str, int]:
    """What containers request together, whatever the pod requests as a whole."""
    return pod_requests(structs.replace(pod, spec=structs.replace(pod.spec, resources=None, overhead=None)))


def served_resources(pod: Pod) -> frozenset[str]:
    """The resources that devices serve to a pod that has its node, as its status records."""
    extended = pod.status.extended_resource_claim_status
    return frozenset(mapping.resource_name for mapping in (extended.request_mappings if extended else None) or ())


def add(one: Amounts, other: Amounts) -> dict[str, int]:
    """The sum, name by name."""
    total = dict(one)
    for name, amount in other.items():
        total[name] = total.get(name, 0) + amount
    return total


def subtract(one: Amounts, other: Amounts) -> dict[str, int]:
    """The exact inverse of ``add``; names that come to nothing are dropped."""
    rest = dict(one)
    for name, amount in other.items():
        rest[name] = rest.get(name, 0) - amount
        # So that taking off what was added leaves nothing, and equal sums are equal.
        if not rest[name]:
            del rest[name]
    return rest


def _container_requests(container: Container) -> dict[str, int]:
    resources = container.resources
    # A limit without a request is the request, as the API server defaults it.
    wanted = {**(resources.limits or {}), **(resources.requests or {})}
    return {name: quantity.nanos for name, quantity in wanted.items() if quantity.nanos}


def _with_pod_level(containers: dict[str, int], resources: ResourceRequirements | None) -> dict[str, int]:
    """The requests of the containers, replaced by those of the pod where it has its own.

    A limit of the pod replaces only what no container requests, and huge pages, which cannot be overcommitted. The API
    server completes pods in this way, and objects from files are read so as well.
    """
    if resources is None:
        return containers
    wanted = dict(containers)
    for name, quantity in (resources.limits or {}).items():
        if name.startswith(_HUGE_PAGES) or (name in _POD_LEVEL and name not in wanted):
            wanted[name] = quantity.nanos
    for name, quantity in (resources.requests or {}).items():
        if name.startswith(_HUGE_PAGES) or name in _POD_LEVEL:
            wanted[name] = quantity.nanos
    return wanted


def _largest(one: Amounts, other: Amounts) -> dict[str, int]:
    # The first container of nearly every pod.
    if not one:
        return dict(other)
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


_REPELLING = ("NoSchedule", "NoExecute")
NODE_CONDITION = "node.kubernetes.io/"
"""The keys of taints that say how a node is; others say what it is for."""
UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def tolerations_of(pod: Pod) -> tuple[Toleration, ...]:
    """Return the pod's tolerations, and that of the nodes which belong to its scheduler.

    A pod at our scheduling gate has not the latter: another scheduler binds it, which knows nothing of that.
    """
    said, name = pod.spec.tolerations or (), pod.spec.scheduler_name
    # Its scheduler is not this one, and decides by the pod's own tolerations.
    if not name or is_at_gate(pod):
        return said
    return (*said, of_nodes(name))


def repelling(taints: Iterable[Taint]) -> Iterator[Taint]:
    """The taints that keep pods away."""
    return (taint for taint in taints if taint.effect in _REPELLING)


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """The first of some repelling taints that keeps a pod with these tolerations away, if any does."""
    accepted = tuple(tolerations)
    for taint in taints:
        if not any(_tolerates(toleration, taint) for toleration in accepted):
            return taint
    return None


def soft(taints: Iterable[Taint]) -> Iterator[Taint]:
    """Those that only ask politely."""
    return (taint for taint in taints if taint.effect == "PreferNoSchedule")


def intolerable(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> int:
    """How many of the taints are not tolerated."""
    accepted = tuple(tolerations)
    return sum(not any(_tolerates(toleration, taint) for toleration in accepted) for taint in taints)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    # For nodes, an empty key means every taint only together with Exists.
    return bool(toleration.key or toleration.operator == "Exists") and tolerates(toleration, taint)


_WEIGHED = ("cpu", "memory", POD_SLOTS)
_NOTHING: Amounts = {}


class LoadedNode:
    """``used`` sums the requests of all pods on the node, those whose binding is under way included.

    What every decision needs of a node is computed once per version of the node and change of its load.
    """

    __slots__ = ("counted", "emptiness", "name", "node", "offered", "soft_taints", "taints", "used")

    def __init__(self, node: Node, used: Amounts = _NOTHING) -> None:
        self.node = node
        self.name = node.metadata.name
        self.offered: Mapping[str, int] = {
            name: quantity.nanos for name, quantity in (node.status.allocatable or {}).items()
        }
        """What the node has in total, in billionths."""
        self.counted = frozenset(name for name, total in self.offered.items() if total > 0 and may_be_devices(name))
        """The extended resources that the node serves itself, by a device plugin."""
        self.taints: tuple[Taint, ...] = tuple(repelling(node.spec.taints or ()))
        """Those that keep pods away, the one of a cordoned node included."""
        self.soft_taints: tuple[Taint, ...] = tuple(soft(node.spec.taints or ()))
        """Those that only ask pods to stay away."""
        # The node controller adds the taint a moment after the node was cordoned.
        if node.spec.unschedulable:
            self.taints = (UNSCHEDULABLE, *self.taints)
        self._load(used)

    def with_load(self, used: Amounts) -> LoadedNode:
        """The same node with other pods on it."""
        # Copied and not computed: the load changes with each pod, the offer of the node seldom.
        state = LoadedNode.__new__(LoadedNode)
        state.node, state.name, state.offered, state.taints = self.node, self.name, self.offered, self.taints
        state.counted, state.soft_taints = self.counted, self.soft_taints
        state._load(used)
        return state

    def _load(self, used: Amounts) -> None:
        self.used = used
        # What the node does not offer is left out of the mean (NR-26): it says nothing about how full the node is.
        free = [1 - used.get(name, 0) / offer for name in _WEIGHED if (offer := self.offered.get(name, 0)) > 0]
        self.emptiness = sum(free) / len(free) if free else 0.0
        """The share of the node that is free, from 0 to 1: the mean of cpu, memory and pod slots."""


_CHEAP_LABELS: Final = 20
"""Labels and tolerations that a node can be compared with in the time of one step of the allocator."""


def steps_per_node(pod: Pod) -> int:
    """What it costs to compare the pod with one node, in steps of the allocator."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    # Tenants write tolerations and affinities by the hundred, and each node is compared with all of them.
    compared = len(pod.spec.tolerations or ())
    if affinity is not None:
        compared += requirements(affinity.required_during_scheduling_ignored_during_execution)
        compared += sum(
            _of_nodes_term(it.preference) for it in affinity.preferred_during_scheduling_ignored_during_execution or ()
        )
    return 1 + compared // _CHEAP_LABELS


def requirements(selector: NodeSelector | None) -> int:
    """What a node is compared with: the terms of the selector, and what each asks for."""
    return sum(map(_of_nodes_term, (selector.node_selector_terms or ()) if selector is not None else ()))


def _of_nodes_term(term: NodeSelectorTerm) -> int:
    return 1 + len(term.match_expressions or ()) + len(term.match_fields or ())


@dataclass(frozen=True, slots=True)
class Nomination:
    """What one pod is to get. ``requests`` is what it takes of the node beside its devices."""

    pod: Pod
    node: str
    allocations: tuple[AllocationResult, ...]
    requests: Amounts
    gang: str | None = None
    """The gang for which the pod is nominated: its pods share what all of them are to get."""
    workload: Workload | None = field(default=None, compare=False)
    """The Workload of Kueue to which this is promised: its pods do not have to respect it."""


@dataclass(frozen=True, slots=True)
class Nominations:
    """What nominations mean to one pod: ``node`` is its own one, ``of_others`` are those that it has to respect."""

    node: str = ""
    of_others: tuple[Nomination, ...] = ()
    _requests: dict[str, Amounts] = field(default_factory=dict)

    @classmethod
    def of(cls, node: str, of_others: Iterable[Nomination]) -> Nominations:
        # Summed once for the pod, since each node is asked about its sum.
        others, requests = tuple(of_others), dict[str, Amounts]()
        for it in others:
            requests[it.node] = add(requests.get(it.node, {}), it.requests)
        return cls(node, others, requests) if node or others else NO_NOMINATIONS

    def usage(self, usage: Usage) -> Usage:
        """The devices in use with those that others are to get; the same object if there are none."""
        # The usual case without a copy.
        if not self.of_others:
            return usage
        # A copy, since the usage is everybody's.
        more = usage.snapshot()
        for it in self.of_others:
            for allocation in it.allocations:
                more.add(allocation)
        return more

    def loaded(self, state: LoadedNode) -> LoadedNode:
        """The node with the pods that are to come there."""
        # Nearly all nodes have no nomination, and stay the same object.
        requests = self._requests.get(state.name)
        return state if requests is None else state.with_load(add(state.used, requests))


NO_NOMINATIONS: Final = Nominations()
