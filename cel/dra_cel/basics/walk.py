"""Recursion without the Python stack.

Expressions may nest deeper than Python's recursion limit allows. Every pass over the tree is therefore written
as a generator that *yields* the recursive calls it wants made and is handed their results::

    def height(node):
        return 1 + max([(yield height(child)) for child in node.children], default=0)

    walk(height(tree))

``walk`` keeps the pending generators on a list. An exception ends the whole walk.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")
Walk = Generator[Any, Any, T]


def walk(generator: Walk[T]) -> T:
    """Run a generator and everything that it yields; the result is what it returns."""
    pending: list[Walk[Any]] = [generator]
    result: Any = None
    while pending:
        try:
            child = pending[-1].send(result)
        except StopIteration as done:
            pending.pop()
            result = done.value
        else:
            pending.append(child)
            result = None
    return result  # type: ignore[no-any-return]  # the last value returned is the outermost generator's
