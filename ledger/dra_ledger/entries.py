"""The ledger's answers (devices with their holders, pools, counters, and sums of them), and the holders as they come.

Claims and pods come one at a time. Each change returns the pools about which an answer may be different now. A PodGroup
in ``reservedFor`` stands for those of its pods that use the claim and have not finished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Final, NamedTuple

from dra_api.core import Node
from dra_api.meta import Part
from dra_api.releases import Release
from dra_api.resource import Device, DeviceAttribute, DeviceRequestAllocationResult, DeviceTaint
from dra_api.selectors import declares_optional_node_operations
from dra_api.values import Quantity
from msgspec import field

from .basics import DeviceId, PoolId, each
from .capacity import consumption
from .features import Features
from .pools import Pool, PoolView, Status
from .slices import Slice, device_is_for
from .sources import HeldClaim, SeenPod
from .taints import LEFT, blocking
from .usage import PoolUsage

HEALTH: Final = ("Healthy", "Unknown", "Unhealthy")
"""What kubelets say of devices, the worst last."""
STATES: Final = ("free", "taken", "shared", "tainted", "drawn", "unusable", "gone")
"""See ``DeviceEntry.state``."""


class Holder(Part, frozen=True, gc=False):
    """A claim that has a device, or a share of it. With ``is_admin`` it has admin access, and takes nothing."""

    namespace: str
    claim: str
    request: str
    """As the claim names it: ``gpu``, or ``gpu/small`` for the first available one of several."""
    pods: tuple[str, ...] = ()
    """For which the claim is reserved; a PodGroup stands for its pods, if the ledger has these."""
    since: str = ""
    """When it was allocated, else when the claim was made; RFC 3339."""
    share: str = ""
    """The share's UUID; empty if the whole device is held."""
    consumed: dict[str, str] = field(default_factory=dict)
    """The share's consumed capacity, as quantities."""
    is_admin: bool = False

    @property
    def key(self) -> str:
        """``namespace/name`` of the claim."""
        return f"{self.namespace}/{self.claim}"


class Left(Part, frozen=True):
    """A total and the rest that is not taken, as quantities."""

    total: str
    left: str


class DeviceEntry(Part, frozen=True, gc=False):
    """A device that is published, or that a claim holds without it.

    ``state``: ``free``; ``taken`` by one claim; ``shared``: claims have parts of it; ``tainted``: free, but not for
    requests without tolerations; ``drawn``: free, but other devices have drawn the shared counters that it needs;
    ``unusable``, and ``why`` says why; ``gone``: held and not published.
    """

    driver: str
    pool: str
    name: str
    node: str
    """Empty if several nodes can use it."""
    state: str
    available: bool
    """Whether a request for one device of its class, and for nothing else, could get it or a share of it now."""
    holders: tuple[Holder, ...] = ()
    observers: tuple[Holder, ...] = ()
    """Claims with admin access."""
    why: str = ""
    """What keeps it from being free, other than its holders."""
    health: str = ""
    """``Healthy``, ``Unhealthy`` or ``Unknown``, as the kubelet of a pod that has it says; else empty."""
    published: Device | None = None

    @property
    def id(self) -> str:
        """``driver/pool/device``."""
        return f"{self.driver}/{self.pool}/{self.name}"

    @property
    def attributes(self) -> dict[str, object]:
        """Plain values: texts, numbers, truth values, or lists of them."""
        found = (self.published.attributes or {}) if self.published is not None else {}
        return {name: _value(attribute) for name, attribute in found.items()}

    @property
    def taints(self) -> tuple[DeviceTaint, ...]:
        """Its own taints, and taints of DeviceTaintRules."""
        return (self.published.taints or ()) if self.published is not None else ()

    @property
    def capacity(self) -> dict[str, Left]:
        """Each capacity with its free rest: 0 for a device that is taken."""
        device = self.published
        if device is None:
            return {}
        found = {}
        for name, capacity in (device.capacity or {}).items():
            total = capacity.value
            used = sum(Quantity(it.consumed[name]).nanos for it in self.holders if name in it.consumed)
            left = 0 if self.state == "taken" else max(0, total.nanos - used)
            found[name] = Left(total=str(total), left=str(Quantity.of_format(left, total.format)))
        return found


