"""Each published device: where it is, who has it since when, and what is left of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from dra_api.core import Pod
from dra_api.resource import Device, DeviceAttribute, DeviceTaint, ResourceClaim, ResourceSlice
from dra_api.values.quantity import Quantity
from msgspec import field

from dra_operator.allocator import LEFT, DeviceId, PoolId
from dra_operator.cache import newest_slices
from dra_operator.kubectl.answer import Fact
from dra_operator.kubectl.facts.consumers import pods_of
from dra_operator.kubectl.facts.owners import marks_of, owner_text
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Pipeline


class Holder(Fact, frozen=True):
    """A claim that has a device, or a share of it."""

    claim: str
    pods: tuple[str, ...] = ()
    """Of the claim's namespace."""
    owner: str = ""
    """What made the first pod: ``Job/train``."""
    since: str = ""
    admin: bool = False
    capacity: dict[str, str] = field(default_factory=dict)
    """What the share consumes."""


class Left(Fact, frozen=True):
    """A capacity of a device: all of it, and what no share has consumed."""

    total: str
    left: str


class DeviceFact(Fact, frozen=True):
    """``state``: free, taken, shared (parts of it are taken), tainted (free, but not for all pods), or unusable (the
    pool lacks slices)."""

    driver: str
    pool: str
    name: str
    node: str
    """Empty if several nodes can use it."""
    state: str
    holders: tuple[Holder, ...] = ()
    taints: tuple[str, ...] = ()
    scheduler: str = ""
    """To which it belongs; empty if every scheduler may take it."""
    attributes: dict[str, str] = field(default_factory=dict)
    capacity: dict[str, Left] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """``driver/pool/device``."""
        return f"{self.driver}/{self.pool}/{self.name}"


def devices_of(pipeline: Pipeline) -> list[DeviceFact]:
    """All devices that count, sorted by node, then by name; taints of rules included."""
    held, marks = holders_of(pipeline.seen), marks_of(pipeline.seen)
    counts = Counter(PoolId.of(slice_) for slice_ in published(pipeline))
    found = (
        _fact(
            slice_,
            device,
            held.get(DeviceId(slice_.spec.driver, slice_.spec.pool.name, device.name), ()),
            owner_text(marks, DeviceId(slice_.spec.driver, slice_.spec.pool.name, device.name)),
            is_usable=counts[PoolId.of(slice_)] == slice_.spec.pool.resource_slice_count,
        )
        for slice_ in published(pipeline)
        for device in slice_.spec.devices or ()
    )
    return sorted(found, key=lambda device: (device.node, device.driver, device.pool, _natural(device.name)))


def published(pipeline: Pipeline) -> Iterator[ResourceSlice]:
    """The slices that count, with the taints of rules."""
    for slices in newest_slices(pipeline.seen.every(ResourceSlice)).values():
        for slice_ in slices:
            yield pipeline.cluster.inventory.slice(slice_.metadata.name) or slice_


def holders_of(seen: Observed) -> Mapping[DeviceId, tuple[Holder, ...]]:
    """Who has which device."""
    found: dict[DeviceId, tuple[Holder, ...]] = {}
    for claim in seen.every(ResourceClaim):
        for given in claim.results:
            device = DeviceId.of(given)
            consumed = {name: str(amount) for name, amount in (given.consumed_capacity or {}).items()}
            found[device] = (*found.get(device, ()), _holder(seen, claim, bool(given.admin_access), consumed))
    return found


def state_of(device: Device, holders: tuple[Holder, ...], *, is_usable: bool = True) -> str:
    """See ``DeviceFact``; ``is_usable``: the pool is complete."""
    if any(not holder.admin for holder in holders):
        return "shared" if device.allow_multiple_allocations else "taken"
    if not is_usable:
        return "unusable"
    return "tainted" if any(taint.effect != "None" for taint in device.taints or ()) else "free"


def _holder(seen: Observed, claim: ResourceClaim, admin: bool, consumed: dict[str, str]) -> Holder:
    users = [user.name for user in pods_of(seen, claim)]
    pods = [pod for name in users if (pod := seen.one(Pod, f"{claim.metadata.namespace}/{name}")) is not None]
    owner = next((f"{ref.kind}/{ref.name}" for pod in pods if (ref := pod.metadata.controller) is not None), "")
    allocation = claim.status.allocation
    since = (allocation.allocation_timestamp if allocation else None) or claim.metadata.creation_timestamp or ""
    return Holder(claim=claim.key, pods=tuple(users), owner=owner, since=since, admin=admin, capacity=consumed)


def _fact(
    slice_: ResourceSlice, device: Device, holders: tuple[Holder, ...], scheduler: str, *, is_usable: bool
) -> DeviceFact:
    spec = slice_.spec
    return DeviceFact(
        driver=spec.driver,
        pool=spec.pool.name,
        name=device.name,
        node=device.node_name or spec.node_name or "",
        state=state_of(device, holders, is_usable=is_usable),
        holders=holders,
        taints=tuple(map(taint_text, device.taints or ())),
        scheduler=scheduler,
        attributes={name: value_text(value) for name, value in (device.attributes or {}).items()},
        capacity=_left(device, holders),
    )


def _left(device: Device, holders: tuple[Holder, ...]) -> dict[str, Left]:
    found = {}
    for name, capacity in (device.capacity or {}).items():
        total = capacity.value
        used = sum(Quantity(holder.capacity[name]).nanos for holder in holders if name in holder.capacity)
        whole = not device.allow_multiple_allocations and any(not holder.admin for holder in holders)
        left = 0 if whole else max(0, total.nanos - used)
        is_binary = str(total).endswith("i")
        found[name] = Left(total=str(total), left=str(Quantity.from_nanos(left, binary=is_binary)))
    return found


def taint_text(taint: DeviceTaint) -> str:
    """``key=value:effect``."""
    if taint == LEFT:
        return "left to other schedulers by settings"
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def value_text(attribute: DeviceAttribute) -> str:
    """The value of an attribute as people write it."""
    if attribute.string is not None:
        return attribute.string
    fields = ("version", "int_", "bool_", "strings", "versions", "ints", "bools")
    value = next((found for name in fields if (found := getattr(attribute, name, None)) is not None), None)
    values = value if isinstance(value, tuple) else (value,)
    return ",".join(str(one).lower() if isinstance(one, bool) else str(one) for one in values)


def _natural(name: str) -> tuple[object, ...]:
    """``gpu-2`` before ``gpu-10``."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or -1)
