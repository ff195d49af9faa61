"""A plan of moves as SVG: the devices of the nodes concerned before and after, coloured by what becomes of their pods.

The picture needs nothing from outside, and names of drivers and users are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dra_operator.kubectl.facts import DeviceFact
from dra_operator.kubectl.printer import INKS, svg_text, svg_tile
from dra_operator.kubectl.printer import svg_document as document
from dra_operator.wording import counted

from .defragmentation import Defragmentation

CELL_WIDTH: Final = 124
CELL_HEIGHT: Final = 40
SPACE_WIDTH: Final = 6
"""Between two cells."""
ROW_CELLS: Final = 4
"""Cells of a node beside each other."""
TITLE_HEIGHT: Final = 24
SHOWN_LETTERS: Final = 17
COLOURS: Final = {"free": "green", "stays": "grey", "moves": "yellow", "wanted": "blue"}
Held = Mapping[str, Sequence[str]]
"""By device: who has it."""
Row = tuple[str, list[DeviceFact], int]
"""A node, its devices, and the lines of cells that they take."""


def before_and_after(facts: Sequence[DeviceFact], found: Defragmentation) -> Iterator[str]:
    """The lines of an SVG document. Only nodes of which a device changes hands are drawn."""
    before = {fact.id: _holders(fact) for fact in facts}
    after = _after(before, found)
    nodes = {fact.node for fact in facts if before[fact.id] != after[fact.id]}
    by_node = {name: [fact for fact in facts if fact.node == name] for name in sorted(nodes)}
    side = ROW_CELLS * (CELL_WIDTH + SPACE_WIDTH) + 3 * SPACE_WIDTH
    rows = [(name, its, -(-len(its) // ROW_CELLS)) for name, its in by_node.items()]
    height = 2 * TITLE_HEIGHT + sum(TITLE_HEIGHT + count * (CELL_HEIGHT + SPACE_WIDTH) for _, _, count in rows)
    label = f"{found.pod}: before and after {counted(len(found.moves), 'move')}"
    return document(2 * side, height, label, 12, _drawn(found, before, after, rows, side, height))


def _drawn(
    found: Defragmentation, before: Held, after: Held, rows: Sequence[Row], side: int, height: int
) -> Iterator[str]:
    moved = {move.pod for move in found.moves}
    for left, title, held in ((0, "before", before), (side, "after", after)):
        yield svg_text(left + 2 * SPACE_WIDTH, 16, title, "#111827", SHOWN_LETTERS, bold=True)
        top = TITLE_HEIGHT
        for name, its, count in rows:
            yield svg_text(
                left + 2 * SPACE_WIDTH, top + 16, name or "devices of several nodes", "#111827", SHOWN_LETTERS
            )
            top += TITLE_HEIGHT
            for place, fact in enumerate(its):
                x = left + 2 * SPACE_WIDTH + place % ROW_CELLS * (CELL_WIDTH + SPACE_WIDTH)
                y = top + place // ROW_CELLS * (CELL_HEIGHT + SPACE_WIDTH)
                yield from _cell(fact, held[fact.id], _kind(held[fact.id], moved, found.pod), x, y)
            top += count * (CELL_HEIGHT + SPACE_WIDTH)
    yield from _legend(height - 8, found)


def _holders(fact: DeviceFact) -> list[str]:
    """Pods, or the claim where no pod uses it."""
    return [
        name
        for it in fact.holders
        for name in ([f"{it.claim.partition('/')[0]}/{pod}" for pod in it.pods] or [f"claim {it.claim}"])
    ]


def _after(before: Held, found: Defragmentation) -> Held:
    held = {device: list(pods) for device, pods in before.items()}
    for move in found.moves:
        for pods in held.values():
            pods[:] = [pod for pod in pods if pod != move.pod]
        for device in move.devices:
            held[device].append(move.pod)
    for device in found.devices:
        held[device].append(found.pod)
    return held


def _kind(holders: Sequence[str], moved: set[str], wanted: str) -> str:
    if not holders:
        return "free"
    if wanted in holders:
        return "wanted"
    return "moves" if moved.intersection(holders) else "stays"


def _cell(fact: DeviceFact, holders: Sequence[str], kind: str, x: int, y: int) -> Iterator[str]:
    who = ", ".join(holders) or "free"
    words = fact.name, who.partition("/")[2] or who
    yield from svg_tile((x, y), (CELL_WIDTH, CELL_HEIGHT), COLOURS[kind], f"{fact.id}: {who}", words, SHOWN_LETTERS)


def _legend(y: int, found: Defragmentation) -> Iterator[str]:
    words = {"moves": "moves", "stays": "stays", "free": "free"} | ({"wanted": found.pod} if found.devices else {})
    for place, (kind, word) in enumerate(words.items()):
        x = 2 * SPACE_WIDTH + place * (CELL_WIDTH + SPACE_WIDTH)
        yield svg_text(x, y, f"■ {word}", INKS[COLOURS[kind]][1], SHOWN_LETTERS)
