"""A pod says for which claims it waits, if they are not made for a while."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from controllers_world import World
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_operator.controllers import OwnControllers, TimeSettings
from objects import Make


def condition(world: World) -> str:
    conditions = (world.api[PODS, "ns/pod"].get("status") or {}).get("conditions") or []
    return next((str(it["message"]) for it in conditions if it["type"] == "PodScheduled"), "")


async def test_a_pod_without_its_template_says_so_and_runs_when_the_template_comes(world: World) -> None:
    world.furnish()
    world.api.add(PODS, Make.pod(claims=[Make.FROM_TEMPLATE]))
    world.start()
    async with world.running():
        await world.busy()
        assert condition(world) == (
            'waits for a claim of entry "entry-0": resourceclaimtemplate "tmpl" not found: create it, or correct '
            "resourceClaimTemplateName"
        )
        assert condition(world) in world.messages("FailedScheduling")
        world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
        await world.quiet()
        assert world.node_of() == "node-0"


async def test_a_pod_whose_template_is_too_large_says_so_and_runs_when_it_is_replaced(world: World) -> None:
    world.furnish()
    template = Make.template()
    entry = {"opaque": {"driver": "gpu.example.com", "parameters": {"text": "x" * 10_000}}}
    template["spec"]["spec"]["devices"]["config"] = [entry] * 32
    world.api.add(RESOURCE_CLAIM_TEMPLATES, template)
    world.api.add(PODS, Make.pod(claims=[Make.FROM_TEMPLATE]))
    world.start()
    async with world.running():
        await world.busy()
        assert condition(world).startswith(
            'waits for a claim of entry "entry-0": resourceclaimtemplate "tmpl" has a spec of 315 KiB, and '
            "dra-operator allocates at most 64 KiB: shorten"
        )
        world.api.drop(RESOURCE_CLAIM_TEMPLATES, "ns/tmpl")
        world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
        await world.quiet()
        assert world.node_of() == "node-0"


async def test_a_pod_whose_template_cannot_be_read_says_so(world: World) -> None:
    world.furnish()
    template = Make.template()
    template["spec"]["spec"]["devices"] = 3
    world.api.add(RESOURCE_CLAIM_TEMPLATES, template)
    world.api.add(PODS, Make.pod(claims=[Make.FROM_TEMPLATE]))
    world.start()
    async with world.running():
        await world.busy()
        assert condition(world) == (
            "waits for its claims, which cannot be made: PodResourceClaim entry-0: ResourceClaimTemplate ns/tmpl: "
            "Expected `object`, got `int` - at `$.spec.devices`"
        )


async def test_a_pod_whose_claim_is_refused_to_a_controller_that_makes_others_points_to_the_events(
    world: World,
) -> None:
    world.controllers = OwnControllers(templates=False)
    world.furnish()
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    world.api.add(PODS, Make.pod(claims=[Make.FROM_TEMPLATE]))
    world.start()
    world.control.placer.claim_came()
    async with world.running():
        await world.quiet()
    assert condition(world) == (
        'pod "ns/pod": ResourceClaim not created yet: if that lasts, events FailedResourceClaimCreation of the pod '
        "say why"
    )


async def test_a_pod_whose_claim_nobody_makes_names_the_controller_that_is_missing_and_our_flag(world: World) -> None:
    """A controller manager renews its Lease whether its claim controller runs or not, and no event says that."""
    world.controllers = OwnControllers(templates=False, release=False, eviction=False)
    world.furnish()
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    world.api.add(PODS, Make.pod(claims=[Make.FROM_TEMPLATE]))
    await world.settle()
    assert condition(world) == (
        'pod "ns/pod": ResourceClaim not created yet: claims are left to kube-controller-manager, which has made none '
        "for any pod since this operator started. If no events FailedResourceClaimCreation of the pod say why, its "
        "resourceclaim-controller does not run: take -resourceclaim-controller out of its --controllers, or start "
        "dra-operator with --controllers templates,release,placement,allocation"
    )


async def test_a_young_pod_waits_in_silence(world: World) -> None:
    world.times = replace(world.times, unmade_claims=30.0)
    world.furnish()
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    pod = Make.pod(claims=[Make.FROM_TEMPLATE])
    pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    world.api.add(PODS, pod)
    world.start()
    for world.now, says in (("2026-01-01T00:00:29Z", False), ("2026-01-01T00:00:30Z", True)):
        world.control.placer.claim_came()  # to another pod: whoever makes claims is busy
        await world.attempt("ns/pod")
        assert bool(condition(world)) is says


async def test_where_no_pod_gets_a_claim_a_pod_says_so_before_five_seconds_are_over(world: World) -> None:
    world.times = replace(world.times, unmade_claims=30.0, faulty_templates=TimeSettings().faulty_templates)
    world.furnish()
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    pod = Make.pod(claims=[Make.FROM_TEMPLATE])
    pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    world.api.add(PODS, pod)
    world.start()
    for world.now, says in (("2026-01-01T00:00:03Z", False), ("2026-01-01T00:00:04Z", True)):
        await world.attempt("ns/pod")
        assert bool(condition(world)) is says


@pytest.mark.parametrize("hours", [-1, 0, 1])
async def test_a_pod_that_comes_says_so_in_time_whatever_the_clock_was_set_to(hours: int, world: World) -> None:
    """An hour ahead each new pod was told at once; an hour behind none was."""
    world.times = replace(world.times, faulty_templates=4.0)
    world.furnish()
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    world.start()
    pod = Make.pod(claims=[Make.FROM_TEMPLATE])
    pod["metadata"]["creationTimestamp"] = "2026-01-01T02:00:00Z"
    world.now = f"2026-01-01T0{2 + hours}:00:00Z"
    world.api.add(PODS, pod)
    world.bring_events()
    for seconds, says in ((0.0, False), (3.0, False), (1.0, True)):
        await asyncio.sleep(seconds)
        await world.attempt("ns/pod")
        assert bool(condition(world)) is says


async def test_a_pod_whose_template_is_missing_says_so_long_before_one_whose_claim_is_late(world: World) -> None:
    """The failure to make the claim brings the pod to be looked at, soon; a template may be applied after its pods."""
    world.times = replace(world.times, unmade_claims=30.0, faulty_templates=0.2)
    world.furnish()
    pod = Make.pod(claims=[Make.FROM_TEMPLATE])
    pod["metadata"]["creationTimestamp"] = "2025-12-31T23:59:59Z"
    world.api.add(PODS, pod)
    world.start()
    async with world.running():
        await world.busy()
        assert condition(world).startswith('waits for a claim of entry "entry-0": resourceclaimtemplate "tmpl" not')
        assert len(world.messages("FailedScheduling")) == 1


async def test_a_pod_that_gets_its_claim_says_nothing(world: World) -> None:
    world.furnish()
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    world.api.add(PODS, Make.pod(claims=[Make.FROM_TEMPLATE]))
    world.start()
    async with world.running():
        await world.busy()
        assert world.node_of() == "node-0"
        assert not world.messages("FailedScheduling")


async def test_a_template_that_is_gone_again_is_not_blamed_for_the_claim_of_another_entry(world: World) -> None:
    """The first entry's claim was made before its template went; the second one's is refused."""
    world.controllers = OwnControllers(templates=False)
    world.furnish()
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    pod = Make.pod(claims=[{"resourceClaimTemplateName": "gone"}, Make.FROM_TEMPLATE])
    pod["status"]["resourceClaimStatuses"] = [{"name": "entry-0", "resourceClaimName": "made"}]
    pod["metadata"]["uid"] = "the-pod"
    world.api.add(PODS, pod)
    world.api.add(RESOURCE_CLAIMS, Make.claim("made", owner=pod["metadata"]))
    await world.settle()
    assert "not created yet" in condition(world)
