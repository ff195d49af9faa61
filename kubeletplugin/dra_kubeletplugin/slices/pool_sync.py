"""The pools that a driver wants: whether an API server takes them, and when each is synchronised.

The driver may go on changing its lists and dicts, so this keeps a copy. The copy is text, which takes a millisecond
per thousand devices. It becomes a checked pool at the first sync, in a thread, which takes sixty times as long. The API
server sees one slice at a time and cannot find contradictions between slices. Spec: plugin-helper.md section 4.3.

What the driver publishes is synchronised at once. A foreign change is undone when the pool has been quiet for some
time, but at the latest after twice that time, so that a pool that never becomes quiet is looked at as well. A failure
is retried after an interval that doubles, with a random part, so that a thousand nodes do not come back in step. A pool
may have a moment for each of these reasons. The earliest counts, and a sync settles all that are due by then.
Spec: RS-02, RS-03.

What an API server has against a slice is told by its answer, or found before anything is published. The answer names a
place by its path, ``spec.devices[3].attributes[model].string``. The driver knows no third
device, it knows ``gpu-3``. A field whose feature is switched off, or which the release of the server does not know, is
dropped silently. Spec: RS-06, K37-ONO-13.

The publisher does not check its slices, because a newer server may allow more. A driver whose pools come from a
configuration file checks when it starts, where an error still reaches the administrator. Spec: plugin-helper.md 4.3
and 4.7.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from typing import NamedTuple

import msgspec
from dra_api.codec import DecodeError, decode, encode
from dra_api.meta import ObjectMeta
from dra_api.resource import CounterSet, Device, ResourceSlice, ResourceSliceSpec
from dra_api.validation import validate_resource_slice
from dra_kube.reflector import spread

from dra_kubeletplugin.errors import PoolInvalid
from dra_kubeletplugin.slices.model import Owner, Pool, Resources, Slice, tidy
from dra_kubeletplugin.slices.plan import Publication, plan_pool, round_times


def checked(name: str, pool: Pool) -> Pool:
    """The pool in canonical form: without empty fields, taint times rounded. Raises PoolInvalid."""
    devices = [device for part in pool.slices for device in part.devices]
    sets = _unique_sets(name, [counters for part in pool.slices for counters in part.shared_counters])
    seen: set[str] = set()
    for device in devices:
        if device.name in seen:
            raise PoolInvalid(f'found duplicate device "{device.name}" in pool "{name}"')
        seen.add(device.name)
        _check_counters(device, sets)
    try:
        slices = tuple(
            replace(
                part,
                devices=tuple(tidy(round_times(device)) for device in part.devices),
                shared_counters=tuple(map(tidy, part.shared_counters)),
            )
            for part in pool.slices
        )
    except ValueError as error:
        raise PoolInvalid(f'a taint in pool "{name}" has an invalid time: {error}') from error
    return replace(pool, slices=slices, node_selector=tidy(pool.node_selector))


def _unique_sets(pool: str, all_counters: Iterable[CounterSet]) -> dict[str, CounterSet]:
    sets: dict[str, CounterSet] = {}
    for counters in all_counters:
        if counters.name in sets:
            raise PoolInvalid(f'found duplicate counter set "{counters.name}" in pool "{pool}"')
        sets[counters.name] = counters
    return sets


def _check_counters(device: Device, sets: dict[str, CounterSet]) -> None:
    for consumption in device.consumes_counters or ():
        available = sets.get(consumption.counter_set)
        if available is None:
            raise PoolInvalid(f'counter set "{consumption.counter_set}" referenced by device "{device.name}" not found')
        for counter in consumption.counters or ():
            if counter not in (available.counters or ()):
                raise PoolInvalid(
                    f'counter "{counter}" referenced by device "{device.name}" '
                    f'not found in counter set "{consumption.counter_set}"'
                )


class _Amount(msgspec.Struct):
    value: str


class _Draw(msgspec.Struct, rename="camel"):
    counter_set: str
    counters: dict[str, _Amount] = {}  # msgspec copies defaults


class _Counted(msgspec.Struct, rename="camel"):
    name: str
    consumes_counters: tuple[_Draw, ...] | None = None


class _Set(msgspec.Struct):
    name: str
    counters: dict[str, _Amount] | None = None


class _Contents(msgspec.Struct):
    devices: tuple[_Counted, ...] = ()
    shared_counters: tuple[_Set, ...] = ()


class _Pool(msgspec.Struct):
    slices: tuple[_Contents, ...] = ()


Amounts = Mapping[str, Mapping[str, str]]
"""Quantities of counters, by set and name."""


@dataclass(frozen=True, slots=True)
class PoolCounters:
    """The counters that a pool is published with: how much there is, and by device how much it draws."""

    available: Amounts
    draws: Mapping[str, Amounts]


_NOT_ENCODABLE = (TypeError, ValueError, NotImplementedError)
_PLACE = re.compile(r"\$\.slices\[(\d+)\]\.devices\[(\d+)\]\.?")


class DesiredPool:
    """One pool as the driver wants it."""

    def __init__(self, name: str, pool: Pool) -> None:
        self._name = name
        self._pool: Pool | None = None
        self._copy = b""
        self._fault = ""
        try:
            self._copy = encode(pool)
        except _NOT_ENCODABLE as error:
            self._fault = f"{_not_encodable(pool)}{type(error).__name__}: {error}"

    def same(self, other: DesiredPool | None) -> bool:
        """Whether both want the same."""
        return other is not None and (self._copy, self._fault) == (other._copy, other._fault)

    def pool(self) -> Pool:
        """The pool, checked and in canonical form. Raises PoolInvalid."""
        if self._pool is None:
            self._pool = checked(self._name, self._decoded())
        return self._pool

    @cached_property
    def devices(self) -> frozenset[str] | None:
        """The names of the devices; None if they cannot be told."""
        pool = self._contents
        return None if pool is None else frozenset(device.name for part in pool.slices for device in part.devices)

    @cached_property
    def counters(self) -> PoolCounters | None:
        """The counters of the pool; None if they cannot be told."""
        if self._contents is None:
            return None
        available = {
            each.name: _amounts(each.counters) for part in self._contents.slices for each in part.shared_counters
        }
        draws = {
            device.name: {each.counter_set: _amounts(each.counters) for each in device.consumes_counters}
            for part in self._contents.slices
            for device in part.devices
            if device.consumes_counters
        }
        return PoolCounters(available, draws)

    @cached_property
    def _contents(self) -> _Pool | None:
        try:
            return msgspec.json.decode(self._copy, type=_Pool)
        except ValueError:
            return None

    @property
    def has_counters(self) -> bool:
        """Whether the pool has counters, of which releases want different forms."""
        return b'"shared_counters":[{' in self._copy

    def adopt(self, pool: Pool) -> None:
        """From now on want this, because the API server does not store the rest."""
        self._pool = pool

    def _decoded(self) -> Pool:
        try:
            if not self._fault:
                return decode(Pool, self._copy)
        except DecodeError as error:
            self._fault = self._with_name(str(error))
        raise PoolInvalid(f'pool "{self._name}" has a value that a ResourceSlice cannot hold: {self._fault}')

    def _with_name(self, text: str) -> str:
        """The text of an error with the device's name in place of its index."""
        match = _PLACE.search(text)
        if match is None:
            return text
        name = msgspec.json.decode(self._copy)["slices"][int(match[1])]["devices"][int(match[2])].get("name")
        return f'device "{name}": {_PLACE.sub("", text)}'


