"""Rules of each release about the slices of a pool, and about the devices that it allocates from them.

Partitions draw from counters. Until 1.34 the counters of a device stand in its own slice: the API server refuses a
device that draws from another slice's. From 1.35 on (Kubernetes 134189) counters have slices of their own: a slice with
both is refused, and one that an older server has stored offers no devices until its driver writes it again. So a driver
has to know which form its API server takes.

Two rules about allocation have changed as well. From a pool that lacks slices nothing is allocated since 1.35, and
the devices of its other slices before. A request for all devices succeeds without any device in 1.32, and fails since.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .release import Release


class PoolRules(NamedTuple):
    """The rules of one release. Limits count for one slice unless they say otherwise. None is no limit."""

    counters_beside_devices: bool
    """Counters stand in the slices of the devices that draw from them, and in no others."""
    gives_of_incomplete_pools: bool
    """Devices of a pool whose newest slices are not all there are allocated."""
    gives_all_of_nothing: bool
    """A request for all devices succeeds where there are none."""
    devices: int = 128
    advanced_devices: int = 64
    """Devices if one of them has taints, counters or, from 1.36 on, attributes with lists."""
    taints: int = 16
    """Taints of a device."""
    counter_sets: int | None = 8
    counters: int | None = None
    """Counters of all sets together."""
    sets_of_device: int | None = 2
    """Counter sets from which a device draws."""
    counters_of_device: int | None = None
    """Counters from which a device draws, of all sets together."""
    drawn_counters: int | None = None
    """Counters from which all devices draw together."""


_UNTIL_1_34: Final = PoolRules(
    counters_beside_devices=True,
    gives_of_incomplete_pools=True,
    gives_all_of_nothing=False,
    advanced_devices=128,
    taints=4,
    counter_sets=None,
    counters=32,
    sets_of_device=None,
    counters_of_device=32,
    drawn_counters=1024,
)
_FROM_1_35: Final = PoolRules(
    counters_beside_devices=False, gives_of_incomplete_pools=False, gives_all_of_nothing=False
)
POOL_RULES: Final[dict[Release, PoolRules]] = {
    Release.V1_32: _UNTIL_1_34._replace(gives_all_of_nothing=True),  # without partitions and taints
    Release.V1_33: _UNTIL_1_34,
    Release.V1_34: _UNTIL_1_34,
    Release.V1_35: _FROM_1_35,
    Release.V1_36: _FROM_1_35,
    Release.V1_37: _FROM_1_35,
}
