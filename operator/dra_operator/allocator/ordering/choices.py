"""The orders by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dra_operator.allocator.search.order import DeviceOrder

from .aligned import Aligned
from .best_fit import BestFit
from .least_loss import LeastLoss, fragmented
from .supply import Kinds

REFERENCE: Final = "reference"
DEVICE_ORDERS: Final = (REFERENCE, "best-fit", "least-loss", "aligned")
LEAST_FRAGMENTATION: Final = "least-fragmentation"
"""The order that goes with the strategy ``fgd``."""
LOOK_AT_MIX: Final = frozenset({"least-loss"})
"""Those that depend on what pods usually ask for."""


def device_order(name: str, kinds: Callable[[], Kinds]) -> DeviceOrder | None:
    """The order of a name; None for that of the reference."""
    match name:
        case "best-fit":
            return BestFit()
        case "least-loss":
            return LeastLoss(kinds)
        case "least-fragmentation":
            return LeastLoss(kinds, fragmented)
        case "aligned":
            return Aligned()
        case _:
            return None
