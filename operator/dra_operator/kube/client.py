"""The calls that controllers make, and what an answer means: refused, outdated, or perhaps carried out.

``Client`` is the protocol that ``dra_kube.Api`` and a fake in tests implement. ``rewrite`` is the only way in which the
operator updates an object that it does not own alone: it reads the object as a raw dict, so that unknown fields are
preserved, changes it, and writes it back. ``edit`` decides by that object, since the cache may be outdated.
After a conflict the object is read again, a few times; then the queue retries. An object that the server has just sent
(``Fresh``) saves the first read.

If another writer made the object something else than the plan was made for, the write is given up::

    ObjectChanged
    ├── ClaimChanged
    │   ├── ClaimFull        it took other consumers, and takes no more
    │   └── ClaimStripped    it was written with a finalizer, and came back without
    ├── VolumeChanged        a volume, or a claim to one
    ├── PodGroupChanged
    └── PodChanged
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec
from dra_api.cache import Cache
from dra_api.kueue import GROUP as KUEUE
from dra_api.meta import Object as Struct
from dra_kube import (
    ApiError,
    Conflict,
    Forbidden,
    KubeError,
    NotSent,
    NotServed,
    Object,
    PatchKind,
    Resource,
    ServerError,
    TypedList,
)

T = TypeVar("T", bound=Struct)


class Client(Protocol):
    """Reading and writing single objects as raw dicts. Everything may raise ``dra_kube.KubeError``."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """Return the object. Raises NotFound."""
        ...

    async def list_as(
        self, resource: Resource, type_: type[T], namespace: str | None = None, keep: Callable[[T], T] = lambda it: it
    ) -> TypedList:
        """All objects of the namespace as structs, or what ``keep`` makes of each."""
        ...

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        """Return the object as stored."""
        ...

    async def update(self, resource: Resource, body: Object, subresource: str | None = None) -> Object:
        """Replace; Conflict when ``metadata.resourceVersion`` is not the current one."""
        ...

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
        """Change parts of the object."""
        ...

    async def create_subresource(
        self, resource: Resource, name: str, subresource: str, body: Object, namespace: str | None
    ) -> Object:
        """POST to ``binding`` and the like."""
        ...

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> Object:
        """Delete, if ``uid`` is given only that very object, and in that version (else Conflict). Raises NotFound."""
        ...


RIGHTS: Final = "the ClusterRole dra-operator allows it: apply manifests/operator/rbac.yaml, or upgrade the chart"
RIGHTS_OF_ADMISSION: Final = (
    "the ClusterRole dra-operator-admission allows it: apply manifests/components/admission, or upgrade the chart"
)
_NO_RIGHT: Final = re.compile(r'User "[^"]*" cannot ')
"""The words of the authorizer; quotas, policies and webhooks answer 403 as well."""


def may_have_happened(error: BaseException) -> bool:
    """Return whether the server may have carried out the write, or may still do so.

    Not if it refused, if it does not serve the kind, or if nothing was sent. After a timeout, a broken connection, a
    5xx or a bug only the server knows.
    """
    if isinstance(error, ApiError):
        return isinstance(error, ServerError)
    return not isinstance(error, NotSent | NotServed)


def rights_for(group: str) -> str:
    """Return the advice to apply the manifest whose role allows the operator's requests to the API group."""
    return RIGHTS_OF_ADMISSION if group == KUEUE else RIGHTS


def with_remedy(error: KubeError) -> str:
    """Return what went wrong; with the role to apply if the operator lacks a permission."""
    lacks_right = isinstance(error, Forbidden) and _NO_RIGHT.search(str(error)) is not None
    return f"{error}; {RIGHTS}" if lacks_right else str(error)


class ObjectChanged(Exception):
    """The plan no longer applies; nothing was written."""


class ClaimChanged(ObjectChanged):
    """Of a ResourceClaim."""


class ClaimFull(ClaimChanged):
    """The claim took other consumers in the meantime, and is full."""


class ClaimStripped(ClaimChanged):
    """A webhook or an admission policy took the finalizer off, and will do so again."""


class VolumeChanged(ObjectChanged):
    """Of a PersistentVolume or a PersistentVolumeClaim."""


class PodGroupChanged(ObjectChanged):
    """Of a PodGroup."""


class PodChanged(ObjectChanged):
    """Of a pod."""


KEPT_OBJECT_BYTES: Final = 4 << 20
"""Of all objects of a kind, as JSON; the oldest is forgotten first, and read when it is needed."""


class Fresh:
    """The last objects of a kind that were kept, as JSON: an object of Python takes ten times as much."""

    def __init__(self) -> None:
        self._objects: Cache[str, bytes] = Cache(KEPT_OBJECT_BYTES, lambda _, text: len(text))

    def keep(self, raw: Object) -> None:
        """Keep an object; it may change elsewhere."""
        self._objects.put(raw["metadata"]["uid"], msgspec.json.encode(raw))

    def take(self, obj: Struct) -> Object | None:
        """Return the object, to be changed and written; None if it was not kept in the version that the cache has."""
        text = self._objects.pop(obj.metadata.uid)
        if text is None:
            return None
        raw: Object = msgspec.json.decode(text)
        return raw if raw["metadata"]["resourceVersion"] == obj.metadata.resource_version else None


REWRITE_ATTEMPTS = 5
REWRITE_PAUSE_SECONDS = 0.01  # seconds between two attempts (scheduling.md 4.7)

Edit = Callable[[Object], bool]


async def rewrite(
    client: Client,
    resource: Resource,
    namespace: str,
    name: str,
    edit: Edit,
    *,
    subresource: str | None = None,
    known: Object | None = None,
) -> Object:
    """Return the object after ``edit`` changed it in place; unchanged and unwritten when ``edit`` returns False.

    ``known`` is an object that the server has just answered with, and saves the first read. An error of ``edit`` ends
    the attempt. Raises NotFound, Conflict after the last attempt, and other ``KubeError``.
    """
    for attempt in range(1, REWRITE_ATTEMPTS + 1):
        obj = known if known is not None else await client.get(resource, name, namespace)
        known = None
        if not edit(obj):
            return obj
        try:
            return await client.update(resource, obj, subresource)
        except Conflict:
            if attempt == REWRITE_ATTEMPTS:
                raise
            await asyncio.sleep(REWRITE_PAUSE_SECONDS)
    raise AssertionError("unreachable: the last attempt returns or raises")
