"""The documentation as data: pages, their links, their blocks of code, the command lines in their text, and rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"\s+#\s.*$")
_ONLINE = re.compile(r"https://github\.com/kopf-dra/kopf-dra/(?:blob|tree)/main/")
_FILE = re.compile(r"(?:[\w.-]+/)*[\w-]+\.(?:py|md|ya?ml|toml|json|proto|lock|txt|svg)|(?:[\w.-]+/)+")


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
        return (ROOT / self.name).read_text()

    @property
    def links(self) -> list[Path]:
        """The files to which it links; those of the project also by their address on the web."""
        targets = re.findall(r"\]\(([^)\s]+)\)", self.text)
        local = [str(ROOT / _ONLINE.sub("", target)) if _ONLINE.match(target) else target for target in targets]
        return [
            ((ROOT / self.name).parent / target.partition("#")[0]).resolve()
            for target in local
            if not re.match(r"https?:|#", target)
        ]

    def blocks(self, language: str) -> list[str]:
        return [body for found, body in _BLOCK.findall(self.text) if found == language]

    @property
    def code_spans(self) -> list[str]:
        """What stands in single backticks."""
        return re.findall(r"`([^`\n]+)`", _BLOCK.sub("", self.text))

    @property
    def files(self) -> list[str]:
        """The files and folders that are named in single backticks, as they are named."""
        return [word for span in self.code_spans for word in span.split() if _FILE.fullmatch(word)]

    def console(self) -> list[list[Line]]:
        return [_lines(block) for block in self.blocks("console")]


def is_test(block: str) -> bool:
    return "def test_" in block


def _lines(block: str) -> list[Line]:
    found: list[Line] = []
    for text in block.splitlines():
        if text.startswith("$ "):
            found.append(Line(_COMMENT.sub("", text[2:])))
        else:
            found[-1] = Line(found[-1].command, (*found[-1].prints, text))
    return found


PAGES = [
    Page("README.md"),
    *(Page(path.name) for path in sorted(ROOT.glob("[A-Z]*.md")) if path.name != "README.md"),
    *(Page(str(path.relative_to(ROOT))) for path in sorted((ROOT / "docs").glob("*.md"))),
    *(Page(str(path.relative_to(ROOT))) for path in sorted((ROOT / "docs/adr").glob("*.md"))),
]
BY_NAME = {page.name: page for page in PAGES}


SPEC = ROOT / "docs" / "spec"
RULE = re.compile(r"\b(?:(?:CC|SC|AL|TE|AA|NR|KM|PH|RS|TD|E2E|NOD|INT|PRJ)-\d+|K37-[A-Z]+-\d+)\b")
_DEFINITION = re.compile(rf"^(?:\| )?({RULE.pattern}) ", re.MULTILINE)


@cache
def rules() -> frozenset[str]:
    """The ids that start a paragraph or a table row of the specification."""
    return frozenset(match for path in SPEC.glob("*.md") for match in _DEFINITION.findall(path.read_text()))
