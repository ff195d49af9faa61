"""Another writer takes the finalizer off claims, without which a claim in use could vanish with its devices."""

from __future__ import annotations

import pytest
from controllers_world import World
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource
from dra_operator.controllers import OwnControllers
from fake_api import FakeApi
from objects import Make, Obj

FINALIZER = "resource.kubernetes.io/delete-protection"


class Stripping(FakeApi):
    """A server with a mutating webhook that takes finalizers off claims."""

    def __init__(self) -> None:
        super().__init__()
        self.strips = True

    def store(self, event: str, resource: Resource, obj: Obj) -> Obj:
        if self.strips and resource == RESOURCE_CLAIMS:
            obj["metadata"].pop("finalizers", None)
        return super().store(event, resource, obj)


def running_pod(world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod("pod", [make.use("claim")]))


def lose(obj: Obj) -> None:
    obj["metadata"]["finalizers"] = []


@pytest.mark.parametrize("from_template", [True, False])
async def test_a_webhook_that_strips_the_finalizer_is_named_in_the_pods_condition(
    world: World, make: type[Make], from_template: bool
) -> None:
    world.api = api = Stripping()
    world.furnish()
    api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    api.add(RESOURCE_CLAIMS, make.claim("claim"))
    api.add(PODS, make.pod("pod", [make.FROM_TEMPLATE if from_template else make.use("claim")]))
    world.start()
    async with world.running():
        while not (told := world.messages("FailedScheduling")):
            world.bring_events()
            await world.tick()
        condition = api.of(PODS)[0]["status"]["conditions"][0]
        assert (condition["reason"], condition["message"]) == ("SchedulerError", told[0])
        assert f"the finalizer {FINALIZER} was removed as soon as it was written" in told[0]
        assert "exempt it in the mutating webhook" in told[0]
        assert "nodeName" not in api.of(PODS)[0]["spec"]
        assert all("allocation" not in claim.get("status", {}) for claim in api.of(RESOURCE_CLAIMS))
        api.strips = False
        await world.quiet()
    assert api.of(PODS)[0]["spec"]["nodeName"] == "node-0"


@pytest.mark.parametrize("release", [True, False], ids=["alone", "beside a kube-controller-manager"])
async def test_a_finalizer_removed_from_a_claim_in_use_is_put_back_at_once(
    world: World, make: type[Make], release: bool
) -> None:
    world.controllers = OwnControllers(templates=release, release=release)
    running_pod(world, make)
    world.start()
    async with world.running():
        await world.quiet()
        world.api.change(RESOURCE_CLAIMS, "ns/claim", lose)
        await world.quiet()
    assert world.api.of(RESOURCE_CLAIMS)[0]["metadata"]["finalizers"] == [FINALIZER]


async def test_a_finalizer_that_keeps_being_removed_is_put_back_ever_more_slowly(
    world: World, make: type[Make]
) -> None:
    running_pod(world, make)
    world.start()
    async with world.running():
        await world.quiet()
        before = len(world.api.writes)
        world.others.append(_remover)
        for _ in range(1000):
            world.bring_events()
            await world.tick()
        assert 2 <= len(world.api.writes) - before <= 10


def _remover(api: FakeApi) -> None:
    """Another controller, which has its own mind."""
    if api.of(RESOURCE_CLAIMS)[0]["metadata"].get("finalizers"):
        api.change(RESOURCE_CLAIMS, "ns/claim", lose)
