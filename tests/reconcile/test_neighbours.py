"""What besides devices and amounts decides where a pod can run: its neighbours, and rules that placement lacks."""

from __future__ import annotations

from dra_kube import NODES, PODS
from dra_operator.cluster import NONE
from objects import Make
from reconcile_world import World

WITH_PORT = [{"name": "main", "ports": [{"containerPort": 80, "hostPort": 8080}]}]


def why(world: World, pod: str) -> str:
    condition = world.api[PODS, f"ns/{pod}"]["status"]["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
    return str(condition["message"])


def nodes_of(world: World, *pods: str) -> list[str | None]:
    return [world.api[PODS, f"ns/{pod}"]["spec"].get("nodeName") for pod in pods]


async def test_a_host_port_goes_to_one_pod_at_a_time(world: World, make: type[Make]) -> None:
    """Both pods come at once, so the second one meets the first while that is on its way to the node."""
    world.api.add(NODES, make.node("node-0"))
    for name in ("first", "second"):
        world.api.add(PODS, make.pod(name, containers=WITH_PORT))
    await world.settle()
    assert nodes_of(world, "first", "second") == ["node-0", None]
    assert why(world, "second") == "0/1 nodes are available: 1 host port 8080/TCP is taken"
    world.api.change(PODS, "ns/first", lambda pod: pod["status"].update(phase="Succeeded"))
    await world.settle()
    assert nodes_of(world, "second") == ["node-0"]


async def test_a_pod_with_a_rule_that_placement_lacks_waits_and_nothing_but_the_pod_wakes_it(
    world: World, make: type[Make]
) -> None:
    world.api.add(NODES, make.node("node-0"))
    world.api.add(PODS, make.pod(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]))
    await world.settle()
    assert nodes_of(world, "pod") == [None]
    assert why(world, "pod").startswith("spec.volumes[0].persistentVolumeClaim is not supported by dra-operator yet; ")
    assert world.messages("FailedScheduling") == [why(world, "pod")]
    assert world.cluster.waiting["ns/pod"] == NONE


async def test_a_feature_that_the_pod_needs_is_awaited(world: World, make: type[Make]) -> None:
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
    world.api.add(NODES, make.node("node-0"))
    world.api.add(PODS, make.pod(containers=[{"name": "main", "restartPolicyRules": [rule]}]))
    await world.settle()
    feature = "RestartAllContainersOnContainerExits"
    assert why(world, "pod") == f"0/1 nodes are available: 1 node(s) didn't declare the feature {feature}"
    world.api.change(NODES, "node-0", lambda node: node["status"].update(declaredFeatures=[feature]))
    await world.settle()
    assert nodes_of(world, "pod") == ["node-0"]


async def test_a_pod_is_placed_where_pods_repel_it_once_they_are_gone(world: World, make: type[Make]) -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}]
    alone = make.pod("alone", node="node-0", affinity={"podAntiAffinity": {required: terms}})
    world.api.add(NODES, make.node("node-0", zone="a"))
    world.api.add(PODS, {**alone, "spec": {**alone["spec"], "schedulerName": "default-scheduler"}})
    comes = make.pod("comes")
    world.api.add(PODS, {**comes, "metadata": {**comes["metadata"], "labels": {"app": "web"}}})
    await world.settle()
    assert why(world, "comes").endswith("1 node(s) had pods whose required anti-affinity keeps the pod away")
    world.api.drop(PODS, "ns/alone")
    await world.settle()
    assert nodes_of(world, "comes") == ["node-0"]
