"""Devices in rows for the page: grouped, filtered and counted here.

One device is one ``DeviceRow``. A question names a facet to group by, values of facets, a state and a text. Its answer
is an ``Arrangement``: cells, each of which counts the devices of one node in one group. The page draws a cell as one
square of its heat map and as one line of its table, and asks for the devices of the lines that it shows. A refresh
costs the browser a few numbers per cell, and an answer has at most ``PAGE_CELLS`` cells.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Generic, NamedTuple, TypeVar

from dra_api.core import Node

from dra_operator.kubectl.facts import DeviceFact
from dra_operator.kubectl.topology import attribute
from dra_operator.kubectl.why.pods import ready_state
from dra_operator.wording import listed

JSON = dict[str, Any]
STATES: Final = ("free", "taken", "shared", "tainted", "unusable", "drawn")
FACETS: Final = ("class", "model", "driver", "rack", "zone", "namespace")
ORDERS: Final = ("name", "free", "used", "trouble")
NONE: Final = "(none)"
"""The value of a facet that a device or node has none of. No label and no name can be that."""
SEVERAL: Final = "(several nodes)"
"""The node of devices that several nodes can reach."""
MODEL: Final = ("productname", "model", "product")
"""Names of the attribute, without domain and case; the first that a device publishes counts."""
STANDARD_LABELS: Final = ("topology.kubernetes.io/", "failure-domain.beta.kubernetes.io/")
PAGE_CELLS: Final = 10_000
OFFERED_VALUES: Final = 100
"""Values per facet that the page offers to choose from. A question may name any other value."""
LINE_TILES: Final = 32
"""Devices of one line of the table. The page shows at most 40 lines at once."""
LISTED_LETTERS: Final = 300
"""Letters of a tenant's or driver's text in a list."""
SEARCH_WORDS: Final = 8
"""Words of a search; further words are ignored."""
KEPT_PAGE_ANSWERS: Final = 8
Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")


class RecentAnswers(Generic[Q, A]):
    """Keeps the last answers to questions, for several threads.

    ``functools.lru_cache`` on a method makes a cycle, by which a large view of a cluster outlives the next one.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Q, A] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, question: Q, work_out: Callable[[Q], A]) -> A:
        """Return the kept answer, or a new one. Two threads may work out the same one; none waits for the other."""
        with self._lock:
            if question in self._kept:
                self._kept.move_to_end(question)
                return self._kept[question]
        answer = work_out(question)
        with self._lock:
            self._kept[question] = answer
            if len(self._kept) > KEPT_PAGE_ANSWERS:
                self._kept.popitem(last=False)
        return answer


def words_of(find: str) -> list[str]:
    """Return the words of a search. A row must contain all of them, in any order."""
    return find.lower().split()[:SEARCH_WORDS]


def shortened(text: str) -> str:
    """Return the text, cut to ``LISTED_LETTERS``."""
    return text if len(text) <= LISTED_LETTERS else f"{text[: LISTED_LETTERS - 1]}…"


class DeviceRow(NamedTuple):
    """A device. ``claims`` names its holders, ``facets`` has the values of ``FACETS``, a search looks at ``text``."""

    id: str
    state: str
    claims: str
    node: str
    facets: tuple[tuple[str, ...], ...]
    text: str


class NodeQuestion(NamedTuple):
    """``group``: a facet, or empty. ``wanted`` has a value of each facet, or empty for any. All may be empty."""

    group: str = ""
    order: str = ORDERS[0]
    state: str = ""
    find: str = ""
    wanted: tuple[str, ...] = ("",) * len(FACETS)


class Cell(NamedTuple):
    """The devices of one node in one group."""

    node: str
    group: str
    rows: Sequence[DeviceRow]
    counts: tuple[int, ...]
    """Devices in each state, in the order of ``STATES``."""

    @property
    def used(self) -> float:
        """The share of its devices of which something is taken, from 0 to 1."""
        return (self.counts[1] + self.counts[2]) / len(self.rows)


class Arrangement(NamedTuple):
    """The answer to a question. ``totals`` counts every state, also if the question names one."""

    cells: Sequence[Cell]
    totals: Mapping[str, int]
    devices: int


