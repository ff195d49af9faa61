"""Who loses which devices to a taint, and when: by the rules of the eviction itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.relations.references import pod_is_done
from dra_api.resource import Device, DeviceTaintRule, ResourceClaim, ResourceSlice
from msgspec.structs import replace

from dra_operator.allocator import DeviceId
from dra_operator.eviction import DeviceTaints, claim_eviction, selects
from dra_operator.kubectl.answer import Fact
from dra_operator.kubectl.observed.observed import Observed


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


def losses(seen: Observed, rule: DeviceTaintRule, now: datetime) -> Iterator[tuple[Pod, Loss]]:
    """In the order of the pods' names; pods without a node, and pods that end anyway, lose nothing."""
    holders: dict[str, list[ResourceClaim]] = {}
    for claim in seen.every(ResourceClaim):
        if any(selects(rule, DeviceId.of(result)) for result in claim.results):
            for user in claim.status.reserved_for or ():
                holders.setdefault(f"{claim.metadata.namespace}/{user.name} {user.uid}", []).append(claim)
    for key, claims in sorted(holders.items()):
        pod = seen.one(Pod, key.partition(" ")[0])
        if pod is None or pod.metadata.uid != key.partition(" ")[2] or pod_is_done(pod):
            continue
        if pod.spec.node_name and pod.metadata.deletion_timestamp is None:
            yield pod, _loss(pod, claims, rule, now)


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
