"""A plugin that starts with a thousand prepared claims: registered at once, and the event loop is never held up."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from asyncio import events
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from dra_api.codec import to_dict
from dra_api.resource import ResourceClaim
from dra_kube import NODES, RESOURCE_CLAIMS
from dra_kubeletplugin import ClaimRef, ContainerEdits, Driver, KubeletPlugin, Pool, Prepared, PreparedDevice, device
from dra_kubeletplugin import results_for as results_of
from dra_kubeletplugin.claims.prepared import PreparedClaims
from dra_kubeletplugin.files.checkpoint import ClaimRecords
from dra_kubeletplugin.testing import DriverNode, FakeKubelet, allocated_claim
from node_world import prepared_claim
from waiting import becomes

NAME = "gpu.example.com"
CLAIMS = 1_000
MOST_CALLS = 40_000
COST = dict.fromkeys((io.open, os.open, os.stat, os.fsync, os.rename, os.replace, os.unlink), 20)
"""How many calls an operation on a file counts as."""


class Gpu(Driver):
    async def prepare(self, claim: ResourceClaim) -> Prepared:
        edits = ContainerEdits(env=(f"CLAIM={claim.metadata.name}",))
        return [PreparedDevice.of(result, edits=edits) for result in results_of(NAME, claim)]


def _name_of(callback: Any) -> str:
    """What a callback of the event loop goes on with: the function in which its task waits."""
    if not isinstance(task := getattr(callback, "__self__", None), asyncio.Task):
        return repr(callback)
    names = []
    coroutine: Any = task.get_coro()
    while hasattr(coroutine, "cr_await"):
        names.append(coroutine.__qualname__)
        coroutine = coroutine.cr_await
    return " > ".join(names)


@contextmanager
def longest_step() -> Iterator[dict[str, int]]:
    """The calls of functions in each callback of the event loop, the most of each task.

    They are counted, since the same work takes three times as long on a busy machine. A call takes about 1 us.
    """
    steps: dict[str, int] = {}
    run = events.Handle._run

    def counted(self: Any) -> None:
        calls = 0

        def count(_frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += COST.get(argument, 1) if event == "c_call" else event == "call"  # type: ignore[call-overload]

        name = _name_of(self._callback)
        sys.setprofile(count)
        try:
            run(self)
        finally:
            sys.setprofile(None)
        steps[name] = max(steps.get(name, 0), calls)

    with mock.patch.object(events.Handle, "_run", counted):
        yield steps


async def with_records(node: DriverNode, claims: int) -> ClaimRef:
    """Write the records of prepared claims of a node, and return one of them."""
    settings = node.settings(NAME)
    records = ClaimRecords(settings.records_dir)
    records.create()
    with mock.patch("os.fsync"):
        for number in range(claims):
            claim, record = prepared_claim(NAME, "worker-1", f"gpu-{number}", f"claim-{number}")
            records.write(record, durable=False)
    await node.api.put(NODES, {"metadata": {"name": "worker-1"}})
    await node.api.put(RESOURCE_CLAIMS, to_dict(claim))
    return ClaimRef("default", claim.metadata.name, claim.metadata.uid)


async def test_nothing_holds_up_the_event_loop(driver_node: DriverNode) -> None:
    node, claim = driver_node, await with_records(driver_node, CLAIMS)
    settings = node.settings(NAME)
    new = allocated_claim(NAME, "worker-1/gpu-9999", name="new")
    await node.api.put(RESOURCE_CLAIMS, to_dict(new))
    devices = [device(f"gpu-{number}", attributes={"index": number}) for number in range(10_000)]
    pools, fewer = {"worker-1": Pool.of(devices)}, Pool.of(devices[1:])
    with mock.patch("os.fsync"), longest_step() as steps:
        async with KubeletPlugin(Gpu(), settings, node.api.client) as plugin, FakeKubelet(settings) as kubelet:
            await asyncio.sleep(0)  # each in a step of its own
            assert len(plugin.prepared_claims) == CLAIMS, "as a driver asks that starts"
            await asyncio.sleep(0)
            await plugin.publish(pools)
            await kubelet.register()
            await plugin.registered()
            for each in (claim, ClaimRef("default", "new", new.metadata.uid)):
                answer = (await kubelet.prepare([each]))[each.uid]
                assert not answer.error
            await plugin.published()
            await asyncio.sleep(0)
            assert len(plugin.prepared_claims) == CLAIMS + 1
            await asyncio.sleep(0)
            await plugin.prepare_again(["gpu-1"])
            await asyncio.sleep(0)
            await plugin.publish({"worker-1": fewer})
            await plugin.published()
    assert {name: calls for name, calls in steps.items() if calls > MOST_CALLS} == {}


async def test_the_plugin_is_registered_while_files_are_compared(driver_node: DriverNode) -> None:
    node = driver_node
    await with_records(node, 10)
    settings = node.settings(NAME)
    go = threading.Event()
    tidy = PreparedClaims._tidy

    def slow(self: PreparedClaims, *, sweep: bool) -> None:
        go.wait(30)
        tidy(self, sweep=sweep)

    with mock.patch.object(PreparedClaims, "_tidy", slow):
        async with KubeletPlugin(Gpu(), settings, node.api.client) as plugin, FakeKubelet(settings) as kubelet:
            await kubelet.register()
            await asyncio.wait_for(plugin.registered(), 30)
            assert not list(node.cdi_dir.glob("*")), "not compared yet"
            go.set()
            await becomes(lambda: len(list(node.cdi_dir.glob("*.json"))) == 10)
