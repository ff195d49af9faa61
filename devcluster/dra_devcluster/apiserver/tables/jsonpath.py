"""The JSON paths of custom columns: `.spec.size`, `.items[0].name`, `.conditions[?(@.type=="Ready")].status`, `[*]`.

This is the part of kubectl's JSONPath that column definitions use; `\\.` in a field name is a dot.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import orjson

_STEP = re.compile(
    r"""\.(?P<field>(?:\\.|[^.\[\\])+)
    | \[(?P<index>-?\d+)\]
    | \[(?P<quoted>'[^']*'|"[^"]*")\]
    | (?P<every>\[\*\]|\.\*)
    | \[\?\(\s*@(?P<path>[^=!<>\s]+)\s*(?P<operator>==|!=)\s*(?P<literal>'[^']*'|"[^"]*"|[^)\s]+)\s*\)\]""",
    re.VERBOSE,
)
_Step = Callable[[Any], list[Any]]


def find(path: str, document: Any) -> list[Any]:
    """Everything `path` points at. Raises ValueError when the path is not of the form above."""
    values = [document]
    for step in _steps(path):
        values = [found for value in values for found in step(value)]
    return values


@lru_cache(maxsize=1024)
def _steps(path: str) -> tuple[_Step, ...]:
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    text = text if text.startswith((".", "[")) else "." + text
    steps = []
    position = 0
    while position < len(text):
        if match := _STEP.match(text, position):
            steps.append(_step(match))
            position = match.end()
        elif text[position:] == ".":
            break
        else:
            raise ValueError(f"JSON path {path!r}: cannot be read from {text[position:]!r} on")
    return tuple(steps)


def _step(match: re.Match[str]) -> _Step:
    if match["every"]:
        return lambda value: list(value.values()) if isinstance(value, dict) else _items(value)
    if match["index"]:
        index = int(match["index"])
        return lambda value: [_items(value)[index]] if -len(_items(value)) <= index < len(_items(value)) else []
    if match["path"]:
        return _filter(match["path"], match["operator"] == "==", _literal(match["literal"]))
    name = match["quoted"][1:-1] if match["quoted"] else re.sub(r"\\(.)", r"\1", match["field"])
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _filter(path: str, equal: bool, wanted: Any) -> _Step:
    return lambda value: [item for item in _items(value) if (wanted in find(path, item)) == equal]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _literal(text: str) -> Any:
    if text[0] in "'\"":
        return text[1:-1]
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
