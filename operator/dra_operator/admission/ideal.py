"""The cluster as it would be with all nodes and drivers healthy: a job is rejected if it does not fit there.

Kueue deactivates a job whose check is *Rejected*, and only a person activates it again. So nothing that passes may be
the reason: a taint or a cordon, devices that are tainted, a node or a slice that is gone since yesterday (a kubelet
deletes the slices of a driver that is down for 30 s), labels and room that a node had yesterday (a kubelet that starts
has no devices of plugins), devices that a pool had (some drivers publish sick ones no more), a pool whose slices are
not all there, a class of which no driver publishes anything, and a flavor without a node, as where nodes are made when
they are needed. Nor does it matter where a claim has its devices now: they may be given back. Volumes do not count:
others may be made, or given back.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple, TypeVar

from dra_api.codec import encode
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceClaimStatus, ResourceSlice
from dra_ledger.basics import PoolId
from dra_ledger.pools import Pool
from msgspec.structs import replace

from dra_operator.cache import Cluster
from dra_operator.commands.placing import NotPlaced, Placing
from dra_operator.scheduling.state import is_set_aside

LOST_FOR_SECONDS: Final = 86_400.0
"""For so long what a node or a pool had counts as something that comes back."""
MOST_LOST_BYTES: Final = 8 << 20
"""As JSON, of all that has lost something; the first ones are forgotten."""

Lasting = Node | ResourceSlice
"""What does not come and go with each job."""
T = TypeVar("T", Node, ResourceSlice)


class _Lost(NamedTuple):
    obj: Lasting
    since: float
    size: int


class Losses:
    """What nodes and slices had within the last day, as the objects that had it. ``note`` each change of one.

    ``known_since``: the time by ``clock`` from which on nothing is missing. What was lost before a process began, none
    of it knows; and an operator most likely restarts while nodes are drained and replaced.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lost: dict[tuple[type[Object], str], _Lost] = {}
        self._bytes = 0
        self.known_since = clock()

    def note(self, before: Object | None, now: Object | None) -> None:
        """Take in a change; None: it was not there before, or it is gone now."""
        match before, now:
            case (Node(), Node() | None):
                self._note_node(before, now)
            case (ResourceSlice(), ResourceSlice() | None):
                self._note_slice(before, now)

    def all(self) -> list[Lasting]:
        """Return the objects that had more than there is now, or that are gone."""
        self._forget_old()
        return [it.obj for it in self._lost.values()]

    def _note_node(self, before: Node, now: Node | None) -> None:
        if now is not None and before_again(now, before) is now:
            return
        known = self._known(before)
        self._keep(before if known is None else before_again(before, known))

    def _note_slice(self, before: ResourceSlice, now: ResourceSlice | None) -> None:
        had = _names(before)
        if now is not None and had <= _names(now):
            return
        known = self._known(before)
        self._keep(known if known is not None and had <= _names(known) else before)

    def _known(self, obj: T) -> T | None:
        known = self._lost.get((type(obj), obj.key))
        return known.obj if known is not None and isinstance(known.obj, type(obj)) else None

    def _keep(self, obj: Lasting) -> None:
        self._forget_old()
        self._forget((type(obj), obj.key))
        size = len(encode(obj))
        self._lost[type(obj), obj.key] = _Lost(obj, self._clock(), size)
        self._bytes += size
        while self._bytes > MOST_LOST_BYTES:
            self._forget(next(iter(self._lost)))
            self.known_since = self._clock()

    def _forget_old(self) -> None:
        over = self._clock() - LOST_FOR_SECONDS
        for key in [key for key, _ in takewhile(lambda it: it[1].since <= over, self._lost.items())]:
            self._forget(key)

    def _forget(self, key: tuple[type[Object], str]) -> None:
        if (lost := self._lost.pop(key, None)) is not None:
            self._bytes -= lost.size


def before_again(node: Node, had: Node) -> Node:
    """Return the node with all that it had and has not; the same object if that is nothing."""
    labels, old_labels = node.metadata.labels or {}, had.metadata.labels or {}
    room, old_room = node.status.allocatable or {}, had.status.allocatable or {}
    less = {name: amount for name, amount in old_room.items() if name not in room or room[name] < amount}
    if labels.keys() >= old_labels.keys() and not less:
        return node
    return replace(
        node,
        metadata=replace(node.metadata, labels={**old_labels, **labels}),
        status=replace(node.status, allocatable={**room, **less}),
    )


def _names(slice_: ResourceSlice) -> set[str]:
    return {device.name for device in slice_.spec.devices or ()}


