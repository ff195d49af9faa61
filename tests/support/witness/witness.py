"""Recording: one watch per kind, directly at the API server."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Self

from dra_kube import PODS, RESOURCE_CLAIMS, Api, Resource, Unreachable
from waiting import until

from .history import Finding, History

KINDS = (PODS, RESOURCE_CLAIMS)


class Witness:
    """An async context manager; it sees everything from then on that ``api`` may see."""

    def __init__(self, api: Api) -> None:
        self.history = History()
        self._api = api
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for kind in KINDS:
                items, revision = await self._api.list(kind)
                for item in items:
                    self.history.add(kind.kind, "ADDED", item)
                task = asyncio.create_task(self._follow(kind, revision))
                stack.push_async_callback(_end, task)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _follow(self, kind: Resource, revision: str) -> None:
        while True:
            with suppress(Unreachable):  # a busy machine; the next watch brings what was missed
                async for event in self._api.watch(kind, resource_version=revision):
                    revision = event.object["metadata"]["resourceVersion"]
                    if event.type != "BOOKMARK":
                        self.history.add(kind.kind, event.type, event.object)
            await asyncio.sleep(0.05)

    async def caught_up(self) -> None:
        """Wait until the watches have brought everything that the server has now; for a cluster at rest."""

        async def sees_all() -> bool:
            items = [item["metadata"] for kind in KINDS for item in (await self._api.list(kind))[0]]
            return {meta["uid"]: int(meta["resourceVersion"]) for meta in items} == self.history.revisions()

        await until("the witness sees what the server has", sees_all)

    def findings(self) -> list[Finding]:
        """What was wrong at any moment."""
        return self.history.findings()

    async def leaks(self) -> list[str]:
        """What is left over; for a cluster that has come to rest."""
        await self.caught_up()
        return self.history.leaks()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.result()  # a witness that went blind has seen nothing wrong for the wrong reason
