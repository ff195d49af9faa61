"""``kubectl dra drain NODE``: which pods would lose what, and where each could go."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from dra_api.core import Node

from dra_operator.kubectl.answer import Answer, Column, ExitCode, Table
from dra_operator.kubectl.observed import SHOWN, Observed, joined, no_node, notes_on, require
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.settings import Settings
from dra_operator.wording import counted, listed

from .drain import Displaced, Draining, drained
from .overlay import Overlay

BUDGETS: Final = "poddisruptionbudgets.policy"
WORDS: Final = {
    "ends": "ends: no controller",
    "ending": "is being deleted",
    "daemon-set": "stays: DaemonSet",
    "static": "stays: static",
}


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """The fate of each pod of the node. Raises Problem."""
    require(seen, "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io", "nodes", "pods")
    name = options.node.removeprefix("node/")
    node = seen.one(Node, name)
    if node is None:
        raise no_node(name, (it.key for it in seen.every(Node)))
    found = drained(Overlay(pipeline(seen, Settings.of(options))), node)
    columns: list[Column[Displaced]] = [
        Column("POD", lambda it: it.pod),
        Column("OWNER", lambda it: it.owner or "<none>"),
        Column("LOSES", lambda it: joined(it.loses)),
        Column("GOES TO", _goes_to, colour=lambda it: "red" if it.fate in ("waits", "ends") else ""),
        Column("GETS", lambda it: joined(it.devices), wide=True),
    ]
    table = Table(columns, found.pods, lambda it: f"pod/{it.pod.partition('/')[2]}", f"No pod runs on node {name}")
    code = ExitCode.CLEAR if found.is_clear else ExitCode.IN_THE_WAY
    return Answer(table, list(_lines(found)), found, notes=notes_on(seen, (*SHOWN, BUDGETS)), code=code)


def _goes_to(one: Displaced) -> str:
    return one.node or WORDS.get(one.fate, "<none>")


def _lines(found: Draining) -> Iterator[str]:
    fates = [one.fate for one in found.pods]
    going = fates.count("moves") + fates.count("waits")
    if going:
        yield f"{fates.count('moves')} of {counted(going, 'pod')} of node {found.name} would find another node"
    elif fates:
        yield f"no pod of node {found.name} would look for another node"
    for one in found.pods:
        if one.fate == "waits":
            yield f"  {one.pod} would wait: {one.reason}"
    if "ends" in fates:
        yield f"  {counted(fates.count('ends'), 'pod has', 'pods have')} no controller, and would not be made again"
    for torn in found.torn:
        yield f"  PodGroup {torn.group} disrupts its pods together: delete {listed(torn.left)} on other nodes as well"
    for it in found.budgets:
        covers = f"PodDisruptionBudget {it.budget} covers {listed(it.pods)}"
        if not it.allowed:
            yield f"  {covers} and allows no disruption now: the eviction is refused until it does"
        elif it.allowed < len(it.pods):
            yield f"  {covers} and allows {it.allowed} at a time: the others wait until successors are ready"
