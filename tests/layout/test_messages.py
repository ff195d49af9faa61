"""A typo in a message is one file and its test: few texts of the operator stand in several test files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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


def test_a_message_stands_in_its_file_and_in_one_test() -> None:
    files = [path for room in ROOMS for path in (ROOT / "operator/dra_operator" / room).rglob("*.py")]
    messages = {text for path in files for text in texts(ast.parse(path.read_text()))}
    joined = re.compile(r'"\s*\n\s*f?"')  # a text that goes on in the next line
    tests = [joined.sub("", path.read_text()) for path in (ROOT / "tests").rglob("*.py")]
    told = {message: sum(message in test for test in tests) for message in messages}
    several = sorted((number, message) for message, number in told.items() if number > 1)
    assert len(messages) > 500
    assert sum(told.values()) > 300, "tests ask for messages"
    assert 100 * len(several) < MOST_PERCENT * len(messages), several
