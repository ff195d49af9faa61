"""A picture as one SVG document, which needs nothing from outside and says in a label what it shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape


def document(width: int, height: int, label: str, letter_pixels: int, drawn: Iterable[str]) -> Iterator[str]:
    """The lines of the document: ``drawn`` on white, of a size in pixels. The label is escaped here."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(label)}" font-family="system-ui, sans-serif" font-size="{letter_pixels}">'
    )
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    yield from drawn
    yield "</svg>"
