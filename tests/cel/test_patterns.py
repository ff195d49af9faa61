"""Regular expressions cost what they are worth: no pattern takes long to compile, fills the memory, or is compiled
again each time it is used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import re2  # type: ignore[import-untyped]  # the package ships no types
from dra_api.resource import Device
from dra_cel import CompileError, CostLimitExceeded, EvaluationError, Selector, device_selectors, prepare
from dra_cel.basics.errors import begin_effort
from dra_cel.libraries import regexes
from dra_cel.libraries.regexes import pattern_size
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from rounds import fewer

DEVICE = prepare("gpu.example.com", Device(), list_attributes=True)
ENVIRONMENT = device_selectors(list_attributes=True)
HOSTILE = r"(?:\pL\pL\pL){300}N"
TOO_LARGE = "pattern too large: with its repetitions written out it has more than 120,000 instructions"
TOGETHER = "the patterns of the expression are too large together"

ORDINARY = [
    r"(?i)^\pL{1,64}$",
    r"^\p{Han}{1,253}$",
    r"[\pL\pN]{1,63}",
    r"\pL+(?:-\pL+)*",
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    r"^([a-zA-Z0-9._-]{1,253}/)?[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?$",
    r"^[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$",
    r"^[-a-zA-Z0-9._:/@+=]{1,1000}$",
    r"(?:.{100}){10}",
    r"(?i)nvidia|a100|h100|mi300x",
]

ATOMS = [
    "a",
    "k",
    "é",
    ".",
    r"\pL",
    r"\p{Lu}",
    r"\PN",
    "[^a]",
    "[a-z]",
    "[é-€]",
    r"[^\pL_]",
    "[[:alpha:]x]",
    r"\w",
    r"\W",
]
ATOMS += [
    "θ",
    r"\x{10ffff}",
    r"\.",
    "^",
    "$",
    r"\b",
    r"[\d\pN-]",
    "(?i)",
    "(?s)",
    "(?:)",
    r"\p{Han}",
    r"\Qa.b\E",
    "[Ā-ɏ]",
]
TIMES = ["*", "+", "?", "{3}", "{2,5}", "{4,}", "{0,3}", "{0}", "*?", "{0,7}?"]
PATTERNS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.builds(str.__add__, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("({})".format, inner),
        st.builds("(?P<name>{})".format, inner),
        st.builds("(?:{}){}".format, inner, st.sampled_from(TIMES)),
    ),
    max_leaves=12,
)


@settings(max_examples=fewer(300), deadline=None)
@given(PATTERNS)
@example(HOSTILE)
@example("(?i)" + r"\p{Lu}{50}")
def test_the_size_of_a_pattern_is_hardly_ever_less_than_its_program_has(pattern: str) -> None:
    options = re2.Options()
    options.log_errors, options.max_mem = False, 64 << 20
    try:
        program = re2.compile(pattern, options).programsize
    except re2.error:
        assume(False)
    finally:
        re2.purge()
    assert program <= 1.25 * pattern_size(pattern)


@pytest.mark.parametrize("pattern", ORDINARY)
def test_ordinary_patterns_are_compiled(pattern: str) -> None:
    assert regexes.compile_pattern(pattern).compiled is not None


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The patterns that RE2 is given."""
    texts: list[str] = []
    compile_: Callable[..., Any] = re2.compile

    def record(text: str, options: object) -> Any:
        texts.append(text)
        return compile_(text, options)

    monkeypatch.setattr(re2, "compile", record)
    regexes.forget()
    begin_effort()
    pattern_size(r"\pL\p{^Lu}")  # the sizes of classes are learnt from RE2, once
    texts.clear()
    return texts


