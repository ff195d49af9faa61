"""A leader whose API server takes seconds for each write of its Lease, on a loop whose time is a number."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Self, cast
from unittest import mock

import pytest
from dra_kube import Connection, Election, NotFound, NotSent
from dra_operator.app import leader
from history_kit.clock import VirtualLoop


class SlowLeases:
    """One Lease, and the seconds that each write of it takes: half before the effect, half after."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lease: dict[str, Any] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """There is nothing to close."""

    async def get(self, *_: object) -> dict[str, Any]:
        if self._lease is None:
            raise NotFound(404, "NotFound", "no lease")
        return self._lease

    async def create(self, _: object, body: dict[str, Any], *__: object) -> dict[str, Any]:
        await asyncio.sleep(self._seconds / 2)
        self._lease = body
        await asyncio.sleep(self._seconds / 2)
        return body

    async def update(self, resource: object, body: dict[str, Any]) -> dict[str, Any]:
        return await self.create(resource, body)


async def silent_tenths(seconds: float) -> int:
    """In how many tenths of a second of a minute the leader may write nothing."""
    leases = SlowLeases(seconds)
    here: dict[str, Any] = {
        "Api": lambda *_, **__: leases,
        "Election": partial(Election, clock=asyncio.get_running_loop().time),
    }
    with mock.patch.multiple(leader, **here):
        leads = leader.Leader(cast(Connection, None), "lease")
    await leads.acquire()
    silent = 0
    for _ in range(600):
        await asyncio.sleep(0.1)
        try:
            leads.allowance()
        except NotSent:
            silent += 1
    assert not leads.loss
    await leads.close()
    return silent


@pytest.mark.parametrize("seconds", [0.01, 2.2, 3.4])
def test_a_leader_may_write_all_the_time_while_renewals_take(seconds: float) -> None:
    """Up to half of the time in which a leader writes, which a request for the lease is given."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(silent_tenths(seconds)) == 0
