"""``kubectl dra topology``: the devices of a node by NUMA node, PCIe root, shared counters and parent.

A level that no driver publishes is left out. Attributes count in any domain: ``numaNode`` of one driver means the same
as ``numa`` of another. Drivers publish different levels of one machine, so the levels are joined by their values: each
PCIe root is drawn once, in the NUMA node that any of its devices names (``Places``).
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dra_api.core import Node
from dra_ledger import Ledger

from dra_operator.kubectl.answer import Answer, Fact
from dra_operator.kubectl.facts import DeviceFact, age, devices_of
from dra_operator.kubectl.observed import Observed, no_node, notes_on, require
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.printer import svg_document, svg_text, svg_tile
from dra_operator.kubectl.settings import Settings
from dra_operator.wording import counted

STANDARD_DOMAIN: Final = "resource.kubernetes.io/"
NUMA: Final = ("numanode", "numanodes", "numa", "numanodeid", "numa_node", "numainfo")
"""Names of the attribute, without domain and case; the first that a device publishes counts."""
PCIE_ROOT: Final = ("pcieroot", "pcieroots")
PARENT: Final = ("parent", "parentuuid", "parentdevice")
ITSELF: Final = ("uuid",)
_NUMBERED: Final = re.compile(r"(?:numa|node|id|[-_ :#/])*?([0-9]+)", re.ASCII | re.IGNORECASE)
_NEGATIVE: Final = re.compile(r"-[0-9]+", re.ASCII)

Set = tuple[str, str, str]
"""Driver, pool and name of a set of counters."""


class Branch(Fact, frozen=True):
    """``kind``: node, numa, pcie, counters or device; a device has its facts, and below it are those whose parent it
    is."""

    kind: str
    name: str
    detail: str = ""
    device: DeviceFact | None = None
    children: tuple[Branch, ...] = ()


class Topology:
    """Over what was published when it was made; ``facts`` are all devices."""

    def __init__(self, ledger: Ledger, facts: Sequence[DeviceFact]) -> None:
        self._facts = facts
        self._sets: dict[str, Set] = {}
        """The first counter set from which a device draws, by the id of the device."""
        self._amounts: dict[Set, list[str]] = defaultdict(list)
        """``memory 20Gi of 40Gi left`` for each counter of a set."""
        for entry in ledger.devices():
            for consumed in ((entry.published.consumes_counters if entry.published else None) or ())[:1]:
                self._sets[entry.id] = (entry.driver, entry.pool, consumed.counter_set)
        for counter in ledger.counters():
            key = (counter.driver, counter.pool, counter.counter_set)
            left = "0" if counter.left.startswith("-") else counter.left
            self._amounts[key].append(f"{counter.name} {left} of {counter.total} left")

    def of(self, node: str) -> Branch:
        here = [fact for fact in self._facts if fact.node == node]
        used = sum(bool(fact.holders) for fact in here)
        self._places = Places(here)
        return Branch(
            kind="node", name=node, detail=f"{counted(len(here), 'device')}, {used} in use", children=self._numa(here)
        )

    def _numa(self, facts: Sequence[DeviceFact]) -> tuple[Branch, ...]:
        places = self._places

        def roots(some: Sequence[DeviceFact]) -> tuple[Branch, ...]:
            return _level("pcie", places.root, some, self._counters)

        return _level("numa", places.numa, facts, roots)

    def _counters(self, facts: Sequence[DeviceFact]) -> tuple[Branch, ...]:
        """Devices that take from the same set of counters are partitions of one thing."""
        groups: dict[Set, list[DeviceFact]] = defaultdict(list)
        alone: list[DeviceFact] = []
        for fact in facts:
            set_ = self._sets.get(fact.id)
            (groups[set_] if set_ else alone).append(fact)
        shared = [
            Branch(
                kind="counters", name=key[2], detail=", ".join(sorted(self._amounts[key])), children=self._parents(some)
            )
            for key, some in sorted(groups.items())
        ]
        return (*shared, *self._parents(alone))

    def _parents(self, facts: Sequence[DeviceFact]) -> tuple[Branch, ...]:
        names: Mapping[str, DeviceFact] = {
            **{fact.name: fact for fact in facts},
            **{uuid: fact for fact in facts if (uuid := attribute(fact, ITSELF))},
        }
        below: dict[str, list[DeviceFact]] = defaultdict(list)
        tops: list[DeviceFact] = []
        for fact in facts:
            parent = names.get(attribute(fact, PARENT))
            is_child = parent is not None and parent is not fact and not attribute(parent, PARENT)
            (below[parent.id] if is_child and parent is not None else tops).append(fact)
        return tuple(self._device(fact, tuple(map(self._device, below[fact.id]))) for fact in tops)

    def _device(self, fact: DeviceFact, children: tuple[Branch, ...] = ()) -> Branch:
        details = [self._places.several(fact)] + (["too few counters left"] if fact.state == "drawn" else [])
        detail = "; ".join(filter(None, details))
        return Branch(kind="device", name=fact.name, detail=detail, device=fact, children=children)


class Places:
    """In which NUMA node and below which PCIe root each device of one node is.

    A device that publishes no level of its own is where its parent is. A device near several roots (a processor, for
    example) is below none of them, and one near several NUMA nodes in none of them.
    """

    def __init__(self, facts: Sequence[DeviceFact]) -> None:
        itself = {(fact.driver, name): fact for fact in facts for name in (fact.name, attribute(fact, ITSELF)) if name}
        parents = {fact.id: itself.get((fact.driver, attribute(fact, PARENT))) for fact in facts}
        self._numa = {fact.id: _inherited(fact, parents, _numa_nodes) for fact in facts}
        self._roots = {fact.id: _inherited(fact, parents, _pcie_roots) for fact in facts}
        said: dict[str, set[str]] = defaultdict(set)
        for fact in facts:
            numa = self._numa[fact.id]
            for root in self._roots[fact.id] if len(numa) == 1 else ():
                said[root] |= set(numa)
        self._numa_of_root = {root: ",".join(sorted(numa, key=_by_number)) for root, numa in said.items()}
        """Several if devices of one root disagree: the root is drawn once all the same."""

    def root(self, fact: DeviceFact) -> str:
        """Return the PCIe root of the device; empty if it has none, or several."""
        roots = self._roots[fact.id]
        return roots[0] if len(roots) == 1 else ""

    def numa(self, fact: DeviceFact) -> str:
        """Return the NUMA node of the device, or that of its roots; empty if it has none, or several."""
        if root := self.root(fact):
            return self._numa_of_root.get(root, "")
        numa = self._numa[fact.id] or tuple({self._numa_of_root.get(root, "") for root in self._roots[fact.id]})
        return numa[0] if len(numa) == 1 else ""

    def several(self, fact: DeviceFact) -> str:
        """Return the roots and NUMA nodes of a device that is near several."""
        near = (("NUMA nodes", self._numa[fact.id]), ("PCIe roots", self._roots[fact.id]))
        return "; ".join(f"near {what} {', '.join(values)}" for what, values in near if len(values) > 1)


def _inherited(
    fact: DeviceFact, parents: Mapping[str, DeviceFact | None], own: Callable[[DeviceFact], tuple[str, ...]]
) -> tuple[str, ...]:
    values, seen = own(fact), {fact.id}
    while not values:
        parent = parents[fact.id]
        if parent is None or parent.id in seen:
            return ()
        seen.add(parent.id)
        fact, values = parent, own(parent)
    return values


def _numa_nodes(fact: DeviceFact) -> tuple[str, ...]:
    """``0`` for ``0``, ``node0`` and ``NUMA 0``; none for a negative number: Linux writes one if there is no node."""
    texts = [text for text in _listed(fact, NUMA) if not _NEGATIVE.fullmatch(text)]
    numbered = (_NUMBERED.fullmatch(text) for text in texts)
    found = [str(int(one[1])) if one else text for one, text in zip(numbered, texts, strict=True)]
    return tuple(sorted(dict.fromkeys(found), key=_by_number))


def _pcie_roots(fact: DeviceFact) -> tuple[str, ...]:
    return tuple(sorted(dict.fromkeys(_listed(fact, PCIE_ROOT))))


def _listed(fact: DeviceFact, names: Sequence[str]) -> list[str]:
    """The values of a list, which ``facts.devices`` joins by commas."""
    return [text for part in attribute(fact, names).split(",") if (text := part.strip())]


def _by_number(text: str) -> tuple[bool, int, str]:
    return (not text.isdecimal(), int(text) if text.isdecimal() else 0, text)


def attribute(fact: DeviceFact, names: Sequence[str]) -> str:
    """Return the value of the first of these names that the device publishes, in the standard domain or any other."""
    known: dict[str, str] = {}
    for name, value in sorted(fact.attributes.items(), key=lambda item: not item[0].startswith(STANDARD_DOMAIN)):
        known.setdefault(name.rpartition("/")[2].lower(), value)
    return next((known[name] for name in names if known.get(name)), "")


def _level(
    kind: str,
    value_of: Callable[[DeviceFact], str],
    facts: Sequence[DeviceFact],
    below: Callable[[Sequence[DeviceFact]], tuple[Branch, ...]],
) -> tuple[Branch, ...]:
    """A branch for each value; devices without one come last, on this level."""
    groups: dict[str, list[DeviceFact]] = defaultdict(list)
    for fact in facts:
        groups[value_of(fact)].append(fact)
    without = below(groups.pop("", []))
    names = sorted(groups, key=_by_number)
    return (*(Branch(kind=kind, name=value, children=below(groups[value])) for value in names), *without)


WORDS: Final = {
    "node": "node",
    "numa": "NUMA node",
    "pcie": "PCIe root",
    "counters": "shared counters",
    "device": "device",
}


def title(branch: Branch) -> str:
    """``PCIe root pci0000:00``."""
    if branch.device is not None:
        return f"{branch.device.driver}: {branch.name}"
    return f"{WORDS[branch.kind]} {branch.name}" + (f": {branch.detail}" if branch.detail else "")


TILE_WIDTH: Final = 210
TILE_HEIGHT: Final = 46
ROW_TILES: Final = 4
"""Tiles beside each other."""
GAP_WIDTH: Final = 8
HEAD_HEIGHT: Final = 26
MOST_LETTERS: Final = 30
COLOURS: Final = {
    "free": "green",
    "taken": "blue",
    "shared": "yellow",
    "drawn": "yellow",
    "tainted": "red",
    "unusable": "grey",
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """Lines at the place that the caller chose."""

    width: int
    height: int
    lines: tuple[str, ...]


def picture(tree: Branch) -> Iterator[str]:
    """The lines of an SVG document."""
    drawn = _box(tree, GAP_WIDTH, GAP_WIDTH)
    width, height = drawn.width + 2 * GAP_WIDTH, drawn.height + 2 * GAP_WIDTH
    return svg_document(width, height, title(tree), 13, drawn.lines)


def _box(branch: Branch, x: int, y: int) -> Drawn:
    """A frame with a title, around tiles and smaller boxes."""
    lines: list[str] = []
    tiles = [child for child in branch.children if child.kind == "device" and not child.children]
    boxes = [child for child in branch.children if child not in tiles]
    top, width = y + HEAD_HEIGHT, 0
    for place, tile in enumerate(tiles):
        column, row = place % ROW_TILES, place // ROW_TILES
        lines += _tile(tile, x + GAP_WIDTH + column * (TILE_WIDTH + GAP_WIDTH), top + row * (TILE_HEIGHT + GAP_WIDTH))
        width = max(width, (column + 1) * (TILE_WIDTH + GAP_WIDTH))
    top += -(-len(tiles) // ROW_TILES) * (TILE_HEIGHT + GAP_WIDTH)
    if branch.device is not None:  # a device with others below it
        lines += _tile(branch, x + GAP_WIDTH, top)
        top, width = top + TILE_HEIGHT + GAP_WIDTH, max(width, TILE_WIDTH + GAP_WIDTH)
    for box in boxes:
        drawn = _box(box, x + GAP_WIDTH, top)
        lines += drawn.lines
        top, width = top + drawn.height + GAP_WIDTH, max(width, drawn.width + GAP_WIDTH)
    width = max(width + GAP_WIDTH, 8 * len(title(branch)) + 2 * GAP_WIDTH)
    height = top - y + (0 if branch.children or branch.device else GAP_WIDTH)
    frame = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="none" stroke="#6b7280"/>'
    head = svg_text(x + GAP_WIDTH, y + 17, title(branch), "#111827", bold=True)
    return Drawn(width, height, (frame, head, *lines))


def _tile(branch: Branch, x: int, y: int) -> Iterator[str]:
    fact = branch.device
    if fact is None:
        return
    holder = ", ".join(one.claim for one in fact.holders)
    whole = f"{fact.id}: {fact.state}" + (f", {holder}" if holder else "")
    words = f"{branch.name}: {fact.state}", holder or branch.detail
    yield from svg_tile((x, y), (TILE_WIDTH, TILE_HEIGHT), COLOURS[fact.state], whole, words, MOST_LETTERS)


SVG: Final = "svg"


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    require(seen, "resourceslices.resource.k8s.io")
    made = pipeline(seen, Settings.of(options))
    ledger = made.ledger()
    facts = devices_of(seen, ledger)
    name = options.node.removeprefix("node/")
    if seen.one(Node, name) is None and not any(fact.node == name for fact in facts):
        raise no_node(name, (it.key for it in seen.every(Node)))
    tree = Topology(ledger, facts).of(name)
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
