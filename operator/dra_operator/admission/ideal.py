"""The cluster as it would be with all nodes and drivers healthy: a job is rejected if it does not fit there.

Kueue deactivates a job whose check is *Rejected*, and only a person activates it again. So nothing that passes may be
the reason: a taint or a cordon, devices that are tainted, a node or a slice that is gone since yesterday (a kubelet
deletes the slices of a driver that is down for 30 s), a pool whose slices are not all there, a class of which no driver
publishes anything, and a flavor without a node, as where nodes are made when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from dra_api.codec import encode
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_ledger.basics import PoolId
from msgspec.structs import replace

from dra_operator.cache import Cluster
from dra_operator.commands.placing import NotPlaced, Placing

GONE_FOR: Final = timedelta(days=1)
"""For so long a node or a slice that is gone counts as one that comes back."""
MOST_GONE_BYTES: Final = 8 << 20
"""As JSON, of all that is gone; the first ones are forgotten."""


class IdealCluster:
    """Call ``note`` for nodes and slices that come and go. ``pause`` is called between steps of the work."""

    def __init__(self, cluster: Cluster, placing: Placing, pause: Callable[[], None]) -> None:
        self._cluster, self._placing, self._pause = cluster, placing, pause
        self._gone: dict[tuple[type[Object], str], tuple[Node | ResourceSlice, datetime, int]] = {}
        self._gone_bytes = 0

    def note(self, kind: type[Object], key: str, obj: Object | None, now: datetime) -> None:
        """Take in a change of an object before the cluster knows it; None: it is gone."""
        if kind is not Node and kind is not ResourceSlice:
            return
        before = self._cluster.store_of(kind).get(key)
        if obj is None and before is None:
            return
        if (known := self._gone.pop((kind, key), None)) is not None:
            self._gone_bytes -= known[2]
        if obj is None and isinstance(before, Node | ResourceSlice):
            size = len(encode(before))
            self._gone[kind, key] = before, now, size
            self._gone_bytes += size
        while self._gone_bytes > MOST_GONE_BYTES:
            self._gone_bytes -= self._gone.pop(next(iter(self._gone)))[2]

    def fits_never(self, pods: Sequence[Pod], now: datetime) -> bool:
        """Return whether the pods have no place in the ideal cluster, and nothing about it is unknown."""
        with self._placing.attempt():
            for obj in [*self._mended(), *self._returned(now)]:
                self._pause()
                self._placing.put(obj)
            found = self._placing.place_together(pods)[0]
            if not (isinstance(found, NotPlaced) and found.fits_never):
                return False
            one_of_each_set = {id(pod.spec): pod for pod in pods}.values()  # the pods of a set share theirs
            return all(self._has_node(pod) and self._is_published(pod) for pod in one_of_each_set)

    def _mended(self) -> Iterator[Object]:
        for node in self._cluster.nodes:
            if node.spec.taints or node.spec.unschedulable:
                yield replace(node, spec=replace(node.spec, taints=None, unschedulable=False))
        for slice_ in self._cluster.store_of(ResourceSlice):
            devices = slice_.spec.devices or ()
            if any(device.taints for device in devices):
                bare = tuple(replace(device, taints=None) if device.taints else device for device in devices)
                yield replace(slice_, spec=replace(slice_.spec, devices=bare))
        for rule in self._cluster.store_of(DeviceTaintRule):
            yield replace(rule, spec=replace(rule.spec, device_selector=None))

    def _returned(self, now: datetime) -> Iterator[Object]:
        """Yield nodes and slices that are gone, unless the pool was published anew.

        The store takes no UID again that was deleted.
        """
        for obj, since, _ in self._gone.values():
            is_back = isinstance(obj, ResourceSlice) and self._cluster.inventory.pool(PoolId.of(obj)) is not None
            if not is_back and abs(now - since) < GONE_FOR:
                yield replace(obj, metadata=replace(obj.metadata, uid=f"gone {obj.metadata.uid}"))

    def _has_node(self, pod: Pod) -> bool:
        wanted = (pod.spec.node_selector or {}).items()
        return any(wanted <= (node.metadata.labels or {}).items() for node in self._cluster.nodes)

    def _is_published(self, pod: Pod) -> bool:
        """Return whether drivers publish devices for each request of the pod, and all slices of these drivers."""
        made, _ = self._placing.with_claims(pod)
        for _, claim in self._cluster.claims_of(made):
            for names in _classes(claim) if claim is not None else ():
                drivers = {driver for name in names for driver in self._drivers_of(name)}
                if not drivers or any(map(self._lacks_devices, drivers)):
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


def _classes(claim: ResourceClaim) -> Iterator[list[str]]:
    for request in claim.spec.devices.requests or ():
        if request.exactly is not None:
            yield [request.exactly.device_class_name]
        elif request.first_available:
            yield [each.device_class_name for each in request.first_available]
