"""Gangs in a whole cluster: while the operator is killed, and beside a job controller and kube-scheduler."""

from __future__ import annotations

from dra_kube import PODS, Object, Resource
from envtest import needs_stock_control_plane
from proving_ground import NAMESPACE, ProvingGround
from witness import State

JOBS = Resource("batch", ("v1",), "jobs", "Job", True)
SIZE = 3


def member_of(gang: str) -> dict[str, str]:
    return {"dra.kopf.dev/gang": gang, "dra.kopf.dev/gang-size": str(SIZE)}


async def add_gang(ground: ProvingGround, gang: str) -> None:
    for number in range(SIZE):
        await ground.add_pod(f"{gang}-{number}", annotations=member_of(gang))


async def running_gangs(ground: ProvingGround) -> set[str]:
    """Gangs of which all pods are bound."""
    bound = [name.rpartition("-")[0] for name in await ground.bound_names()]
    return {gang for gang in bound if bound.count(gang) == SIZE}


def torn(state: State) -> bool:
    """A pod of a gang is bound, and another one that exists has no devices."""
    allocated = {claim.key for claim in state.claims.values() if claim.is_allocated}
    gangs: dict[str, list[tuple[bool, bool]]] = {}
    for pod in state.pods.values():
        has_devices = all(f"{NAMESPACE}/{claim}" in allocated for claim in pod.claims.values())
        gangs.setdefault(pod.key.rpartition("-")[0], []).append((pod.runs, has_devices))
    whole = [pods for pods in gangs.values() if len(pods) == SIZE]
    return any(any(runs for runs, _ in pods) and not all(has for _, has in pods) for pods in whole)


async def test_gangs_run_whole_one_after_the_other_while_the_operator_is_killed(ground: ProvingGround) -> None:
    """Of five gangs two have room at once; a third would hold the devices that are left, if it took what it gets."""
    await ground.furnish(nodes=2, devices=4)
    waiting = {f"gang{number}" for number in range(5)}
    async with ground.kept_running("--no-leader-elect"):
        await ground.leader()
        for gang in sorted(waiting):
            await add_gang(ground, gang)

        async def runs() -> set[str] | None:
            return await running_gangs(ground) & waiting or None

        while waiting:
            ran = await ground.until("another gang runs", runs)
            await ground.operators[-1].kill()
            await ground.delete_pods(f"{gang}-{number}" for gang in ran for number in range(SIZE))
            waiting.difference_update(ran)
        await ground.emptied()
    await ground.sound()
    assert not ground.witness.history.most(torn)


@needs_stock_control_plane
async def test_the_pods_of_a_job_are_a_gang_beside_pods_of_kube_scheduler(ground: ProvingGround) -> None:
    """Of eight devices kube-scheduler's pods have two, so that two of three jobs have room."""
    await ground.furnish(nodes=2, devices=4)
    waiting = {"job-a", "job-b", "job-c"}
    async with ground.operator() as operator:
        await operator.becomes_ready()
        for number in range(2):
            await ground.add_pod(f"theirs-{number}", schedulerName="default-scheduler")
        await ground.bound(2)
        for name in waiting:
            await ground.api.create(JOBS, job(name))

        async def two_run() -> set[str] | None:
            bound = await bound_by_job(ground)
            return set(bound) if list(bound.values()) == [SIZE, SIZE] else None

        ran = await ground.until("two jobs run", two_run)
        (last,) = waiting - ran
        await suspend(ground, min(ran))

        async def the_last_runs() -> bool:
            return (await bound_by_job(ground)).get(last) == SIZE

        await ground.until("the third job runs", the_last_runs)
        for name in waiting:
            await suspend(ground, name)
        await ground.emptied()
    await ground.sound()


async def suspend(ground: ProvingGround, job: str) -> None:
    """Its controller deletes its pods."""
    await ground.api.patch(JOBS, job, {"spec": {"suspend": True}}, NAMESPACE)


def job(name: str) -> Object:
    """It makes the pods of a gang."""
    spec: Object = {
        "schedulerName": "dra-scheduler",
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "template"}],
    }
    template = {"metadata": {"annotations": {"dra.kopf.dev/gang": str(SIZE)}}, "spec": spec}
    body = {"parallelism": SIZE, "completions": SIZE, "template": template}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": body}


async def bound_by_job(ground: ProvingGround) -> dict[str, int]:
    """How many pods of each job have a node, if any has."""
    counts: dict[str, int] = {}
    for pod in (await ground.api.list(PODS, NAMESPACE))[0]:
        name = (pod["metadata"].get("labels") or {}).get("job-name")
        if name and pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
            counts[name] = counts.get(name, 0) + 1
    return counts
