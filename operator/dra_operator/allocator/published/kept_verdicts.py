"""Which verdicts of selectors are remembered, and which are dropped first.

What the selectors of classes say has room of its own. What else is kept belongs to the tenant
(the namespace) whose claim asked for it first. When there is too much of it, the tenant with the most gives up what it
has not used for longest: no tenant's selectors push out what another one's have found.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Final, Protocol

Expressions = tuple[str, ...]
KEPT_VERDICT_PAIRS: Final = 100_000
"""Pairs of a slice and the selectors of a request; some 300 bytes each."""
CLASSES: Final = ""
"""In the place of a tenant, for the selectors of classes alone."""
CLASS_PAIRS_FACTOR: Final = 5
"""How many times as many pairs they may have as all tenants together."""


class Holder(Protocol):
    """What a slice holds: it takes the verdicts along when it goes."""

    def drop(self, expressions: Expressions) -> None:
        """Forget them."""


class _Places:
    """Where the verdicts of some selectors are held."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.holders: list[Callable[[], Holder | None]] = []
        self._checked = 16

    def add(self, holder: Holder) -> int:
        """Note one more. Returns by how many there are more: slices that went are taken out now and then."""
        before = len(self.holders)
        if before >= 2 * self._checked:
            self.holders = [place for place in self.holders if place() is not None]
            self._checked = max(16, len(self.holders))
        self.holders.append(weakref.ref(holder))
        return len(self.holders) - before


class KeptVerdicts:
    """``limit``: how many pairs of a slice and selectors are kept."""

    def __init__(self, limit: int = KEPT_VERDICT_PAIRS) -> None:
        self._limit = limit
        self._places: dict[Expressions, _Places] = {}
        self._by_tenant: dict[str, dict[Expressions, None]] = {}
        self._held: dict[str, int] = {}
        self.total = 0

    def used_by(self, tenant: str, expressions: Expressions) -> None:
        """A claim of the tenant asks for these selectors."""
        places = self._places.get(expressions)
        if places is None:
            places = self._places[expressions] = _Places(tenant)
        mine = self._by_tenant.setdefault(places.tenant, {})
        mine.pop(expressions, None)
        mine[expressions] = None

    def tenant_of(self, expressions: Expressions) -> str:
        """Whose selectors they are."""
        places = self._places.get(expressions)
        return places.tenant if places is not None else CLASSES

    def added(self, expressions: Expressions, holder: Holder) -> None:
        """A slice holds their verdicts from now on."""
        if expressions not in self._places:
            self.used_by(CLASSES, expressions)
        places = self._places[expressions]
        more = places.add(holder)
        self._held[places.tenant] = self._held.get(places.tenant, 0) + more
        self.total += more
        while self._held.get(CLASSES, 0) > self._limit * CLASS_PAIRS_FACTOR:
            self._drop_of(CLASSES, but=expressions)
        while self.total - self._held.get(CLASSES, 0) > self._limit:
            tenants = self._held.keys() - {CLASSES}
            self._drop_of(max(sorted(tenants), key=self._held.__getitem__), but=expressions)

    def _drop_of(self, tenant: str, but: Expressions) -> None:
        """The selectors that the tenant has not used for longest; of the last ones, the older half of the slices."""
        mine = self._by_tenant[tenant]
        oldest = next(iter(mine))
        places = self._places[oldest]
        gone = places.holders if oldest != but else places.holders[: (len(places.holders) + 1) // 2]
        for place in gone:
            if (holder := place()) is not None:
                holder.drop(oldest)
        self._held[tenant] -= len(gone)
        self.total -= len(gone)
        if oldest != but:
            del mine[oldest], self._places[oldest]
        else:
            places.holders = places.holders[len(gone) :]
        if not mine:
            del self._by_tenant[tenant], self._held[tenant]
