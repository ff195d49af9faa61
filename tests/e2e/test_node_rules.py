"""Rules of kube-scheduler about nodes and neighbours, for pods that use no devices, on a whole cluster."""

from __future__ import annotations

from typing import Any

from dra_kube import NAMESPACES, NODES, Object
from scene import Scene, both

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


async def make_zones(scene: Scene) -> list[str]:
    """Two nodes, each in a zone of its own by a label that only this test uses."""
    names = scene.node_names[:2]
    for name in names:
        await scene.api.patch(NODES, name, {"metadata": {"labels": {scene.class_name: name}}})
    return names


def pod(scene: Scene, name: str, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    """A pod that asks for nothing but its place."""
    body = scene.pod(name, (), **spec)
    return {**body, "metadata": {**body["metadata"], "labels": labels or {}}}


def rule(scene: Scene, kind: str, app: str, **term: Any) -> Object:
    """A required term about pods of an app."""
    whole = {"topologyKey": scene.class_name, "labelSelector": {"matchLabels": {"app": app}}, **term}
    return {kind: {REQUIRED: [whole]}}


async def node_of(scene: Scene, name: str) -> str:
    return str((await scene.runs(name))["spec"]["nodeName"])


@both
async def test_a_pod_runs_near_the_one_that_it_follows_and_away_from_the_one_that_it_avoids(scene: Scene) -> None:
    first, second = await make_zones(scene)
    await scene.create_pod(pod(scene, "follower", affinity=rule(scene, "podAffinity", "leader")))
    await scene.pending("follower", r"didn't match pod affinity rules \(topology key")
    await scene.create_pod(pod(scene, "leader", {"app": "leader"}, nodeSelector={scene.class_name: second}))
    assert await node_of(scene, "follower") == second
    await scene.create_pod(pod(scene, "loner", affinity=rule(scene, "podAntiAffinity", "leader")))
    assert await node_of(scene, "loner") == first


@both
async def test_pods_that_avoid_each_other_get_a_zone_each_and_the_last_one_waits(scene: Scene) -> None:
    zones = await make_zones(scene)
    names = ["one", "two", "three"]
    choice = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [exists(scene)]}]}}}
    for name in names[:2]:
        affinity = {**rule(scene, "podAntiAffinity", "web"), **choice}
        await scene.create_pod(pod(scene, name, {"app": "web"}, affinity=affinity))
    assert {await node_of(scene, name) for name in names[:2]} == set(zones)
    await scene.create_pod(pod(scene, "three", {"app": "web"}, affinity=choice))
    await scene.pending("three", "didn't satisfy existing pods anti-affinity rules")
    await scene.delete_pod("one")
    assert await node_of(scene, "three") in zones


@both
async def test_pods_are_spread_over_zones_and_wait_for_the_fullest_to_get_room(scene: Scene) -> None:
    zones = await make_zones(scene)
    constraint = {"maxSkew": 1, "topologyKey": scene.class_name, "whenUnsatisfiable": "DoNotSchedule"}
    constraint |= {"labelSelector": {"matchLabels": {"app": "web"}}}
    names = [f"web-{number}" for number in range(4)]
    for name in names:
        await scene.create_pod(pod(scene, name, {"app": "web"}, topologySpreadConstraints=[constraint]))
    placed = [await node_of(scene, name) for name in names]
    assert sorted(placed) == sorted(zones * 2)
    last = {"topologySpreadConstraints": [{**constraint, "nodeAffinityPolicy": "Ignore"}]}
    here = pod(scene, "last", {"app": "web"}, **last, nodeSelector={scene.class_name: zones[0]})
    await scene.delete_pod(names[placed.index(zones[1])])
    await scene.create_pod(here)
    await scene.pending("last", r"didn't match pod topology spread constraints \(topology key")
    await scene.delete_pod(names[placed.index(zones[0])])
    assert await node_of(scene, "last") == zones[0]


@both
async def test_preferences_choose_among_nodes_that_fit(scene: Scene) -> None:
    zones = await make_zones(scene)
    for number, zone in enumerate(zones):
        wish = {"key": scene.class_name, "operator": "In", "values": [zone]}
        node_affinity = {PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [wish]}}]}
        name = f"web-{number}"
        await scene.create_pod(pod(scene, name, {"app": name}, affinity={"nodeAffinity": node_affinity}))
        assert await node_of(scene, name) == zone
        term = rule(scene, "podAffinity", name)["podAffinity"][REQUIRED][0]
        near = {"podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": term}]}}
        await scene.create_pod(pod(scene, f"near-{number}", affinity=near))
        assert await node_of(scene, f"near-{number}") == zone


async def test_a_label_of_a_namespace_lets_a_pod_run(scene: Scene, neighbour: Scene) -> None:
    _, second = await make_zones(scene)
    leader = pod(neighbour, "leader", {"app": "leader"}, nodeSelector={scene.class_name: second})
    await neighbour.create_pod(leader)
    await neighbour.runs("leader")
    selector = {"matchLabels": {scene.class_name: "x"}}
    affinity = rule(scene, "podAffinity", "leader", namespaceSelector=selector)
    await scene.create_pod(pod(scene, "follower", affinity=affinity))
    await scene.pending("follower", "didn't match pod affinity rules")
    await scene.api.patch(NAMESPACES, neighbour.namespace, {"metadata": {"labels": {scene.class_name: "x"}}})
    assert await node_of(scene, "follower") == second


def exists(scene: Scene) -> Object:
    """A requirement that keeps pods on the nodes with zones."""
    return {"key": scene.class_name, "operator": "Exists"}
