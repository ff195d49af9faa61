"""One request to a resource, and the form of its answer: whole objects and lists, their metadata only, or a table.

Tables are for `kubectl get`. They have columns, rows, and the part of each object that a row carries. Built-in kinds
have their columns in `schema/table-columns.json`. There a column has the path of its value, or ``cells`` has a function
for it by the title, or for the whole row. Custom resources bring their columns as JSON paths: `.spec.size`,
`.items[0].name`, `.conditions[?(@.type=="Ready")].status`, `[*]`. Definitions use this part of kubectl's JSONPath; a
backslash before a dot makes it part of a field's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from typing import Any, Final

import orjson
from aiohttp import web
from dra_api.validation.formats import Errors, FieldError, not_supported, too_long

from dra_devcluster.apiserver.admission import Policies
from dra_devcluster.apiserver.cells import CELLS, COMMON, ROWS, Cells, Json, age, at, completion, created, name
from dra_devcluster.apiserver.errors import StatusError, invalid_options, not_allowed
from dra_devcluster.apiserver.identity import Tokens
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.metadata import data_of, one_of, prefix_of, to_served
from dra_devcluster.apiserver.rbac import User
from dra_devcluster.apiserver.registry import Registry, deprecations
from dra_devcluster.apiserver.store import Stored
from dra_devcluster.apiserver.structure import Resource, load_data
from dra_devcluster.apiserver.verbs.read import Page
from dra_devcluster.apiserver.verbs.write import check_fields
from dra_devcluster.apiserver.wire import Target, Wanted, media_type, parse_object, read_body, respond, wanted

_STEP = re.compile(
    r"""(?P<every>\[\*\]|\.\*)
    | \.(?P<field>(?:\\.|[^.\[\\])+)
    | \[(?P<index>-?\d+)\]
    | \[(?P<quoted>'[^']*'|"[^"]*")\]
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
    if resource.definition is not None:
        columns, cells = _custom(resource.definition.get("additionalPrinterColumns") or [])
    else:
        columns, cells = _builtin(f"{resource.group}/{resource.plural}")
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
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


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
        return ",".join(value if isinstance(value, str) else orjson.dumps(value).decode() for value in found)
    matches = {"integer": (int,), "number": (int, float), "boolean": (bool,)}.get(kind, ())
    return found[0] if type(found[0]) in matches else None


_ANSWER_PART_BYTES = 256 * 1024


def render(resource: Resource, stored: Stored, want: Wanted, query: Json) -> bytes:
    """One object."""
    want.check_metadata(resource.group, resource.kind, is_list=False)
    if want.shape == "metadata":
        return orjson.dumps(_partial(stored, want))
    if want.shape == "table":
        return orjson.dumps(_table(resource, [stored], want, query, {"resourceVersion": str(stored.revision)}))
    return prefix_of(resource) + data_of(resource, stored)


def render_list(resource: Resource, page: Page, want: Wanted, query: Json) -> Iterator[bytes]:
    """A list, in chunks: a list of large objects is never in memory twice, nor decoded at once for rows or metadata."""
    if want.shape == "table":
        empty = orjson.dumps(_table(resource, (), want, query, page.metadata))
        read = partial(Stored.brief_bytes, with_spec=shows_spec(resource))

        def row(stored: Stored) -> bytes:
            return orjson.dumps(_table(resource, [stored], want, query, {})["rows"][0])

        yield from _joined(empty.removesuffix(b"]}"), row, page.items, b"]}", read)
        return
    kind, version = f"{resource.kind}List", resource.api_version
    if want.shape == "metadata":
        kind, version = "PartialObjectMetadataList", f"meta.k8s.io/{want.version}"
    head = orjson.dumps({"kind": kind, "apiVersion": version, "metadata": page.metadata})
    yield from _joined(head[:-1] + b',"items":[', _item_encoder(resource, want), page.items, b"]}")


def _item_encoder(resource: Resource, want: Wanted) -> Callable[[Stored], bytes]:
    if want.shape == "metadata":
        return lambda stored: orjson.dumps(_partial(stored, want))
    # Only custom resources name their kind in every item.
    start = prefix_of(resource) if resource.definition is not None else b"{"
    return lambda stored: start + data_of(resource, stored)


def _joined(
    head: bytes,
    encoded: Callable[[Stored], bytes],
    items: Iterable[Stored],
    tail: bytes,
    read: Callable[[Stored], int] = lambda stored: len(stored.data),
) -> Iterator[bytes]:
    """Chunks of an answer. Each ends after this many bytes of objects were read, however short their rows are.

    Others have their turn between two chunks, so that a chunk for each of thousands of objects takes long.
    """
    pending, size, separator = [head], len(head), b""
    for stored in items:
        size += read(stored)
        pending += (separator, encoded(stored))
        separator = b","
        if size > _ANSWER_PART_BYTES:
            yield b"".join(pending)
            pending, size = [], 0
    yield b"".join((*pending, tail))


def event_encoder(resource: Resource, want: Wanted, query: Json) -> Callable[[Stored], bytes]:
    if want.shape == "metadata":
        return lambda stored: orjson.dumps(_partial(stored, want))
    if want.shape != "table":
        start = prefix_of(resource)
        return lambda stored: start + data_of(resource, stored)
    is_first = True

    def row(stored: Stored) -> bytes:
        """A table of one row; only the first says what its columns are."""
        nonlocal is_first
        shown = _table(resource, [stored], want, query, {"resourceVersion": str(stored.revision)})
        if not is_first:
            shown["columnDefinitions"] = None
        is_first = False
        return orjson.dumps(shown)

    return row


def _partial(stored: Stored, want: Wanted) -> Json:
    return {**partial_metadata(stored.decode()), "apiVersion": f"meta.k8s.io/{want.version}"}


def _table(resource: Resource, items: Sequence[Stored], want: Wanted, query: Json, meta: Json) -> Json:
    include = query.get("includeObject") or "Metadata"
    is_brief, with_spec = include == "None" and not shows_labels(resource), shows_spec(resource)
    objects = [
        to_served(resource, stored.brief(with_spec=with_spec) if is_brief else stored.decode()) for stored in items
    ]
    made = render_table(resource, objects, now=datetime.now(UTC), include=include, metadata=meta)
    return {**made, "apiVersion": f"meta.k8s.io/{want.version}"}


_MANAGER_CHARACTERS = 128
_VERBS = {"POST": "Create", "PUT": "Update", "PATCH": "Patch"}


@dataclass(slots=True)
class Call:
    request: web.BaseRequest
    target: Target
    resource: Resource
    registry: Registry
    tokens: Tokens
    user: User
    query: Json
    policies: Policies
    want: Wanted = field(init=False)
    write: Write = field(init=False)

    def __post_init__(self) -> None:
        self.want = wanted(self.request.headers.get("Accept", ""))
        writes = self.request.method in _VERBS
        dry_run = self.request.query.getall("dryRun", []) if writes else []
        if writes and (faults := list(self._option_faults(dry_run))):
            raise self.invalid_options(*faults)
        agent = self.request.headers.get("User-Agent", "").partition("/")[0]
        self.write = Write(
            self.registry,
            self.resource,
            namespace=self.target.namespace,
            subresource=self.target.subresource,
            user=self.user,
            manager=self.query.get("fieldManager") or agent[:_MANAGER_CHARACTERS] or "unknown",
            dry_run=bool(dry_run),
            warnings=deprecations(self.resource, self.registry.release),
            policies=self.policies,
        )

    def _option_faults(self, dry_run: Sequence[str]) -> Errors:
        if len(self.query.get("fieldManager", "")) > _MANAGER_CHARACTERS:
            yield too_long("fieldManager", _MANAGER_CHARACTERS)
        if not set(dry_run) <= {"All"}:
            yield not_supported("dryRun", dry_run, ["All"])
        validation = self.query.get("fieldValidation", "")
        yield from one_of(validation, "fieldValidation", ("", "Ignore", "Strict", "Warn"))

    def invalid_options(self, *faults: FieldError) -> StatusError:
        """The refusal of parameters of a write; a deletion has options of its own (`verbs.write`)."""
        return invalid_options(_VERBS[self.request.method], *faults)

    def need(self, verb: str) -> None:
        """Raises a 405 unless the resource (or sub-resource) has the verb."""
        sub = self.resource.subresources.get(self.target.subresource)
        verbs = sub.verbs if sub else self.resource.verbs
        if verb not in verbs:
            raise not_allowed()

    async def read_object(self) -> Json:
        """The object in the body. Raises 400, 413, 415."""
        return parse_object(await read_body(self.request), media_type(self.request))

    async def read_posted(self, group: str, kind: str) -> Json:
        """The body of a POST that is of a kind of its own (``v1`` of its group). Raises 400, 405, 413, 415."""
        if self.request.method != "POST":
            raise not_allowed()
        body = await self.read_object()
        schema = self.registry.structure.schema(group, "v1", kind)
        if schema is not None:
            check_fields(schema, body, self.query.get("fieldValidation", ""), kind, self.write)
        self.write.admit("CREATE", body, posted=(group, "v1", kind))
        return body

    def answer(self, stored: Stored, code: int = 200) -> web.Response:
        """The object as an answer, with the warnings of this request."""
        return respond(render(self.resource, stored, self.want, self.query), self.want, code, self.warnings())

    def warnings(self) -> list[tuple[str, str]]:
        texts = [text.replace("\\", "\\\\").replace('"', '\\"') for text in self.write.warnings]
        return [("Warning", f'299 - "{text}"') for text in texts]