class PoolEntry(Part, frozen=True):
    """A pool of a driver. ``status``: ``usable``, ``incomplete`` or ``invalid``, with the reason in ``why``."""

    driver: str
    name: str
    nodes: tuple[str, ...]
    """Nodes that the pool names."""
    generation: int
    slices: int
    """Number of slices of this generation."""
    announced: int
    obsolete: tuple[str, ...]
    """Slices of older generations. They do not count."""
    status: str
    why: str
    devices: dict[str, int]
    """How many there are in each state."""

    @property
    def id(self) -> str:
        """``driver/pool``."""
        return f"{self.driver}/{self.name}"


class CounterEntry(Part, frozen=True):
    """A shared counter. Amounts are quantities; ``unknown`` names devices in use that may draw on it, or not."""

    driver: str
    pool: str
    counter_set: str
    name: str
    total: str
    drawn: str
    left: str
    """Negative if it is overdrawn; nothing beside ``unknown`` devices."""
    devices: tuple[str, ...]
    """Those in use that draw on it."""
    unknown: tuple[str, ...] = ()


class Tally(Part, frozen=True):
    """How many devices of a class, node, namespace or driver are in which state."""

    name: str
    devices: int
    free: int
    available: int
    taken: int
    shared: int
    tainted: int
    drawn: int
    unusable: int
    claims: int
    """That hold any of them."""

    @classmethod
    def of(cls, name: str, entries: Iterable[DeviceEntry]) -> Tally:
        """Count entries. Devices that are gone count as devices and as taken."""
        states: Counter[str] = Counter()
        claims: set[tuple[str, str]] = set()
        available = 0
        for entry in entries:
            states[entry.state] += 1
            available += entry.available
            for holder in entry.holders:
                claims.add((holder.namespace, holder.claim))
        return cls(
            name=name,
            devices=states.total(),
            free=states["free"],
            available=available,
            taken=states["taken"] + states["gone"],
            shared=states["shared"],
            tainted=states["tainted"],
            drawn=states["drawn"],
            unusable=states["unusable"],
            claims=len(claims),
        )


def available_devices(view: PoolView, usage: PoolUsage, features: Features, *, declares: bool) -> int:
    """Return how many devices a request for one without tolerations could get, or a share of (allocator.md 6, 9 to 11).

    ``declares``: the node manages without the calls that a slice leaves out (K37-ONO-04).
    """
    if not view.is_offered:
        return 0
    found = view.everywhere & ~view.held(usage)
    if not features.binding_conditions:
        found &= ~view.binding
    if view.skipping and features.release >= Release.V1_37 and not (features.optional_node_operations and declares):
        found &= ~view.skipping
    if features.consumable_capacity:
        found &= ~_too_small(view, usage, features)
    for number in each(found & view.tainted):
        taints = view.devices[number].taints or ()
        if LEFT in taints or (features.device_taints and blocking(taints, None) is not None):
            found &= ~(1 << number)
    return found & ~undrawable(view, usage, features)


def undrawable(view: PoolView, usage: PoolUsage, features: Features) -> int:
    """The devices for which others have drawn too much of the counters, or which go with none of these."""
    if not view.consuming:
        return 0
    if not features.partitionable_devices:
        return view.consuming
    charged, closed = usage.charged, 0
    left = view.counters.available(charged)
    is_overdrawn = min(left, default=0) < 0
    for charges, devices in view.counter_groups.groups:
        if is_overdrawn or any(amount > left[number] for number, amount in charges):
            closed |= devices
    if features.compatibility_groups and not view.compatibility.is_idle:
        common = view.compatibility.common(sorted(charged))
        for membership, devices in view.compatibility.kinds:
            if any(set_ in common and not common[set_] & groups for set_, groups in membership):
                closed |= devices
    shareable = view.shareable if features.consumable_capacity else 0
    return closed & ~(view.bits(charged) & shareable)


def _too_small(view: PoolView, usage: PoolUsage, features: Features) -> int:
    """Count the devices whose free capacity does not suffice for a request that names none."""
    found = 0
    known = view.consumptions.get(())
    if known is None:
        known = view.consumptions.put((), {})
    limited = view.shareable | view.has_request_policy
    for number in each(limited | view.bits(usage.consumed)):
        device = view.devices[number]
        capacity, used = device.capacity or {}, usage.consumed.get(device.name, {})
        if number not in known:
            known[number] = consumption({}, capacity, features)
        amounts = known[number]
        if amounts is None and not limited >> number & 1:
            continue
        if amounts is None or any(
            amount.nanos + max(0, used.get(name, 0)) > capacity[name].value.nanos for name, amount in amounts.items()
        ):
            found |= 1 << number
    return found