def _amounts(counters: Mapping[str, _Amount] | None) -> dict[str, str]:
    return {name: counter.value for name, counter in (counters or {}).items()}


def _not_encodable(pool: Pool) -> str:
    for device in (device for part in pool.slices for device in part.devices):
        try:
            encode(device)
        except _NOT_ENCODABLE:
            return f'device "{device.name}": '
    return ""


_FIRST_RETRY_SECONDS = 0.005
_LONGEST_RETRY_SECONDS = 60.0
_REFUSED_RETRY_SECONDS = 300.0
_LATEST_FACTOR = 2  # times the quiet time


class Reason(Enum):
    """Why a pool is due; each reason has one moment per pool, the latest one given."""

    DESIRED = auto()
    EVENT = auto()
    RETRY = auto()
    OVERLAY_ENDS = auto()


class NextPublish:
    """Moments by pool and reason, in seconds of any one clock."""

    def __init__(self) -> None:
        self._moments: dict[tuple[str, Reason], float] = {}
        self._unrest: dict[str, float] = {}  # pools with foreign changes, and the moment of the first one
        self._failures: dict[str, int] = {}

    def add(self, pool: str, reason: Reason, moment: float) -> None:
        """The pool is due at ``moment`` for this reason, in place of an earlier moment for the same reason."""
        self._moments[pool, reason] = moment

    def changed(self, pool: str, now: float, quiet: float) -> None:
        """Another client changed the pool: due after ``quiet`` seconds without further changes."""
        latest = self._unrest.setdefault(pool, now) + _LATEST_FACTOR * quiet
        self.add(pool, Reason.EVENT, min(now + spread(quiet), latest))

    def failed(self, pool: str, now: float, at_least: float = 0.0) -> None:
        """A sync failed: due again after 5 ms, doubling up to a minute, but not before ``at_least`` seconds."""
        failures = self._failures.get(pool, 0)
        self._failures[pool] = failures + 1
        interval = min(_FIRST_RETRY_SECONDS * 2 ** min(failures, 30), _LONGEST_RETRY_SECONDS)
        self.add(pool, Reason.RETRY, now + spread(max(interval, at_least)))

    def refused(self, pool: str, now: float) -> None:
        """A sync will fail until the pool changes, or the rules of the API server: due again after five minutes."""
        self.settled(pool)
        self.add(pool, Reason.RETRY, now + spread(_REFUSED_RETRY_SECONDS))

    def settled(self, pool: str) -> None:
        """A sync succeeded or cannot succeed: the next failure starts with the shortest interval again."""
        self._failures.pop(pool, None)
        self._moments.pop((pool, Reason.RETRY), None)

    def next_moment(self) -> float | None:
        """The moment at which the next pool is due."""
        return min(self._moments.values(), default=None)

    def take(self, now: float) -> list[str]:
        """Take out the pools that are due by now, each once, in the order in which they became due."""
        due = sorted((moment, pool, reason) for (pool, reason), moment in self._moments.items() if moment <= now)
        for _, pool, reason in due:
            del self._moments[pool, reason]
            if reason is Reason.EVENT:
                self._unrest.pop(pool, None)
        return list(dict.fromkeys(pool for _, pool, _ in due))


