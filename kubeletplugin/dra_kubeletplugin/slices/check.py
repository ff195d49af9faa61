"""Checks that the slices wanted for a pool are consistent, before anything is written.

The API server sees one slice at a time and cannot find these faults. Spec: plugin-helper.md section 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dra_api.resource import CounterSet, Device

from dra_kubeletplugin.errors import PoolInvalid

from .model import Pool, tidy
from .taints import round_times


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
