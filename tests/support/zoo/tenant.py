"""One tenant: a namespace, and what its user may write there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dra_kube import (
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    AlreadyExists,
    Api,
    Conflict,
    NotFound,
    Object,
    PatchKind,
    Resource,
)

AT_ONCE = 20
"""Writes of one tenant that run at the same time: what ``kubectl`` in a loop or a small program does."""


@dataclass
class Tenant:
    """``scale``: the part of its full number that each beast brings, from 0 to 1."""

    api: Api
    namespace: str
    scale: float = 1.0
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def some(self, number: int) -> int:
        """So many in the full form, fewer in the short one, but two at least."""
        return max(2, round(number * self.scale))

    async def moves_in(self) -> None:
        """The namespace is there."""
        await self.api.create(NAMESPACES, {"metadata": {"name": self.namespace}})

    async def moves_out(self) -> None:
        """All its objects are asked to go; finalizers of its own go first."""
        claims, _ = await self.api.list(RESOURCE_CLAIMS, self.namespace, keep=lambda it: {"metadata": it["metadata"]})
        kept = [
            claim["metadata"]["name"] for claim in claims if OWN_FINALIZER in claim["metadata"].get("finalizers", ())
        ]
        patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [OWN_FINALIZER]}}
        await self.each(self.patch(RESOURCE_CLAIMS, name, patch, "strategic") for name in kept)
        for resource in (PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, PERSISTENT_VOLUME_CLAIMS):
            await self.api.delete_collection(resource, self.namespace)

    async def each(self, writes: Iterable[Awaitable[Any]]) -> None:
        """All of them, a few at a time."""

        async def turn(write: Awaitable[Any]) -> None:
            async with self._turns:
                await write

        await asyncio.gather(*(turn(write) for write in writes))

    async def claim(self, name: str, spec: Object, **meta: Any) -> Object:
        return await self._create(RESOURCE_CLAIMS, name, meta, {"spec": spec})

    async def template(self, name: str, spec: Object, **meta: Any) -> Object:
        """``meta`` is for the template's claims."""
        return await self._create(RESOURCE_CLAIM_TEMPLATES, name, {}, {"spec": {"metadata": meta, "spec": spec}})

    async def pod(
        self, name: str, claims: Sequence[str] = (), template: str = "", labels: Object | None = None, **spec: Any
    ) -> Object:
        """A pod for this scheduler with these claims, or with one from a template."""
        sources = [{"resourceClaimName": claim} for claim in claims]
        sources += [{"resourceClaimTemplateName": template}] if template else []
        entries = [{"name": f"entry-{number}", **source} for number, source in enumerate(sources)]
        used = [{"name": entry["name"]} for entry in entries]
        body: Object = {
            "schedulerName": "dra-scheduler",
            "containers": [{"name": "main", "image": "none", "resources": {"claims": used}}],
            "resourceClaims": entries,
        }
        return await self._create(PODS, name, {"labels": labels or {}}, {"spec": body | spec})

    async def pod_with(self, name: str, spec: Object) -> None:
        """A claim, and a pod of the same name that uses it."""
        await self.claim(name, spec)
        await self.pod(name, [name])

    async def again(self, creation: Awaitable[object]) -> None:
        """What may be there still."""
        with suppress(AlreadyExists, Conflict):
            await creation

    async def patch(self, resource: Resource, name: str, patch: Object, kind: PatchKind = "merge") -> None:
        with suppress(NotFound, Conflict):
            await self.api.patch(resource, name, patch, self.namespace, kind=kind)

    async def delete(self, resource: Resource, name: str) -> None:
        with suppress(NotFound, Conflict):
            await self.api.delete(resource, name, self.namespace, grace_seconds=0)

    async def _create(self, resource: Resource, name: str, meta: Object, body: Object) -> Object:
        return await self.api.create(
            resource, {"metadata": {"name": name, "namespace": self.namespace, **meta}, **body}
        )


OWN_FINALIZER = "tenant.example.com/never"

Act = Callable[[Tenant], Awaitable[None]]


@dataclass(frozen=True)
class Beast:
    """What one tenant does to the cluster.

    ``release`` creates its objects. ``repeat`` is called ten times a second. ``says`` is what is true of each of its
    pods in the end, as a pattern: the message of the condition PodScheduled, or ``bound`` for one that has a node.
    ``short``: it belongs to the short form. ``real``: only a real API server takes it, or takes it in reasonable time.
    """

    name: str
    release: Act
    says: str
    repeat: Act | None = None
    short: bool = False
    real: bool = False