_SHOWN_DEVICES = 5
_DEVICE = re.compile(r"spec\.devices\[(?P<index>\d+)\](?:\.(?P<list>attributes|capacity)\[(?P<key>[^\]]*)\])?")
_KINDS = {"attributes": "attribute", "capacity": "capacity"}

_SPLIT = "let Pool.of split them into slices"
_REMEDIES = [
    (r"spec\.devices: Too many", _SPLIT),
    (r"spec\.sharedCounters: Too many", _SPLIT),
    (r"only one of `sharedCounters` or `devices`", _SPLIT),
    (r"`perDeviceNodeSelection`", "choose one way to say which nodes reach the devices"),
    (r"attributes and capacities must not exceed", "leave out what no selector asks for"),
    (r"attribute values must not exceed", "shorten its lists"),
    (r"\.version: Invalid", 'write it as in "1.2.3", or make it a string'),
    (r"DNS|RFC 1123|C identifier", "rename it"),
    (r"int64", "make it a string, or use a larger unit"),
    (r"Too long", "shorten it"),
    (r"Too many", "leave some out"),
    (r"Duplicate", "give each its own name"),
    (r"Required", "set it"),
]
_OTHERWISE = "change what the driver publishes"
_WITHOUT_FIELD = "change what the driver publishes, or the policy that refuses it"


class PublishError(NamedTuple):
    """One thing that is wrong: the path of a field, and what is wrong with it."""

    field: str
    message: str


def described(pool: str, index: int, devices: Sequence[Device], faults: Iterable[PublishError]) -> str:
    """One sentence for a slice of a pool with faults."""
    texts = list(dict.fromkeys(_described(devices, fault) for fault in faults))
    if len(texts) > _SHOWN_DEVICES:
        texts[_SHOWN_DEVICES:] = [f"and {len(texts) - _SHOWN_DEVICES} more"]
    return f'pool "{pool}", slice #{index}: {"; ".join(texts)}'


def _described(devices: Sequence[Device], fault: PublishError) -> str:
    if not fault.field:
        return f"{fault.message} ({_WITHOUT_FIELD})"
    text = f"{fault.field}: {fault.message}"
    remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, text)), _OTHERWISE)
    return f"{_place(devices, fault.field)}{text} ({remedy})"


def _place(devices: Sequence[Device], field: str) -> str:
    match = _DEVICE.match(field)
    if match is None or int(match["index"]) >= len(devices):
        return ""
    part = f', {_KINDS[match["list"]]} "{match["key"]}"' if match["list"] else ""
    return f'device "{devices[int(match["index"])].name}"{part}: '


