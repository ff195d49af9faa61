"""Allocations that take too long: a limit in steps, and one in time (INT-009, INT-010)."""

from __future__ import annotations

from pathlib import Path

from allocator_lab import partition_problem
from command import OperatorProcess, operator_process
from dra_kube import RESOURCE_SLICES, Object
from scene import SECOND, Scene, control_plane


async def wish_for_what_takes_too_long(scene: Scene, scheduler: str) -> list[Object]:
    """A pod for which no search finds an end; the slices."""
    await scene.create_class()
    slices = [slice_["spec"] for slice_ in partition_problem(scene.node_names[0], scene.driver_name)]
    made = [await scene.create_slice(**spec) for spec in slices]
    exactly = {"deviceClassName": scene.class_name, "allocationMode": "ExactCount", "count": 20}
    await scene.create_claim(spec=scene.claim_spec({"name": "req", "exactly": exactly}))
    await scene.create_pod(scene.pod(schedulerName=scheduler))
    return made


@control_plane
async def test_int_009_without_a_limit_in_time_the_budget_of_steps_ends_the_search(
    scene: Scene, tmp_path: Path
) -> None:
    options = ["--scheduler-name", scene.namespace, "--controllers", "placement"]
    options += ["--feature-gates", "DRASchedulerFilterTimeout=false", "--search-budget", "100000"]
    await wish_for_what_takes_too_long(scene, scene.namespace)
    async with operator_process(scene.world.kubeconfig, tmp_path / "log", "patient", *options) as operator:
        await scene.pending(says=r"gave up after [\d,]+ steps")
        assert operator.complaints() == []


@control_plane
async def test_int_010_a_node_whose_search_takes_too_long_ends_the_attempt_which_is_repeated(
    scene: Scene, second: OperatorProcess
) -> None:
    hard = await wish_for_what_takes_too_long(scene, SECOND)
    await scene.pending(says=f"node {scene.node_names[0]}: timed out trying to allocate devices")
    await scene.event("tester", "FailedScheduling", "timed out trying to allocate devices")
    for slice_ in hard:
        await scene.api.delete(RESOURCE_SLICES, slice_["metadata"]["name"])
    pool = {"name": "easy", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"dev-{number}"} for number in range(20)]
    await scene.create_slice(nodeName=scene.node_names[0], pool=pool, devices=devices)
    await scene.runs()
