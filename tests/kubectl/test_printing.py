"""Colours and columns of tables."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import yaml
from dra_operator.kubectl.answer import Answer, Column, Table
from dra_operator.kubectl.devices import bar
from dra_operator.kubectl.printer import Style, painted, rendered

WORDS = Table(
    [Column[str]("WORD", str, colour=lambda it: "red" if it == "bad" else ""), Column[str]("SIZE", len, wide=True)],
    ["bad", "better"],
    lambda it: f"word/{it}",
)


def test_a_colour_is_outside_of_the_padding_that_aligns_columns() -> None:
    lines = list(rendered(Answer(WORDS), Style("wide", coloured=True)))
    assert lines == ["WORD     SIZE", "\x1b[38;5;160mbad   \x1b[0m   3", "better   6"]


def test_yaml_of_a_large_fleet_is_not_written_letter_by_letter_in_python() -> None:
    answer = Answer(replace(WORDS, items=[f"word-{number}" for number in range(500)]))
    calls = 0

    def counting(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(counting)
    try:
        [text] = rendered(answer, Style("yaml"))
    finally:
        sys.setprofile(None)
    assert yaml.safe_load(text)["items"] == [f"word-{number}" for number in range(500)]
    assert calls < 500 * 100


def luminance(code: str) -> float:
    """The relative luminance of one of the 256 colours of a terminal."""
    number = int(code.rpartition(";")[2])
    levels = (0, 95, 135, 175, 215, 255)
    grey = 8 + (number - 232) * 10
    cube = [levels[(number - 16) // step % 6] for step in (36, 6, 1)]
    parts = [one / 255 for one in ([grey] * 3 if number >= 232 else cube)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colour", ["red", "green", "yellow", "grey"])
def test_a_colour_can_be_read_on_a_white_and_on_a_black_terminal(colour: str) -> None:
    code = painted("x", colour).removeprefix("\x1b[").partition("m")[0]
    assert 1.05 / (luminance(code) + 0.05) >= 4.5
    assert (luminance(code) + 0.05) / 0.05 >= 3.5


def test_without_colours_and_width_there_are_words_alone() -> None:
    assert list(rendered(Answer(WORDS), Style())) == ["WORD", "bad", "better"]


@pytest.mark.parametrize("output", [None, "wide", "json", "yaml", "name"])
def test_a_terminal_obeys_no_text_of_a_driver_or_user(output: str | None) -> None:
    hostile = "\x1b]0;pwned\x07\x9b31m\nfake line\u202e"
    table = replace(WORDS, items=[hostile])
    printed = [
        *rendered(Answer(table), Style(output)),
        *rendered(Answer(lines=[hostile], names=[hostile]), Style(output)),
    ]
    assert not any(letter in line for line in printed for letter in "\x1b\x07\x9b")
    assert not any(line == "fake line" for text in printed for line in text.splitlines() if output != "yaml")


def test_a_bar_is_full_only_if_all_is_used_and_empty_only_if_nothing_is() -> None:
    assert [bar(share).count("█") for share in (0, 0.001, 0.5, 0.999, 1)] == [0, 1, 5, 9, 10]
