"""Preemption in a whole cluster: priority classes by admission, budgets by the disruption controller, ends by nodes."""

from __future__ import annotations

from dra_kube import EVENTS, POD_DISRUPTION_BUDGETS, PODS, Resource
from envtest import needs_stock_control_plane
from proving_ground import NAMESPACE, ProvingGround
from waiting import until

CLASSES = Resource("scheduling.k8s.io", ("v1",), "priorityclasses", "PriorityClass", False)


async def full(ground: ProvingGround) -> list[str]:
    """All devices are in use by pods of low priority; their names."""
    for name, value in (("patient", 100), ("urgent", 1000)):
        await ground.api.create(CLASSES, {"metadata": {"name": name}, "value": value})
    await ground.furnish(nodes=2, devices=2)
    names = [f"patient-{number}" for number in range(4)]
    for name in names:
        await ground.add_pod(name, priorityClassName="patient")
    await ground.bound(4)
    return names


async def has_preempted(ground: ProvingGround, pod: str, patient: list[str]) -> str:
    """The pod has a node; the one pod of the others that ended for it, of which the events tell."""

    async def runs() -> bool:
        return pod in await ground.bound_names()

    await ground.until(f"{pod} runs", runs)
    (victim,) = set(patient) - set(await ground.bound_names())

    async def told() -> bool:
        events = (await ground.api.list(EVENTS, NAMESPACE))[0]
        seen = {(event["involvedObject"]["name"], event["reason"]) for event in events}
        return {(victim, "Preempted"), (pod, "Preempting")} <= seen

    await until("events tell of it", told)
    return victim


async def test_one_pod_ends_for_one_of_higher_priority(ground: ProvingGround) -> None:
    async with ground.operator("--preemption") as operator:
        await operator.becomes_ready()
        patient = await full(ground)
        await ground.add_pod("urgent", priorityClassName="urgent")
        await has_preempted(ground, "urgent", patient)
        await ground.emptied()
    await ground.sound()


@needs_stock_control_plane
async def test_a_pod_outside_of_the_budget_ends_although_it_is_the_oldest(ground: ProvingGround) -> None:
    async with ground.operator("--preemption") as operator:
        await operator.becomes_ready()
        patient = await full(ground)
        for name in set(patient) - {"patient-0"}:
            await ground.api.patch(PODS, name, {"metadata": {"labels": {"app": "kept"}}}, NAMESPACE)
        spec = {"minAvailable": 3, "selector": {"matchLabels": {"app": "kept"}}}
        body = {"metadata": {"name": "kept", "namespace": NAMESPACE}, "spec": spec}
        await ground.api.create(POD_DISRUPTION_BUDGETS, body)

        async def is_counted() -> bool:
            budget = await ground.api.get(POD_DISRUPTION_BUDGETS, "kept", NAMESPACE)
            return (budget.get("status") or {}).get("expectedPods") == 3

        await ground.until("the disruption controller has counted the pods", is_counted)
        await ground.add_pod("urgent", priorityClassName="urgent")
        assert await has_preempted(ground, "urgent", patient) == "patient-0"
        await ground.emptied()
    await ground.sound()
