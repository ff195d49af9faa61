"""Who loses which devices to a taint, and when: by the rules of the eviction itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.relations.references import is_reserved_for, pod_is_done
from dra_api.resource import Device, DeviceTaintRule, ResourceClaim, ResourceSlice
from msgspec.structs import replace

from dra_operator.allocator import DeviceId
from dra_operator.eviction import DeviceTaints, claim_eviction, selects
from dra_operator.kubectl.answer import Fact
from dra_operator.kubectl.facts.consumers import pods_of
from dra_operator.kubectl.observed.pipeline import Pipeline


class Loss(Fact, frozen=True):
    """A pod with devices that get the taint. ``seconds`` until it is deleted; None: it tolerates the taint and stays.

    ``node`` is where it runs, ``target`` where it could go; empty if nowhere, and then ``why`` says what is in the way.
    """

    pod: str
    owner: str
    node: str
    claims: tuple[str, ...]
    devices: tuple[str, ...]
    seconds: int | None = None
    target: str = ""
    why: str = ""


def losses(made: Pipeline, rule: DeviceTaintRule) -> Iterator[tuple[Pod, Loss]]:
    """In the order of the pods' names; pods without a node, and pods that end anyway, lose nothing."""
    holders: dict[str, dict[str, ResourceClaim]] = {}
    for claim in made.seen.every(ResourceClaim):
        if any(selects(rule, DeviceId.of(result)) for result in claim.results):
            for user in pods_of(made.seen, claim):
                holders.setdefault(f"{claim.metadata.namespace}/{user.name}", {})[claim.key] = claim
    for key, held in sorted(holders.items()):
        pod = made.cluster.pods.get(key)  # which has no group if the gates are off
        if pod is None or pod_is_done(pod):
            continue
        claims = [claim for claim in held.values() if is_reserved_for(pod, claim)]
        if claims and pod.spec.node_name and pod.metadata.deletion_timestamp is None:
            yield pod, _loss(pod, claims, rule, made.now)


def _loss(pod: Pod, claims: Sequence[ResourceClaim], rule: DeviceTaintRule, now: datetime) -> Loss:
    found = [
        claim_eviction(claim.status.allocation, DeviceTaints(), (rule,), now)
        for claim in claims
        if claim.status.allocation is not None
    ]
    due = min((eviction.due for eviction in found if eviction is not None), default=None)
    devices = (DeviceId.of(result) for claim in claims for result in claim.results)
    owner = pod.metadata.controller
    return Loss(
        pod=pod.key,
        owner=f"{owner.kind}/{owner.name}" if owner is not None else "",
        node=pod.spec.node_name,
        claims=tuple(claim.key for claim in claims),
        devices=tuple(dict.fromkeys(str(device) for device in devices if selects(rule, device))),
        seconds=max(0, int((due - now).total_seconds())) if due is not None else None,
    )


def tainted(objects: Sequence[Object], rule: DeviceTaintRule) -> list[Object]:
    """The objects with the taint on the devices themselves, so that it counts whatever the gate of rules says."""
    return [_tainted_slice(obj, rule) if isinstance(obj, ResourceSlice) else obj for obj in objects]


def _tainted_slice(slice_: ResourceSlice, rule: DeviceTaintRule) -> ResourceSlice:
    def one(device: Device) -> Device:
        if not selects(rule, DeviceId(slice_.spec.driver, slice_.spec.pool.name, device.name)):
            return device
        return replace(device, taints=(*(device.taints or ()), rule.spec.taint))

    devices = tuple(map(one, slice_.spec.devices or ()))
    return replace(slice_, spec=replace(slice_.spec, devices=devices))
