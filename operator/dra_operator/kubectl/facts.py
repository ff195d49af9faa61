"""Facts about each published device: place, holders and since when, remaining capacity, scheduler."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from dra_api.core import Node, Pod, Taint
from dra_api.quantity import Quantity
from dra_api.references import (
    claims_of_pod,
    is_pod_group,
    pod_as_consumer,
    pod_is_done,
)
from dra_api.resource import (
    SCHEDULER_KEY,
    Device,
    DeviceAttribute,
    DeviceTaint,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceSlice,
)
from dra_api.values import parse_time
from dra_ledger.basics import DeviceId, PoolId
from dra_ledger.inventory import Inventory
from dra_ledger.pools import newest_slices
from dra_ledger.predicates import Weighed
from dra_ledger.taints import LEFT, rule_selects, schedulers_of
from msgspec import field

from dra_operator.kubectl.answer import Fact
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.settings import Settings


def age(since: str, now: datetime) -> str:
    """``45s``, ``12m``, ``5h``, ``3d``; empty if the time is not known."""
    return age_of_first([since], now)


def age_of_first(times: Iterable[str], now: datetime) -> str:
    """The same for the earliest of the times that are known."""
    moments = [moment for time in times if (moment := parse_time(time)) is not None]
    if not moments:
        return ""
    passed = max(0, int((now - min(moments)).total_seconds()))
    for unit, length, most in (("s", 1, 120), ("m", 60, 120), ("h", 3600, 48)):
        if passed < most * length:
            return f"{passed // length}{unit}"
    return f"{passed // 86400}d"


def pods_of(seen: Observed, claim: ResourceClaim) -> list[ResourceClaimConsumerReference]:
    """A pod that is named need not exist. A PodGroup stands for those of its pods that use the claim and have not
    ended."""
    users = (user for consumer in claim.status.reserved_for or () for user in _users(seen, claim, consumer))
    return list({(user.name, user.uid): user for user in users}.values())


def _users(
    seen: Observed, claim: ResourceClaim, consumer: ResourceClaimConsumerReference
) -> Iterator[ResourceClaimConsumerReference]:
    if is_pod_group(consumer):
        for pod in seen.pods_by_group.get(f"{claim.metadata.namespace}/{consumer.name}", ()):
            if not pod_is_done(pod) and any(use.name == claim.metadata.name for use in claims_of_pod(pod)):
                yield pod_as_consumer(pod)
    elif consumer.resource == "pods":
        yield consumer


def labels_of_node(seen: Observed, name: str) -> Mapping[str, str] | None:
    """Return the labels of a node, or None if it is not there."""
    node = seen.one(Node, name)
    return node.metadata.labels if node is not None else None


_MADE_BY: Final = {"deployment": ("ReplicaSet", r"-[a-z0-9]+"), "cronjob": ("Job", r"-[0-9]+")}
"""Workloads that have no pods of their own: the kind that they make, and what its names have after theirs."""


def makes_pods(kind: str, name: str, owner_kind: str, owner: str) -> bool:
    """Return whether the owner of pods is the workload, or a ReplicaSet or Job that the workload makes.

    ReplicaSets and Jobs are not read, so that their names tell whose they are. ``kind`` is in lower case.
    """
    made, suffix = _MADE_BY.get(kind, (kind, ""))
    return owner_kind.lower() == made.lower() and re.fullmatch(re.escape(name) + suffix, owner) is not None


def pods_of_workload(seen: Observed, kind: str, name: str) -> list[Pod]:
    """Return the pods of a workload or PodGroup in the namespace, by name. ``kind`` is in lower case."""
    if kind == "podgroup":
        found: Iterable[Pod] = seen.pods_by_group.get(f"{seen.namespace}/{name}", ())
    else:
        found = (
            pod
            for pod in seen.every(Pod)
            if pod.metadata.namespace == seen.namespace
            and (owner := pod.metadata.controller) is not None
            and makes_pods(kind, name, owner.kind, owner.name)
        )
    return sorted(found, key=lambda pod: pod.key)


def driver_pods(driver: str, pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods of DaemonSets that seem to run a driver: the words of its name are in theirs, or in a label.

    Nothing in the API says which pods run a driver.
    """
    words = {word for word in re.split(r"[.\-]", driver)[:-1] if word not in ("k8s", "io", "dra", "driver", "resource")}
    found = []
    for pod in pods:
        owner = pod.metadata.controller
        if owner is None or owner.kind != "DaemonSet":
            continue
        text = " ".join((pod.metadata.namespace, owner.name, *(pod.metadata.labels or {}).values()))
        if driver in text or words <= set(re.split(r"[^a-z0-9]+", text)):
            found.append(pod)
    return sorted(found, key=lambda pod: pod.key)


