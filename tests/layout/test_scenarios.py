"""Every scenario that needs a node has a test of its name (docs/spec/e2e-scenarios.md)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WITHOUT = {
    "E2E-084": "claims of PodGroups are not allocated yet (docs/roadmap.md)",
    "E2E-085": "claims of PodGroups are not allocated yet (docs/roadmap.md)",
    "E2E-086": "claims of PodGroups are not allocated yet (docs/roadmap.md)",
    "E2E-099": "the node agent has no device plugins (docs/roadmap.md)",
    "E2E-105": "the node agent has no device plugins (docs/roadmap.md)",
}
"""Why a scenario has no test."""

# test_nod016_nod017_..., test_e2e_061_062_..., and cases such as "nod041 the plugin unregisters".
_NAMED = re.compile(r"(?:\btest_|[\"\x27])((?:(?:nod|e2e)_?)(?:\d{3}_?(?:nod|e2e)?_?)+)")


def named_by_tests() -> set[str]:
    """The scenarios that names of tests or of their cases tell."""
    found = set()
    for file in (ROOT / "tests").rglob("*.py"):
        for name in _NAMED.findall(file.read_text()):
            found |= {f"{name[:3].upper()}-{number}" for number in re.findall(r"\d{3}", name.replace("e2e", ""))}
    return found


def wanted() -> set[str]:
    """Scenarios of a node, and those of a cluster that are marked with K."""
    text = (ROOT / "docs" / "spec" / "e2e-scenarios.md").read_text()
    nodes = re.findall(r"^\| (NOD-\d{3}) \|", text, re.MULTILINE)
    return set(nodes) | set(re.findall(r"^\| (E2E-\d{3}) \|[^|]*\| K \|", text, re.MULTILINE))


def test_every_scenario_that_needs_a_node_has_a_test_of_its_name() -> None:
    assert wanted() - named_by_tests() == set(WITHOUT)
