"""``kubectl dra pools``."""

from __future__ import annotations

import argparse

from dra_operator.kubectl.answer import Answer, Column, Table
from dra_operator.kubectl.facts.ages import age
from dra_operator.kubectl.facts.pools import PoolFact, pools_of
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Settings, pipeline

from .notes import joined, notes_on, require


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """The pools of a driver or node, or all."""
    require(seen, "resourceslices.resource.k8s.io")
    found = [
        pool
        for pool in pools_of(pipeline(seen, Settings.of(options)))
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
    return Answer(Table(columns, found, lambda it: f"pool/{it.id}", "No pools found"), notes=notes_on(seen))
