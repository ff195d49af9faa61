"""The tree as SVG: a box in a box for each level, devices as tiles, coloured and labelled by their state.

The picture needs nothing from outside, and texts of drivers and users are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Final

from dra_operator.kubectl.facts.topology import Branch
from dra_operator.kubectl.svg import document

from .titles import title

TILE_WIDTH: Final = 210
TILE_HEIGHT: Final = 46
ROW_TILES: Final = 4
"""Tiles beside each other."""
GAP_WIDTH: Final = 8
HEAD_HEIGHT: Final = 26
MOST_LETTERS: Final = 30
COLOURS: Final = {
    "free": ("#d7f0dc", "#1a6b2f"),
    "taken": ("#d9e4f7", "#1d4a8f"),
    "shared": ("#fdf0cd", "#7a5200"),
    "tainted": ("#fbdcdc", "#9c1c1c"),
    "unusable": ("#e4e4e7", "#4b4b52"),
}
"""Background and text, with a contrast of at least 4.5."""


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
    return document(width, height, title(tree), 13, drawn.lines)


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
    head = f'<text x="{x + GAP_WIDTH}" y="{y + 17}" font-weight="600" fill="#111827">{escape(title(branch))}</text>'
    return Drawn(width, height, (frame, head, *lines))


def _tile(branch: Branch, x: int, y: int) -> Iterator[str]:
    fact = branch.device
    if fact is None:
        return
    ground, ink = COLOURS[fact.state]
    holder = ", ".join(one.claim for one in fact.holders)
    whole = f"{fact.id}: {fact.state}" + (f", {holder}" if holder else "")
    yield f"<g><title>{escape(whole)}</title>"
    yield f'<rect x="{x}" y="{y}" width="{TILE_WIDTH}" height="{TILE_HEIGHT}" rx="4" fill="{ground}" stroke="{ink}"/>'
    yield f'<text x="{x + 8}" y="{y + 18}" fill="{ink}" font-weight="600">{_cut(f"{branch.name}: {fact.state}")}</text>'
    yield f'<text x="{x + 8}" y="{y + 36}" fill="{ink}" font-size="12">{_cut(holder or branch.detail)}</text></g>'


def _cut(text: str) -> str:
    return escape(text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…")
