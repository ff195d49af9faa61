"""A plan of moves as SVG: the devices of the nodes concerned before and after, coloured by what becomes of their pods.

The picture needs nothing from outside, and names of drivers and users are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from dra_operator.kubectl.facts import DeviceFact
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
FILLS: Final = {
    "free": ("#d7f0dc", "#1a6b2f"),
    "stays": ("#e4e4e7", "#4b4b52"),
    "moves": ("#fdf0cd", "#7a5200"),
    "wanted": ("#d9e4f7", "#1d4a8f"),
}
"""Background and text, with a contrast of at least 4.5."""
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
        yield _text(left + 2 * SPACE_WIDTH, 16, title, "#111827", bold=True)
        top = TITLE_HEIGHT
        for name, its, count in rows:
            yield _text(left + 2 * SPACE_WIDTH, top + 16, name or "devices of several nodes", "#111827")
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
    ground, ink = FILLS[kind]
    who = ", ".join(holders) or "free"
    yield f"<g><title>{escape(f'{fact.id}: {who}')}</title>"
    yield f'<rect x="{x}" y="{y}" width="{CELL_WIDTH}" height="{CELL_HEIGHT}" rx="4" fill="{ground}" stroke="{ink}"/>'
    yield _text(x + 6, y + 16, fact.name, ink, bold=True)
    yield _text(x + 6, y + 32, who.partition("/")[2] or who, ink) + "</g>"


def _legend(y: int, found: Defragmentation) -> Iterator[str]:
    words = {"moves": "moves", "stays": "stays", "free": "free"} | ({"wanted": found.pod} if found.devices else {})
    for place, (kind, word) in enumerate(words.items()):
        yield _text(2 * SPACE_WIDTH + place * (CELL_WIDTH + SPACE_WIDTH), y, f"■ {word}", FILLS[kind][1])


def _text(x: int, y: int, text: str, ink: str, *, bold: bool = False) -> str:
    shown = text if len(text) <= SHOWN_LETTERS else f"{text[: SHOWN_LETTERS - 1]}…"
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" fill="{ink}"{weight}>{escape(shown)}</text>'
