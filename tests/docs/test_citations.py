"""What code, tests and pages cite of the specification exists, and docstrings state rules in words (docs/spec)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import CITED_PAGES, ROOT, SPEC, Citation, citations, files, rules, sections, wordless

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
