"""How many of the objects that are neither short nor too large the cache holds whole.

A namespace may have ten thousand claims or pods of 60 KB, and a struct takes four to six times as many bytes as its
JSON. So objects that are not short share a number of bytes. One is held whole if its kind in its namespace then has at
most half of the rest: a single namespace gets a third of all, and however many have taken their share, some is left
for the next one. The others are *set aside*: little is kept of them (``scheduling.state.large``). When the turn of a
pod comes, it and its claims are read from the server and *lent*: they are held whole until enough others were. A
template that is set aside is read for each claim that is made from it.

Workloads that wait for quota leave room to Workloads that have it, since only these are decided on. One that is set
aside is read when its turn comes (``admission.reading``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from dra_api.codec import encode
from dra_api.core import Pod
from dra_api.kueue import Workload
from dra_api.meta import Object
from dra_api.resource import ResourceClaim
from dra_api.scheduling import PodDisruptionBudget
from dra_api.storage import PersistentVolumeClaim

from dra_operator.cache.store import ALL_PODS, ClaimTemplate, without_bulk, without_selector
from dra_operator.scheduling.state import (
    SMALL_BYTES,
    claim_set_aside,
    has_lost_selector,
    is_set_aside,
    is_workload_set_aside,
    pod_set_aside,
    workload_set_aside,
)

T = TypeVar("T", bound=Object)
_SHARING: Final = frozenset({Pod, ResourceClaim, ClaimTemplate, Workload, PersistentVolumeClaim, PodDisruptionBudget})
Place = tuple[type[Object], str]
"""A kind, and the key of an object or the name of a namespace."""


class BulkLimits(NamedTuple):
    """Bytes as JSON: up to which an object is short, of all that are held whole, and of those that are lent."""

    short: int = SMALL_BYTES
    whole: int = 24 << 20
    lent: int = 4 << 20


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
        self._lent: OrderedDict[Place, int] = OrderedDict()
        self.pods_aside: set[str] = set()
        """Keys of the pods that are set aside."""
        self.has_aside = False
        """Whether anything has been set aside so far."""

    def kept(self, obj: T) -> T:
        """Return the object, or its short form."""
        kind = type(obj)
        if kind not in _SHARING:
            return without_bulk(obj)
        if kind is Workload:  # of most there is no need of the templates, however short they are
            obj = without_bulk(obj)
        # Encoded once, as nearly all objects end here.
        if len(encode(obj)) <= self._limits.short:
            if self._whole or self._lent or self.pods_aside:
                self.gone(kind, obj.key)
            return obj
        obj = without_bulk(obj)
        if self._is_aside(obj):
            return obj
        # What Kueue says of a Workload changes often, and must not take its room away.
        size, place = len(encode(obj.spec if isinstance(obj, Workload) else obj)), (kind, obj.key)
        share = 4 if isinstance(obj, Workload) and not obj.has_quota else 2
        if size <= self._limits.short or self._takes(place, obj.metadata.namespace, size, share):
            if size <= self._limits.short:
                self.gone(kind, obj.key)
            self._note_pod(obj, is_aside=False)
            return obj
        if place in self._lent:
            self._lent[place] = size
            return obj
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
        match obj:
            case Workload():
                return workload_set_aside(obj)  # type: ignore[return-value]
            case PersistentVolumeClaim() | PodDisruptionBudget():
                return without_selector(obj)  # type: ignore[return-value]
            case Pod():
                return pod_set_aside(obj, is_placed=self._is_placed(obj))  # type: ignore[return-value]
            case ResourceClaim():
                return claim_set_aside(obj)  # type: ignore[return-value]
            case ClaimTemplate():
                return obj.set_aside()  # type: ignore[return-value]
        return obj

    def lasting(self, obj: T) -> T:
        """Return the form in which the object is held in the long run."""
        return self._short(obj) if (type(obj), obj.key) in self._lent else obj

    def lend(self, kind: type[Object], key: str) -> list[Place]:
        """Have the next version of the object kept whole. Return the objects that are to be set aside for it."""
        # Its size is not known before it comes; the last one that is lent always fits.
        self._lent[kind, key] = self._lent.pop((kind, key), 0)
        given_back = []
        while sum(self._lent.values()) > self._limits.lent and len(self._lent) > 1:
            given_back.append(self._lent.popitem(last=False)[0])
        return given_back

    def gone(self, kind: type[Object], key: str) -> None:
        """Note that the object is no more, or is short now."""
        if not (self._whole or self._lent or self.pods_aside):
            return
        self._drop((kind, key))
        self._lent.pop((kind, key), None)
        if kind is Pod:
            self.pods_aside.discard(key)

    def _is_aside(self, obj: Object) -> bool:
        match obj:
            case Pod() | ResourceClaim():
                return is_set_aside(obj)
            case ClaimTemplate():
                return obj.is_set_aside
            case Workload():
                return is_workload_set_aside(obj)
            case PersistentVolumeClaim():
                return has_lost_selector(obj)
            case PodDisruptionBudget():
                return obj.spec.selector == ALL_PODS
        return False

    def _takes(self, place: Place, namespace: str, size: int, share: int) -> bool:
        """Hold the object whole if its account then has at most ``1/share`` of the rest. Return whether it has."""
        account, before = (place[0], namespace), self._whole.get(place, 0)
        left = self._limits.whole - self._total
        # One that is held already stays so, though others have come since, unless it grows.
        if size > before and self._sums.get(account, 0) + size - before > left // share:
            return False
        self._drop(place)
        self._lent.pop(place, None)
        self._whole[place] = size
        self._sums[account] = self._sums.get(account, 0) + size
        self._total += size
        return True

    def _drop(self, place: Place) -> None:
        size = self._whole.pop(place, None)
        if size is None:
            return
        kind, key = place
        account = (kind, key.partition("/")[0])
        self._total -= size
        left = self._sums[account] - size
        if left:
            self._sums[account] = left
        else:
            del self._sums[account]

    def _note_pod(self, obj: Object, *, is_aside: bool) -> None:
        if isinstance(obj, Pod):
            (self.pods_aside.add if is_aside else self.pods_aside.discard)(obj.key)
