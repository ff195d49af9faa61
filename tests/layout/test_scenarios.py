"""Every scenario (docs/spec/e2e-scenarios.md) has a test of its name, or a reason why not."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NODE_ALLOCATABLE = "node-allocatable resources are not counted yet (docs/roadmap.md)"
WITHOUT_THE_API = (
    "what an API server without the API does; tests/operator/test_late_kinds.py has the operator beside it"
)
WITHOUT = {
    **dict.fromkeys(("INT-001", "INT-002"), WITHOUT_THE_API),
    **dict.fromkeys((f"INT-{number:03}" for number in range(40, 47)), NODE_ALLOCATABLE),
}
"""Why a scenario has no test."""

SUITES = ("e2e", "int", "nod", "prj")
# test_nod016_nod017_..., test_e2e_061_062_..., test_e2e_070_int_005_..., and cases such as "nod041 the plugin ...".
_SUITE = rf"(?:{'|'.join(SUITES)})"
_NAMED = re.compile(rf"(?:\btest_|[\"\x27])((?:{_SUITE}_?(?:\d{{3}}_?)+)+)")
_PART = re.compile(rf"({_SUITE})_?((?:\d{{3}}_?)+)")


def named_in(text: str) -> set[str]:
    """The scenarios that names of tests or of their cases tell."""
    parts = [part for name in _NAMED.findall(text) for part in _PART.findall(name)]
    return {f"{suite.upper()}-{number}" for suite, numbers in parts for number in re.findall(r"\d{3}", numbers)}


def test_a_name_may_tell_several_scenarios() -> None:
    told = "def test_e2e_070_071_int_005_x(): ...; CASES = {'nod041 the plugin': 1}; 'print 123'; test_e2e_a_123"
    assert named_in(told) == {"E2E-070", "E2E-071", "INT-005", "NOD-041"}


def test_every_scenario_has_a_test_of_its_name_or_a_reason() -> None:
    text = (ROOT / "docs" / "spec" / "e2e-scenarios.md").read_text()
    wanted = set(re.findall(rf"^\| ({_SUITE.upper()}-\d{{3}}) \|", text, re.MULTILINE))
    named = set[str]().union(*(named_in(file.read_text()) for file in (ROOT / "tests").rglob("*.py")))
    assert wanted - named == set(WITHOUT)
    assert named <= wanted
