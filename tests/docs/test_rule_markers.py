"""Every rule of the specification has a test that fails if the rule is broken, and that names it in a marker."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pages import ROOT, rules

COMPLETE = ("AA", "AL", "CC", "K37", "KM", "NR", "PH", "RS", "SC", "TD", "TE")
"""The families of rules that have tests. Scenarios are found by names: tests/layout/test_scenarios.py."""
WITHOUT = {
    "K37-CAP-02": "not in 1.37",
    "K37-HEALTH-07": "streams are apart from the driver: none can block it",
    "K37-MISC-07": "nothing depends on it",
    "K37-NA-20": "the node agent has no cgroups",
    "K37-NA-21": "the node agent has no cgroups",
    "K37-ONO-07": "nothing is inferred from claims",
    "K37-QH-01": "an own way: indexes lead from changes to pods",
    "K37-WL-28": "nothing is batched",
    "TD-04": "upstream only: file operations cannot be replaced here",
}
"""Why a rule of these families has no test."""

_MARKER = re.compile(r"\bmark\.rule\(")


def markers(source: str) -> Iterator[list[str]]:
    """The ids in each marker of a test; no module is imported."""
    for test in ast.walk(ast.parse(source)):
        if not isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) or not test.name.startswith("test_"):
            continue
        for decorator in test.decorator_list:
            match decorator:
                case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="rule"), args=ids):
                    yield [ast.literal_eval(each) for each in ids]


@cache
def marked_modules() -> dict[Path, tuple[int, list[list[str]]]]:
    """How many markers each module of tests has, and what those at tests name."""
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)}
    counts = {path: len(_MARKER.findall(text)) for path, text in texts.items()}
    return {path: (count, list(markers(texts[path]))) for path, count in counts.items() if count}


def named() -> dict[str, Path]:
    """The rules that markers name, each with one of the modules."""
    return {rule: path for path, (_, found) in marked_modules().items() for ids in found for rule in ids}


def test_every_rule_has_a_test_or_a_reason() -> None:
    wanted = {rule for rule in rules() if rule.split("-")[0] in COMPLETE}
    assert sorted(wanted - named().keys()) == sorted(WITHOUT)


def test_no_marker_names_a_rule_that_does_not_exist() -> None:
    assert {rule: path for rule, path in named().items() if rule not in rules()} == {}


def test_every_marker_is_at_a_test_and_names_rules() -> None:
    """A marker of a module, a class or a case would not be found."""
    for path, (count, found) in marked_modules().items():
        assert len(found) == count, path
        assert all(found), path


def test_markers_are_found_whatever_is_around_them() -> None:
    source = """
@pytest.mark.rule("NR-01", "NR-02")
@pytest.mark.parametrize("case", CASES)
def test_one(case): ...

class Group:
    @given(pods())
    @pytest.mark.rule("AL-03")
    async def test_two(self): ...

@pytest.mark.rule("AL-04")
def helper(): ...
"""
    assert list(markers(source)) == [["NR-01", "NR-02"], ["AL-03"]]
