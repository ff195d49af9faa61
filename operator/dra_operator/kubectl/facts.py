"""Facts about each published device: place, holders and since when, remaining capacity, scheduler."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from dra_api.core import Node, Pod, Taint
from dra_api.leases import Lease
from dra_api.references import claims_of_pod, is_pod_group, pod_as_consumer, pod_is_done
from dra_api.resource import (
    FINALIZER,
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
from dra_ledger import DeviceEntry, Ledger
from dra_ledger.basics import DeviceId
from dra_ledger.entries import taint_text
from dra_ledger.inventory import Inventory
from dra_ledger.pools import newest_slices
from dra_ledger.predicates import Weighed
from dra_ledger.taints import rule_selects, schedulers_of
from dra_ledger.usage import AllocatedDevices
from msgspec import field

from dra_operator.kubectl.answer import Fact
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.settings import Settings


def other_finalizers(claim: ResourceClaim) -> list[str]:
    """Return the finalizers of which only others know when they go."""
    return [name for name in claim.metadata.finalizers or () if name != FINALIZER]


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


def renewal(lease: Lease, now: datetime) -> str:
    """Return when the Lease was renewed, by the clock of its holder."""
    if lease.is_ahead(now):
        return f"at {lease.spec.renew_time}, which is in the future"
    return f"{age(lease.spec.renew_time or '', now) or 'a while'} ago"


def pods_of(seen: Observed, claim: ResourceClaim) -> list[ResourceClaimConsumerReference]:
    """A pod that is named need not exist. A PodGroup stands for those of its pods that use the claim and have not
    ended."""
    users = (user for consumer in claim.status.reserved_for or () for user in _users(seen, claim, consumer))
    return list({(user.name, user.uid): user for user in users}.values())


def using_pods(seen: Observed, claim: ResourceClaim) -> list[Pod]:
    """Return the pods among them that exist."""
    found = (seen.one(Pod, f"{claim.metadata.namespace}/{user.name}") for user in pods_of(seen, claim))
    return [pod for pod in found if pod is not None]


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


class DriverPods:
    """The pods that seem to run drivers, by node: an answer about ten thousand pods looks each driver up once."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self._pods = pods
        self._by_node: dict[str, dict[str, list[Pod]]] = {}
        self._naming: dict[str, list[Pod]] = {}

    def on(self, driver: str, node: str) -> Sequence[Pod]:
        """Return those of a driver on a node (``driver_pods``)."""
        if driver not in self._by_node:
            found = self._by_node[driver] = {}
            for pod in driver_pods(driver, self._pods):
                found.setdefault(pod.spec.node_name, []).append(pod)
        return self._by_node[driver].get(node, ())

    def naming(self, driver: str) -> Sequence[Pod]:
        """Return all pods with a label whose value is the driver."""
        if driver not in self._naming:
            self._naming[driver] = [it for it in self._pods if driver in (it.metadata.labels or {}).values()]
        return self._naming[driver]


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
    """``state`` and ``why`` as in ``dra_ledger.DeviceEntry``."""

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
    why: str = ""
    """What keeps it from being free, other than its holders."""
    health: str = ""
    """As the kubelet of a pod that has it says; else empty."""

    @property
    def id(self) -> str:
        """``driver/pool/device``."""
        return f"{self.driver}/{self.pool}/{self.name}"


class _NoSelectors:
    """For an inventory without classes, so that nothing is compiled: CEL takes long to load."""

    def compile(self, expression: str) -> Weighed:
        """Never called."""
        raise NotImplementedError(expression)

    def attribute(self, expression: str) -> tuple[Callable[[str, Device], DeviceAttribute], int]:
        """Never called."""
        raise NotImplementedError(expression)


def inventory_of(seen: Observed, settings: Settings) -> Inventory:
    """Return what slices publish, with the taints of rules, as the operator of these settings sees it. Raises Problem.

    Nothing is compiled, for commands that ask no allocator: it takes a third of a second to load.
    """
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
    return inventory


def ledger_of(seen: Observed, settings: Settings) -> Ledger:
    """Return the ledger of what was observed, for commands that ask no allocator. Raises Problem."""
    inventory = inventory_of(seen, settings)
    allocated = AllocatedDevices(inventory, shares=inventory.features.consumable_capacity)
    for claim in seen.every(ResourceClaim):
        allocated.stored(claim.key, claim.status.allocation)
    return ledger_over(seen, inventory, allocated)


def ledger_over(seen: Observed, inventory: Inventory, allocated: AllocatedDevices) -> Ledger:
    """Return the ledger by which every table counts; it takes seconds for 100,000 claims.

    Nodes that could not be read are unknown: it does not take them for absent.
    """
    ledger = Ledger(over=(inventory, allocated))
    if "nodes" not in seen.unseen:
        ledger.feed(seen.every(Node))
    ledger.feed(seen.every(ResourceClaim))
    ledger.feed(seen.every(Pod))
    return ledger


def devices_of(seen: Observed, ledger: Ledger) -> list[DeviceFact]:
    """Return the published devices, sorted by node, then by name; taints of rules included."""
    return [fact for fact in every_device_of(seen, ledger) if fact.state != "gone"]


def every_device_of(seen: Observed, ledger: Ledger) -> list[DeviceFact]:
    """Return the published devices, and devices that claims hold although nobody publishes them."""
    marks = marks_of(seen)
    found = (_fact(entry, seen, owner_text(marks, id_of(entry))) for entry in ledger.devices())
    return sorted(found, key=lambda device: (device.node, device.driver, device.pool, _natural(device.name)))


def id_of(device: DeviceEntry | DeviceFact) -> DeviceId:
    return DeviceId(device.driver, device.pool, device.name)


def _owner(seen: Observed, namespace: str, pods: Sequence[str]) -> str:
    """What made the pods, as ``KIND/NAME`` of the first owner, or an empty text."""
    found = (seen.one(Pod, f"{namespace}/{name}") for name in pods)
    owners = (pod.metadata.controller for pod in found if pod is not None)
    return next((f"{it.kind}/{it.name}" for it in owners if it is not None), "")


def _fact(entry: DeviceEntry, seen: Observed, scheduler: str) -> DeviceFact:
    device = entry.published
    return DeviceFact(
        driver=entry.driver,
        pool=entry.pool,
        name=entry.name,
        node=entry.node,
        state=entry.state,
        holders=tuple(
            Holder(
                claim=one.key,
                pods=one.pods,
                owner=_owner(seen, one.namespace, one.pods),
                since=one.since,
                admin=one.is_admin,
                capacity=one.consumed,
            )
            for one in (*entry.holders, *entry.observers)
        ),
        taints=tuple(map(taint_text, entry.taints)),
        scheduler=scheduler,
        attributes={name: value_text(value) for name, value in (device.attributes or {}).items()} if device else {},
        capacity={name: Left(total=one.total, left=one.left) for name, one in entry.capacity.items()},
        why=entry.why,
        health=entry.health,
    )


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