def pool_entry(pool: Pool, views: Iterable[PoolView], entries: Iterable[DeviceEntry]) -> PoolEntry:
    """A pool as the nodes see it that see it best."""
    newest, older = pool.by_age()
    troubled = [view for view in views if view.status is not Status.USABLE]
    nodes = {slice_.spec.node_name for slice_ in newest}
    nodes |= {device.node_name for slice_ in newest for device in slice_.devices}
    why = troubled[0].complaint if troubled else str(pool.unreadable or "")
    return PoolEntry(
        driver=pool.id.driver,
        name=pool.id.pool,
        nodes=tuple(sorted(node for node in nodes if node)),
        generation=newest[0].generation,
        slices=len(newest),
        announced=newest[0].spec.pool.resource_slice_count,
        obsolete=tuple(sorted(slice_.name for slice_ in older)),
        status=troubled[0].status.name.lower() if troubled else "usable",
        why=why,
        devices=dict(Counter(entry.state for entry in entries)),
    )


def counter_entries(view: PoolView, usage: PoolUsage) -> Iterator[CounterEntry]:
    """The counters of a pool."""
    table, charged = view.counters, sorted(usage.charged)
    left, unknown = table.available(charged), tuple(table.unknown(charged))
    for number, (set_, name) in enumerate(table.names):
        drawn = {it: sum(n for at, n in table.in_use.get(it, ()) if at == number) for it in charged}
        yield CounterEntry(
            driver=view.pool.driver,
            pool=view.pool.pool,
            counter_set=set_,
            name=name,
            total=_amount(table.values[number]),
            drawn=_amount(sum(drawn.values())),
            left=_amount(left[number]),
            devices=tuple(device for device, amount in drawn.items() if amount),
            unknown=unknown,
        )


def device_entry(slice_: Slice, device: Device, holders: tuple[Holder, ...], seen: Seen, health: str) -> DeviceEntry:
    """One published device."""
    held = tuple(holder for holder in holders if not holder.is_admin) if holders else ()
    state, why = seen.state_of(device, is_held=bool(held))
    return DeviceEntry(
        driver=slice_.pool.driver,
        pool=slice_.pool.pool,
        name=device.name,
        node=device.node_name or slice_.spec.node_name or "",
        state=state,
        available=id(device) in seen.available,
        holders=held,
        observers=tuple(holder for holder in holders if holder.is_admin) if holders else (),
        why=why,
        health=health,
        published=device,
    )


def gone_entry(device: DeviceId, holders: tuple[Holder, ...], health: str) -> DeviceEntry:
    """One that claims hold and nobody publishes."""
    return DeviceEntry(
        driver=device.driver,
        pool=device.pool,
        name=device.device,
        node="",
        state="gone",
        available=False,
        holders=tuple(holder for holder in holders if not holder.is_admin),
        observers=tuple(holder for holder in holders if holder.is_admin),
        why="no ResourceSlice of the newest generation has it",
        health=health,
    )


class Sight(NamedTuple):
    """A pool as some nodes see it; ``nodes`` is None if no node is known."""

    view: PoolView
    nodes: Sequence[Node] | None


