"""What code, tests and pages cite of the specification exists, and docstrings state rules in words (docs/spec)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import pytest
from pages import ROOT, RULE, SPEC, rules

CITED_PAGES = {it.name: it for it in [*SPEC.glob("*.md"), ROOT / "docs" / "design.md"] if it.name != "README.md"}
"""The pages that are cited by name."""

_FOLDERS = (
    "benchmarks cel conformance devcluster docs examples kube kubeletplugin ledger manifests operator proto simulator "
    "tests .ci"
)
_SUFFIXES = ("", ".md", ".py", ".toml", ".txt", ".yaml")
_LEFT_OUT = "test_citations.py"  # shows citations that lead nowhere

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
        if RULE.fullmatch(self.target):
            return self.target in rules()
        return self.page in CITED_PAGES and self.target in sections(self.page)

    def __str__(self) -> str:
        return f"{self.where}: {self.page or 'no page'} {self.target}"


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
    for match in RULE.finditer(text):
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
    if not (RULE.search(source) or _HINT.search(source)):
        return
    for line, text in _strings(source):
        said = _ALONE.sub("", _OF_PAGE.sub("", RULE.sub("", text)))
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


MODULES = [path for path in files() if path.suffix == ".py"]


def test_every_citation_leads_somewhere() -> None:
    found = [citation for path in files() for citation in citations(path)]
    assert [str(citation) for citation in found if not citation.leads_somewhere] == []
    assert len(found) > 500


def test_docstrings_state_rules_in_words() -> None:
    assert [f"{path}:{line}: {text}" for path in MODULES for line, text in wordless(path.read_text())] == []


def test_no_rule_is_defined_twice() -> None:
    defined = re.findall(
        r"^(?:\| )?([A-Z0-9]{2,3}-(?:[A-Z]+-)?\d+) ", "\n".join(p.read_text() for p in SPEC.glob("*.md")), re.M
    )
    assert sorted(defined) == sorted(rules())


@pytest.mark.parametrize("path", sorted(SPEC.glob("*.md")), ids=lambda path: path.name)
def test_links_of_the_specification_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", re.sub(r"`[^`\n]*`", "", path.read_text()))
    assert [target for target in targets if not (SPEC / target).exists()] == []


def test_the_entrance_names_every_page() -> None:
    assert set(re.findall(r"^\| \[([\w.-]+\.md)\]", (SPEC / "README.md").read_text(), re.MULTILINE)) == {
        path.name for path in SPEC.glob("*.md") if path.name != "README.md"
    }


# --- the grammar --------------------------------------------------------------------------------

ONE_PAGE = '"""Selectors (scheduling.md 6.5)."""\n'
TWO_PAGES = '"""Selectors (scheduling.md 6.5, api.md section 9)."""\n'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# KM-18 and AL-14 (d)", ["KM-18", "AL-14"]),
        ("# scheduling.md 4.3", ["scheduling.md 4.3"]),
        ("# docs/spec/api.md section 9", ["api.md 9"]),
        ("# api.md sections 4, 5 and 6 to 8.", ["api.md 4", "api.md 5", "api.md 6", "api.md 8"]),
        ("# plugin-helper.md 4.1, 4.4 (steps 5 and 8)", ["plugin-helper.md 4.1", "plugin-helper.md 4.4"]),
        ("# see design.md section 2 and PH-01", ["design.md 2", "PH-01"]),
        ("# RFC 9110 section 10.2.3, version (1.36.2), 5 of 6.5", []),
        ("x = Backoff(0.5)  # not longer", []),
        (ONE_PAGE + "# the checks of section 7\n", ["scheduling.md 6.5", "scheduling.md 7"]),
        (ONE_PAGE + "# given back (4.3, step 2)\n", ["scheduling.md 6.5", "scheduling.md 4.3"]),
        (ONE_PAGE + "# the checks of\n# section 7\n", ["scheduling.md 6.5", "scheduling.md 7"]),
        ('def f():\n    """Taken (api.md section\n    4)."""', ["api.md 4"]),
    ],
)
def test_what_is_a_citation(tmp_path: Path, text: str, found: list[str]) -> None:
    assert sorted(told(tmp_path, text)) == sorted(found)


@pytest.mark.parametrize(
    "text",
    [
        "# KM-99",
        "# scheduling.md 4.9",
        "# design.md section 99",
        "# the checks of section 7",
        "# given back (4.3)",
        "# as in CC 5.1",
        TWO_PAGES + "# the checks of section 4",
        ONE_PAGE + "# the checks of section 42",
    ],
)
def test_citations_that_lead_nowhere_are_found(tmp_path: Path, text: str) -> None:
    assert not all(citation.leads_somewhere for citation in read(tmp_path, text))


def test_a_section_without_page_may_be_one_of_the_packages_page(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text('"""Devices (allocator.md)."""\n')
    assert told(tmp_path, "# see section 7\n") == ["allocator.md 7"]
    assert told(tmp_path, ONE_PAGE + "# see section 7\n") == ["scheduling.md 6.5", "scheduling.md 7"]


@pytest.mark.parametrize("text", ["KM-20.", "Section 7.", "Phase 3 (KM-14).", "Spec: api.md section 4."])
def test_docstrings_without_a_rule_are_found(text: str) -> None:
    assert list(wordless(f'"""{text}"""')) == [(1, text)]
    assert list(wordless(f'"""Devices are taken once. {text}"""')) == []


def test_headings_and_rules_are_known() -> None:
    assert {"design.md", "allocator.md", "claim-controller.md"} <= CITED_PAGES.keys()
    assert {"4", "4.3", "10.6"} <= sections("scheduling.md")
    assert {"CC-01", "E2E-119", "PRJ-018", "KM-28"} <= rules()
    assert all(path.is_relative_to(ROOT) for path in files())


def read(folder: Path, text: str) -> list[Citation]:
    path = folder / "module.py"
    path.write_text(text)
    return list(citations(path))


def told(folder: Path, text: str) -> list[str]:
    return [f"{citation.page} {citation.target}".strip() for citation in read(folder, text)]