def disabled_features(sent: Slice, stored: Slice) -> list[str]:
    """Feature gates that are probably off, to judge by the fields missing in ``stored``; never empty."""
    found = {
        gate
        for gate, missing in (
            ("DRAPartitionableDevices", sent.per_device_node_selection and not stored.per_device_node_selection),
            ("DRAPartitionableDevices", len(sent.shared_counters) > len(stored.shared_counters)),
            ("DRAOptionalNodeOperations", len(sent.skip_node_operations) > len(stored.skip_node_operations)),
        )
        if missing
    }
    kept = {device.name: device for device in stored.devices}
    for device in sent.devices:
        found |= set(_of_device(device, kept.get(device.name, Device())))
    return sorted(found) or ["unknown"]


def _of_device(sent: Device, stored: Device) -> Iterable[str]:
    if _count(sent.taints) > _count(stored.taints):
        yield "DRADeviceTaints"
    selection = (sent.node_name, sent.node_selector, sent.all_nodes)
    stored_selection = (stored.node_name, stored.node_selector, stored.all_nodes)
    if _count(sent.consumes_counters) > _count(stored.consumes_counters) or selection != stored_selection:
        yield "DRAPartitionableDevices"
    if (
        _count(sent.binding_conditions) > _count(stored.binding_conditions)
        or _count(sent.binding_failure_conditions) > _count(stored.binding_failure_conditions)
        or sent.binds_to_node != stored.binds_to_node
    ):
        yield "DRADeviceBindingConditions"
    policies = [capacity.request_policy for capacity in (sent.capacity or {}).values() if capacity.request_policy]
    kept_policies = [
        capacity.request_policy for capacity in (stored.capacity or {}).values() if capacity.request_policy
    ]
    if sent.allow_multiple_allocations != stored.allow_multiple_allocations or len(policies) > len(kept_policies):
        yield "DRAConsumableCapacity"
    if _groups(sent) > _groups(stored) and stored.consumes_counters:
        yield "DRADeviceCompatibilityGroups"
    if _lists(sent) > _lists(stored):
        yield "DRAListTypeAttributes"
    if _count(sent.node_allocatable_resource_mappings) > _count(stored.node_allocatable_resource_mappings) or (
        _count(sent.node_allocatable_resources) > _count(stored.node_allocatable_resources)
    ):
        yield "DRANodeAllocatableResources"


def _count(items: Sized | None) -> int:
    return len(items) if items else 0


def _groups(device: Device) -> int:
    return sum(_count(consumption.compatibility_groups) for consumption in device.consumes_counters or ())


def _lists(device: Device) -> int:
    return sum(bool(a.ints or a.bools or a.strings or a.versions) for a in (device.attributes or {}).values())


_INT64 = range(-(2**63), 2**63)


def check_resources(resources: Resources, *, driver: str, node_name: str = "") -> None:
    """Raise PoolInvalid if a slice would be refused; the message names pool, device, field, rule and remedy."""
    owner = Owner.node(node_name) if node_name else None
    for name, pool in resources.items():
        publication = Publication(driver, name, owner, node_name)
        for write in plan_pool(publication, DesiredPool(name, pool).pool(), ()).create:
            candidate = ResourceSlice(metadata=ObjectMeta(name="candidate"), spec=write.spec)
            faults = [PublishError(fault.field, fault.body) for fault in validate_resource_slice(candidate)]
            if faults := [*faults, *_too_large(write.spec)]:
                raise PoolInvalid(described(name, write.index, write.spec.devices or (), faults))


def _too_large(spec: ResourceSliceSpec) -> Iterator[PublishError]:
    """Numbers that the API server cannot even read: it holds them in 64 bits."""
    numbers = {"spec.pool.generation": spec.pool.generation}
    for index, device in enumerate(spec.devices or ()):
        numbers |= _numbers(device, f"spec.devices[{index}]")
    for path, number in numbers.items():
        if number not in _INT64:
            yield PublishError(path, f"Invalid value: {number}: must fit into an int64, from -2**63 to 2**63-1")


def _numbers(device: Device, path: str) -> dict[str, int]:
    return {
        f"{path}.attributes[{key}].{kind}": number
        for key, attribute in (device.attributes or {}).items()
        for kind, numbers in (("int", (attribute.int_,)), ("ints", attribute.ints or ()))
        for number in numbers
        if number is not None
    }
