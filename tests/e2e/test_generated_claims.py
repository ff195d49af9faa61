"""Claims made from templates, where the project does more than the reference (PRJ-001 to PRJ-004)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from command import operator_process
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Object
from scene import Scene, control_plane, done_by_us
from waiting import stays, until

ENTRY = "resource.kubernetes.io/pod-claim-name"
Names = dict[str, str]
"""Claims by the entries of a pod."""

pytestmark = [control_plane, done_by_us]


def names_in(pod: Object) -> Names:
    statuses = pod.get("status", {}).get("resourceClaimStatuses") or ()
    return {entry["name"]: entry["resourceClaimName"] for entry in statuses}


async def recorded(scene: Scene, name: str = "tester", instead_of: str = "") -> Names:
    """What the pod says of its claims, once it names all of them and not this one."""

    async def look() -> Names | None:
        pod = await scene.get_pod(name)
        names = names_in(pod)
        return names if len(names) == len(pod["spec"]["resourceClaims"]) and instead_of not in names.values() else None

    return await until(f"the claims of pod {name} recorded", look)


async def create_waiting_pod(scene: Scene, *entries: str, name: str = "tester") -> None:
    """A pod with claims from the template, for which there are no devices."""
    claims = [{"name": entry, "resourceClaimTemplateName": "template"} for entry in entries]
    await scene.create_pod(scene.pod(name, claims))


@asynccontextmanager
async def versions_of_the_pod(scene: Scene) -> AsyncIterator[list[Object]]:
    """Every version from now on."""
    seen: list[Object] = []
    _, revision = await scene.api.list(PODS, scene.namespace)

    async def follow() -> None:
        async for event in scene.api.watch(PODS, scene.namespace, resource_version=revision):
            if event.type == "MODIFIED":
                seen.append(event.object)

    following = asyncio.create_task(follow())
    try:
        yield seen
    finally:
        following.cancel()
        await asyncio.wait((following,))
    if not following.cancelled():
        following.result()


async def test_prj_001_one_of_two_claims_is_made_again_and_the_other_entry_never_disappears(scene: Scene) -> None:
    await scene.create_template()
    await create_waiting_pod(scene, "one", "other")
    before = await recorded(scene)
    async with versions_of_the_pod(scene) as versions:
        await scene.delete_claim(before["one"])
        after = await recorded(scene, instead_of=before["one"])

        async def caught_up() -> bool:
            return bool(versions) and names_in(versions[-1]) == after

        await until("the last version is seen", caught_up)
    assert after["other"] == before["other"]
    assert all(names_in(version).get("other") == before["other"] for version in versions)
    assert {claim["metadata"]["name"] for claim in await scene.claims()} == set(after.values())


async def test_prj_002_a_claim_deleted_right_after_its_creation_is_made_again(scene: Scene) -> None:
    await scene.create_template()
    _, revision = await scene.api.list(RESOURCE_CLAIMS, scene.namespace)
    await create_waiting_pod(scene, "one")
    events = scene.api.watch(RESOURCE_CLAIMS, scene.namespace, resource_version=revision)
    async with aclosing(events):  # type: ignore[type-var]  # declared as an iterator, is a generator
        first = await anext(event.object["metadata"]["name"] async for event in events if event.type == "ADDED")
    await scene.delete_claim(first)
    (second,) = (await recorded(scene, instead_of=first)).values()
    assert [claim["metadata"]["name"] for claim in await scene.claims()] == [second]


async def test_prj_003_the_claim_of_a_finished_pod_goes_and_stays_away(scene: Scene, tmp_path: Path) -> None:
    """Also when an operator starts that finds the pod as it is."""
    await scene.create_template()
    await create_waiting_pod(scene, "one")
    await recorded(scene)
    await scene.api.patch(PODS, "tester", {"status": {"phase": "Failed"}}, scene.namespace, subresource="status")

    async def none_left() -> bool:
        return await scene.claims() == []

    await until("the claim deleted", none_left)
    options = ["--scheduler-name", scene.namespace, "--controllers", "templates,release"]
    async with operator_process(scene.world.kubeconfig, tmp_path / "log", "restarted", *options) as operator:
        await operator.becomes_ready()
        await stays("no claim", none_left, 1.0)
        assert operator.complaints() == []


async def test_prj_004_each_claim_has_its_own_annotation_and_the_template_is_unchanged(scene: Scene) -> None:
    """The annotation for the entry replaces the template's, in the claims only."""
    metadata = {"labels": {"app": "x"}, "annotations": {"note": "keep", ENTRY: "replaced"}}
    body = {"metadata": metadata, "spec": scene.claim_spec()}
    meta = {"name": "template", "namespace": scene.namespace}
    template = await scene.api.create(RESOURCE_CLAIM_TEMPLATES, {"metadata": meta, "spec": body})
    for name in ("tester", "tester-2"):
        await create_waiting_pod(scene, "one", "other", name=name)
    names = {entry for name in ("tester", "tester-2") for entry in (await recorded(scene, name)).items()}
    claims = {claim["metadata"]["name"]: claim["metadata"] for claim in await scene.claims()}
    assert len(claims) == 4
    for entry, claim in names:
        assert claims[claim]["annotations"] == {"note": "keep", ENTRY: entry}
        assert claims[claim]["labels"] == {"app": "x"}
    assert await scene.api.get(RESOURCE_CLAIM_TEMPLATES, "template", scene.namespace) == template
