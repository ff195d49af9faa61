"""What is gone is forgotten: an operator that works for months must not grow with each pod."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from controllers_world import World
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_operator.allocator import Allocator
from dra_operator.allocator.basics.journal import Journal
from dra_operator.cache.devices.freed_devices import FreedDevices
from dra_operator.cache.objects.store import UidMemory
from dra_operator.controllers.shared.last_events import Announced
from dra_operator.controllers.work.growing_pauses import GrowingPauses
from dra_operator.controllers.work.line import SPARE_ENTRIES
from dra_operator.kube import EventRecorder
from dra_operator.kube.fresh import Fresh
from fake_api import FakeApi
from objects import Make
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from remembered import sizes
from waiting import until

LIMITED = (UidMemory, Journal, EventRecorder, Fresh, Announced, Allocator, GrowingPauses, FreedDevices)
"""Each of them has a limit; the allocator for compiled claims, and as many counts as there are nodes.

Freed devices are no more than devices were ever taken: which ones the pods of a run took is chance.
"""
NOT_OURS = (FakeApi, CollectorRegistry, MetricWrapperBase)
DEBTS = ("._line._paid_at", "._line._order", "._buckets._full_at")
GPU = {"deviceclass.resource.kubernetes.io/gpu": "1"}
VOLUME = {"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}


async def come_and_go(world: World, make: type[Make], name: str) -> None:
    """Pods of all kinds and their claims: some are bound, some wait; then all of them go."""
    gate = [{"name": "dra.kopf.dev/allocate"}]
    for kind, obj in (
        (PODS, make.pod(f"{name}-generated", [make.FROM_TEMPLATE])),
        (PODS, make.pod(f"{name}-extended", containers=[make.asking("main", **GPU)])),
        (RESOURCE_CLAIMS, make.claim(f"{name}-named")),
        (PODS, make.pod(f"{name}-named", [make.use(f"{name}-named")])),
        (RESOURCE_CLAIMS, make.claim(f"{name}-immediate", annotations={"dra.kopf.dev/allocate": "immediate"})),
        (PODS, make.pod(f"{name}-gated", [make.FROM_TEMPLATE], schedulerName="other", schedulingGates=gate)),
        (PODS, make.pod(f"{name}-foreign", [make.FROM_TEMPLATE], schedulerName="other")),
        (PODS, make.pod(f"{name}-without-claim", [make.use("missing")])),
        (PODS, make.pod(f"{name}-without-volume", volumes=[VOLUME])),
        (PODS, make.pod(f"{name}-without-node", [make.FROM_TEMPLATE], nodeSelector={"no": "where"})),
        (PODS, make.pod(f"{name}-without-template", [{"name": "gpu", "resourceClaimTemplateName": "missing"}])),
    ):
        world.api.add(kind, obj)
    async with asyncio.timeout(60):
        while len(world.bound()) < 3:
            world.bring_events()
            await world.tick()
    for pod in list(world.api.of(PODS)):
        world.api.drop(PODS, f"ns/{pod['metadata']['name']}")
    world.bring_events()
    for claim in list(world.api.of(RESOURCE_CLAIMS)):
        world.api.deleted(RESOURCE_CLAIMS, claim["metadata"]["name"], "ns")
    await world.quiet()
    assert world.api.of(RESOURCE_CLAIMS) == []


async def test_the_operator_remembers_no_more_after_many_pods_than_after_some(world: World, make: type[Make]) -> None:
    world.furnish(2, 40)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.start()
    async with world.running() as control:
        for number in range(2):
            await come_and_go(world, make, f"first-{number}")
        before = sizes(control, without=(*LIMITED, *NOT_OURS))
        for number in range(4):
            await come_and_go(world, make, f"second-{number}")
        await until("nothing larger than before", partial(nothing_grew, control, before))


async def nothing_grew(control: object, before: Mapping[str, int]) -> bool:
    """What the line leaves in its heaps is swept with later keys; debts are forgotten by a later decision or failure.

    A pod whose gate is being opened when it goes fails once: whether one does is a matter of the moment.
    """
    after = sizes(control, without=(*LIMITED, *NOT_OURS))
    assert all(size <= SPARE_ENTRIES + 2 for path, size in after.items() if path.endswith(DEBTS))
    after = {path: size for path, size in after.items() if not path.endswith(DEBTS)}
    assert len(after) > 100
    assert {path: (before.get(path), size) for path, size in after.items() if size > before.get(path, size)} == {}
    return True
