"""What the operator counts changes with the claims of the cluster (INT-035)."""

from __future__ import annotations

from command import OperatorProcess
from scene import SECOND, Scene, control_plane
from waiting import until

GAUGE = "resourceclaim_controller_resource_claims"
OF_TEMPLATES = {"source": "resource_claim_template"}


@control_plane
async def test_int_035_claims_count_as_they_are_made_allocated_and_deleted(
    scene: Scene, second: OperatorProcess
) -> None:
    """The claims of earlier tests may still count. kube-controller-manager counts by itself what it makes."""

    async def counts(allocated: int, waiting: int) -> None:
        async def look() -> bool:
            found = [await second.metric(GAUGE, allocated=value, **OF_TEMPLATES) for value in ("true", "false")]
            assert found == [allocated, waiting]
            return True

        await until(f"{allocated} allocated and {waiting} other claims", look)

    await counts(0, 0)
    await scene.start_driver(devices=2)
    await scene.create_template()
    for name in ("one", "two", "three"):
        await scene.create_pod(scene.inline_pod(name))
    await counts(2, 1)
    for name in ("one", "two", "three"):
        await scene.delete_pod(name)
    await counts(0, 0)
    made = await second.metric("scheduler_resourceclaim_creates_total", status="success")
    amounts = {f"deviceclass.resource.kubernetes.io/{scene.class_name}": 1}
    containers = [scene.container("main", amounts=amounts)]
    await scene.create_pod(scene.pod(claims=(), containers=containers, schedulerName=SECOND))
    await scene.runs()

    async def counted() -> bool:
        return await second.metric("scheduler_resourceclaim_creates_total", status="success") == made + 1

    await until("the claim is counted, in figures that are rendered once a second", counted)
    assert await second.metric(GAUGE, source="extended_resource", allocated="true") == 1
