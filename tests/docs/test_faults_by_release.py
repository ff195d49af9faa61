"""The table of faults by release names each fault once, and says of each what this project does."""

from __future__ import annotations

import re
from pathlib import Path

from dra_operator.allocator import Semantics

SPEC = Path(__file__).resolve().parents[2] / "docs" / "spec"


def section(page: str, title: str) -> str:
    """The text under a heading, up to the next one."""
    text = (SPEC / page).read_text()
    _, found, rest = text.partition(f"{title}\n")
    assert found, f"{page} has no section {title!r}"
    return re.split(r"^#+ ", rest, maxsplit=1, flags=re.M)[0]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


TABLE = rows(section("allocator.md", "### Faults by release"))


def test_each_fault_that_1_37_corrected_stands_in_the_table_once() -> None:
    known = re.findall(r"^\| (K37-BUG-[0-9]+) ", section("kubernetes-1.37.md", "## 18. Allocator"), flags=re.M)
    named = [id_ for row in TABLE for id_ in re.findall("K37-BUG-[0-9]+", row[1])]
    assert len(known) > 10
    assert sorted(named) == sorted(known)


def test_each_row_says_which_releases_have_the_fault_and_what_happens_here() -> None:
    for fault, upstream, releases, here in TABLE:
        assert re.search(r"1\.3[0-9]|^all", releases), fault
        assert here.startswith(("corrected", "followed")), fault
        assert upstream == "none" or re.search("[0-9]{6}", upstream), fault


def test_what_reference_semantics_repeat_is_marked() -> None:
    """One or more rows for each field of the semantics."""
    marked = [fault for fault, _, _, here in TABLE if here.endswith("*")]
    assert len(marked) >= len(Semantics.__struct_fields__)
    assert {"an older generation is used", "a rule without selector taints all devices"} <= {*marked}


def test_no_page_says_otherwise_of_the_development_branch() -> None:
    assert "still present on the development" not in " ".join((SPEC / "allocator.md").read_text().split())
