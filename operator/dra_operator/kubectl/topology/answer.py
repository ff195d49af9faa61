"""``kubectl dra topology``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from dra_api.core import Node

from dra_operator.kubectl.answer import Answer, Problem
from dra_operator.kubectl.facts.ages import age
from dra_operator.kubectl.facts.devices import devices_of
from dra_operator.kubectl.facts.topology import Branch, Topology
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Settings, pipeline
from dra_operator.kubectl.tables.notes import notes_on, require

from .picture import picture
from .titles import title

SVG: Final = "svg"


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """The tree of one node. Raises Problem."""
    require(seen, "resourceslices.resource.k8s.io")
    made = pipeline(seen, Settings.of(options))
    facts = devices_of(made)
    name = options.node.removeprefix("node/")
    if seen.one(Node, name) is None and not any(fact.node == name for fact in facts):
        similar = get_close_matches(name, [node.key for node in seen.every(Node)], 3)
        raise Problem(f"there is no node {name}" + (f"; similar: {', '.join(similar)}" if similar else ""))
    tree = Topology(made, facts).of(name)
    lines = picture(tree) if options.output == SVG else [f"{title(tree)}", *_below(tree, "", seen)]
    names = [f"device/{fact.id}" for fact in facts if fact.node == name]
    return Answer(lines=list(lines), value=tree, names=names, notes=notes_on(seen))


def _below(branch: Branch, indent: str, seen: Observed) -> Iterator[str]:
    width = max((len(child.name) for child in branch.children), default=0)
    for place, child in enumerate(branch.children):
        is_last = place == len(branch.children) - 1
        yield f"{indent}{'└── ' if is_last else '├── '}{_line(child, width, seen)}"
        yield from _below(child, indent + ("    " if is_last else "│   "), seen)


def _line(branch: Branch, width: int, seen: Observed) -> str:
    fact = branch.device
    if fact is None:
        return title(branch)
    parts = [f"{branch.name:{width}}", f"{fact.state:8}"]
    for holder in fact.holders:
        pods = ", ".join(holder.pods) or "no pod"
        since = age(holder.since, seen.taken)
        parts.append(f"claim {holder.claim} ({pods})" + (f" for {since}" if since else ""))
    parts += [branch.detail] if branch.detail else []
    return "  ".join(parts + [f"taint {taint}" for taint in fact.taints]).rstrip()
