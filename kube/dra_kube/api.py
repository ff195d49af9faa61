"""The asyncio client: takes objects as plain dicts and gives them as plain dicts.

Dicts preserve unknown fields when an object is read, changed and written. ``list_as`` decodes a list straight into the
structs of ``dra_api``. The client repeats no write: only its caller knows whether repeating is safe. Every call may
raise the errors of ``dra_kube.errors``. The server may have carried out a write that was cancelled or ended as
Unreachable, or may do so until its time limit there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec
from dra_api.codec import DecodeError, brief, decode, decode_item
from dra_api.conversion import from_served, listed_item, to_served
from dra_api.meta import ObjectVersion, Resource

from .access.connection import Connection
from .errors import NotFound, NotServed, Unreachable
from .http.pages import Column, Page, Pages
from .http.sending import Guard, unguarded
from .http.transport import Observe, Transport, unobserved
from .http.watch import Change, Head, WatchEvent, WatchLine, head_of, no_event

T = TypeVar("T")
Object = dict[str, Any]
Objects = list[Object]  # aliases, since a method below has the name list
ObjectVersions = list[ObjectVersion]
AnyList = list[Any]
Malformed = list[tuple[bytes, DecodeError]]
Changes = list[Change]
Rows = list[tuple[str, ...]]
PatchKind = Literal["merge", "strategic", "json", "apply"]

_PATCH_TYPES: dict[PatchKind, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",  # JSON is YAML
}
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_ANSWERED_BY_STATUS = frozenset({"binding", "eviction"})
"""Sub-resources whose answer is a Status: they have no object of their own."""
_LARGE_ITEM_BYTES = 64 << 10
"""An item that takes milliseconds to decode: the event loop turns after each."""


class TypedList(msgspec.Struct, frozen=True):
    """A list decoded into structs: the good items, the malformed ones, and the resourceVersion to watch from."""

    items: list[Any]
    malformed: Malformed
    resource_version: str


class Api:
    """A client of one API server; an async context manager.

    ``timeout`` is the limit in seconds for one request (watches are exempt). ``guard`` is asked right before each
    write is sent, see ``dra_kube.http.sending``; ``observe`` is told of each request. ``is_patient``: reads that the
    server asks to repeat later are repeated, for as long as one request may take; what has a back-off of its own does
    not want that.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        timeout: float = 30.0,
        user_agent: str = "kopf-dra",
        guard: Guard = unguarded,
        observe: Observe = unobserved,
        is_patient: bool = False,
    ) -> None:
        self._transport = Transport(connection, timeout, user_agent, guard, observe, is_patient)
        self._pages = Pages(self._transport)
        self._served: dict[Resource, str] = {}

    async def __aenter__(self) -> Self:
        self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    @property
    def connection(self) -> Connection:
        """The server and its credentials."""
        return self._transport.connection

    async def settle(self, seconds: float) -> bool:
        """Send no more writes and wait for those in flight; whether none is left that may still take effect."""
        return await self._transport.settle(seconds)

    # --- one object ---

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """The object. Raises NotFound."""
        return await self._object("GET", resource, name, namespace)

    async def create(self, resource: Resource, body: Object, namespace: str | None = None, **query: str) -> Object:
        """Create and return the stored object. Raises AlreadyExists, Invalid, Forbidden."""
        namespace = namespace or body.get("metadata", {}).get("namespace")
        return await self._object("POST", resource, None, namespace, body=body, query=query)

    async def update(self, resource: Resource, body: Object, subresource: str | None = None, **query: str) -> Object:
        """Replace the object of that name; with ``metadata.resourceVersion`` set, raises Conflict if it has changed
        since."""
        meta = body["metadata"]
        return await self._object(
            "PUT", resource, meta["name"], meta.get("namespace"), subresource, body=body, query=query
        )

    async def patch(  # noqa: PLR0913  # what a PATCH may say
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        kind: PatchKind = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
    ) -> Object:
        """Change the object; ``apply`` needs a ``field_manager``. A patch must have the shape of the served version.

        With ``metadata.uid`` in the patch, raises Conflict for any other object of the name. Raises NotFound.
        """
        query = {
            key: value
            for key, value in (("fieldManager", field_manager), ("force", "true" if force else None))
            if value
        }
        if kind == "apply" and isinstance(patch, dict):
            patch = {
                "apiVersion": resource.api_version(await self.version_of(resource)),
                "kind": resource.kind,
                **patch,
            }
        headers = {"Content-Type": _PATCH_TYPES[kind]}
        return await self._object(
            "PATCH", resource, name, namespace, subresource, body=patch, query=query, headers=headers
        )

    async def create_subresource(
        self, resource: Resource, name: str, subresource: str, body: Object, namespace: str | None
    ) -> Object:
        """POST to a sub-resource: ``binding``, ``eviction``, ``token``."""
        return await self._object("POST", resource, name, namespace, subresource, body=body)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
    ) -> Object:
        """Delete; with ``uid`` or ``resource_version`` raises Conflict for any other object. Raises NotFound."""
        conditions = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if conditions:
            options["preconditions"] = conditions
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self._object("DELETE", resource, name, namespace, body=options)

    # --- collections ---

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        keep: Callable[[Object], Object] = lambda item: item,
        **selectors: str,
    ) -> tuple[Objects, str]:
        """All objects, or what ``keep`` makes of each, and the resourceVersion to watch from.

        ``fieldSelector=``, ``labelSelector=`` narrow the list. What nests too deep in an object is replaced by
        ``dra_api.codec.TOO_DEEP``: do not write such an object back.
        """
        items: Objects = []
        version = await self.version_of(resource)
        revision = ""
        async with aclosing(self._pages_of(resource, version, namespace, selectors)) as pages:
            async for page in pages:
                async for raw in _in_turns(page.items):
                    item = self._transport.decoded(f", a list of {resource.plural},", raw, Object)
                    items.append(keep(listed_item(resource, version, item)))
                revision = page.resource_version
        return items, revision

    async def list_as(
        self,
        resource: Resource,
        type_: type[T],
        namespace: str | None = None,
        keep: Callable[[T], T] = lambda item: item,
        **selectors: str,
    ) -> TypedList:
        """All objects decoded into structs, or what ``keep`` makes of each; a malformed one costs only itself."""
        items: AnyList = []
        malformed: Malformed = []
        revision = ""
        async for page in self.pages_as(resource, type_, namespace, keep, **selectors):
            items += page.items
            malformed += page.malformed
            revision = page.resource_version
        return TypedList(items, malformed, revision)

    async def pages_as(
        self,
        resource: Resource,
        type_: type[T],
        namespace: str | None = None,
        keep: Callable[[T], T] = lambda item: item,
        **selectors: str,
    ) -> AsyncIterator[TypedList]:
        """The same page by page: no more is in memory than a page, if the caller drops what it has read.

        All pages have the resourceVersion to watch from, which is that of the first one.
        """
        version = await self.version_of(resource)
        reshape = None if version == resource.versions[0] else partial(listed_item, resource, version)
        async with aclosing(self._pages_of(resource, version, namespace, selectors)) as pages:
            async for page in pages:
                found = TypedList([], [], page.resource_version)
                async for raw in _in_turns(page.items):
                    try:
                        found.items.append(keep(decode_item(type_, raw, is_cut=page.is_cut, reshape=reshape)))
                    except DecodeError as error:
                        # A new error: the frames of the one that was raised hold the whole page.
                        found.malformed.append((brief(bytes(raw)), DecodeError(str(error))))
                yield found

    async def list_versions(
        self, resource: Resource, namespace: str | None = None, **selectors: str
    ) -> tuple[ObjectVersions, str]:
        """Which version of which objects exists: a cheap way to compare, also with a hundred thousand pods.

        The server is asked for metadata only (PartialObjectMetadata), and the rest of that is not kept.
        """
        versions: ObjectVersions = []
        revision = ""
        served = await self.version_of(resource)
        async with aclosing(self._pages_of(resource, served, namespace, selectors, _METADATA_LIST)) as pages:
            async for page in pages:
                async for raw in _in_turns(page.items):
                    item = self._transport.decoded(f", a list of {resource.plural},", raw, _Versioned)
                    versions.append(item.metadata)
                revision = page.resource_version
        return versions, revision

    async def rows(self, resource: Resource, namespace: str, columns: Sequence[str]) -> Rows:
        """What ``kubectl get`` shows of the objects of a namespace: these columns, without the objects.

        A row is short however large its object is. Raises Unreachable if the server has no such columns.
        """
        path = resource.path(await self.version_of(resource), namespace, None)
        rows: Rows = []
        async with aclosing(self._pages.of_rows(path)) as tables:
            async for table in tables:
                places = {column.name: place for place, column in enumerate(table.column_definitions or ())}
                if not places.keys() >= set(columns):
                    raise Unreachable(f"{path}: the answer of the API server is no table with {', '.join(columns)}")
                try:
                    rows += [tuple([str(row.cells[places[name]]) for name in columns]) for row in table.rows or ()]
                except IndexError as error:
                    raise Unreachable(f"{path}: a row in the answer of the API server is too short") from error
                await asyncio.sleep(0)
        return rows

    async def delete_collection(self, resource: Resource, namespace: str | None = None, **selectors: str) -> None:
        """Delete everything that the selectors match."""
        version = await self.version_of(resource)
        path, headers = resource.path(version, namespace, None), {"Accept": _METADATA_LIST}  # it answers what it was
        await self._transport.request("DELETE", path, query=selectors, headers=headers)

    async def watch(
        self, resource: Resource, namespace: str | None = None, *, resource_version: str, **selectors: str
    ) -> AsyncIterator[WatchEvent]:
        """Changes since ``resource_version``, until the server ends the stream. Raises Gone when it is too old."""
        changes = self.changes(resource, namespace, resource_version=resource_version, silence=None, **selectors)
        async with aclosing(changes):  # type: ignore[type-var]  # declared as an iterator, is a generator
            async for batch in changes:
                for change in batch:
                    try:
                        is_bare = change.event == "BOOKMARK"
                        obj = decode(dict, change.content) if is_bare else change.object()
                    except ValueError as error:
                        raise no_event(change.content, f"the watch of {resource}", str(error)) from error
                    yield WatchEvent(change.event, obj)

    async def changes(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        resource_version: str,
        silence: float | None = None,
        **selectors: str,
    ) -> AsyncIterator[Sequence[Change]]:
        """Yield the same as it comes in, not decoded yet; first an empty list, as soon as the watch is open.

        After ``silence`` seconds without a byte (None: 330) the stream is given up as Unreachable.
        """
        version = await self.version_of(resource)
        query = {**selectors, "allowWatchBookmarks": "true", "resourceVersion": resource_version}
        batches = self._transport.watch(resource.path(version, namespace, None), query, silence)
        async with aclosing(batches):  # type: ignore[type-var]  # declared as an iterator, is a generator
            async for lines in batches:
                batch, strange = _batch(lines, resource, version)
                yield batch
                if strange:
                    raise Unreachable(f"the watch of {resource} brings {strange} of what is no {resource.kind}")
                del lines, batch  # not held while the next ones are awaited

    async def listed(
        self, resource: Resource, namespace: str | None = None, **selectors: str
    ) -> AsyncIterator[tuple[Sequence[Change], str]]:
        """Yield a list page by page, not decoded yet, each with the resourceVersion to watch from."""
        version = await self.version_of(resource)
        async with aclosing(self._pages_of(resource, version, namespace, selectors)) as pages:
            async for page in pages:
                items = [Change("LISTED", head_of(raw).version, raw, resource, version) for raw in page.items]
                yield items, page.resource_version

    # --- what the server serves ---

    async def version_of(self, resource: Resource) -> str:
        """The version under which the server serves the kind, remembered. Raises NotServed."""
        known = self._served.get(resource)
        if known:
            return known
        if not resource.group:
            return resource.versions[0]
        for version in resource.versions:
            try:
                path = f"/apis/{resource.group}/{version}"
                served = self._transport.decoded(path, await self._transport.request("GET", path), _Served)
            except NotFound:
                continue
            if any(entry.name == resource.plural for entry in served.resources or ()):
                self._served[resource] = version
                return version
        raise NotServed(f"the API server serves {resource} in none of the versions {', '.join(resource.versions)}")

    def forget(self, resource: Resource) -> None:
        """Look up the next time in which version the server serves the kind: it has answered that it does not."""
        self._served.pop(resource, None)

    async def raw_get(self, path: str, **query: str) -> dict[str, Any]:
        """GET any path that answers a JSON object (``/version``, discovery). Raises Unreachable for other JSON."""
        content = await self._transport.request("GET", path, query=query)
        answer = self._transport.decoded(path, content)
        if not isinstance(answer, dict):
            raise self._transport.is_no_server(path, "the answer is no object", content)
        return answer

    async def raw_text(self, path: str, **query: str) -> str:
        """GET any path that answers text (a container's log)."""
        return (await self._transport.request("GET", path, query=query)).decode(errors="replace")

    # --- plumbing ---

    async def _object(  # noqa: PLR0913  # what a request may say
        self,
        method: str,
        resource: Resource,
        name: str | None,
        namespace: str | None,
        subresource: str | None = None,
        *,
        body: Any = None,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Object:
        if name is not None and ("/" in name or name in (".", "..")):
            # A consumer of a claim may be called so. As part of a path it would ask for another object.
            raise NotFound(404, "NotFound", f"{resource} {name!r} does not exist: no object can be called so")
        version = await self.version_of(resource)
        if method in ("POST", "PUT") and subresource in (None, "status"):
            body = to_served(resource, version, body)
        path = resource.path(version, namespace, name, subresource)
        try:
            content = await self._transport.request(method, path, body=body, query=query, headers=headers)
        except NotFound as error:
            if error.reason:
                raise
            # A Status would say that there is no such object. A page that is not found has no Status: the group or its
            # version is not served (any more), and nothing is known about the object.
            self._served.pop(resource, None)
            raise NotServed(f"the API server does not serve {resource} in version {version}: {error}") from error
        answer: Object = self._transport.decoded(path, content, dict[str, Any])
        if not _is_answer(answer, method, subresource, resource.kind, name, body):
            what = "Success" if subresource in _ANSWERED_BY_STATUS else resource.kind
            raise self._transport.is_no_server(path, f"the answer to {method} is no {what}", content)
        if answer.get("kind") != resource.kind:
            return answer
        try:
            return from_served(resource, version, answer)
        except ValueError as error:
            raise self._transport.is_no_server(path, str(error), content) from error

    def _pages_of(
        self, resource: Resource, version: str, namespace: str | None, selectors: dict[str, str], accept: str = ""
    ) -> AsyncGenerator[Page]:
        return self._pages.of(resource.path(version, namespace, None), selectors, accept)


async def _in_turns(items: AnyList) -> AsyncIterator[msgspec.Raw]:
    """The items of a page; the event loop turns after each large one, and forgets it."""
    for raw in items:
        yield raw
        if len(raw) > _LARGE_ITEM_BYTES:
            await asyncio.sleep(0)


def _is_answer(answer: Object, method: str, subresource: str | None, kind: str, name: str | None, body: Any) -> bool:
    """Return whether a request was carried out: a proxy may say 200 to a request that it has not passed on.

    A pod would count as bound, or a claim as deleted, until the next audit.
    """
    if method == "DELETE" or subresource in _ANSWERED_BY_STATUS:
        is_success = answer.get("kind") == "Status" and answer.get("status") == "Success"
        return is_success or (method == "DELETE" and _is_object(answer, kind, {"name": name}))
    if subresource in (None, "status"):
        return _is_object(answer, kind, body.get("metadata") or {} if method == "POST" else {"name": name})
    return True


def _is_object(answer: Object, kind: str, asked: Object | None) -> bool:
    """Whether an answer is an object of the kind, with the name that was ``asked`` for; a review has none."""
    if answer.get("kind", kind) != kind:
        return False
    meta = answer.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    if asked is not None and not asked.get("name") and not asked.get("generateName"):
        return "kind" in answer and (meta is None or isinstance(meta, dict))
    return isinstance(name, str) and name != "" and name == ((asked or {}).get("name") or name)


def _batch(lines: Sequence[WatchLine], resource: Resource, version: str) -> tuple[Changes, str]:
    """Return the changes up to the first line that is no event of the kind, and the type of that line."""
    batch: Changes = []
    for line in lines:
        head = head_of(line.object)
        if not _is_event(line.type, head, resource.kind):
            return batch, line.type or "nothing"
        batch.append(Change(line.type, head.version, line.object, resource, version))
    return batch, ""


def _is_event(event: str, head: Head, kind: str) -> bool:
    """Return whether a watch of the kind may bring this."""
    version = head.version
    if event == "BOOKMARK":
        return bool(version.resource_version)
    return event in ("ADDED", "MODIFIED", "DELETED") and (head.kind or kind) == kind and bool(version.name)


class _Served(msgspec.Struct):
    resources: list[Column] | None = None


__all__ = ["Api", "Object", "PatchKind", "TypedList"]


class _Versioned(msgspec.Struct):
    metadata: ObjectVersion
