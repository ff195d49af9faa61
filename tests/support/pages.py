"""The documentation as data: pages, their links, their blocks of code, the command lines in their text, and citations.

A citation of the specification leads somewhere or nowhere, in code and text (docs/spec/README.md defines the grammar).
A rule is cited by its id; a section by the page's name and its number, or by the number alone where only one page can
be meant. They are counted by:

    python tests/support/pages.py
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
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
        """All of it."""
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
        """The fenced blocks of a language, in order."""
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
        """The lines of each console block."""
        return [_lines(block) for block in self.blocks("console")]


def is_test(block: str) -> bool:
    """Whether a block of Python has tests of pytest."""
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


# --- Citations of the specification in code and text ---

SPEC = ROOT / "docs" / "spec"
CITED_PAGES = {it.name: it for it in [*SPEC.glob("*.md"), ROOT / "docs" / "design.md"] if it.name != "README.md"}
"""The pages that are cited by name."""

_FOLDERS = (
    "benchmarks cel conformance devcluster docs examples kube kubeletplugin ledger manifests operator proto simulator "
    "tests .ci"
)
_SUFFIXES = ("", ".md", ".py", ".toml", ".txt", ".yaml")
_LEFT_OUT = "test_citations.py"  # shows citations that lead nowhere

_RULE = re.compile(r"\b(?:(?:CC|SC|AL|TE|AA|NR|KM|PH|RS|TD|E2E|NOD|INT|PRJ)-\d+|K37-[A-Z]+-\d+)\b")
_DEFINITION = re.compile(rf"^(?:\| )?({_RULE.pattern}) ", re.MULTILINE)
_HEADING = re.compile(r"^#+ (\d+(?:\.\d+)?)\.? ", re.MULTILINE)
_NUMBER = r"\d{1,2}(?:\.\d{1,2})?(?![\w]|\.\d)"
_NUMBERS = rf"{_NUMBER}(?:(?:, and |, | and | or | to ){_NUMBER})*"
_PAGE = "|".join(map(re.escape, CITED_PAGES))
_OF_PAGE = re.compile(rf"(?<![\w-])({_PAGE})(?:\]\([^)]*\))? (?:sections? )?({_NUMBERS})")
_ALONE = re.compile(rf"\b[Ss]ections? ({_NUMBERS})|\((\d{{1,2}}\.\d{{1,2}})(?:, steps? [^)]*)?\)")
_AREA = re.compile(r"\b(?:CC|SC|AL|TE|AA|KM|PH|RS|TD) \d[\d.]*")  # an area is no page
_BREAK = r"[\s#:]+"
_HINT = re.compile(
    rf"[Ss]ections?{_BREAK}\d|\.md(?:\]\([^)]*\))?{_BREAK}(?:sections?{_BREAK})?\d|\(\d{{1,2}}\.\d{{1,2}}[,)]"
    rf"|\b(?:CC|SC|AL|TE|AA|KM|PH|RS|TD){_BREAK}\d"
)
"""Stands in all that cites a section: most files are never parsed."""
_HINT_IN_COMMENT = re.compile(rf"#.*(?:{_HINT.pattern})")
"""Comments are found by a tokenizer, which takes long."""
_FOREIGN = re.compile(r"\bRFC \d+,? sections? [\d.]+")


@dataclass(frozen=True)
class Citation:
    """A rule, or a section of a page; ``page`` is empty where none or several could be meant."""

    where: str
    target: str
    page: str = ""

    @property
    def leads_somewhere(self) -> bool:
        """Whether the specification has what is cited."""
        if _RULE.fullmatch(self.target):
            return self.target in rules()
        return self.page in CITED_PAGES and self.target in sections(self.page)

    def __str__(self) -> str:
        return f"{self.where}: {self.page or 'no page'} {self.target}"


@cache
def rules() -> frozenset[str]:
    """The ids that start a paragraph or a table row of the specification."""
    return frozenset(match for path in SPEC.glob("*.md") for match in _DEFINITION.findall(path.read_text()))


@cache
def sections(page: str) -> frozenset[str]:
    """The numbers of a page's headings."""
    return frozenset(_HEADING.findall(CITED_PAGES[page].read_text()))


