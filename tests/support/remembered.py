"""How much an object remembers: the sizes of all containers that can be reached from it."""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

_NO_MEMORY = (
    *(str, bytes, int, float, type(None), type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType),
    *(asyncio.AbstractEventLoop, asyncio.Task),
    *(asyncio.Event, asyncio.Lock, asyncio.Condition, asyncio.Semaphore),  # tasks that wait for them are no memory
)


def sizes(root: object, without: tuple[type, ...] = ()) -> dict[str, int]:
    """The number of entries of each dict, list, set and queue, by the path to it; not those in ``without``.

    What is reached by several paths counts for one of them; entries of one container share a path, and the largest of
    what they hold counts.
    """
    found: dict[str, int] = {}
    seen: set[int] = set()
    left: list[tuple[str, object]] = [("", root)]
    while left:
        path, it = left.pop()
        if id(it) in seen or isinstance(it, (*_NO_MEMORY, *without)):
            continue
        seen.add(id(it))
        if isinstance(it, dict | list | set | frozenset | deque):
            found[path] = max(found.get(path, 0), len(it))
        elif isinstance(it, asyncio.Queue):
            found[path] = it.qsize()
        left.extend((path + step, part) for step, part in _parts(it))
    return found


def _parts(it: Any) -> Iterator[tuple[str, object]]:
    if isinstance(it, dict):
        yield from (("{}", each) for each in (*it.keys(), *it.values()))
    elif isinstance(it, list | tuple | set | frozenset | deque):
        yield from (("[]", each) for each in it)
    elif isinstance(it, types.MethodType):
        yield "()", it.__self__
    else:
        slots = (getattr(kind, "__slots__", ()) for kind in type(it).__mro__)
        names = [name for some in slots for name in ([some] if isinstance(some, str) else some)]
        yield from ((f".{name}", getattr(it, name, None)) for name in (*getattr(it, "__dict__", ()), *names))