class Fleet:
    """All devices of one read. ``classes`` names the classes that mean a device, by its id."""

    def __init__(
        self, facts: Iterable[DeviceFact], nodes: Iterable[Node], classes: Mapping[str, tuple[str, ...]]
    ) -> None:
        self._places: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self.conditions: dict[str, str] = {}
        """Faults of nodes by name, in a word or two."""
        for node in nodes:
            labels = node.metadata.labels or {}
            self._places[node.metadata.name] = (_label(labels, "rack"), _label(labels, "zone"))
            self.conditions[node.metadata.name] = _condition(node)
        self.rows: Sequence[DeviceRow] = [self._row(fact, classes.get(fact.id, ())) for fact in facts]
        with_devices = {row.node for row in self.rows}
        self.empty = sum(name not in with_devices for name in self.conditions)
        """Nodes without devices."""
        self.facets = self._offered()
        self._answers: RecentAnswers[NodeQuestion, Arrangement] = RecentAnswers()

    def _row(self, fact: DeviceFact, classes: tuple[str, ...]) -> DeviceRow:
        rack, zone = self._places.get(fact.node, ((NONE,), (NONE,)))
        model = shortened(attribute(fact, MODEL)) or NONE
        holders = list(dict.fromkeys(holder.claim for holder in fact.holders))
        namespaces = tuple(dict.fromkeys(claim.partition("/")[0] for claim in holders)) or (NONE,)
        node, claims = fact.node or SEVERAL, listed(holders)
        text = "\n".join((node, fact.id, model, *islice(holders, OFFERED_VALUES))).lower()
        facets = ((*classes,) or (NONE,), (model,), (fact.driver,), rack, zone, namespaces)
        return DeviceRow(fact.id, fact.state, claims, node, facets, text)

    def _offered(self) -> JSON:
        """The values of each facet with most devices, by name, and how many more there are."""
        found: JSON = {}
        for at, facet in enumerate(FACETS):
            counts = Counter(value for row in self.rows for value in row.facets[at])
            most = counts.most_common(OFFERED_VALUES)
            values = sorted(most, key=lambda pair: _natural(pair[0]))
            found[facet] = {"values": [[value, number] for value, number in values], "more": len(counts) - len(most)}
        return found

    def arranged(self, question: NodeQuestion) -> Arrangement:
        """The answer to a question."""
        return self._answers.get(question, self._arrange)

    def _arrange(self, question: NodeQuestion) -> Arrangement:
        at = FACETS.index(question.group) if question.group else None
        totals: Counter[str] = Counter()
        found: dict[tuple[str, str], list[DeviceRow]] = defaultdict(list)
        devices = 0
        for row in self._meant(question):
            totals[row.state] += 1
            if question.state in ("", row.state):
                devices += 1
                values = ("",) if at is None else row.facets[at]
                for value in values:
                    if at is None or question.wanted[at] in ("", value):
                        found[value, row.node].append(row)
        cells = [_cell(node, group, rows) for (group, node), rows in found.items()]
        cells.sort(key=lambda cell: (_natural(cell.group), *self._rank(question.order, cell), _natural(cell.node)))
        return Arrangement(cells, {"all": sum(totals.values()), **totals}, devices)

    def _meant(self, question: NodeQuestion) -> Iterator[DeviceRow]:
        words = words_of(question.find)
        wanted = [(at, value) for at, value in enumerate(question.wanted) if value]
        for row in self.rows:
            if all(value in row.facets[at] for at, value in wanted) and all(word in row.text for word in words):
                yield row

    def _rank(self, order: str, cell: Cell) -> tuple[float, ...]:
        if order == "trouble":
            return (-bool(self.conditions.get(cell.node)), -(cell.counts[3] + cell.counts[4]))
        return {"free": (cell.used,), "used": (-cell.used,)}.get(order, ())

    def shown(self, question: NodeQuestion) -> JSON:
        """Totals, groups and cells: ``[node, group, condition, counts by STATES]``, of which at most ``PAGE_CELLS``."""
        found = self.arranged(question)
        groups: dict[str, list[int]] = {}
        for cell in found.cells:
            of_group = groups.setdefault(cell.group, [0, 0, 0])
            of_group[0] += 1
            of_group[1] += len(cell.rows)
            of_group[2] += cell.counts[1] + cell.counts[2]
        numbers = {group: number for number, group in enumerate(groups)}
        return {
            "totals": found.totals,
            "devices": found.devices,
            "nodes": len({cell.node for cell in found.cells}),
            "cells": [
                [cell.node, numbers[cell.group], self.conditions.get(cell.node, ""), *cell.counts]
                for cell in found.cells[:PAGE_CELLS]
            ],
            "left_out": max(0, len(found.cells) - PAGE_CELLS),
            "groups": [[group, *counts] for group, counts in islice(groups.items(), PAGE_CELLS)],
            "empty": self.empty,
            "facets": self.facets,
        }

    def tiles(self, question: NodeQuestion, offset: int, limit: int) -> list[JSON]:
        """The devices of some cells: ``[id, state, claims]``, and how many more the cell has."""
        return [
            {
                "tiles": [[row.id, row.state, row.claims] for row in cell.rows[:LINE_TILES]],
                "more": max(0, len(cell.rows) - LINE_TILES),
            }
            for cell in self.arranged(question).cells[offset : offset + limit]
        ]


def _cell(node: str, group: str, rows: Sequence[DeviceRow]) -> Cell:
    counts = Counter(row.state for row in rows)
    return Cell(node, group, rows, tuple(counts[state] for state in STATES))


def _condition(node: Node) -> str:
    if ready_state(node) != "True":
        return "not ready"
    return "cordoned" if node.spec.unschedulable else ""


def _label(labels: Mapping[str, str], what: str) -> tuple[str, ...]:
    """The value of the label that is named so, in the standard domain or else in any: there is none for racks."""
    for domain in STANDARD_LABELS:
        if value := labels.get(f"{domain}{what}"):
            return (value,)
    found = (labels[key] for key in sorted(labels) if key.rpartition("/")[2].lower() == what and labels[key])
    return (next(found, NONE),)


_DIGITS: Final = re.compile(r"(\d+)", re.ASCII)


@lru_cache(65_536)
def _natural(name: str) -> tuple[bool, tuple[str | int, ...]]:
    """``gpu-2`` before ``gpu-10``, and none last. Every second part is a number, so equal places compare."""
    parts = _DIGITS.split(name[:LISTED_LETTERS])
    return name == NONE, tuple(int(part) if at % 2 else part for at, part in enumerate(parts))
