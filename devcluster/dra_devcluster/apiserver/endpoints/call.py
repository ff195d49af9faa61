"""One request to the server, and the form of its answer.

Objects and lists as the bytes of an answer: whole, as metadata only, or as a table.

The parts of one request to a resource.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import orjson
from aiohttp import web
from dra_api.validation.formats import FieldError, not_supported, too_long

from dra_devcluster.apiserver.admission import Policies
from dra_devcluster.apiserver.authorization import User
from dra_devcluster.apiserver.errors import Json, StatusError, invalid_options, not_allowed
from dra_devcluster.apiserver.identity import Tokens
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.metadata import data_of, is_stored_shape, prefix_of, to_served
from dra_devcluster.apiserver.registry import Registry, deprecations
from dra_devcluster.apiserver.store import Stored
from dra_devcluster.apiserver.structure import Resource
from dra_devcluster.apiserver.tables import partial_metadata, render_table, shows_labels, shows_spec
from dra_devcluster.apiserver.verbs.read import Page
from dra_devcluster.apiserver.verbs.write import check_fields
from dra_devcluster.apiserver.wire import Target, Wanted, media_type, parse_object, read_body, respond, wanted

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
        row = partial(_row, resource, want, query)
        read = partial(Stored.brief_bytes, with_spec=shows_spec(resource))
        yield from _joined(empty.removesuffix(b"]}"), row, page.items, b"]}", read)
        return
    kind, version = f"{resource.kind}List", resource.api_version
    if want.shape == "metadata":
        kind, version = "PartialObjectMetadataList", f"meta.k8s.io/{want.version}"
    head = orjson.dumps({"kind": kind, "apiVersion": version, "metadata": page.metadata})
    yield from _joined(head[:-1] + b',"items":[', _item_encoder(resource, want), page.items, b"]}")


def _row(resource: Resource, want: Wanted, query: Json, stored: Stored) -> bytes:
    return orjson.dumps(_table(resource, [stored], want, query, {})["rows"][0])


def _item_encoder(resource: Resource, want: Wanted) -> Callable[[Stored], bytes]:
    if want.shape == "metadata":
        return lambda stored: orjson.dumps(_partial(stored, want))
    # Only custom resources name their kind in every item.
    start = prefix_of(resource) if resource.definition is not None else b"{"
    if is_stored_shape(resource):
        return lambda stored: start + stored.data
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
    """How a watch shows an object."""
    if want.shape == "metadata":
        return lambda stored: orjson.dumps(_partial(stored, want))
    if want.shape == "table":
        return _RowEncoder(resource, want, query)
    start = prefix_of(resource)
    return lambda stored: start + data_of(resource, stored)


class _RowEncoder:
    """Tables of one row; only the first says what its columns are."""

    def __init__(self, resource: Resource, want: Wanted, query: Json) -> None:
        self._resource, self._want, self._query = resource, want, query
        self._is_first = True

    def __call__(self, stored: Stored) -> bytes:
        shown = _table(self._resource, [stored], self._want, self._query, {"resourceVersion": str(stored.revision)})
        if not self._is_first:
            shown["columnDefinitions"] = None
        self._is_first = False
        return orjson.dumps(shown)


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
_VALIDATIONS = ("", "Ignore", "Strict", "Warn")
_VERBS = {"POST": "Create", "PUT": "Update", "PATCH": "Patch"}


@dataclass(slots=True)
class Call:
    """A request with its target and its user."""

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
        self.write = Write(
            self.registry,
            self.resource,
            namespace=self.target.namespace,
            subresource=self.target.subresource,
            user=self.user,
            manager=self._manager(),
            dry_run=bool(dry_run),
            warnings=deprecations(self.resource, self.registry.release),
            policies=self.policies,
        )

    def _manager(self) -> str:
        manager: str = self.query.get("fieldManager", "")
        return (
            manager or self.request.headers.get("User-Agent", "").partition("/")[0][:_MANAGER_CHARACTERS] or "unknown"
        )

    def _option_faults(self, dry_run: Sequence[str]) -> Iterator[FieldError]:
        if len(self.query.get("fieldManager", "")) > _MANAGER_CHARACTERS:
            yield too_long("fieldManager", _MANAGER_CHARACTERS)
        if not set(dry_run) <= {"All"}:
            yield not_supported("dryRun", dry_run, ["All"])
        validation = self.query.get("fieldValidation", "")
        if validation not in _VALIDATIONS:
            yield not_supported("fieldValidation", validation, _VALIDATIONS)

    def invalid_options(self, *faults: FieldError) -> StatusError:
        """The refusal of parameters of a write; a deletion has options of its own (`verbs.delete`)."""
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
        """A Warning header for each text."""
        texts = [text.replace("\\", "\\\\").replace('"', '\\"') for text in self.write.warnings]
        return [("Warning", f'299 - "{text}"') for text in texts]
