"""How much an object remembers: the sizes of all containers that can be reached from it."""

from __future__ import annotations

import ast
import asyncio
import types
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NO_MEMORY = (
    *(str, bytes, int, float, type(None), type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType),
    *(asyncio.AbstractEventLoop, asyncio.Task),
    *(asyncio.Event, asyncio.Lock, asyncio.Condition, asyncio.Semaphore),  # tasks that wait for them are no memory
)


_CONTAINERS = ("OrderedDict", "dict", "set", "list", "deque", "Counter", "defaultdict", "WeakValueDictionary")


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


def by_attribute(root: object, without: tuple[type, ...] = ()) -> dict[str, int]:
    """The largest size of each container by the class that has it and its attribute, such as ``Store._objects``."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    left: list[object] = [root]
    while left:
        it = left.pop()
        if id(it) in seen or isinstance(it, (*_NO_MEMORY, *without)):
            continue
        seen.add(id(it))
        for step, part in _parts(it):
            if step.startswith(".") and isinstance(part, dict | list | set | frozenset | deque):
                for kind in type(it).__mro__:
                    name = f"{kind.__name__}{step}"
                    found[name] = max(found.get(name, 0), len(part))
            left.append(part)
    return found


def kept_by_classes(folder: Path) -> set[str]:
    """The containers that classes in a folder begin with as empty ones, as ``by_attribute`` names them."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for class_ in (it for it in ast.walk(ast.parse(path.read_text())) if isinstance(it, ast.ClassDef)):
            for method in class_.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    found |= {f"{class_.name}.{name}" for name in _empty_ones(method)}
    return found


def _empty_ones(method: ast.FunctionDef) -> Iterator[str]:
    for it in ast.walk(method):
        if isinstance(it, ast.Assign):
            places, values = it.targets[0], it.value
            pairs = (
                zip(places.elts, values.elts, strict=False)
                if isinstance(places, ast.Tuple) and isinstance(values, ast.Tuple)
                else [(places, values)]
            )
        elif isinstance(it, ast.AnnAssign) and it.value is not None:
            pairs = [(it.target, it.value)]
        else:
            continue
        yield from (place.attr for place, value in pairs if isinstance(place, ast.Attribute) and _is_empty(value))


def _is_empty(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set):
        return not (value.keys if isinstance(value, ast.Dict) else value.elts)
    if not isinstance(value, ast.Call) or value.args:
        return False
    maker = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    return isinstance(maker, ast.Name) and maker.id in _CONTAINERS


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