@pytest.mark.parametrize("pattern", [HOSTILE, r"\pL{1000}", r"\p{^Lu}{1000}|Ä", r"(?:(?:\pL{9}){9}){9}", r"\pL" * 499])
def test_a_pattern_of_repeated_classes_is_refused_before_anything_is_built(pattern: str, compiled: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(EvaluationError, match=TOO_LARGE):
            regexes.compile_pattern(pattern)
    assert compiled == []


def test_a_pattern_that_re2_refuses_is_not_tried_again(compiled: list[str]) -> None:
    bad = "(?:.{0,9}|a){1000}" + "(b)" * 900 + "{40}"
    for _ in range(3):
        with pytest.raises(EvaluationError):
            regexes.compile_pattern(bad)
    assert compiled == [bad]


def test_a_selector_with_a_hostile_pattern_does_not_compile_and_says_what_to_do() -> None:
    with pytest.raises(CompileError, match=TOO_LARGE + r".*repeat less often, or write narrower classes than \\pL"):
        Selector(rf"device.driver.matches(r'{HOSTILE}')", ENVIRONMENT)


@pytest.mark.parametrize("call", ["matches({})", "find({}) != ''", "findAll({}) != []"])
def test_a_selector_of_many_large_patterns_is_refused_after_a_few(call: str, compiled: list[str]) -> None:
    patterns = [rf"r'(?i)^\pL{{1,80}}{number}$'" for number in range(150)]
    terms = [f"device.driver.{call.format(pattern)}" for pattern in patterns]
    with pytest.raises(CompileError, match=TOGETHER):
        Selector(" || ".join(terms), ENVIRONMENT)
    assert 1 <= len(compiled) <= 2


def test_patterns_made_at_run_time_are_refused_in_the_same_way_each_time(compiled: list[str]) -> None:
    selector = Selector(r"lists.range(150).all(x, !'a'.matches('^\\pL{1,80}' + string(x)))", ENVIRONMENT)
    for _ in range(3):
        with pytest.raises(CostLimitExceeded, match=TOGETHER):
            selector.matches(DEVICE)
    assert len(compiled) <= 2


def test_one_large_pattern_may_be_matched_in_a_loop() -> None:
    selector = Selector(r"lists.range(32).all(x, 'é'.matches('(?i)^\\pL{1,64}$'))", ENVIRONMENT)
    assert selector.matches(DEVICE)
    assert selector.matches(DEVICE)


def test_matching_long_texts_costs_effort() -> None:
    text = "ba" * 2500
    selector = Selector(
        rf"lists.range(100).all(x, (device.driver + '{text}').matches('(?:.{{0,99}}a){{10}}$'))", ENVIRONMENT
    )
    with pytest.raises(CostLimitExceeded):
        selector.matches(DEVICE)


def test_the_effort_of_one_evaluation_does_not_burden_the_next() -> None:
    selector = Selector(r"(device.driver + 'é').matches('(?i)^[a-z.]+\\pL{1,64}$')", ENVIRONMENT)
    greedy = Selector(r"lists.range(9).all(x, !string(x).matches('^\\pL{1,80}' + string(x)))", ENVIRONMENT)
    for _ in range(3):
        with pytest.raises(CostLimitExceeded):
            greedy.matches(DEVICE)
        assert selector.matches(DEVICE)
        assert selector.explain(DEVICE)[0] is True


ATTACK = r"""
import sys
from contextlib import suppress
from dra_api.resource import Device
from dra_cel import CelError, Selector, device_selectors, prepare

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20

device = prepare("gpu.example.com", Device())
environment = device_selectors()
before = resident()
for number in range(7):
    kinds = (rf"(?:\\pL\\pL\\pL){{300}}N{number}x", rf"^\\pL{{1,80}}{number}x", rf"(a|b)*a(a|b){{12}}{number}x")
    for kind in kinds:
        terms = [f"'{'ab' * 40}'.matches('{kind}' + string({term}))" for term in range(25)]
        with suppress(CelError):
            Selector(" || ".join(terms), environment).matches(device)
        literal = [f"device.driver.matches('{kind}{term}')" for term in range(25)]
        with suppress(CelError):
            Selector(" || ".join(literal), environment).matches(device)
print(resident() - before)
"""


def test_thousands_of_hostile_patterns_take_little_memory() -> None:
    """A thousand patterns. A process that keeps 128 compiled ones of any size, as the package does, grows by 500 MB."""
    answer = subprocess.run([sys.executable, "-c", ATTACK], capture_output=True, text=True, timeout=300, check=True)
    assert int(answer.stdout) < 100


def test_what_is_not_found_in_a_long_text_is_the_empty_text() -> None:
    text = "a" * 3000
    assert Selector(f"'{text}'.find('b+') == '' && '{text}bb'.find('b+') == 'bb'", ENVIRONMENT).matches(DEVICE)
