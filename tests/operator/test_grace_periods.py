"""Victims of a preemption end with their own grace period, on a live API server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_kube import PODS, Api
from dra_operator.controllers.scheduling.victims import VictimEvictor
from dra_operator.kube import EventRecorder, PodWriter
from objects import Make

STAMP = "2026-01-01T00:00:00Z"


async def add(api: Api, seconds: int | None) -> Pod:
    """A pod on a node."""
    body = Make.pod("victim", nodeName="node", containers=[{"name": "main", "image": "x"}])
    body["metadata"] = {"name": "victim", "namespace": "default"}
    if seconds is not None:
        body["spec"]["terminationGracePeriodSeconds"] = seconds
    return convert(Pod, await api.create(PODS, body, "default"))


def evictor(api: Api) -> VictimEvictor:
    """As preemption has it."""
    clock = asyncio.get_running_loop().time
    pods = PodWriter(api, lambda _: None, lambda _: None, lambda: STAMP)
    events = EventRecorder(api, "dra-operator", clock=clock, now=lambda: STAMP)
    return VictimEvictor(
        pods, events, "dra-scheduler", clock=clock, now=lambda: datetime.now(UTC), rest=10.0, patience=30.0
    )


@pytest.mark.parametrize(("own", "expected"), [(None, 30), (7, 7), (3600, 3600)])
async def test_a_victim_has_the_grace_period_of_its_spec(
    own: int | None, expected: int, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request names none, so that the server takes the pod's own."""
    sent: list[dict[str, Any]] = []
    original = Api._object

    async def noted(client: Api, method: str, *args: Any, **options: Any) -> Any:
        if method == "DELETE":
            sent.append(options["body"])
        return await original(client, method, *args, **options)

    monkeypatch.setattr(Api, "_object", noted)
    victim = await add(api, own)
    assert await evictor(api).end(victim, "preemptor", "it is in the way")
    assert [sorted(body) for body in sent] == [["apiVersion", "kind", "preconditions"]]
    meta = (await api.get(PODS, "victim", "default"))["metadata"]
    assert meta["deletionGracePeriodSeconds"] == expected


async def test_a_victim_that_ends_already_keeps_the_longer_time_that_it_was_given(api: Api) -> None:
    victim = await add(api, 7)
    await api.delete(PODS, "victim", "default", grace_seconds=600)
    assert not await evictor(api).end(victim, "preemptor", "it is in the way")
    meta = (await api.get(PODS, "victim", "default"))["metadata"]
    assert meta["deletionGracePeriodSeconds"] == 600
