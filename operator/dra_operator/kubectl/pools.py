"""``kubectl dra pools``: each resource pool, how much of it is published, and how much of that is free."""

from __future__ import annotations

import argparse
from collections import Counter

from dra_api.resource import ResourceSlice
from dra_ledger.basics import PoolId
from dra_ledger.pools import newest_slices

from dra_operator.kubectl.answer import Answer, Column, Fact, Table
from dra_operator.kubectl.facts import Stock, age, devices_of, shelves
from dra_operator.kubectl.observed import Observed, joined, notes_on, require
from dra_operator.kubectl.settings import Settings


class PoolFact(Fact, frozen=True):
    """``status``: complete or incomplete, and how many slices are of older generations."""

    driver: str
    name: str
    nodes: tuple[str, ...]
    """Empty if it does not name its nodes."""
    generation: int
    slices: int
    announced: int
    status: str
    since: str
    """When the newest of its slices was made."""
    devices: int
    free: int
    taken: int
    shared: int
    tainted: int

    @property
    def id(self) -> str:
        """``driver/pool``."""
        return f"{self.driver}/{self.name}"


def pools_of(stock: Stock) -> list[PoolFact]:
    """All pools, sorted."""
    slices = stock.seen.every(ResourceSlice)
    states: dict[PoolId, Counter[str]] = {}
    for device in devices_of(stock):
        states.setdefault(PoolId(device.driver, device.pool), Counter())[device.state] += 1
    every = Counter(PoolId.of(slice_) for slice_ in slices)
    return [
        _fact(pool, newest, states.get(pool, Counter()), every[pool])
        for pool, newest in sorted(newest_slices(slices).items())
    ]


def _fact(pool: PoolId, newest: list[ResourceSlice], states: Counter[str], every: int) -> PoolFact:
    spec = newest[0].spec.pool
    nodes = {slice_.spec.node_name for slice_ in newest}
    nodes |= {device.node_name for slice_ in newest for device in slice_.spec.devices or ()}
    status = "complete" if len(newest) == spec.resource_slice_count else "incomplete"
    return PoolFact(
        driver=pool.driver,
        name=pool.pool,
        nodes=tuple(sorted(name for name in nodes if name)),
        generation=spec.generation,
        slices=len(newest),
        announced=spec.resource_slice_count,
        status=status if every == len(newest) else f"{status}, {every - len(newest)} older",
        since=max(slice_.metadata.creation_timestamp or "" for slice_ in newest),
        devices=states.total(),
        free=states["free"],
        taken=states["taken"],
        shared=states["shared"],
        tainted=states["tainted"],
    )


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """The pools of a driver or node, or all."""
    require(seen, "resourceslices.resource.k8s.io")
    found = [
        pool
        for pool in pools_of(shelves(seen, Settings.of(options)))
        if options.driver in (None, pool.driver) and (options.node is None or options.node in pool.nodes)
    ]
    columns: list[Column[PoolFact]] = [
        Column("DRIVER", lambda it: it.driver),
        Column("POOL", lambda it: it.name),
        Column("NODE", lambda it: joined(it.nodes) if it.nodes else "<several>"),
        Column("STATUS", lambda it: it.status, colour=lambda it: "" if it.status == "complete" else "red"),
        Column("SLICES", lambda it: f"{it.slices}/{it.announced}"),
        Column("DEVICES", lambda it: it.devices),
        Column("FREE", lambda it: it.free),
        Column("AGE", lambda it: age(it.since, seen.taken) or "<unknown>"),
        Column("TAKEN", lambda it: it.taken, wide=True),
        Column("SHARED", lambda it: it.shared, wide=True),
        Column("TAINTED", lambda it: it.tainted, wide=True),
        Column("GENERATION", lambda it: it.generation, wide=True),
    ]
    return Answer(Table(columns, found, lambda it: f"pool/{it.id}", "No pools found", "Pool"), notes=notes_on(seen))
