"""The policies by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .best_fit import BestFit
from .dot_product import DotProduct
from .emptiest import Emptiest
from .fgd import Fgd
from .first_fit import FirstFit
from .frag import Frag
from .gpu_clustering import GpuClustering
from .gpu_packing import GpuPacking
from .policy import Policy
from .random import Random

POLICIES: Final[Mapping[str, type[Policy]]] = {
    policy.name: policy
    for policy in (Random, DotProduct, GpuClustering, GpuPacking, BestFit, Fgd, FirstFit, Emptiest, Frag)
}