class Seen:
    """The devices that the nodes of a pool can have now.

    ``absent``: why the node that it is for is not there. ``unreadable``: a node selector that is malformed.
    """

    def __init__(
        self, sights: Iterable[Sight], usage: PoolUsage, features: Features, absent: str, unreadable: str
    ) -> None:
        self._features, self._absent, self._unreadable = features, absent, unreadable
        self.available: set[int] = set()
        """Identities of published devices, as in the sets that follow: slices for other nodes may use their names."""
        self._usable: set[int] = set()
        self._drawn: set[int] = set()
        self._ambiguous: set[int] = set()
        self._complaint = ""
        for view, nodes in sights:
            if not view.is_offered:
                self._complaint = self._complaint or view.complaint
                continue
            here = view.everywhere if nodes is None else _devices_for(view, nodes)
            declares = nodes is None or any(map(declares_optional_node_operations, nodes))
            found = available_devices(view, usage, features, declares=declares) & here
            drawn = undrawable(view, usage, features)
            for number in each(here):
                device, slice_ = view.devices[number], view.origin[number]
                self._usable.add(id(device))
                if slice_.ambiguous and not device.binds_to_node:
                    self._ambiguous.add(id(device))
                elif found >> number & 1:
                    self.available.add(id(device))
                if drawn >> number & 1:
                    self._drawn.add(id(device))

    def state_of(self, device: Device, *, is_held: bool) -> tuple[str, str]:
        """The state of a device, and why it is not free otherwise."""
        taint = blocking(device.taints, None) if device.taints and self._features.device_taints else None
        why = taint_text(taint) if taint is not None else ""
        is_usable = id(device) in self._usable
        if is_held:
            shared = device.allow_multiple_allocations and self._features.consumable_capacity
            return "shared" if shared else "taken", why if is_usable else self._complaint or why
        if not is_usable:
            return "unusable", self._complaint or self._absent or self._unreadable or "there is no node for it"
        if id(device) in self._ambiguous:
            return "unusable", "an allocation cannot name its nodes: the node selector of its slice has several terms"
        if taint is not None:
            return "tainted", why
        if id(device) in self.available:
            return "free", ""
        if id(device) in self._drawn:
            if not self._features.partitionable_devices:
                return "unusable", "it draws on shared counters, and feature gate DRAPartitionableDevices is off"
            return "drawn", "other devices have what it needs of the shared counters of its pool"
        return "unusable", "a request for one device cannot have it: its capacity or a feature gate does not allow it"


def _devices_for(view: PoolView, nodes: Sequence[Node]) -> int:
    """Count the devices that any of the nodes may use: in some slices each device names its node."""
    here = view.everywhere
    for number, device in enumerate(view.devices) if view.per_device else ():
        is_asked = view.origin[number].spec.per_device_node_selection
        if is_asked and not any(device_is_for(device, node) for node in nodes):
            here &= ~(1 << number)
    return here


def taint_text(taint: DeviceTaint) -> str:
    """``key=value:effect``."""
    if taint == LEFT:
        return "left to other schedulers by settings"
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _amount(nanos: int) -> str:
    return str(Quantity.from_nanos(nanos, binary=nanos % (1024 * 10**9) == 0))


_FIELDS: Final = ("string", "version", "int_", "bool_", "strings", "versions", "ints", "bools")


def _value(attribute: DeviceAttribute) -> object:
    value = next((found for name in _FIELDS if (found := getattr(attribute, name)) is not None), None)
    return list(value) if isinstance(value, tuple) else value


_Keys = str | dict[str, None]
"""The key of a claim, or of several: most devices have one holder, and a shared one may have thousands."""


