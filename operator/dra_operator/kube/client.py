"""The calls that controllers make, as a protocol, which ``dra_kube.Api`` and a fake in tests implement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from dra_api.meta import Object as Struct
from dra_kube import Object, PatchKind, Resource, TypedList

T = TypeVar("T", bound=Struct)


class Client(Protocol):
    """Reading and writing single objects as raw dicts. Everything may raise ``dra_kube.KubeError``."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """The object. Raises NotFound."""
        ...

    async def list_as(
        self, resource: Resource, type_: type[T], namespace: str | None = None, keep: Callable[[T], T] = lambda it: it
    ) -> TypedList:
        """All objects of the namespace as structs, or what ``keep`` makes of each."""
        ...

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        """The object as stored."""
        ...

    async def update(self, resource: Resource, body: Object, subresource: str | None = None) -> Object:
        """Replace; Conflict when ``metadata.resourceVersion`` is not the current one."""
        ...

    async def patch(
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
        self, resource: Resource, name: str, subresource: str, body: Object, namespace: str | None = None
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
