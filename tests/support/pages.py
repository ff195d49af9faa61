"""The documentation as data: pages, their links, their blocks of code, and the command lines in their text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"\s+#\s.*$")


@dataclass(frozen=True)
class Line:
    """A command after a ``$``, without the comment behind it, and what the page says it prints."""

    command: str
    prints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """A markdown file; ``name`` is its path in the project."""

    name: str

    @cached_property
    def text(self) -> str:
        """All of it."""
        return (ROOT / self.name).read_text()

    @property
    def links(self) -> list[Path]:
        """The files to which it links."""
        targets = re.findall(r"\]\(([^)\s]+)\)", self.text)
        return [
            ((ROOT / self.name).parent / target.partition("#")[0]).resolve()
            for target in targets
            if not re.match(r"https?:|#", target)
        ]

    def blocks(self, language: str) -> list[str]:
        """The fenced blocks of a language, in order."""
        return [body for found, body in _BLOCK.findall(self.text) if found == language]

    @property
    def code_spans(self) -> list[str]:
        """What stands in single backticks."""
        return re.findall(r"`([^`\n]+)`", _BLOCK.sub("", self.text))

    def console(self) -> list[list[Line]]:
        """The lines of each console block."""
        return [_lines(block) for block in self.blocks("console")]


def _lines(block: str) -> list[Line]:
    found: list[Line] = []
    for text in block.splitlines():
        if text.startswith("$ "):
            found.append(Line(_COMMENT.sub("", text[2:])))
        else:
            found[-1] = Line(found[-1].command, (*found[-1].prints, text))
    return found


PAGES = [Page("README.md"), *(Page(f"docs/{path.name}") for path in sorted((ROOT / "docs").glob("*.md")))]
BY_NAME = {page.name: page for page in PAGES}
