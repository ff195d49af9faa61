"""``kubectl dra drain NODE``: the pods that would lose devices, and where each could go.

The pods of the node are all evicted and placed elsewhere, as when it is drained.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from dra_api.core import Node, Pod
from dra_api.references import pod_is_done
from dra_api.scheduling import PodDisruptionBudget
from msgspec.structs import replace

from dra_operator.cache import Cluster
from dra_operator.commands.placing import NotPlaced, Placed
from dra_operator.kubectl.answer import Answer, Column, ExitCode, Fact, Table
from dra_operator.kubectl.observed import SHOWN, Observed, joined, no_node, notes_on, require
from dra_operator.kubectl.pipeline import TookTooLong, pipeline
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.whatif.overlay import successors
from dra_operator.scheduling.preemption import Budget
from dra_operator.wording import capped, counted, listed

from .overlay import Overlay

STAYING: Final = {"DaemonSet": "daemon-set", "Node": "static"}
"""Pods of these owners belong to the node: a drain leaves them."""
NOWHERE: Final = {"waits", "untried"}
Successor = tuple[str, Placed | NotPlaced]


class Displaced(Fact, frozen=True):
    """``fate``: ``moves`` (to ``node``), ``waits`` (no node takes its successor: ``reason``), ``untried`` (there was no
    time for its successor), ``ends`` (no controller makes one), ``ending`` (is being deleted), ``daemon-set`` or
    ``static`` (stays)."""

    pod: str
    owner: str
    loses: tuple[str, ...]
    fate: str
    node: str = ""
    devices: tuple[str, ...] = ()
    reason: str = ""


class BudgetFact(Fact, frozen=True):
    """A PodDisruptionBudget that covers pods which have to go."""

    budget: str
    allowed: int
    pods: tuple[str, ...]


class TornGroup(Fact, frozen=True):
    """A PodGroup that says that its pods end together, of which pods run elsewhere as well (``left``)."""

    group: str
    left: tuple[str, ...]


class Draining(Fact, frozen=True):
    """``is_clear``: every pod finds a place, and no budget refuses."""

    name: str
    is_clear: bool
    pods: Sequence[Displaced]
    budgets: Sequence[BudgetFact]
    torn: Sequence[TornGroup] = ()

    @property
    def is_placed(self) -> bool:
        """Every pod that gets a successor finds a place for it."""
        return all(one.fate not in NOWHERE for one in self.pods)


def drained(overlay: Overlay, node: Node, seconds: float | None = None) -> Draining:
    """No pod goes to the node any more, and those on it go elsewhere: first all end, then the most important of their
    successors is placed first.

    After ``seconds`` (0: never) the rest of them is untried; None leaves the limit to the overlay, and TookTooLong to
    the caller.
    """
    overlay.cordon(node)
    found: dict[str, Displaced] = {}
    going: list[Pod] = []
    for pod in pods_on(overlay.cluster, node.metadata.name):
        owner = pod.metadata.controller
        fate = _fate(pod)
        loses = () if fate in STAYING.values() else overlay.evict(pod)
        if fate in ("moves", "ends"):
            going.append(pod)
        title = f"{owner.kind}/{owner.name}" if owner is not None else ""
        found[pod.key] = Displaced(pod=pod.key, owner=title, loses=loses, fate=fate)
    moving = [pod for pod in going if found[pod.key].fate == "moves"]
    placed = successors(overlay, moving)
    if seconds is not None:
        placed = _in_time(overlay, placed, seconds)
        found |= {pod.key: replace(found[pod.key], fate="untried") for pod in moving}
    for key, outcome in placed:
        found[key] = _replaced(outcome, found[key])
    budgets = tuple(_budgets(overlay, going))
    torn = tuple(_torn(overlay, node.metadata.name, going))
    is_clear = all(it.fate not in {*NOWHERE, "ends"} for it in found.values()) and all(it.allowed for it in budgets)
    return Draining(name=node.metadata.name, is_clear=is_clear, pods=list(found.values()), budgets=budgets, torn=torn)


def _in_time(overlay: Overlay, placed: Iterator[Successor], seconds: float) -> Iterator[Successor]:
    with suppress(TookTooLong), overlay.made.pausing.within(seconds):
        yield from placed


def pods_on(cluster: Cluster, node: str) -> list[Pod]:
    """The pods that run there, by name."""
    return sorted(
        (pod for pod in cluster.pods if pod.spec.node_name == node and not pod_is_done(pod)), key=lambda pod: pod.key
    )


def _fate(pod: Pod) -> str:
    owner = pod.metadata.controller
    if owner is not None and owner.kind in STAYING:
        return STAYING[owner.kind]
    if pod.metadata.deletion_timestamp is not None:
        return "ending"
    return "moves" if owner is not None else "ends"


def _replaced(outcome: Placed | NotPlaced, before: Displaced) -> Displaced:
    if isinstance(outcome, Placed):
        return replace(before, fate="moves", node=outcome.node, devices=outcome.devices)
    return replace(before, fate="waits", reason=outcome.reason)


def _torn(overlay: Overlay, node: str, pods: Sequence[Pod]) -> Iterator[TornGroup]:
    """An eviction ends one pod; that its group is left in part is for people to know."""
    groups = {group.key: pod for pod in pods if (group := overlay.cluster.groups.of(pod)) is not None}
    for key, pod in groups.items():
        left = tuple(it.key for it in overlay.cluster.ending_with(pod) if it.spec.node_name != node)
        if left:
            yield TornGroup(group=key, left=left)


def _budgets(overlay: Overlay, pods: Sequence[Pod]) -> Iterator[BudgetFact]:
    namespaces = {pod.metadata.namespace for pod in pods}
    seen = overlay.made.seen
    for budget in seen.every(PodDisruptionBudget):
        if budget.metadata.namespace not in namespaces:
            continue
        [budget] = seen.whole([budget])
        terms, namespace = Budget.of(budget), budget.metadata.namespace
        covered = tuple(pod.key for pod in pods if pod.metadata.namespace == namespace and terms.covers(pod))
        if covered:
            yield BudgetFact(budget=budget.key, allowed=max(0, terms.allowed), pods=covered)


BUDGETS: Final = "poddisruptionbudgets.policy"
OUT_OF_TIME: Final = "the time limit was reached; kubectl dra drain --time-limit gives more"
WORDS: Final = {
    "untried": "<not tried>",
    "ends": "ends: no controller",
    "ending": "is being deleted",
    "daemon-set": "stays: DaemonSet",
    "static": "stays: static",
}


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    require(seen, "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io", "nodes", "pods")
    name = options.node.removeprefix("node/")
    node = seen.one(Node, name)
    if node is None:
        raise no_node(name, (it.key for it in seen.every(Node)))
    found = drained(Overlay(pipeline(seen, Settings.of(options))), node, options.time_limit)
    columns: list[Column[Displaced]] = [
        Column("POD", lambda it: it.pod),
        Column("OWNER", lambda it: it.owner or "<none>"),
        Column("LOSES", lambda it: joined(it.loses)),
        Column("GOES TO", lambda it: it.node or WORDS.get(it.fate, "<none>"), colour=_colour),
        Column("GETS", lambda it: joined(it.devices), wide=True),
    ]
    table = Table(columns, found.pods, lambda it: f"pod/{it.pod.partition('/')[2]}", f"No pod runs on node {name}")
    code = ExitCode.CLEAR if found.is_clear else ExitCode.IN_THE_WAY
    return Answer(table, list(_lines(found)), found, notes=notes_on(seen, (*SHOWN, BUDGETS)), code=code)


def _colour(one: Displaced) -> str:
    return "red" if one.fate in {*NOWHERE, "ends"} else ""


def _lines(found: Draining) -> Iterator[str]:
    fates = [one.fate for one in found.pods]
    going = sum(map(fates.count, ("moves", *NOWHERE)))
    if going:
        yield f"{fates.count('moves')} of {counted(going, 'pod')} of node {found.name} would find another node"
    elif fates:
        yield f"no pod of node {found.name} would look for another node"
    for one in found.pods:
        if one.fate == "waits":
            yield f"  {one.pod} would wait: {one.reason}"
    if untried := fates.count("untried"):
        yield f"  {counted(untried, 'pod was', 'pods were')} not tried: {OUT_OF_TIME}"
    if "ends" in fates:
        yield f"  {counted(fates.count('ends'), 'pod has', 'pods have')} no controller, and would not be made again"
    for torn in found.torn:
        yield f"  PodGroup {torn.group} disrupts its pods together: delete {listed(torn.left)} on other nodes as well"
    yield from capped(_of_budgets(found.budgets), "budgets")


def _of_budgets(budgets: Iterable[BudgetFact]) -> Iterator[str]:
    for it in budgets:
        covers = f"PodDisruptionBudget {it.budget} covers {listed(it.pods)}"
        if not it.allowed:
            yield f"  {covers} and allows no disruption now: the eviction is refused until it does"
        elif it.allowed < len(it.pods):
            yield f"  {covers} and allows {it.allowed} at a time: the others wait until successors are ready"