class Holdings:
    """The holders of devices, by pool and device."""

    def __init__(self) -> None:
        self.claims: dict[str, HeldClaim] = {}
        """Claims by ``namespace/name``, which is the key of the following maps as well."""
        self.pods: dict[str, SeenPod] = {}
        """The pods that use claims."""
        self._groups: dict[str, dict[str, None]] = {}
        """The pods of each PodGroup."""
        self._held: dict[PoolId, dict[str, _Keys]] = {}
        """The claims that have a device, with admin access as well."""

    @property
    def pools(self) -> Set[PoolId]:
        """The pools of which a claim holds a device."""
        return self._held.keys()

    def put_claim(self, key: str, now: HeldClaim | None) -> Iterable[PoolId]:
        """Take in a claim, or its deletion (None)."""
        before = self.claims.pop(key, None)
        pools = {*_pools(before), *_pools(now)}
        if before is not None:
            for pool, device in _devices(before):
                self._take_out(pool, device, key)
        if now is not None:
            self.claims[key] = now
            for pool, device in _devices(now):
                self._file(pool, device, key)
        return pools

    def put_pod(self, key: str, now: SeenPod | None) -> Iterable[PoolId]:
        """Take in a pod, or its deletion (None). A pod without claims says nothing about devices, and is not kept."""
        before = self.pods.pop(key, None)
        now = now if now is not None and now.claims else None
        pools: set[PoolId] = set()
        for pod in (before, now):
            if pod is None:
                continue
            if pod.group:
                group = self._groups.setdefault(f"{pod.namespace}/{pod.group}", {})
                if pod is now:
                    group[key] = None
                else:
                    group.pop(key, None)
                    if not group:
                        del self._groups[f"{pod.namespace}/{pod.group}"]
            for name in pod.claims:
                pools |= _pools(self.claims.get(f"{pod.namespace}/{name}"))
        if now is not None:
            self.pods[key] = now
        return pools

    def holders(self, pool: PoolId) -> dict[str, tuple[Holder, ...]]:
        """Return the holders of each device of the pool that a claim holds."""
        return {
            device: tuple(holder for claim in self._claims_of(keys) for holder in self._holders(pool, device, claim))
            for device, keys in self._held.get(pool, {}).items()
        }

    def health(self, pool: PoolId) -> dict[str, str]:
        """Return what kubelets say of the devices of a pool. The name tells one of several resources of a request."""
        found: dict[str, str] = {}
        if not self.pods:
            return found
        held = self._held.get(pool, {})
        for claim in {claim.key: claim for keys in held.values() for claim in self._claims_of(keys)}.values():
            results = claim.allocation.results if claim.allocation is not None else ()
            meant: dict[tuple[str, str], DeviceRequestAllocationResult | None] = {}
            for name in self._pods_of(claim):
                pod = self.pods.get(f"{claim.namespace}/{name}")
                for said in pod.health if pod is not None else ():
                    if said.claim != claim.name:
                        continue
                    about = (said.request, said.resource)
                    if about not in meant:  # all pods of a claim say the same of the same devices
                        meant[about] = _meant(results, *about)
                    result = meant[about]
                    if result is None or (result.driver, result.pool) != pool:
                        continue
                    found[result.device] = max(found.get(result.device, ""), said.health, key=_concern)
        return found

    def _file(self, pool: PoolId, device: str, key: str) -> None:
        devices = self._held.setdefault(pool, {})
        others = devices.get(device)
        if others is None:
            devices[device] = key
        elif isinstance(others, dict):
            others[key] = None
        elif others != key:
            devices[device] = {others: None, key: None}

    def _take_out(self, pool: PoolId, device: str, key: str) -> None:
        devices = self._held.get(pool, {})
        others = devices.get(device)
        if isinstance(others, dict):
            others.pop(key, None)
        if not others or others == key:
            devices.pop(device, None)
            if not devices:
                self._held.pop(pool, None)

    def _claims_of(self, keys: _Keys) -> Iterator[HeldClaim]:
        for key in (keys,) if isinstance(keys, str) else sorted(keys):
            yield self.claims[key]

    def _holders(self, pool: PoolId, device: str, claim: HeldClaim) -> Iterator[Holder]:
        if claim.allocation is None:
            return
        for result in claim.allocation.results:
            if (result.driver, result.pool, result.device) == (*pool, device):
                yield Holder(
                    namespace=claim.namespace,
                    claim=claim.name,
                    request=result.request,
                    pods=self._pods_of(claim),
                    since=claim.allocation.allocation_timestamp or claim.created,
                    share=result.share_id or "",
                    consumed={name: str(amount) for name, amount in (result.consumed_capacity or {}).items()},
                    is_admin=bool(result.admin_access),
                )

    def _pods_of(self, claim: HeldClaim) -> tuple[str, ...]:
        if not claim.groups:
            return claim.pods
        names = dict.fromkeys(claim.pods)
        for group in claim.groups:
            for key in sorted(self._groups.get(f"{claim.namespace}/{group}", ())):
                pod = self.pods[key]
                if not pod.is_done and claim.name in pod.claims:
                    names[pod.name] = None
        return tuple(names)


def _concern(health: str) -> tuple[int, str]:
    """Order what pods say of one device: the worst counts."""
    return HEALTH.index(health) if health in HEALTH else -1, health


def _meant(
    results: Iterable[DeviceRequestAllocationResult], request: str, resource: str
) -> DeviceRequestAllocationResult | None:
    """Return the device that a kubelet means; None if that cannot be told.

    Devices of two pools or drivers may have one name. A CDI id has that name alone, and often the driver's.
    """
    meant = [it for it in results if request in ("", it.request)]
    if len(meant) > 1:
        whole = [it for it in meant if resource == str(DeviceId.of(it))]
        meant = whole or [it for it in meant if resource.endswith((f"/{it.device}", f"={it.device}"))]
    return next((it for it in meant if it.driver in resource), meant[0] if meant else None)


def _devices(claim: HeldClaim) -> Iterator[tuple[PoolId, str]]:
    for result in claim.allocation.results if claim.allocation is not None else ():
        yield PoolId(result.driver, result.pool), result.device


def _pools(claim: HeldClaim | None) -> set[PoolId]:
    return {pool for pool, _ in _devices(claim)} if claim is not None else set()
