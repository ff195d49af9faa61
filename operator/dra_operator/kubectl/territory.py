"""``kubectl dra territory``: to which scheduler devices belong, and what gives them to one.

A node is given by a taint of the node, which every scheduler honours on every release. A driver, pool or device is
given by a DeviceTaintRule; a class, or nodes with ``--rules``, by as few rules as select its devices and no others.
"""

from __future__ import annotations

import argparse
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from dra_api.codec import to_dict
from dra_api.command_line import kubectl
from dra_api.core import Node
from dra_api.resource import SCHEDULER_KEY, DeviceClass, DeviceTaintRule, DeviceTaintSelector

from dra_operator.allocator import DeviceId, territory_taint
from dra_operator.kubectl.answer import Answer, Column, ExitCode, Fact, Problem, Table
from dra_operator.kubectl.facts import DeviceFact, devices_of, ledger_of
from dra_operator.kubectl.free import Members
from dra_operator.kubectl.observed import Observed, notes_on, require, selecting
from dra_operator.kubectl.pipeline import Pipeline, pipeline
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.taint import is_meant, manifest, rule_notes, rule_of, selector_of
from dra_operator.scheduling import ANY_DRIVER
from dra_operator.wording import counted, listed

MOST_TAINT_RULES: Final = 200
"""More of them would slow every scheduler down: mark nodes, or publish pools that can be named."""


class Holding(Fact, frozen=True):
    """What a scheduler has of a driver."""

    scheduler: str
    """Empty: every scheduler may take them."""
    driver: str
    devices: int
    in_use: int
    nodes: int


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """The table of territories; or rules, or the command that taints nodes. Raises Problem."""
    require(seen, "resourceslices.resource.k8s.io")
    made = pipeline(seen, Settings.of(options))
    facts = devices_of(made)
    asked = [it for it in (options.device, options.device_class, options.nodes) if it is not None]
    if len(asked) > 1:
        raise Problem("name devices, or --class, or --nodes: one of them", ExitCode.USAGE)
    if not asked:
        return _table(seen, facts)
    scheduler = made.settings.scheduler_name
    if options.nodes is not None and not options.rules:
        return _node_taint(seen, options.nodes, scheduler)
    selectors, selected = _selectors(made, facts, options)
    if len(selectors) > MOST_TAINT_RULES:
        raise Problem(
            f"that takes {len(selectors)} rules, more than {MOST_TAINT_RULES}: mark the nodes (--nodes), or pools"
        )
    rules = [rule_of(territory_taint(scheduler), selector, f"for-{scheduler}") for selector in selectors]
    notes = [*rule_notes(made), *_effects(seen, selected, scheduler), *notes_on(seen)]
    return Answer(
        lines=_manifests(made, rules),
        value=list(map(to_dict, rules)),
        names=[f"devicetaintrule/{rule.metadata.name}" for rule in rules],
        notes=notes,
    )


def _manifests(made: Pipeline, rules: Iterable[DeviceTaintRule]) -> list[str]:
    documents = [list(manifest(rule, made.settings.release or made.seen.release)) for rule in rules]
    return [*chain.from_iterable([*document, "---"] for document in documents)][:-1]


def _table(seen: Observed, facts: Sequence[DeviceFact]) -> Answer:
    found: dict[tuple[str, str], list[DeviceFact]] = defaultdict(list)
    for fact in facts:
        found[fact.scheduler, fact.driver].append(fact)
    rows = [
        Holding(
            scheduler=scheduler,
            driver=driver,
            devices=len(some),
            in_use=sum(bool(it.holders) for it in some),
            nodes=len({it.node for it in some if it.node}),
        )
        for (scheduler, driver), some in sorted(found.items())
    ]
    columns: list[Column[Holding]] = [
        Column("SCHEDULER", lambda it: it.scheduler or "<any>", colour=lambda it: "" if it.scheduler else "yellow"),
        Column("DRIVER", lambda it: it.driver),
        Column("DEVICES", lambda it: it.devices),
        Column("IN-USE", lambda it: it.in_use),
        Column("NODES", lambda it: it.nodes or "<several>"),
    ]
    none = "No device is published"
    return Answer(Table(columns, rows, lambda it: it.scheduler or "<any>", none, "Territory"), notes=notes_on(seen))


