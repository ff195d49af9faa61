"""``kubectl dra top``: devices in use, by node, driver, class or namespace, with bars."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dra_api.core import Node

from dra_operator.kubectl.answer import Answer, Column, ExitCode, Fact, Problem, Table
from dra_operator.kubectl.facts import DeviceFact, every_device_of, labels_of_node, ledger_of, shelves
from dra_operator.kubectl.observed import Observed, notes_on, require, selecting
from dra_operator.kubectl.settings import Settings


class UsageFact(Fact, frozen=True):
    """``used``: devices of which something is taken."""

    name: str
    devices: int
    used: int
    shared: int
    """Of those in use, the ones that several claims may share."""
    tainted: int
    free: int
    claims: int

    @property
    def share(self) -> float:
        """The used ones among all, from 0 to 1."""
        return self.used / self.devices if self.devices else 0.0


def usage_by_name(named: Iterable[tuple[str, DeviceFact]]) -> list[UsageFact]:
    """One for each name, those with most in use first."""
    groups: dict[str, list[DeviceFact]] = defaultdict(list)
    for name, device in named:
        groups[name].append(device)
    facts = [usage_of(name, devices) for name, devices in groups.items()]
    return sorted(facts, key=lambda fact: (-fact.share, -fact.used, fact.name))


def usage_of(name: str, devices: Sequence[DeviceFact]) -> UsageFact:
    """Of some devices together."""
    states = Counter(device.state for device in devices)
    claims = {holder.claim for device in devices for holder in device.holders}
    return UsageFact(
        name=name,
        devices=len(devices),
        used=states["taken"] + states["shared"] + states["gone"],
        shared=states["shared"],
        tainted=states["tainted"],
        free=states["free"],
        claims=len(claims),
    )


BAR_BLOCKS: Final = 10
"""Blocks of a full bar."""
SEVERAL: Final = "<several>"


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """Usage by what the options say. Raises Problem."""
    require(seen, "resourceslices.resource.k8s.io")
    if options.by == "classes":
        require(seen, "deviceclasses.resource.k8s.io")
    if options.selector and options.by != "nodes":
        raise Problem("--selector is about labels of nodes: use it with top nodes", ExitCode.USAGE)
    settings = Settings.of(options)
    more: list[Column[UsageFact]] = []
    if options.by == "classes":
        from .free import Members, best_offer  # asks the allocator: it takes long to load
        from .pipeline import pipeline

        made = pipeline(seen, settings)
        ledger = ledger_of(made)
        members, devices = Members(ledger), every_device_of(made, ledger)
        by_class = {name: members.of(name, devices) for name in members.classes}
        facts = [usage_of(name, its) for name, its in by_class.items()]

        def largest(fact: UsageFact) -> str:
            """The largest request that a node without cordon could serve now."""
            best = best_offer(made, fact.name, by_class[fact.name])
            return f"{best.largest} on {best.node}" if best is not None else "0"

        more = [Column("LARGEST", largest)]
    else:
        devices = every_device_of(shelves(seen, settings))
        if options.by == "namespaces":
            facts = usage_by_name(_by_namespace(devices))
        elif options.by == "drivers":
            facts = usage_by_name((device.driver, device) for device in devices)
        else:
            facts = usage_by_name(_by_node(seen, devices, options.selector))
    kind = {"nodes": "node", "drivers": "driver", "classes": "deviceclass", "namespaces": "namespace"}[options.by]
    columns = _held() if options.by == "namespaces" else [*_columns(), *more]
    title: Column[UsageFact] = Column(kind.upper(), lambda it: it.name)
    labels = (lambda it: labels_of_node(seen, it.name)) if options.by == "nodes" else None
    table = Table([title, *columns], facts, lambda it: f"{kind}/{it.name}", "No devices found", "Usage", labels)
    return Answer(table, notes=notes_on(seen))


def _by_node(seen: Observed, devices: Sequence[DeviceFact], selector: str | None) -> Iterator[tuple[str, DeviceFact]]:
    matches = selecting(selector)
    nodes = {node.metadata.name for node in seen.every(Node) if matches(node.metadata.labels)}
    for device in devices:
        if not selector or device.node in nodes:
            yield device.node or SEVERAL, device


def _by_namespace(devices: Sequence[DeviceFact]) -> Iterator[tuple[str, DeviceFact]]:
    for device in devices:
        for namespace in {holder.claim.partition("/")[0] for holder in device.holders if not holder.admin}:
            yield namespace, device


def _columns() -> list[Column[UsageFact]]:
    return [
        Column("USED", lambda it: f"{it.used}/{it.devices}"),
        Column("", lambda it: bar(it.share), colour=_colour),
        Column("%", lambda it: f"{it.share:.0%}"),
        Column("FREE", lambda it: it.free),
        Column("TAINTED", lambda it: it.tainted),
        Column("CLAIMS", lambda it: it.claims, wide=True),
        Column("SHARED", lambda it: it.shared, wide=True),
    ]


def _held() -> list[Column[UsageFact]]:
    """Of namespaces there is no whole to compare with."""
    return [
        Column("DEVICES", lambda it: it.used),
        Column("CLAIMS", lambda it: it.claims),
        Column("SHARED", lambda it: it.shared, wide=True),
    ]


def bar(share: float) -> str:
    """``████░░░░░░``; what is not nothing has a block, and only all is full."""
    full = round(share * BAR_BLOCKS)
    full = min(max(full, 1), BAR_BLOCKS - 1) if 0 < share < 1 else full
    return "█" * full + "░" * (BAR_BLOCKS - full)


def _colour(fact: UsageFact) -> str:
    return "red" if fact.share >= 0.9 else "yellow" if fact.share >= 0.6 else "green"
