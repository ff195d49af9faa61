"""One device per node, up to four nodes (E2E-020 to E2E-024), and claims across nodes (E2E-055, E2E-056)."""

from __future__ import annotations

from dra_kube import LEASES, NODES, PODS, RESOURCE_SLICES, Object
from dra_kubeletplugin import Pool, attribute, device
from scene import Scene, both
from waiting import stays, until


async def test_e2e_020_int_019_each_node_has_one_stable_slice_that_its_node_owns(scene: Scene) -> None:
    await scene.start_driver(nodes=4)

    async def slices() -> list[Object]:
        selector = f"spec.driver={scene.driver_name}"
        return (await scene.api.list(RESOURCE_SLICES, fieldSelector=selector))[0]

    published = await slices()
    assert sorted(piece["spec"]["nodeName"] for piece in published) == sorted(scene.node_names)
    for piece in published:
        node = await scene.api.get(NODES, piece["spec"]["nodeName"])
        assert piece["spec"]["pool"] == {
            "name": node["metadata"]["name"],
            "generation": 1,
            "resourceSliceCount": 1,
        }
        [owner] = piece["metadata"]["ownerReferences"]
        assert owner == {
            "apiVersion": "v1",
            "kind": "Node",
            "name": node["metadata"]["name"],
            "uid": node["metadata"]["uid"],
            "controller": True,
        }
    versions = {piece["metadata"]["name"]: piece["metadata"]["resourceVersion"] for piece in published}

    async def same() -> bool:
        return {p["metadata"]["name"]: p["metadata"]["resourceVersion"] for p in await slices()} == versions

    await stays("slices unchanged", same, seconds=3)


@both
async def test_each_node_renews_its_lease_so_that_a_node_lifecycle_controller_leaves_it_alone(scene: Scene) -> None:
    async def beats() -> list[str]:
        leases = [await scene.api.get(LEASES, name, "kube-node-lease") for name in scene.node_names]
        return [lease["spec"]["renewTime"] for lease in leases]

    first = await beats()

    async def renewed() -> bool:
        return all(map(str.__gt__, await beats(), first))

    await until("every Lease renewed", renewed)


async def test_e2e_021_an_init_container_uses_an_external_claim(scene: Scene) -> None:
    await scene.start_driver(nodes=4)
    await scene.create_claim()
    once = scene.container("init", "my-claim", script="env | grep -E '^(user|admin|claim)_'; echo ready")
    await scene.create_pod(scene.pod(initContainers=[once], containers=[scene.container("with-resource")]))
    await scene.runs()
    assert await scene.environment(container="init") == {"admin_x=y", "user_a=b", "claim_external_claim_req=true"}
    assert await scene.environment() == set()


async def test_e2e_022_a_completed_pod_gives_its_external_claim_back(scene: Scene) -> None:
    await scene.start_driver(nodes=4)
    await scene.create_claim()
    await scene.create_pod(scene.pod(containers=[scene.container("with-resource", "my-claim", script="true")]))
    await scene.ends()
    await scene.deallocated()


async def test_e2e_023_a_completed_pod_loses_its_generated_claim_and_stays(scene: Scene) -> None:
    await scene.start_driver(nodes=4)
    await scene.create_template()
    await scene.create_pod(scene.inline_pod(containers=[scene.container("with-resource", "my-claim", script="true")]))
    await scene.ends()

    async def no_claims() -> bool:
        return await scene.claims() == []

    await until("the generated claim deleted", no_claims)
    assert (await scene.get_pod())["status"]["phase"] == "Succeeded"


async def test_e2e_024_a_pod_that_restarts_keeps_its_generated_claim(scene: Scene) -> None:
    await scene.start_driver(nodes=4)
    await scene.create_template()
    short = scene.container("with-resource", "my-claim", script="sleep 0.2")
    await scene.create_pod(scene.inline_pod(restartPolicy="Always", containers=[short]))

    async def restarted() -> bool:
        statuses = (await scene.get_pod()).get("status", {}).get("containerStatuses") or [{"restartCount": 0}]
        return bool(statuses[0]["restartCount"] >= 2)

    await until("two restarts", restarted)
    [claim] = await scene.claims()
    assert claim["status"]["allocation"]


@both
async def test_e2e_055_a_selector_error_on_one_node_keeps_the_pod_from_that_node_and_is_told_if_no_other_fits(
    scene: Scene,
) -> None:
    """DEVIATE from kube-scheduler, which holds the pod back on both nodes."""
    await scene.create_class()
    with_memory = device("device-00", attributes={"memory": attribute(1)})
    await scene.start_plugin(1, {scene.node_names[1]: Pool.of([device("device-00")])})  # the operator knows it first
    await scene.start_plugin(0, {scene.node_names[0]: Pool.of([with_memory])})
    expression = f'device.attributes["{scene.driver_name}"].memory >= 1'
    exactly = {"deviceClassName": scene.class_name, "selectors": [{"cel": {"expression": expression}}]}
    await scene.create_claim(spec=scene.claim_spec({"name": "req", "exactly": exactly}))
    await scene.create_pod(scene.pod())
    pod = await scene.runs()
    assert pod["spec"]["nodeName"] == scene.node_names[0]
    await scene.create_claim("second", spec=scene.claim_spec({"name": "req", "exactly": exactly}))
    await scene.create_pod(scene.pod("late", [{"name": "my-claim", "resourceClaimName": "second"}]))
    await scene.pending("late", says="CEL runtime error")


@both
async def test_e2e_056_as_many_pods_as_nodes_get_a_node_each(scene: Scene) -> None:
    await scene.start_driver(nodes=4)
    await scene.create_template()
    for number in range(4):
        await scene.create_pod(scene.inline_pod(f"tester-{number}"))
    nodes = [(await scene.runs(f"tester-{number}"))["spec"]["nodeName"] for number in range(4)]
    assert sorted(nodes) == sorted(scene.node_names)
    assert len((await scene.api.list(PODS, scene.namespace))[0]) == 4
