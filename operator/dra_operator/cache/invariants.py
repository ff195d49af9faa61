"""What must hold at any moment, whatever happened (design.md section 2): a check, not a repair.

Runs after every step of the tests; in production behind a switch, where a violation is logged as an error and counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.references import pod_is_done
from dra_api.resource import FINALIZER, AllocationResult

from dra_operator.allocator import DeviceId, Usage
from dra_operator.scheduling.state import HOLD, is_parked

from .cluster import Cluster


class InvariantViolated(Exception):
    """The cache shows something that must never be."""


def violations(cluster: Cluster) -> Iterator[str]:
    """One line per violation, naming the objects."""
    yield from _devices_given_twice(cluster)
    yield from _wrong_totals(cluster)
    for claim in cluster.claims:
        finalizers = claim.metadata.finalizers or ()
        if claim.status.allocation is not None and not {FINALIZER, HOLD}.intersection(finalizers):
            yield f"claim {claim.key} is allocated without the finalizer {FINALIZER}"


def check(cluster: Cluster) -> None:
    """Raises InvariantViolated listing everything that is wrong."""
    found = list(violations(cluster))
    if found:
        raise InvariantViolated("; ".join(found))


def _devices_given_twice(cluster: Cluster) -> Iterator[str]:
    # A share conflicts only with a claim that has all of the device.
    whole: dict[DeviceId, str] = {}
    shared: dict[DeviceId, str] = {}
    names = {claim.metadata.uid: claim.key for claim in cluster.claims}
    parked = {claim.metadata.uid for claim in cluster.claims if is_parked(claim)}
    for uid, allocation in cluster.allocated_devices.holders():
        if uid in parked:
            continue  # no pod runs with its devices
        holder = names.get(uid, uid)
        for device, is_share in _held(allocation):
            other = whole.get(device) or (None if is_share else shared.get(device))
            if other is not None:
                yield f"device {device} is allocated to claim {other} and to claim {holder}"
            (shared if is_share else whole)[device] = holder


def _held(allocation: AllocationResult) -> Iterator[tuple[DeviceId, bool]]:
    for result in allocation.results:
        if not result.admin_access:
            yield DeviceId.of(result), result.share_id is not None


def _wrong_totals(cluster: Cluster) -> Iterator[str]:
    """The totals kept step by step must equal those counted afresh."""
    # Counted from nothing: a sum that is kept step by step shows a wrong step only in comparison.
    held = (allocation for _, allocation in cluster.allocated_devices.holders())
    if Usage(held, shares=cluster.features.consumable_capacity) != cluster.allocated_devices.usage:
        yield "the devices in use, kept step by step, differ from those that claims hold"
    pods = {pod.metadata.uid: pod for pod in cluster.pods if not pod_is_done(pod)}
    running = {uid for uid, pod in pods.items() if pod.spec.node_name}
    missing = sorted(pods[uid].key for uid in running if cluster.loads.node_of(uid) is None)
    if missing:
        yield f"the load of the nodes lacks the pods {', '.join(missing)}"
    phantoms = sorted(uid for uid in cluster.loads if uid not in pods)
    if phantoms:
        yield f"the load of the nodes counts pods that are finished or gone, by UID: {', '.join(phantoms)}"
    if dict(cluster.pods_by_node) != {uid: cluster.loads.node_of(uid) for uid in cluster.loads}:
        yield "rules between pods see other pods on nodes than the load of the nodes counts"
    yield from cluster.pods_by_node.miscounted()
