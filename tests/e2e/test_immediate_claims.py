"""Immediate claims on a cluster whose nodes run pods."""

from __future__ import annotations

from dra_kube import RESOURCE_CLAIMS, Object
from scene import Scene, both
from waiting import until


async def create_immediate(scene: Scene, value: str = "immediate") -> None:
    meta = {"name": "external-claim", "namespace": scene.namespace, "annotations": {"dra.kopf.dev/allocate": value}}
    await scene.api.create(RESOURCE_CLAIMS, {"metadata": meta, "spec": scene.claim_spec()})


async def allocated(scene: Scene) -> Object:
    async def look() -> Object | None:
        allocation: Object | None = (await scene.get_claim()).get("status", {}).get("allocation")
        return allocation

    return await until("the claim is allocated", look)


@both
async def test_a_claim_has_its_device_before_its_pod_and_after_it(scene: Scene) -> None:
    await scene.start_driver(with_class=False)
    await create_immediate(scene)
    await scene.event("external-claim", "FailedAllocation", f"device class {scene.class_name} does not exist")
    await scene.create_class()
    before = await allocated(scene)
    await scene.event("external-claim", "ClaimAllocated")
    await scene.create_pod(scene.pod())
    await scene.runs()
    await scene.delete_pod("tester")
    claim = await scene.get_claim()
    assert claim["status"]["allocation"]["devices"] == before["devices"]
    await scene.delete_claim()


@both
async def test_a_wrong_annotation_is_reported_and_the_claim_is_like_any_other(scene: Scene) -> None:
    await scene.start_driver()
    await create_immediate(scene, "now")
    await scene.event("external-claim", "FailedAllocation", '"now" is not supported: use "immediate"')
    await scene.create_pod(scene.pod())
    await scene.runs()
    await scene.delete_pod("tester")
    await scene.deallocated()
