"""Taints of devices: effects on requests, taints that rules add, and taints that give a device to a scheduler.

A DeviceTaintRule selects the devices whose driver, pool and name equal those of its selector that are set; its taint is
appended behind the device's own (allocator.md section 13, scheduling.md 9). A slice without selected devices stays the
same object. A rule *without* a selector selects nothing, as the API documents and taint eviction does (PRJ-010). The
reference's slice tracker applies it to all devices (``Semantics.rule_without_selector_selects_nothing``).

Two schedulers that allocate the same device at the same moment cannot see each other's write, and no rule between them
mends that afterwards. So devices may be marked: the taint ``dra.kopf.dev/scheduler=NAME:NoSchedule``, from a
DeviceTaintRule or from the driver, keeps every scheduler from them that honours device taints, and the scheduler NAME
tolerates it by itself. Devices that it has alone are its *territory*. Only the effect NoSchedule makes a territory:
NoExecute would evict the pods that use the devices. A node with a taint of this key gives the scheduler all devices
that its driver publishes for that node alone, because pods of other schedulers do not get there.

The taint of our own territory is taken off the devices before anything else sees them: it keeps nothing of ours away. A
device with the taint of another scheduler stays tainted. A device with neither is *open* to all of them, unless
settings say that we leave it alone (``LeftAlone``): then it gets a taint that exists only here and nothing tolerates.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from dra_api.core import Taint, Toleration
from dra_api.resource import SCHEDULER_KEY, Device, DeviceTaint, DeviceTaintRule, DeviceToleration, ResourceSlice
from dra_api.selectors import Selector
from msgspec import structs

from .basics import DeviceId, PoolId
from .features import Semantics

LEFT: Final = DeviceTaint(key=SCHEDULER_KEY, value="another one", effect="NoSchedule")
"""On devices that settings leave to other schedulers. No API server admits such a value, and nothing tolerates it."""
_BLOCKING = ("NoSchedule", "NoExecute")


def tolerates(toleration: DeviceToleration | Toleration, taint: DeviceTaint | Taint) -> bool:
    """Empty effect and key match all; the operator is Exists, or Equal (also when empty) with equal values.

    Taints of nodes follow the same rule, except for an empty key (``scheduling.state.node``).
    """
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def blocking(
    taints: Sequence[DeviceTaint] | None, tolerations: Sequence[DeviceToleration] | None
) -> DeviceTaint | None:
    """The first taint that matters for scheduling and is not tolerated."""
    for taint in taints or ():
        if taint.effect not in _BLOCKING:
            continue
        if taint == LEFT or not any(tolerates(toleration, taint) for toleration in tolerations or ()):
            return taint
    return None


class LeftAlone(NamedTuple):
    """Which devices we leave alone: of these drivers, of nodes whose labels match, and all that are not marked as ours.

    Of nodes those devices count that a driver publishes for the node alone.
    """

    drivers: frozenset[str] = frozenset()
    nodes: Callable[[Mapping[str, str]], bool] | None = None
    unmarked: bool = False

    @classmethod
    def of(cls, drivers: str, nodes: str, *, unmarked: bool) -> LeftAlone:
        """Return what the settings say: drivers separated by commas, and a label selector. Raises ValueError."""
        names = frozenset(filter(None, map(str.strip, drivers.split(","))))
        try:
            matches = Selector.parse(nodes).matches if nodes.strip() else None
        except ValueError as error:
            raise ValueError(f"--leave-nodes: {error}") from error
        return cls(names, matches, unmarked)


def rule_selects(rule: DeviceTaintRule, device: DeviceId) -> bool:
    """Return whether the rule selects the device, which need not be published (any more)."""
    selector = rule.spec.device_selector
    if selector is None:
        return False
    wanted = (selector.driver, selector.pool, selector.device)
    return all(want is None or want == has for want, has in zip(wanted, device, strict=True))


def territory_taint(scheduler: str) -> DeviceTaint:
    """Return the taint that gives a device to a scheduler."""
    return DeviceTaint(key=SCHEDULER_KEY, value=scheduler, effect="NoSchedule")


def scheduler_of(taint: DeviceTaint | Taint) -> str | None:
    """Return the scheduler to which the taint gives its device or node; None for any other taint."""
    return taint.value if taint.key == SCHEDULER_KEY and taint.effect == "NoSchedule" else None


def schedulers_of(taints: Iterable[DeviceTaint | Taint]) -> tuple[str, ...]:
    """Return the schedulers to which the taints of a device or node give it: none or one. Two exclude each other."""
    found = map(scheduler_of, taints)
    return tuple(dict.fromkeys(one for one in found if one is not None))


def enters(tolerations: Iterable[DeviceToleration], scheduler: str) -> bool:
    """Return whether these tolerations open the territory of a scheduler to any other one."""
    taint = territory_taint(scheduler)
    return any(tolerates(toleration, taint) for toleration in tolerations)


class _Share:
    """What one slice has of a territory. ``own`` follows from the rest, and from the owner of its node.

    ``taken`` are the devices that taints give to schedulers; ``left`` are the devices that we leave to others.
    """

    __slots__ = ("every", "left", "node", "own", "pool", "taken")

    def __init__(self, pool: PoolId, node: str, every: frozenset[str], taken: Mapping[str, tuple[str, ...]]) -> None:
        self.pool, self.node, self.every, self.taken = pool, node, every, taken
        self.own: frozenset[str] = frozenset()
        self.left: frozenset[str] = frozenset()


class Territory:
    """The devices of all slices, as they belong to ``scheduler``, to others, or to none.

    Until ``scheduler`` is set, no device is its own. ``honours_taints``: whether those of devices have any effect.
    """

    def __init__(self, *, honours_taints: bool = True) -> None:
        self.scheduler = ""
        self.leaves = LeftAlone()
        self._honours_taints = honours_taints
        self.gains: Counter[str] = Counter()
        """By driver: how often known devices became our own. What others decided before may be on its way."""
        self._nodes: dict[str, tuple[str, ...]] = {}
        """By name: the schedulers to which taints give a node."""
        self._left_nodes: set[str] = set()
        self._shares: dict[str, _Share] = {}
        self._by_node: defaultdict[str, set[str]] = defaultdict(set)
        """The slices of a node alone."""
        self._pools: defaultdict[PoolId, dict[str, _Share]] = defaultdict(dict)
        self.owned = 0
        """Devices of our own."""
        self._open: Counter[str] = Counter()
        self._published: Counter[str] = Counter()

    def put(self, slice_: ResourceSlice, original: Sequence[Device], tainted: Sequence[Device]) -> tuple[Device, ...]:
        """Note the devices of a slice, with the taints of rules; return them as our scheduler has to see them.

        ``original`` are the same without the taints of rules: a device that has only these left stays that object.
        """
        name, spec = slice_.metadata.name, slice_.spec
        before = self._shares.get(name)
        self.remove(name)
        taken = {}
        for device in tainted if self._honours_taints else ():
            if device.taints and (schedulers := schedulers_of(device.taints)):
                taken[device.name] = schedulers
        pool, every = PoolId.of(slice_), frozenset(device.name for device in original)
        share = self._shares[name] = self._pools[pool][name] = _Share(pool, spec.node_name or "", every, taken)
        if share.node:
            self._by_node[share.node].add(name)
        self._settle(share)
        if before is not None and (share.own - before.own) & before.every:
            self.gains[pool.driver] += 1
        return tuple(self._as_seen(share, *pair) for pair in zip(original, tainted, strict=True))

    def put_node(self, name: str, taints: Sequence[Taint], labels: Mapping[str, str]) -> list[str]:
        """Note whose a node is; return the slices that look different now. A node that is gone is open to all."""
        schedulers, is_left = schedulers_of(taints), self.leaves.nodes is not None and self.leaves.nodes(labels)
        if schedulers == self._nodes.get(name, ()) and is_left == (name in self._left_nodes):
            return []
        slices = sorted(self._by_node.get(name, ()))
        shares = [self._shares[slice_] for slice_ in slices]
        for share in shares:
            self._count(share, -1)
        self._nodes.pop(name, None)
        if schedulers:
            self._nodes[name] = schedulers
        self._left_nodes = self._left_nodes | {name} if is_left else self._left_nodes - {name}
        changed = []
        for slice_, share in zip(slices, shares, strict=True):
            own, left = share.own, share.left
            self._settle(share)
            self.gains[share.pool.driver] += bool(share.own - own)
            if share.left != left:
                changed.append(slice_)
        return changed

    def remove(self, name: str) -> None:
        """Forget a slice; an unknown one is ignored."""
        share = self._shares.pop(name, None)
        if share is not None:
            self._count(share, -1)
            self._by_node[share.node].discard(name)
            if not self._by_node[share.node]:
                del self._by_node[share.node]
            del self._pools[share.pool][name]
            if not self._pools[share.pool]:
                del self._pools[share.pool]

    def is_own(self, device: DeviceId) -> bool:
        """Return whether the device belongs to our scheduler alone, in every slice that names it."""
        shares = self._pools.get(device.pool_id, {}).values() if self.owned else ()
        naming = [share for share in shares if device.device in share.every]
        return bool(naming) and all(device.device in share.own for share in naming)

    def has_open(self, driver: str) -> bool:
        """Return whether some device of the driver belongs to no scheduler, or none is published of which to tell."""
        return self._open[driver] > 0 or not self._published[driver]

    @property
    def drivers(self) -> Iterable[str]:
        """Those with published devices."""
        return self._published

    def _as_seen(self, share: _Share, plain: Device, device: Device) -> Device:
        taints = device.taints or ()
        if self.scheduler in share.taken.get(device.name, ()):
            taints = tuple(taint for taint in taints if scheduler_of(taint) != self.scheduler)
        if device.name in share.left:
            taints = (*taints, LEFT)
        if taints == (device.taints or ()):
            return device
        return plain if taints == (plain.taints or ()) else structs.replace(device, taints=taints or None)

    def _settle(self, share: _Share) -> None:
        """Find out which devices of the share are our own, and which we leave to others; count it."""
        if self.scheduler:
            of_node = self._nodes.get(share.node, ())
            share.own = frozenset(
                name for name in share.every if {*of_node, *share.taken.get(name, ())} == {self.scheduler}
            )
        if share.pool.driver in self.leaves.drivers or share.node in self._left_nodes:
            share.own, share.left = frozenset(), share.every
        else:
            share.left = share.every - share.own if self.leaves.unmarked else frozenset()
        self._count(share, 1)

    def _count(self, share: _Share, change: int) -> None:
        driver = share.pool.driver
        open_ = 0 if share.node in self._nodes else len(share.every.difference(share.taken, share.left))
        for counter, number in ((self._open, open_), (self._published, len(share.every))):
            counter[driver] += change * number
            if not counter[driver]:
                del counter[driver]
        self.owned += change * len(share.own)


class SliceChange(NamedTuple):
    """One merged slice appeared (no ``old``), disappeared (no ``new``), or became another."""

    old: ResourceSlice | None
    new: ResourceSlice | None


class TaintedSlices:
    """Takes slices and rules, gives changes of merged slices. Each method returns what its call changed.

    ``territory`` is told of all devices.
    """

    def __init__(self, semantics: Semantics, territory: Territory | None = None) -> None:
        self._territory = territory or Territory()
        self._select_all = not semantics.rule_without_selector_selects_nothing
        self._rules: dict[str, DeviceTaintRule] = {}
        self._original: dict[str, ResourceSlice] = {}
        self._merged: dict[str, ResourceSlice] = {}
        """Only slices that differ from their original."""

    def put_slice(self, slice_: ResourceSlice) -> list[SliceChange]:
        """A slice was added or changed; always passed on."""
        name = slice_.metadata.name
        old = self.get(name)
        self._original[name] = slice_
        return [SliceChange(old, self._merge(name))]

    def remove_slice(self, name: str) -> list[SliceChange]:
        """A slice is gone; an unknown one changes nothing."""
        old = self.get(name)
        self._original.pop(name, None)
        self._merged.pop(name, None)
        self._territory.remove(name)
        return [SliceChange(old, None)] if old is not None else []

    def put_rule(self, rule: DeviceTaintRule) -> list[SliceChange]:
        """A rule was added or changed."""
        before = self._rules.get(rule.metadata.name)
        self._rules[rule.metadata.name] = rule
        return self._again(before, rule)

    def remove_rule(self, name: str) -> list[SliceChange]:
        """A rule is gone."""
        return self._again(self._rules.pop(name, None))

    def put_node(self, name: str, taints: Sequence[Taint], labels: Mapping[str, str]) -> list[SliceChange]:
        """A node was added or changed; without taints and labels: it is gone."""
        changes = []
        for slice_ in self._territory.put_node(name, taints, labels):
            old = self.get(slice_)
            changes.append(SliceChange(old, self._merge(slice_)))
        return changes

    @property
    def rules(self) -> Iterable[DeviceTaintRule]:
        """All rules."""
        return self._rules.values()

    def get(self, name: str) -> ResourceSlice | None:
        """The merged slice of a name."""
        return self._merged.get(name) or self._original.get(name)

    def _again(self, *rules: DeviceTaintRule | None) -> list[SliceChange]:
        """Merges again the slices that one of the rules may select."""
        changes = []
        for name, slice_ in self._original.items():
            if any(rule is not None and self._concerns(rule, slice_) for rule in rules):
                old = self._merged.get(name) or slice_
                new = self._merge(name)
                if new is not old and any(map(_differ, old.spec.devices or (), new.spec.devices or ())):
                    changes.append(SliceChange(old, new))
        return changes

    def _concerns(self, rule: DeviceTaintRule, slice_: ResourceSlice) -> bool:
        selector = rule.spec.device_selector
        if selector is None:
            return self._select_all
        return selector.driver in (None, slice_.spec.driver) and selector.pool in (None, slice_.spec.pool.name)

    def _merge(self, name: str) -> ResourceSlice:
        slice_ = self._original[name]
        rules = [rule for _, rule in sorted(self._rules.items()) if self._concerns(rule, slice_)]
        old = slice_.spec.devices or ()
        new = _with_taints(old, rules) if rules else old
        new = self._territory.put(slice_, old, new)
        if all(before is after for before, after in zip(old, new, strict=True)):
            self._merged.pop(name, None)
            return slice_
        merged = structs.replace(slice_, spec=structs.replace(slice_.spec, devices=new))
        self._merged[name] = merged
        return merged


def _differ(device: Device, other: Device) -> bool:
    return device.taints != other.taints


def _with_taints(devices: tuple[Device, ...], rules: list[DeviceTaintRule]) -> tuple[Device, ...]:
    """A rule that names no device taints all of a slice, which may be all of the cluster.

    Devices with the same taints have the same tuple: of thousands of rules, a copy for each device would fill memory.
    """
    named = {
        selector.device
        for rule in rules
        if (selector := rule.spec.device_selector) is not None and selector.device is not None
    }
    every = tuple([rule.spec.taint for rule in rules if _taints(rule, None)])
    return tuple([_tainted(device, rules, every, is_named=device.name in named) for device in devices])


def _tainted(device: Device, rules: list[DeviceTaintRule], every: tuple[DeviceTaint, ...], *, is_named: bool) -> Device:
    added = tuple([rule.spec.taint for rule in rules if _taints(rule, device.name)]) if is_named else every
    if not added:
        return device
    return structs.replace(device, taints=(*device.taints, *added) if device.taints else added)


def _taints(rule: DeviceTaintRule, device: str | None) -> bool:
    """Return whether the rule is for all devices, or for the one with this name."""
    selector = rule.spec.device_selector
    return selector is None or selector.device in (None, device)
