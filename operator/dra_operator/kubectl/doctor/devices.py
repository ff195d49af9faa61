"""Allocated devices that are not published any more, and nodes on which no driver prepares what is reserved there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from dra_api.command_line import kubectl
from dra_api.core import Node, Pod
from dra_api.relations.references import pod_is_done
from dra_api.resource import ResourceClaim, ResourceSlice

from dra_operator.allocator import DeviceId
from dra_operator.cache import newest_slices
from dra_operator.kubectl.facts.consumers import pods_of
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.wording import counted, listed

from .claims import delete_pods, is_gone
from .trouble import Diagnosis


class Pools:
    """What is published, to look allocated devices up."""

    def __init__(self, seen: Observed) -> None:
        self.newest = newest_slices(seen.every(ResourceSlice))
        self._devices = {
            DeviceId(*pool, device.name)
            for pool, slices in self.newest.items()
            for slice_ in slices
            for device in slice_.spec.devices or ()
        }
        self.nodes_of_driver: dict[str, set[str]] = defaultdict(set)
        for pool, slices in self.newest.items():
            self.nodes_of_driver[pool.driver] |= {slice_.spec.node_name or "" for slice_ in slices}

    def absent(self, device: DeviceId) -> str:
        """What is not there: driver, pool or device; empty if the device is, or may be in a slice that is to come."""
        if device.driver not in self.nodes_of_driver:
            return f"driver {device.driver} publishes no ResourceSlice"
        slices = self.newest.get(device.pool_id)
        if slices is None:
            return f"driver {device.driver} has no pool {device.pool}"
        is_complete = len(slices) == slices[0].spec.pool.resource_slice_count
        is_there = device in self._devices or not is_complete
        return "" if is_there else f"pool {device.driver}/{device.pool} has no device {device.device}"


def device_troubles(seen: Observed) -> Iterator[Diagnosis]:
    """What claims hold and no driver publishes; then drivers that are absent where their devices are used."""
    pools = Pools(seen)
    for claim in sorted(seen.every(ResourceClaim), key=lambda claim: claim.key):
        yield from _vanished(seen, pools, claim)
    yield from _nodes_without_driver(seen, pools)


def _vanished(seen: Observed, pools: Pools, claim: ResourceClaim) -> Iterator[Diagnosis]:
    held = list(dict.fromkeys(DeviceId.of(result) for result in claim.results))
    gone = {device: why for device in held if (why := pools.absent(device))}
    if not gone:
        return
    meta = claim.metadata
    message = f"holds {listed(map(str, gone))}, but {'; '.join(dict.fromkeys(gone.values()))}"
    may_exist = "pods" in seen.unseen
    consumers = [user.name for user in pods_of(seen, claim) if may_exist or not is_gone(seen, claim, user)]
    remedy, command = "start the driver again if it should be there", ""
    if consumers:
        command = delete_pods(consumers, meta.namespace)
        remedy += "; otherwise delete the pods, so that they get other devices"
    elif not claim.status.reserved_for:
        command = kubectl("delete", "resourceclaim", names=[meta.name], namespace=meta.namespace)
        remedy += "; otherwise delete the claim, which no pod uses"
    yield Diagnosis.of("vanished", f"claim {claim.key}", message, remedy=remedy, command=command)


def _nodes_without_driver(seen: Observed, pools: Pools) -> Iterator[Diagnosis]:
    """Drivers that publish node by node, and nothing for a node where a pod uses their devices."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    nodes = {node.metadata.name for node in seen.every(Node)}
    for claim in seen.every(ResourceClaim):
        for user in pods_of(seen, claim):
            pod = seen.one(Pod, f"{claim.metadata.namespace}/{user.name}")
            if pod is None or pod_is_done(pod) or pod.spec.node_name not in nodes:
                continue
            for driver in {result.driver for result in claim.results}:
                where = pools.nodes_of_driver.get(driver, {pod.spec.node_name + "?"})
                if "" not in where and pod.spec.node_name not in where:
                    found[(pod.spec.node_name, driver)].append(pod.key)
    for (node, driver), pods in sorted(found.items()):
        users_text = f"{counted(len(set(pods)), 'pod')} there {'uses' if len(set(pods)) == 1 else 'use'} its devices"
        message = f"driver {driver} publishes nothing for it, and {users_text}: {listed(sorted(set(pods)))}"
        command = kubectl("get", "pods", "-A", "-o", "wide", f"--field-selector=spec.nodeName={node}", of_names=[node])
        remedy = "check that the pod of the driver runs there: without it these pods neither start nor end"
        yield Diagnosis.of("driver", f"node {node}", message, remedy=remedy, command=command)
