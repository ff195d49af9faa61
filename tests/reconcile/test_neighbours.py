"""What pods on a node, or on their way to it, keep from others besides devices."""

from __future__ import annotations

from typing import Any

from dra_kube import NODES, PODS

WITH_PORT = [{"name": "main", "ports": [{"containerPort": 80, "hostPort": 8080}]}]


def why(world: Any, pod: str) -> str:
    condition = world.api[PODS, f"ns/{pod}"]["status"]["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
    return str(condition["message"])


def nodes_of(world: Any, *pods: str) -> list[str | None]:
    return [world.api[PODS, f"ns/{pod}"]["spec"].get("nodeName") for pod in pods]


async def test_a_host_port_goes_to_one_pod_at_a_time(world: Any, make: Any) -> None:
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
