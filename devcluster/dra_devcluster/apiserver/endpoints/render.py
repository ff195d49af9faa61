"""Objects and lists as the bytes of an answer: whole, as metadata only, or as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import orjson

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.storage.shapes import data_of, is_stored_shape, prefix_of, to_served
from dra_devcluster.apiserver.storage.store import Stored
from dra_devcluster.apiserver.structure import Resource
from dra_devcluster.apiserver.tables import partial_metadata, render_table
from dra_devcluster.apiserver.verbs.read import Page
from dra_devcluster.apiserver.wire.bodies import Wanted

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
    """A list, in chunks: a list of large objects is never in memory twice."""
    if want.shape == "table":
        yield orjson.dumps(_table(resource, page.items, want, query, page.metadata))
        return
    kind, version = f"{resource.kind}List", resource.api_version
    if want.shape == "metadata":
        kind, version = "PartialObjectMetadataList", f"meta.k8s.io/{want.version}"
    head = orjson.dumps({"kind": kind, "apiVersion": version, "metadata": page.metadata})
    yield from _joined(head[:-1] + b',"items":[', map(_item_encoder(resource, want), page.items), b"]}")


def _item_encoder(resource: Resource, want: Wanted) -> Callable[[Stored], bytes]:
    if want.shape == "metadata":
        return lambda stored: orjson.dumps(_partial(stored, want))
    # Only custom resources name their kind in every item.
    start = prefix_of(resource) if resource.definition is not None else b"{"
    if is_stored_shape(resource):
        return lambda stored: start + stored.data
    return lambda stored: start + data_of(resource, stored)


def _joined(head: bytes, items: Iterator[bytes], tail: bytes) -> Iterator[bytes]:
    pending, size, separator = [head], len(head), b""
    for item in items:
        pending += (separator, item)
        size += len(item)
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
    objects = [to_served(resource, stored.decode()) for stored in items]
    include = query.get("includeObject") or "Metadata"
    made = render_table(resource, objects, now=datetime.now(UTC), include=include, metadata=meta)
    return {**made, "apiVersion": f"meta.k8s.io/{want.version}"}
