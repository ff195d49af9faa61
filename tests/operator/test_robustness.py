"""What the process survives: malformed objects, a Kopf that ends, deletions that nobody reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import kopf
import pytest
from dra_kube import NODES, RESOURCE_SLICES, connection
from dra_operator.app import Operator, Options
from dra_operator.app.supervisor import Supervisor


@asynccontextmanager
async def started(kubeconfig: Path) -> AsyncIterator[Operator]:
    operator = Operator(Options(check_invariants=True))
    await operator.start(connection(kubeconfig))
    try:
        yield operator
    finally:
        await operator.stop()


async def test_a_malformed_object_costs_only_itself(
    cluster: Any, kubeconfig: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.furnish()
    async with started(kubeconfig) as operator:
        good = (await cluster.api.list(RESOURCE_SLICES))[0][0]
        bad = {**good, "metadata": {**good["metadata"], "resourceVersion": "999999"}, "spec": {"driver": 7}}
        with caplog.at_level(logging.WARNING):
            operator.received(RESOURCE_SLICES, "v1", "MODIFIED", bad)
            operator.received(RESOURCE_SLICES, "v1", "MODIFIED", bad)
        (message,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
        assert "ResourceSlice node-0-gpu is malformed" in message
        assert "$.spec.driver" in message
        operator.received(NODES, "v1", "ADDED", {"metadata": {"name": "other", "resourceVersion": "999999"}})
        assert "other" in operator.control.cluster.nodes
        assert "node-0-gpu" in operator.control.cluster.slices  # as it was before


async def test_deletions_that_no_event_reported_are_found_after_a_relist(
    cluster: Any, kubeconfig: Path, until: Any
) -> None:
    await cluster.furnish(nodes=2)
    async with started(kubeconfig) as operator:
        view = operator.control.cluster
        assert len(view.nodes) == 2
        await cluster.api.delete(NODES, "node-1")
        node = await cluster.api.get(NODES, "node-0")
        operator.received(NODES, "v1", None, node)  # an item of the list that Kopf makes after a 410

        async def only_one_left() -> bool:
            return list(view.nodes.keys()) == ["node-0"]

        await until(only_one_left)


async def test_kopf_is_started_again_and_the_view_is_kept(
    cluster: Any, kubeconfig: Path, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in a watch stream ends Kopf; pods keep being placed before, between and after."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    await cluster.furnish()
    await cluster.add_template()
    real, runs = kopf.operator, []

    async def fails_at_first(**arguments: Any) -> None:
        runs.append(arguments)
        if len(runs) == 1:
            raise RuntimeError("ERROR 500 in a stream")
        await real(**arguments)

    monkeypatch.setattr(kopf, "operator", fails_at_first)
    operator = Operator()
    supervisor = Supervisor(operator, connection(kubeconfig))
    task = asyncio.create_task(supervisor.run())

    async def is_started() -> bool:
        return operator.is_running

    await until(is_started)
    view = operator.control.cluster
    await cluster.add_pod("pod")
    await cluster.bound("pod")
    await cluster.heard()
    assert len(runs) == 2
    assert supervisor.restarts == 1
    assert operator.control.cluster is view
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