def _node_taint(seen: Observed, text: str, scheduler: str) -> Answer:
    """The command, since a taint of a node is no object of its own."""
    matches = selecting(text)
    nodes = [node.metadata.name for node in seen.every(Node) if matches(node.metadata.labels)]
    if not nodes:
        raise Problem(f"no node has the labels {text}")
    taint = f"{SCHEDULER_KEY}={scheduler}:NoSchedule"
    command = kubectl("taint", "nodes", f"--selector={text}", of_names=[scheduler], then=[taint])
    if not command:
        raise Problem(
            f"the nodes cannot be tainted by a command: {text!r} or {scheduler!r} has characters it cannot have"
        )
    which = f"{counted(len(nodes), 'node')}: {listed(sorted(nodes))}"
    notes = [
        f"{which}; pods of other schedulers stay away, unless they tolerate the taint",
        "nodes that come later need the taint as well: have their kubelets register with it (--register-with-taints)",
    ]
    value = {"nodes": sorted(nodes), "command": shlex.split(command)}
    return Answer(lines=[command], value=value, names=nodes, notes=notes)


def _selectors(
    made: Pipeline, facts: Sequence[DeviceFact], options: argparse.Namespace
) -> tuple[list[DeviceTaintSelector], list[DeviceFact]]:
    """What rules have to select, and the published devices that this means. Raises Problem."""
    ids = {DeviceId(one.driver, one.pool, one.name): one for one in facts}
    if options.device is not None:
        selector = selector_of(options.device, list(ids))
        return [selector], [fact for id_, fact in ids.items() if is_meant(selector, id_)]
    if options.device_class is not None:
        class_ = made.seen.one(DeviceClass, options.device_class)
        if class_ is None:
            raise Problem(f"there is no device class {options.device_class}")
        selected = Members(ledger_of(made)).of(options.device_class, facts)
        texts = [it.cel.expression for it in class_.spec.selectors or () if it.cel is not None]
        drivers = made.cluster.drivers_of((options.device_class,))
        if len(texts) == 1 and "&&" not in texts[0] and selected and ANY_DRIVER not in drivers:
            return [DeviceTaintSelector(driver=driver) for driver in sorted(drivers)], selected
    else:
        matches = selecting(options.nodes)
        nodes = {node.metadata.name for node in made.seen.every(Node) if matches(node.metadata.labels)}
        selected = [fact for fact in facts if fact.node in nodes]
    if not selected:
        raise Problem("no published device is meant: there is nothing to give to a scheduler")
    return list(_covering(facts, selected)), selected


def _covering(facts: Sequence[DeviceFact], selected: Sequence[DeviceFact]) -> Iterator[DeviceTaintSelector]:
    """Pools that are meant as a whole, then single devices of the others."""
    sizes, meant = Counter((it.driver, it.pool) for it in facts), Counter((it.driver, it.pool) for it in selected)
    whole = sorted(pool for pool, number in meant.items() if number == sizes[pool])
    for driver, pool in whole:
        yield DeviceTaintSelector(driver=driver, pool=pool)
    for fact in selected:
        if (fact.driver, fact.pool) not in whole:
            yield DeviceTaintSelector(driver=fact.driver, pool=fact.pool, device=fact.name)


def _effects(seen: Observed, selected: Sequence[DeviceFact], scheduler: str) -> Iterator[str]:
    """What applying it does to others."""
    owners: Mapping[str, int] = Counter(it.scheduler for it in selected if it.scheduler not in ("", scheduler))
    for owner, number in owners.items():
        yield f"{counted(number, 'device')} would belong to {owner} as well, and then to none: take its mark off first"
    used = sum(bool(it.holders) for it in selected)
    yield (
        f"{counted(len(selected), 'published device')}, {used} in use: pods keep what they have; other schedulers give "
        "these devices only to claims that tolerate the taint"
    )