def is_ready(pod: Pod) -> bool:
    """Whether the pod runs, and does not say that it is not ready."""
    unready = any(one.type == "Ready" and one.status != "True" for one in pod.status.conditions or ())
    return pod.status.phase == "Running" and not unready


Marks = Mapping[DeviceId, Sequence[DeviceTaint | Taint]]


def marks_of(seen: Observed) -> Marks:
    """Return the taints with the key of territories, of every published device."""
    rules = marking_rules(seen)
    found: dict[DeviceId, list[DeviceTaint | Taint]] = {}
    for pool, slices in newest_slices(seen.every(ResourceSlice)).items():
        for slice_ in slices:
            node = seen.one(Node, slice_.spec.node_name) if slice_.spec.node_name else None
            of_node = (node.spec.taints or ()) if node is not None else ()
            for device in slice_.spec.devices or ():
                id_ = DeviceId(*pool, device.name)
                by_rules = (rule.spec.taint for rule in rules if rule_selects(rule, id_))
                every: list[DeviceTaint | Taint] = [*(device.taints or ()), *by_rules, *of_node]
                found[id_] = [it for it in every if it.key == SCHEDULER_KEY]
    return found


def marking_rules(seen: Observed) -> list[DeviceTaintRule]:
    """Return the DeviceTaintRules with the key of territories, by name."""
    rules = sorted(seen.every(DeviceTaintRule), key=lambda rule: rule.metadata.name)
    return [rule for rule in rules if rule.spec.taint.key == SCHEDULER_KEY]


def owner_text(marks: Marks, device: DeviceId) -> str:
    """Return the scheduler of a device; several exclude each other; empty if it is open to all."""
    return " and ".join(schedulers_of(marks.get(device, ())))


def belonging(marks: Marks, devices: Sequence[DeviceId]) -> Iterator[str]:
    """Yield ``device d/p/x belongs to the scheduler s`` for each of the devices that does."""
    for device in dict.fromkeys(devices):
        if owner := owner_text(marks, device):
            yield f"device {device} belongs to the scheduler {owner}"


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


class Stock(Protocol):
    """What was observed, and the devices that it publishes: a ``Pipeline``, or the lighter ``Shelves``."""

    @property
    def seen(self) -> Observed:
        """All that was read."""

    @property
    def inventory(self) -> Inventory:
        """What slices publish, with the taints of rules."""


class Shelves(NamedTuple):
    """The devices alone, for commands that ask no allocator: it takes a third of a second to load."""

    seen: Observed
    inventory: Inventory


class _NoSelectors:
    """Shelves hold no classes, so that nothing is compiled: CEL takes long to load."""

    def compile(self, expression: str) -> Weighed:
        """Never called."""
        raise NotImplementedError(expression)

    def attribute(self, expression: str) -> tuple[Callable[[str, Device], DeviceAttribute], int]:
        """Never called."""
        raise NotImplementedError(expression)


def shelves(seen: Observed, settings: Settings) -> Shelves:
    """Return the devices of what was observed, as the operator of these settings sees them. Raises Problem."""
    settings = settings.completed(seen)
    features = settings.features(seen)
    inventory = Inventory(features, language=_NoSelectors(), is_lasting=False)
    inventory.territory.scheduler = settings.scheduler_name  # before it has any slice: which taints are our own
    inventory.territory.leaves = settings.leaves
    for node in seen.every(Node):
        inventory.put_node(node)
    for slice_ in seen.every(ResourceSlice):
        inventory.put_slice(slice_)
    if features.taint_rules and features.device_taints:
        for rule in seen.every(DeviceTaintRule):
            inventory.put_rule(rule)
    return Shelves(seen, inventory)


def devices_of(stock: Stock) -> list[DeviceFact]:
    """All devices that count, sorted by node, then by name; taints of rules included."""
    held, marks = holders_of(stock.seen), marks_of(stock.seen)
    counts = Counter(PoolId.of(slice_) for slice_ in published(stock))
    found = (
        _fact(
            slice_,
            device,
            held.get(DeviceId(slice_.spec.driver, slice_.spec.pool.name, device.name), ()),
            owner_text(marks, DeviceId(slice_.spec.driver, slice_.spec.pool.name, device.name)),
            is_usable=counts[PoolId.of(slice_)] == slice_.spec.pool.resource_slice_count,
        )
        for slice_ in published(stock)
        for device in slice_.spec.devices or ()
    )
    return sorted(found, key=lambda device: (device.node, device.driver, device.pool, _natural(device.name)))


def published(stock: Stock) -> Iterator[ResourceSlice]:
    """The slices that count, with the taints of rules."""
    for slices in newest_slices(stock.seen.every(ResourceSlice)).values():
        for slice_ in slices:
            yield stock.inventory.slice(slice_.metadata.name) or slice_


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
