"""Objects that are neither short nor too large, and that are too many to be held whole.

A namespace may have ten thousand claims or pods of 60 KB, and a struct takes four to six times as many bytes as its
JSON. So objects that are not short share a number of bytes. One is held whole if its kind in its namespace then has at
most half of the rest: a single namespace gets a third of all, and however many have taken their share, some is left for
the next one. The others are *set aside*: little is kept of them (``scheduling.state.large``). When the turn of a pod
comes, it and its claims are read from the server and *lent*: they are held whole until enough others were. A template
that is set aside is read for each claim that is made from it.

The pods of a gang are decided about together, so all of them have to be lent at the same time. Nearly always they come
from one template. So of equal parts of lent objects one copy is held and counted (``Loans``): a thousand pods of 60 KB
that differ in their names take less than two megabytes.

Namespaces, which tenants make in some clusters, have an account together. One that is set aside keeps the label with
its name and the one for admin access: terms that select namespaces by other labels do not mean it.

Workloads that wait for quota leave room to Workloads that have it, since only these are decided on. One that is set
aside is read when its turn comes (``admission.api``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from dra_api.codec import encode
from dra_api.core import Namespace, Pod
from dra_api.kueue import Workload
from dra_api.meta import Object
from dra_api.resource import ResourceClaim
from dra_api.scheduling import PodDisruptionBudget
from dra_api.storage import PersistentVolumeClaim
from msgspec.structs import replace

from dra_operator.scheduling.state import (
    LENT_BYTES,
    SMALL_BYTES,
    claim_set_aside,
    has_lost_selector,
    is_set_aside,
    is_workload_set_aside,
    pod_set_aside,
    workload_set_aside,
)

from .store import ALL_PODS, ClaimTemplate, without_bulk, without_own_labels, without_selector

T = TypeVar("T", bound=Object)
S = TypeVar("S", bound=msgspec.Struct)


class _ShortForm(NamedTuple):
    """How objects of a kind are shortened for which there is no room, and whether one is short for that reason."""

    of: Callable[..., Any]
    has: Callable[[Any], bool]


_SHORT_FORMS: Final[Mapping[type[Object], _ShortForm]] = {
    Pod: _ShortForm(pod_set_aside, is_set_aside),
    ResourceClaim: _ShortForm(claim_set_aside, is_set_aside),
    ClaimTemplate: _ShortForm(ClaimTemplate.set_aside, lambda it: it.is_set_aside),
    Workload: _ShortForm(workload_set_aside, is_workload_set_aside),
    PersistentVolumeClaim: _ShortForm(without_selector, has_lost_selector),
    PodDisruptionBudget: _ShortForm(without_selector, lambda it: it.spec.selector == ALL_PODS),
    Namespace: _ShortForm(without_own_labels, lambda _: False),
}
"""The kinds that share the bytes."""
Place = tuple[type[Object], str]
"""A kind, and the key of an object or the name of a namespace."""


class BulkLimits(NamedTuple):
    """Bytes as JSON: up to which an object is short, of all that are held whole, and of those that are lent."""

    short: int = SMALL_BYTES
    whole: int = 24 << 20
    lent: int = LENT_BYTES


_LEAST_PART_BYTES: Final = 256
"""Shorter parts are not worth a look-up. The marks of objects of which little is kept are shorter: these are types,
which digests of JSON do not tell from what a tenant writes."""


@dataclass(slots=True)
class _Part:
    """A value that lent objects have in common; ``size``: bytes as JSON."""

    value: Any
    size: int
    users: int = 0


@dataclass(slots=True)
class _Loan:
    """``size``: bytes of the object without its parts; ``parts``: their digests."""

    size: int = 0
    parts: tuple[bytes, ...] = ()


@dataclass(slots=True)
class Loans:
    """Objects that are held whole for a while, the oldest first, with one copy of the parts in which they are equal."""

    limit: int
    total: int = 0
    """Bytes as JSON of all of them, with each part counted once."""
    _loans: OrderedDict[Place, _Loan] = field(default_factory=OrderedDict)
    _parts: dict[bytes, _Part] = field(default_factory=dict)

    def __contains__(self, place: Place) -> bool:
        return place in self._loans

    def __len__(self) -> int:
        return len(self._loans)

    def open(self, place: Place) -> list[Place]:
        """Have the object held whole from now on. Return the objects whose time is over."""
        # Its size is not known before it comes; the last one that is lent always fits.
        self._loans[place] = self._loans.pop(place, _Loan())
        over = []
        while self.total > self.limit and len(self._loans) > 1:
            oldest = next(iter(self._loans))
            self.close(oldest)
            over.append(oldest)
        return over

    def hold(self, obj: T) -> T:
        """Note the version of a lent object. Return it with the parts that others have already."""
        place, size = (type(obj), obj.key), len(encode(obj))
        found: dict[bytes, _Part] = {}

        def shared(value: Any) -> Any:
            text = encode(value)
            if len(text) < _LEAST_PART_BYTES:
                return value
            digest = blake2b(text, digest_size=16).digest()
            if digest not in found:
                found[digest] = self._parts.get(digest) or _Part(value, len(text))
                # Within one object as well: all requests of a claim may have the same tolerations.
            nonlocal size
            size -= len(text)
            return found[digest].value

        obj = _with_parts(obj, shared)
        # First the new parts: parts of the former version that stay must not be forgotten in between.
        for digest, part in found.items():
            if not part.users:
                self._parts[digest] = part
                self.total += part.size
            part.users += 1
        self._forget(self._loans[place])
        self._loans[place] = _Loan(size, tuple(found))
        self.total += size
        return obj

    def close(self, place: Place) -> None:
        """Note that the object is not held whole any more, or not as a loan; none that is lent is ignored."""
        loan = self._loans.pop(place, None)
        if loan is not None:
            self._forget(loan)

    def _forget(self, loan: _Loan) -> None:
        self.total -= loan.size
        for digest in loan.parts:
            part = self._parts[digest]
            part.users -= 1
            if not part.users:
                self.total -= part.size
                del self._parts[digest]


def _with_parts(obj: T, shared: Callable[[Any], Any]) -> T:
    """Return the object with what ``shared`` makes of each of its parts: fields of its spec, and labels of a pod."""
    match obj:
        case Pod():
            return replace(obj, metadata=_each_field(obj.metadata, shared), spec=_each_field(obj.spec, shared))
        case ResourceClaim():
            return replace(obj, spec=replace(obj.spec, devices=_each_field(obj.spec.devices, shared)))
    return obj


def _each_field(struct: S, shared: Callable[[Any], Any]) -> S:
    values = {name: getattr(struct, name) for name in struct.__struct_fields__}
    return replace(struct, **{name: shared(value) for name, value in values.items() if value})


class Bulk:
    """Call ``kept`` for each object that comes in, and ``gone`` for each that goes.

    ``is_placed`` says of a pod whether it has a node, or is on its way to one.
    """

    def __init__(self, limits: BulkLimits, is_placed: Callable[[Pod], bool]) -> None:
        self._limits, self._is_placed = limits, is_placed
        self._whole: dict[Place, int] = {}
        """Bytes of each object that is held whole, without lent ones."""
        self._sums: dict[Place, int] = {}
        """Bytes by kind and namespace."""
        self._total = 0
        self._loans = Loans(limits.lent)
        self.pods_aside: set[str] = set()
        """Keys of the pods that are set aside."""
        self.has_aside = False
        """Whether anything has been set aside so far."""

    def kept(self, obj: T) -> T:
        """Return the object, or its short form."""
        kind = type(obj)
        if kind not in _SHORT_FORMS:
            return without_bulk(obj)
        if kind is Workload:  # of most there is no need of the templates, however short they are
            obj = without_bulk(obj)
        # Encoded once, as nearly all objects end here.
        if len(encode(obj)) <= self._limits.short:
            if self._whole or self._loans or self.pods_aside:
                self.gone(kind, obj.key)
            return obj
        obj = without_bulk(obj)
        if is_aside(obj):
            return obj
        # What Kueue says of a Workload changes often, and must not take its room away.
        size, place = len(encode(obj.spec if isinstance(obj, Workload) else obj)), (kind, obj.key)
        share = 4 if isinstance(obj, Workload) and not obj.has_quota else 2
        if size <= self._limits.short or self._takes(place, obj.metadata.namespace, size, share):
            if size <= self._limits.short:
                self.gone(kind, obj.key)
            self._note_pod(obj, is_aside=False)
            return obj
        if place in self._loans:
            return self._loans.hold(obj)
        return self.set_aside(obj)

    def set_aside(self, obj: T) -> T:
        """Return the short form of an object for which there is no room."""
        self._drop((type(obj), obj.key))
        self.has_aside = True
        self._note_pod(obj, is_aside=True)
        return self._short(obj)

    def holds(self, obj: Object) -> bool:
        """Return whether the object counts against the shared bytes."""
        return (type(obj), obj.key) in self._whole

    def _short(self, obj: T) -> T:
        options = {"is_placed": self._is_placed(obj)} if isinstance(obj, Pod) else {}
        short: T = _SHORT_FORMS[type(obj)].of(obj, **options)
        return short

    def lasting(self, obj: T) -> T:
        """Return the form in which the object is held in the long run."""
        return self._short(obj) if (type(obj), obj.key) in self._loans else obj

    def lend(self, kind: type[Object], key: str) -> list[Place]:
        """Have the next version of the object kept whole. Return the objects that are to be set aside for it."""
        return self._loans.open((kind, key))

    def gone(self, kind: type[Object], key: str) -> None:
        """Note that the object is no more, or is short now."""
        if not (self._whole or self._loans or self.pods_aside):
            return
        self._drop((kind, key))
        self._loans.close((kind, key))
        if kind is Pod:
            self.pods_aside.discard(key)

    def _takes(self, place: Place, namespace: str, size: int, share: int) -> bool:
        """Hold the object whole if its account then has at most ``1/share`` of the rest. Return whether it has."""
        account, before = (place[0], namespace), self._whole.get(place, 0)
        left = self._limits.whole - self._total
        # One that is held already stays so, though others have come since, unless it grows.
        if size > before and self._sums.get(account, 0) + size - before > left // share:
            return False
        self._drop(place)
        self._loans.close(place)
        self._whole[place] = size
        self._sums[account] = self._sums.get(account, 0) + size
        self._total += size
        return True

    def _drop(self, place: Place) -> None:
        size = self._whole.pop(place, None)
        if size is None:
            return
        kind, key = place
        account = (kind, key.rpartition("/")[0])
        self._total -= size
        left = self._sums[account] - size
        if left:
            self._sums[account] = left
        else:
            del self._sums[account]

    def _note_pod(self, obj: Object, *, is_aside: bool) -> None:
        if isinstance(obj, Pod):
            (self.pods_aside.add if is_aside else self.pods_aside.discard)(obj.key)


def is_aside(obj: Object) -> bool:
    """Return whether the object is a short form, since there was no room for it."""
    form = _SHORT_FORMS.get(type(obj))
    return form is not None and form.has(obj)
