"""Numbers and lists in sentences, outside of the allocator so that commands without it need not load it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dra_api.values import NANO, Quantity

KIBI = 1024 * NANO


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 device``, ``2 devices``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def listed(words: Iterable[str], most: int = 3, separator: str = ", ") -> str:
    """The first words, and the number of the others."""
    every = list(words)
    hidden = len(every) - most
    return separator.join(every[:most]) + (f" and {hidden} more" if hidden > 0 else "")


LINES_OF_A_KIND: Final = 20
"""Lines about one kind of object. A tenant makes as many objects as it likes."""


def capped(lines: Iterable[str], what: str) -> Iterator[str]:
    """The first lines, and the number of the others: ``and 4980 more budgets``."""
    hidden = 0
    for number, line in enumerate(lines):
        if number < LINES_OF_A_KIND:
            yield line
        hidden = number + 1 - LINES_OF_A_KIND
    if hidden > 0:
        yield f"and {hidden} more {what}"


def amount(nanos: int) -> str:
    """Billionths as a quantity, with ``Ki``, ``Mi``, ... if that is exact, and not much longer: ``9E`` stays."""
    return str(quantity(nanos, binary=nanos % KIBI == 0))


def quantity(nanos: int, *, binary: bool) -> Quantity:
    """Return the quantity of so many billionths, in powers of 1024 if ``binary`` and these are not much longer."""
    decimal = Quantity.from_nanos(nanos)
    found = Quantity.from_nanos(nanos, binary=binary)
    return found if len(str(found)) < len(str(decimal)) + 3 else decimal
