"""The strategies by their names."""

from __future__ import annotations

from typing import Final

from .best_fit import BestFit
from .emptiest import Emptiest
from .fgd import FragmentationGradientDescent
from .frag import Frag
from .packing import Packing
from .strategy import Strategy

FIRST_FIT: Final = "first-fit"
"""No strategy: the first node that fits, in the order of the room on the nodes."""
_ALL: Final[tuple[Strategy, ...]] = (Emptiest(), BestFit(), Packing(), FragmentationGradientDescent(), Frag())
BY_NAME: Final = {it.name: it for it in _ALL}
PLACEMENT_STRATEGIES: Final = (FIRST_FIT, *BY_NAME)
ANNOTATION: Final = "dra.kopf.dev/placement-strategy"
"""Of a DeviceClass: the strategy for pods whose first request names the class."""