class IdealCluster:
    """``pause`` is called between steps of the work."""

    def __init__(self, cluster: Cluster, placing: Placing, pause: Callable[[], None]) -> None:
        self._cluster, self._placing, self._pause = cluster, placing, pause

    def fits_never(self, pods: Sequence[Pod], lost: Sequence[Lasting]) -> bool:
        """Return whether the pods have no place in the ideal cluster, and nothing about it is unknown.

        ``lost`` has what nodes and slices had.
        """
        specs = {id(pod.spec): replace(pod.spec, volumes=None) for pod in pods}  # the pods of a set share theirs
        pods = [replace(pod, spec=specs[id(pod.spec)]) for pod in pods]
        one_of_each_set = {id(pod.spec): pod for pod in pods}.values()
        claims = [claim for pod in one_of_each_set for claim in self._cluster.known_claims(pod)]
        if any(map(is_set_aside, claims)):
            return False
        with self._placing.attempt():
            for obj in [*self._mended(lost), *self._returned(lost), *_given_back(claims)]:
                self._pause()
                self._placing.put(obj)
            found = self._placing.place_together(pods)[0]
            if not (isinstance(found, NotPlaced) and found.fits_never):
                return False
            poorer = {it.spec.driver for it in lost if isinstance(it, ResourceSlice) and self._lacks_some_of(it)}
            return all(self._has_node(pod) and self._is_published(pod, poorer) for pod in one_of_each_set)

    def _mended(self, lost: Sequence[Lasting]) -> Iterator[Object]:
        had = {it.key: it for it in lost if isinstance(it, Node)}
        for node in self._cluster.nodes:
            whole = before_again(node, had.get(node.key, node))
            if whole.spec.taints or whole.spec.unschedulable:
                whole = replace(whole, spec=replace(whole.spec, taints=None, unschedulable=False))
            if whole is not node:
                yield whole
        for slice_ in self._cluster.store_of(ResourceSlice):
            devices = slice_.spec.devices or ()
            if any(device.taints for device in devices):
                bare = tuple(replace(device, taints=None) if device.taints else device for device in devices)
                yield replace(slice_, spec=replace(slice_.spec, devices=bare))
        for rule in self._cluster.store_of(DeviceTaintRule):
            yield replace(rule, spec=replace(rule.spec, device_selector=None))

    def _returned(self, lost: Sequence[Lasting]) -> Iterator[Object]:
        """Yield nodes that are gone, and slices of pools that are gone.

        The store takes no UID again that was deleted.
        """
        for obj in lost:
            is_there = obj.key in self._cluster.nodes if isinstance(obj, Node) else self._pool_of(obj) is not None
            if not is_there:
                yield replace(obj, metadata=replace(obj.metadata, uid=f"gone {obj.metadata.uid}"))

    def _pool_of(self, slice_: ResourceSlice) -> Pool | None:
        return self._cluster.inventory.pool(PoolId.of(slice_))

    def _lacks_some_of(self, slice_: ResourceSlice) -> bool:
        """Return whether its pool is there without one of its devices."""
        pool = self._pool_of(slice_)
        there = {device.name for each in pool.by_age()[0] for device in each.devices} if pool is not None else set()
        return pool is not None and not _names(slice_) <= there

    def _has_node(self, pod: Pod) -> bool:
        wanted = (pod.spec.node_selector or {}).items()
        return any(wanted <= (node.metadata.labels or {}).items() for node in self._cluster.nodes)

    def _is_published(self, pod: Pod, poorer: Container[str]) -> bool:
        """Return whether drivers publish devices for each request of the pod, and all that these drivers have."""
        made, _ = self._placing.with_claims(pod)
        for claim in self._cluster.known_claims(made):
            for names in _classes(claim):
                drivers = {driver for name in names for driver in self._drivers_of(name)}
                if not drivers or any(it in poorer or self._lacks_devices(it) for it in drivers):
                    return False
        return True

    def _drivers_of(self, device_class: str) -> Iterator[str]:
        """Yield the drivers that publish a device of the class."""
        inventory = self._cluster.inventory
        class_ = inventory.device_class(device_class) or DeviceClass()
        expressions = tuple(it.cel.expression for it in class_.spec.selectors or () if it.cel is not None)
        for id_ in inventory.pools():
            self._pause()
            pool = inventory.pool(id_)
            if pool is not None and any(it.verdicts(expressions, inventory.compiled).true for it in pool.by_age()[0]):
                yield id_.driver

    def _lacks_devices(self, driver: str) -> bool:
        """Return whether a pool of the driver lacks slices, or the node that it is for."""
        inventory = self._cluster.inventory
        for id_ in inventory.pools():
            pool = inventory.pool(id_) if id_.driver == driver else None
            newest = pool.by_age()[0] if pool is not None else ()
            if pool is None or not newest:
                continue
            owner = pool.owning_node
            if len(newest) < newest[0].spec.pool.resource_slice_count or (
                owner and self._cluster.nodes.get(owner) is None
            ):
                return True
        return False


def _given_back(claims: Iterable[ResourceClaim]) -> Iterator[Object]:
    """Yield the claims without devices: others that use them now may end."""
    for claim in claims:
        if claim.status.allocation is not None:
            yield replace(claim, status=ResourceClaimStatus())


def _classes(claim: ResourceClaim) -> Iterator[list[str]]:
    for request in claim.spec.devices.requests or ():
        if request.exactly is not None:
            yield [request.exactly.device_class_name]
        elif request.first_available:
            yield [each.device_class_name for each in request.first_available]
