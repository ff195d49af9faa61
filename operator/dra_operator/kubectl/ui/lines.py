"""The lines of the page: devices, pending pods, claims and classes, grouped, filtered, sorted, counted and cut here.

One device is one ``DeviceRow``. A question names a facet to group by, values of facets, a state and a text. Its answer
is an ``Arrangement``: cells, each of which counts the devices of one node in one group. The page draws a cell as one
square of its heat map and as one line of its table, and asks for the devices of the lines that it shows. A refresh
costs the browser a few numbers per cell, and an answer has at most ``PAGE_CELLS`` cells.

The browser asks for the lines of a list that it shows, at most ``PAGE_LINES`` at once, so that 100,000 pods cost it no
more than ten. Lists are made of the objects alone and ask no allocator. A pending pod's cause is the message of its
condition ``PodScheduled`` until ``View.judge`` has worked out a better one.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Generic, NamedTuple, TypeVar

from dra_api.command_line import kubectl
from dra_api.core import Node, Pod
from dra_api.resource import DeviceClass, ResourceClaim
from dra_api.values import parse_time

from dra_operator.kubectl.devices import claims_of
from dra_operator.kubectl.facts import DeviceFact, age
from dra_operator.kubectl.observed import Observed, joined
from dra_operator.kubectl.topology import attribute
from dra_operator.kubectl.why.answer import NOT_LOOKED_AT
from dra_operator.kubectl.why.pods import ready_state
from dra_operator.kubectl.why.request_changes import every_request
from dra_operator.kubectl.why.selector_changes import expressions_of
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


PAGE_LINES: Final = 200
"""Lines in one answer."""
OFFERED_REASONS: Final = 50
"""Causes that the page offers to choose from. The list also has pods with other causes."""
SAID_NOTHING: Final = "no scheduler has said anything yet"
NUMBERS_OF_CLASS: Final = ("devices", "used", "free", "trouble", "waiting")
AT_ONCE: Final = "is to be allocated at once, and has no devices yet"


class Listed(NamedTuple):
    """A line. Lists sort by cells and by ``age``, filter by ``kind`` and search in ``text``."""

    cells: JSON
    kind: str
    text: str
    age: float = 0.0
    """In seconds; -1 for an unknown time, which sorts after all ages."""


class Wish(NamedTuple):
    """A question to a list. A minus before ``sort`` reverses the order."""

    sort: str = "name"
    find: str = ""
    kind: str = ""


class Lines:
    """The lines of one list. ``orders``: by what it can be sorted, with the cells. ``kinds`` counts lines by kind."""

    def __init__(self, orders: Mapping[str, str], lines: Iterable[Listed]) -> None:
        self._orders, self._lines = orders, list(lines)
        self.kinds = Counter(line.kind for line in self._lines)
        self._answers: RecentAnswers[Wish, list[Listed]] = RecentAnswers()

    def page(self, wish: Wish, offset: int, limit: int) -> JSON:
        """Return some lines and their number. Raises KeyError for an order that the list does not have."""
        if wish.sort.removeprefix("-") not in self._orders:
            raise KeyError(wish.sort)
        found = self._answers.get(wish, self._found)
        return {
            "all": len(self._lines),
            "total": len(found),
            "rows": [line.cells for line in found[offset : offset + limit]],
            "kinds": self.kinds.most_common(OFFERED_REASONS),
            "more_kinds": max(0, len(self.kinds) - OFFERED_REASONS),
        }

    def _found(self, wish: Wish) -> list[Listed]:
        words, order = words_of(wish.find), wish.sort.removeprefix("-")
        found = [
            line for line in self._lines if wish.kind in ("", line.kind) and all(word in line.text for word in words)
        ]
        cell = self._orders[order]
        key = (lambda line: line.age) if order == "age" else (lambda line: line.cells[cell])
        return sorted(found, key=key, reverse=wish.sort.startswith("-"))


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands of kubectl dra for objects on the page.

    ``options`` say which cluster or file it is, in whose name it is read, and with which settings of the operator.

    A command is an empty text for a name that no object can have.
    """

    options: Sequence[tuple[str, str]]

    def why(self, kind: str, key: str) -> str:
        """Return the command that explains a pending pod or claim."""
        namespace, _, name = key.rpartition("/")
        return kubectl("dra", "why", options=self.options, namespace=namespace, names=[kind, name])

    def free(self, class_name: str) -> str:
        """Return the command that lists free devices of a class."""
        return kubectl("dra", "free", f"--class={class_name}", options=self.options, of_names=[class_name])

    def topology(self, node: str) -> str:
        """Return the command that shows the tree of a node."""
        return kubectl("dra", "topology", options=self.options, names=[node])


