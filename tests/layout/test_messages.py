"""A typo in a message is one file and its test: few texts of the operator stand in several test files."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import re2  # type: ignore[import-untyped]  # the package ships no types

ROOT: Final = Path(__file__).resolve().parents[2]
ROOMS: Final = ("kubectl", "scheduling", "allocator", "controllers", "admission")
SHORTEST_LETTERS: Final = 18
"""Shorter parts of a text are words that many texts have."""
MOST_PERCENT: Final = 7


def texts(tree: ast.Module) -> Iterator[str]:
    """The parts of texts between what is filled in, without docstrings."""
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Expr)
    docs = {
        id(first.value)
        for node in ast.walk(tree)
        if isinstance(node, described)
        for first in (node.body[:1] if not isinstance(node, ast.Expr) else [node])
        if isinstance(first, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            text = node.value.strip()
            if len(text) >= SHORTEST_LETTERS and " " in text:
                yield text


def told_in(tests: Iterable[str], messages: Sequence[str]) -> Counter[str]:
    """Return how many of the tests have each message. All are looked for at once: one by one takes 2 s."""
    options = re2.Options()
    options.literal = True
    options.max_mem = 2**28
    wanted = re2.Set.SearchSet(options)
    for message in messages:
        wanted.Add(message)
    wanted.Compile()
    return Counter(messages[number] for test in tests for number in wanted.Match(test) or ())


def test_messages_are_counted_once_in_each_test() -> None:
    assert told_in(["a (b", "a (b, c. a (b", ""], ["a (b", "c.", "d"]) == {"a (b": 2, "c.": 1}


def test_a_message_stands_in_its_file_and_in_one_test() -> None:
    files = [path for room in ROOMS for path in (ROOT / "operator/dra_operator" / room).rglob("*.py")]
    messages = sorted({text for path in files for text in texts(ast.parse(path.read_text()))})
    joined = re.compile(r'"\s*\n\s*f?"')  # a text that goes on in the next line
    tests = [joined.sub("", path.read_text()) for path in (ROOT / "tests").rglob("*.py")]
    told = told_in(tests, messages)
    several = sorted((number, message) for message, number in told.items() if number > 1)
    assert len(messages) > 500
    assert told.total() > 300, "tests ask for messages"
    assert 100 * len(several) < MOST_PERCENT * len(messages), several
