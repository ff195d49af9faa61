"""What besides devices and amounts decides where a pod can run: its neighbours, and rules that placement lacks."""

from __future__ import annotations

from typing import Any

from controllers_world import World
from dra_kube import NAMESPACES, NODES, PODS, Forbidden
from dra_operator.cache import NONE
from fake_api import Call
from objects import Make, Obj

WITH_PORT = [{"name": "main", "ports": [{"containerPort": 80, "hostPort": 8080}]}]


def why(world: World, pod: str) -> str:
    condition = world.api[PODS, f"ns/{pod}"]["status"]["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
    return str(condition["message"])


def nodes_of(world: World, *pods: str) -> list[str | None]:
    return [world.node_of(pod) for pod in pods]


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
    world.api.add(PODS, make.pod(volumes=[{"name": "data", "iscsi": {}}]))
    await world.settle()
    assert nodes_of(world, "pod") == [None]
    assert why(world, "pod").startswith("spec.volumes[0].iscsi is not supported by dra-operator yet; ")
    assert world.messages("FailedScheduling") == [why(world, "pod")]
    assert world.cluster.waiting["ns/pod"] == NONE._replace(reason="unsupported")


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


def labelled(pod: Obj, **labels: str) -> Obj:
    """The pod with these labels."""
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}}


def rule(kind: str, **term: Any) -> Obj:
    """``spec.affinity`` with one required term about pods of the app ``web`` in a zone."""
    whole = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}, **term}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [whole]}}


NEAR = "node(s) didn't match pod affinity rules (topology key zone)"
AWAY = "node(s) didn't match pod anti-affinity rules (topology key zone)"
REPELLED = "node(s) didn't satisfy existing pods anti-affinity rules (topology key zone)"


async def test_a_pod_is_placed_where_pods_repel_it_once_they_are_gone(world: World, make: type[Make]) -> None:
    alone = make.pod("alone", node="node-0", affinity=rule("podAntiAffinity"))
    world.api.add(NODES, make.node("node-0", zone="a"))
    world.api.add(PODS, {**alone, "spec": {**alone["spec"], "schedulerName": "default-scheduler"}})
    world.api.add(PODS, labelled(make.pod("comes"), app="web"))
    await world.settle()
    assert why(world, "comes") == f"0/1 nodes are available: 1 {REPELLED}"
    world.api.drop(PODS, "ns/alone")
    await world.settle()
    assert nodes_of(world, "comes") == ["node-0"]


async def test_pods_that_stay_apart_and_come_at_once_get_a_zone_each(world: World, make: type[Make]) -> None:
    """Each one meets those that are still on their way to their nodes."""
    for number in range(4):
        world.api.add(NODES, make.node(f"node-{number}", zone="ab"[number % 2]))
    names = ["one", "two", "three"]
    for name in names:
        world.api.add(PODS, labelled(make.pod(name, affinity=rule("podAntiAffinity")), app="web"))
    await world.settle()
    placed = nodes_of(world, *names)
    zones = [world.api[NODES, node]["metadata"]["labels"]["zone"] for node in placed if node is not None]
    assert sorted(zones) == ["a", "b"]
    waits = names[placed.index(None)]
    assert why(world, waits) == f"0/4 nodes are available: 4 {AWAY}"
    world.api.change(PODS, f"ns/{names[placed.index('node-0')]}", lambda pod: pod["status"].update(phase="Succeeded"))
    await world.settle()
    assert nodes_of(world, waits) == ["node-0"]


async def test_a_pod_follows_the_one_that_it_must_be_near_within_one_run(world: World, make: type[Make]) -> None:
    for number in range(3):
        world.api.add(NODES, make.node(f"node-{number}", zone=str(number)))
    world.api.add(PODS, make.pod("follows", affinity=rule("podAffinity")))
    world.start()
    async with world.running():
        await world.quiet()
        assert why(world, "follows") == f"0/3 nodes are available: 3 {NEAR}"
        world.api.add(PODS, labelled(make.pod("web", nodeSelector={"zone": "2"}), app="web"))
        await world.quiet()
    assert nodes_of(world, "web", "follows") == ["node-2", "node-2"]


async def test_a_group_that_wants_to_be_together_gets_one_zone(world: World, make: type[Make]) -> None:
    for number in range(6):
        world.api.add(NODES, make.node(f"node-{number}", zone=str(number % 3)))
    names = [f"web-{number}" for number in range(5)]
    for name in names:
        world.api.add(PODS, labelled(make.pod(name, affinity=rule("podAffinity")), app="web"))
    await world.settle()
    assert {world.api[NODES, str(node)]["metadata"]["labels"]["zone"] for node in nodes_of(world, *names)} == {"0"}


async def test_a_label_of_a_namespace_decides_which_pods_count(world: World, make: type[Make]) -> None:
    world.api.add(NAMESPACES, {"metadata": {"name": "other", "labels": {}}})
    world.api.add(NODES, make.node("node-0", zone="a"))
    web = labelled(make.pod("web", node="node-0"), app="web")
    world.api.add(PODS, {**web, "metadata": {**web["metadata"], "namespace": "other"}})
    selector = {"matchLabels": {"team": "x"}}
    world.api.add(PODS, make.pod("follows", affinity=rule("podAffinity", namespaceSelector=selector)))
    world.start()
    async with world.running():
        await world.quiet()
        assert why(world, "follows") == f"0/1 nodes are available: 1 {NEAR}"
        world.api.change(NAMESPACES, "other", lambda it: it["metadata"]["labels"].update(team="x"))
        await world.quiet()
    assert nodes_of(world, "follows") == ["node-0"]


async def test_a_pod_that_was_refused_its_node_keeps_no_other_away(world: World, make: type[Make]) -> None:
    """What is on its way counts; when it does not arrive, the pods that waited for it to go are tried."""
    world.api.add(NODES, make.node("node-0", zone="a"))
    world.api.add(PODS, labelled(make.pod("one", priority=1, affinity=rule("podAntiAffinity")), app="web"))
    world.api.add(PODS, labelled(make.pod("two", affinity=rule("podAntiAffinity")), app="web"))

    def refuse(call: Call) -> Exception | None:
        if call.sub == "binding" and call.name == "one" and nodes_of(world, "two") == [None]:
            return Forbidden(403, "Forbidden", "binding is forbidden")
        return None

    world.api.before = refuse
    await world.settle()
    assert nodes_of(world, "one", "two") == [None, "node-0"]
    assert why(world, "one") == f"0/1 nodes are available: 1 {AWAY}"
