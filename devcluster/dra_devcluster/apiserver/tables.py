"""What `kubectl get` prints: the Table with its columns, its rows, and the part of each object that a row carries.

Built-in kinds have their columns in `schema/table-columns.json`. There a column has the path of its value, or ``cells``
has a function for it by the title, or for the whole row. Custom resources bring their columns as JSON paths:
`.spec.size`, `.items[0].name`, `.conditions[?(@.type=="Ready")].status`, `[*]`. That is the part of kubectl's JSONPath
which definitions use; a backslash before a dot makes it part of a field's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, Final

import orjson

from dra_devcluster.apiserver.cells import CELLS, COMMON, ROWS, Cells, Json, age, at, completion, created, name
from dra_devcluster.apiserver.structure import Resource, load_data

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


_NAME: list[Any] = ["Name", "string", "name", 0]
_DEFAULT_COLUMNS: list[list[Any]] = [_NAME, ["Created At", "date", "", 0]]


def render_table(
    resource: Resource,
    objects: Iterable[Json],
    *,
    now: datetime,
    include: str = "Metadata",
    metadata: Json | None = None,
) -> Json:
    """The table of `objects`. `include` is the includeObject parameter (None, Metadata, Object); `metadata` the list's
    (resourceVersion, continue)."""
    columns, cells = _layout(resource)
    rows = []
    for obj in objects:
        row: Json = {"cells": cells(obj, now)}
        if resource.plural == "pods" and not resource.group and (conditions := completion(obj)):
            row["conditions"] = conditions
        if include != "None":
            row["object"] = obj if include == "Object" else partial_metadata(obj)
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata or {},
        "columnDefinitions": columns,
        "rows": rows,
    }


_WITH_LABELS: Final = ("/nodes", "storage.k8s.io/storageclasses")


def shows_labels(resource: Resource) -> bool:
    """Whether a cell may come from labels or annotations."""
    return resource.definition is not None or f"{resource.group}/{resource.plural}" in _WITH_LABELS


_WITHOUT_SPEC: Final = ("resource.k8s.io/resourceclaims", "resource.k8s.io/resourceclaimtemplates")


def shows_spec(resource: Resource) -> bool:
    """Whether a cell may come from the spec; of these kinds none does, and specs have hundreds of kilobytes."""
    return f"{resource.group}/{resource.plural}" not in _WITHOUT_SPEC


def partial_metadata(obj: Json) -> Json:
    """The object as PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _layout(resource: Resource) -> tuple[list[Json], Cells]:
    if resource.definition is not None:
        return _custom(resource.definition.get("additionalPrinterColumns") or [])
    return _builtin(f"{resource.group}/{resource.plural}")


@cache
def _builtin(key: str) -> tuple[list[Json], Cells]:
    columns = load_data("table-columns.json").get(key, _DEFAULT_COLUMNS)
    own = COMMON | CELLS.get(key, {})
    cells = [] if key in ROWS else [at(*path) if path else own[title] for title, _, _, _, *path in columns]
    row = ROWS.get(key) or (lambda obj, now: [cell(obj, now) for cell in cells])
    return [_column(*column[:4]) for column in columns], row


def _column(title: str, kind: str, form: str = "", priority: int = 0) -> Json:
    return {"name": title, "type": kind, "format": form, "description": "", "priority": priority}


def _custom(defined: list[Json]) -> tuple[list[Json], Cells]:
    """A custom resource's own columns; name and age when it defines none."""
    columns = [_column(*_NAME)]
    if not defined:
        columns.append(_column("Age", "date"))
        return columns, lambda obj, now: [name(obj), created(obj, now)]
    columns += [_column(e["name"], e["type"], e.get("format", ""), e.get("priority", 0)) for e in defined]
    return columns, lambda obj, now: [name(obj), *(_custom_cell(entry, obj, now) for entry in defined)]


def _custom_cell(entry: Json, obj: Json, now: datetime) -> Any:
    try:
        found = find(entry["jsonPath"], obj)
    except ValueError:
        return None  # an unusable path leaves the cell empty and must not break the list
    if not found:
        return None
    kind = entry["type"]
    if kind == "date":
        return age(found[0], now)
    if kind == "string":
        return ",".join(_text(value) for value in found)
    matches = {"integer": (int,), "number": (int, float), "boolean": (bool,)}.get(kind, ())
    return found[0] if type(found[0]) in matches else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
