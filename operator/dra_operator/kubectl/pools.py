"""``kubectl dra pools``: each resource pool, how much of it is published, and how much of that is free."""

from __future__ import annotations

import argparse
from collections import Counter

from dra_api.resource import ResourceSlice
from dra_ledger import PoolEntry
from dra_ledger.basics import PoolId

from dra_operator.kubectl.answer import Answer, Column, Fact, Table
from dra_operator.kubectl.facts import Stock, age, ledger_of, shelves
from dra_operator.kubectl.observed import Observed, joined, notes_on, require
from dra_operator.kubectl.settings import Settings


class PoolFact(Fact, frozen=True):
    """``status``: complete, incomplete or invalid, and how many slices are of older generations."""

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
    why: str = ""
    """Why it is not complete."""

    @property
    def id(self) -> str:
        """``driver/pool``."""
        return f"{self.driver}/{self.name}"


def pools_of(stock: Stock) -> list[PoolFact]:
    """All pools, sorted."""
    made: dict[str, str] = {}
    for slice_ in stock.seen.every(ResourceSlice):
        id_ = str(PoolId.of(slice_))
        made[id_] = max(made.get(id_, ""), slice_.metadata.creation_timestamp or "")
    return [_fact(pool, made.get(pool.id, "")) for pool in ledger_of(stock).pools()]


def _fact(pool: PoolEntry, since: str) -> PoolFact:
    states = Counter(pool.devices)
    status = "complete" if pool.status == "usable" else pool.status
    return PoolFact(
        driver=pool.driver,
        name=pool.name,
        nodes=pool.nodes,
        generation=pool.generation,
        slices=pool.slices,
        announced=pool.announced,
        status=f"{status}, {len(pool.obsolete)} older" if pool.obsolete else status,
        since=since,
        devices=states.total(),
        free=states["free"],
        taken=states["taken"],
        shared=states["shared"],
        tainted=states["tainted"],
        why=pool.why,
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
        Column("WHY", lambda it: it.why or "<none>", wide=True),
    ]
    return Answer(Table(columns, found, lambda it: f"pool/{it.id}", "No pools found", "Pool"), notes=notes_on(seen))