def waiting_lines(
    seen: Observed, pods: Iterable[Pod], claims: Iterable[ResourceClaim], causes: Mapping[str, tuple[str, bool]]
) -> Lines:
    """Return pods without a node, and claims to be allocated at once. ``causes`` maps pods to causes from ``judge``."""

    def line(kind: str, it: Pod | ResourceClaim, cause: str, clear: bool) -> Listed:
        since = it.metadata.creation_timestamp or ""
        cells: JSON = {
            "kind": kind,
            "key": it.key,
            "age": age(since, seen.taken),
            "cause": shortened(cause),
            "clear": clear,
        }
        return Listed(cells, cells["cause"], f"{it.key}\n{cells['cause']}".lower(), _seconds(since, seen.taken))

    def of_pod(pod: Pod) -> Listed:
        cause, clear = causes.get(pod.key, (NOT_LOOKED_AT, False))
        if cause == NOT_LOOKED_AT:
            cause, clear = said_of(pod) or SAID_NOTHING, False
        return line("pod", pod, cause, clear)

    lines = [*map(of_pod, pods), *(line("claim", claim, AT_ONCE, False) for claim in claims)]
    return Lines({"name": "key", "age": "age", "cause": "cause"}, lines)


def said_of(pod: Pod) -> str:
    """Return the message of the pod's condition ``PodScheduled``, or an empty text."""
    conditions = pod.status.conditions or ()
    return next((it.message or "" for it in conditions if it.type == "PodScheduled" and it.status != "True"), "")


def claim_lines(seen: Observed) -> Lines:
    def lines() -> Iterable[Listed]:
        for claim in claims_of(seen):
            key, since = claim.key, claim.created
            cells: JSON = {
                "key": key,
                "state": claim.state,
                "requests": shortened(joined(claim.requests)),
                "devices": len(claim.devices),
                "first": claim.devices[0] if claim.devices else "",
                "pods": shortened(", ".join(claim.pods[:3])),
                "more_pods": max(0, len(claim.pods) - 3),
                "node": claim.node,
                "age": age(since, seen.taken),
            }
            text = "\n".join((key, cells["requests"], *claim.devices[:32], *claim.pods[:32], claim.node))
            yield Listed(cells, claim.state, text.lower(), _seconds(since, seen.taken))

    return Lines({"name": "key", **{order: order for order in ("state", "devices", "node", "age")}}, lines())


def class_lines(seen: Observed, fleet: Fleet, unjudged: frozenset[str], commands: Commands) -> Lines:
    """Return all classes with devices by state and pending claims. Devices of ``unjudged`` classes are not known."""
    at = FACETS.index("class")
    states: dict[str, Counter[str]] = {}
    for row in fleet.rows:
        for name in row.facets[at]:
            states.setdefault(name, Counter())[row.state] += 1
    waiting: Counter[str] = Counter()
    for claim in seen.every(ResourceClaim):
        if claim.status.allocation is None:
            waiting.update({wanted.device_class_name for _, wanted in every_request(claim)})

    def line(class_: DeviceClass) -> Listed:
        name, counts = class_.metadata.name, states.get(class_.metadata.name, Counter())
        used = counts["taken"] + counts["shared"]
        cells: JSON = {
            "name": name,
            "known": name not in unjudged,
            "devices": counts.total(),
            "used": used,
            "free": counts["free"],
            "trouble": counts["tainted"] + counts["unusable"],
            "waiting": waiting[name],
            "resource": class_.spec.extended_resource_name or "",
            "selectors": shortened(" && ".join(expressions_of(class_.spec.selectors))),
            "command": commands.free(name),
        }
        return Listed(cells, "", f"{name}\n{cells['resource']}\n{cells['selectors']}".lower())

    return Lines({order: order for order in ("name", *NUMBERS_OF_CLASS)}, map(line, seen.every(DeviceClass)))


def _seconds(since: str, now: datetime) -> float:
    moment = parse_time(since)
    return (now - moment).total_seconds() if moment is not None else -1.0