def files() -> Iterator[Path]:
    """The project's text files."""
    yield from (path for path in ROOT.glob("*") if path.is_file() and path.suffix in _SUFFIXES)
    for folder in _FOLDERS.split():
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in _SUFFIXES and path.name != _LEFT_OUT:
                yield path


def citations(path: Path) -> Iterator[Citation]:
    """Everything that a file cites."""
    text = path.read_text()
    where = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    for match in _RULE.finditer(text):
        yield Citation(f"{where}:{text.count(chr(10), 0, match.start()) + 1}", match.group())
    if not _HINT.search(text):
        return
    if path.suffix == ".py":
        alone = _only_page(path)
        for line, said in _prose(text):
            yield from _cited_sections(f"{where}:{line}", said, alone)
    else:
        yield from _cited_sections(where, " ".join(text.split()), path.name if path.parent == SPEC else "", path)


def _cited_sections(where: str, text: str, alone: str, page: Path | None = None) -> Iterator[Citation]:
    text = _FOREIGN.sub("", text)
    yield from (Citation(where, found) for found in _AREA.findall(text))
    for name, numbers in _OF_PAGE.findall(text):
        yield from (Citation(where, number, name) for number in _each(numbers))
    if page is None or page.name in CITED_PAGES:
        own = alone or (page.name if page else "")
        for numbers, bracketed in _ALONE.findall(_OF_PAGE.sub("", text)):
            yield from (Citation(where, number, own) for number in _each(numbers or bracketed))


def _each(numbers: str) -> Iterator[str]:
    """``3, 5.1 and 6 to 8``: the numbers that are named."""
    yield from re.findall(r"[\d.]+\d|\d", numbers)


@lru_cache(maxsize=2)
def _parsed(source: str) -> ast.Module:
    """Parse a file once for its docstring and its strings. Trees of all files would take a gigabyte."""
    return ast.parse(source)


def _only_page(module: Path) -> str:
    """The one page that the docstring of a module names, or else that of its package; empty for none or several."""
    docstring = ast.get_docstring(_parsed(module.read_text())) or ""
    named = set(re.findall(rf"(?<![\w-])(?:{_PAGE})", docstring))
    package = (module.parent.parent if module.name == "__init__.py" else module.parent) / "__init__.py"
    if not named and package.exists():
        return _only_page(package)
    return named.pop() if len(named) == 1 else ""


def _prose(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, and of every block of comments if one of them may cite a section."""
    yield from ((line, " ".join(text.split())) for line, text in _strings(source))
    if not _HINT_IN_COMMENT.search(source):
        return
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != last + 1:
            yield first, " ".join(block)
            block, first = [], token.start[0]
        block.append(token.string.lstrip("#: "))
        last = token.start[0]
    yield first, " ".join(block)


def wordless(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings that only cite, and state no rule."""
    if not (_RULE.search(source) or _HINT.search(source)):
        return
    for line, text in _strings(source):
        said = _ALONE.sub("", _OF_PAGE.sub("", _RULE.sub("", text)))
        if said != text and len(re.findall(r"[A-Za-z]{2,}", said.replace("Spec:", ""))) < 3:
            yield line, text


@cache
def _strings(source: str) -> tuple[tuple[int, str], ...]:
    """Line and text of the strings that are statements: docstrings, and what describes a name."""
    found: list[tuple[int, str]] = []
    rest: list[ast.AST] = [_parsed(source)]
    while rest:
        match node := rest.pop():
            case ast.Expr(value=ast.Constant(value=str() as text)):
                found.append((node.lineno, text))
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, ())
            rest += inner if isinstance(inner, list) else ()
    return tuple(sorted(found))


def main() -> None:
    """Prints how many citations there are, and those that lead nowhere."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = [citation for path in files() for citation in citations(path)]
    kinds = Counter("rules" if _RULE.fullmatch(citation.target) else "sections" for citation in found)
    broken = [str(citation) for citation in found if not citation.leads_somewhere]
    print(*broken, f"{len(found)} citations ({dict(kinds)}), {len(broken)} lead nowhere", sep="\n")


if __name__ == "__main__":
    main()
