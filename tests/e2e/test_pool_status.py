"""Questions about pools, answered (E2E-111 to E2E-119, INT-047 to INT-051, PRJ-005).

Their gate is off by default, so a second operator has it.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from command import OperatorProcess
from dra_kube import RESOURCE_POOL_STATUS_REQUESTS, Api, Invalid, NotFound, NotServed, Object
from scene import Scene, control_plane
from waiting import stays, until

COMPLETE = ("Complete", "True")


@pytest.fixture(autouse=True)
async def served(scene: Scene, second: OperatorProcess) -> None:
    """The second operator answers where the API server has the kind."""
    try:
        await scene.api.version_of(RESOURCE_POOL_STATUS_REQUESTS)
    except NotServed:
        pytest.skip("this API server does not serve ResourcePoolStatusRequests")


async def put(scene: Scene, name: str, **spec: Any) -> str:
    """A question about the test's driver unless another one is named; its full name."""
    full = f"{scene.namespace}-{name}"
    body = {"metadata": {"name": full}, "spec": {"driver": scene.driver_name, **spec}}
    await scene.api.create(RESOURCE_POOL_STATUS_REQUESTS, body)
    return full


async def answered(api: Api, name: str) -> Object:
    """The question, once it has an answer."""

    async def look() -> Object | None:
        found = await api.get(RESOURCE_POOL_STATUS_REQUESTS, name)
        return found if found.get("status") else None

    return await until(f"{name} is answered", look)


async def ask(scene: Scene, name: str, **spec: Any) -> Object:
    """The answer; it is complete."""
    question = await answered(scene.api, await put(scene, name, **spec))
    status: Object = question["status"]
    assert [(each["type"], each["status"]) for each in status["conditions"]] == [COMPLETE]
    await scene.api.delete(RESOURCE_POOL_STATUS_REQUESTS, question["metadata"]["name"])
    return status


def names(answer: Object) -> list[str]:
    return [each["poolName"] for each in answer.get("pools") or []]


async def ask_of_all(scene: Scene, count: int) -> Object:
    """The answer of an operator that has seen so many pools: it hears of slices by a watch."""
    numbers = itertools.count()

    async def look() -> Object | None:
        answer = await ask(scene, f"all-{next(numbers)}")
        return answer if answer["poolCount"] == count else None

    return await until(f"{count} pools are seen", look)


async def furnish(scene: Scene) -> None:
    """Two pools of a node each, one of both nodes, one of two slices on different nodes; ten devices each."""
    first, second = scene.node_names[:2]
    await scene.create_class()
    places: list[tuple[str, list[Object]]] = [
        ("all", [{"allNodes": True}]),
        ("apart", [{"nodeName": first}, {"nodeName": second}]),
        ("one", [{"nodeName": first}]),
        ("two", [{"nodeName": second}]),
    ]
    for name, slices in places:
        for index, place in enumerate(slices):
            devices = [{"name": f"dev-{index}-{number}"} for number in range(10 // len(slices))]
            pool = {"name": name, "generation": 1, "resourceSliceCount": len(slices)}
            await scene.create_slice(pool=pool, devices=devices, **place)


@control_plane
async def test_e2e_111_112_113_114_115_116_118_119_int_047_049_050_pools_are_counted(scene: Scene) -> None:
    """One test, because the pools take longest."""
    await furnish(scene)
    first, second = scene.node_names[:2]
    answer = await ask_of_all(scene, 4)
    assert (answer["poolCount"], names(answer)) == (4, ["all", "apart", "one", "two"])
    assert [pool.get("nodeName") for pool in answer["pools"]] == [None, None, first, second]
    counted = [(pool["totalDevices"], pool["allocatedDevices"], pool["generation"]) for pool in answer["pools"]]
    assert counted == [(10, 0, 1)] * 4
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    await scene.runs()
    (result,) = (await scene.get_claim())["status"]["allocation"]["devices"]["results"]

    async def seen() -> bool:
        """The operator that answers hears of the allocation by a watch."""
        (pool,) = (await ask(scene, "used", poolName=result["pool"]))["pools"]
        return (pool["allocatedDevices"], pool["availableDevices"]) == (1, 9)

    await until("the device counts as allocated", seen)
    assert names(await ask(scene, "filtered", poolName="two")) == ["two"]
    answer = await ask(scene, "limited", limit=2)
    assert (answer["poolCount"], names(answer)) == (4, ["all", "apart"])
    answer = await ask(scene, "unknown", driver=f"other-{scene.driver_name}")
    assert (answer["poolCount"], names(answer)) == (0, [])


@control_plane
async def test_prj_005_a_permanently_incomplete_pool_is_answered_with_what_is_missing(scene: Scene) -> None:
    """The answer takes five seconds: the rest of the pool may just be published."""
    pool = {"name": "half", "generation": 1, "resourceSliceCount": 2}
    await scene.create_slice(nodeName=scene.node_names[0], pool=pool, devices=[{"name": "dev"}])
    (found,) = (await ask_of_all(scene, 1))["pools"]
    text = f"pool {scene.driver_name}/half is incomplete: observed 1/2 slices at generation 1"
    assert found["validationError"].removeprefix("PoolIncomplete: ") == text, "the prefix came with 1.37"
    assert "totalDevices" not in found


@control_plane
async def test_e2e_117_int_048_051_an_answer_is_final_and_a_bad_question_is_refused(scene: Scene) -> None:
    await furnish(scene)
    for spec, field in (({"driver": "Not A Driver"}, "spec.driver"), ({"limit": 0}, "spec.limit")):
        with pytest.raises(Invalid, match=field):
            await put(scene, "bad", **spec)
    name = await put(scene, "once")
    before = await answered(scene.api, name)
    pool = {"name": "late", "generation": 1, "resourceSliceCount": 1}
    await scene.create_slice(nodeName=scene.node_names[0], pool=pool, devices=[{"name": "dev"}])

    async def counted() -> bool:
        return names(await ask(scene, "later", poolName="late")) == ["late"]

    await until("another question finds the new pool", counted)

    async def unchanged() -> bool:
        return await scene.api.get(RESOURCE_POOL_STATUS_REQUESTS, name) == before

    await stays("the first answer", unchanged, 1.0)
    await scene.api.delete(RESOURCE_POOL_STATUS_REQUESTS, name)
    with pytest.raises(NotFound):
        await scene.api.get(RESOURCE_POOL_STATUS_REQUESTS, name)
