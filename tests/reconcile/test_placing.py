"""Waiting pods get nodes and devices (scheduling.md section 4)."""

from __future__ import annotations

from typing import Any

from dra_kube import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES

FINALIZER = "resource.kubernetes.io/delete-protection"


def devices_of(claim: dict[str, Any]) -> list[str]:
    results = claim["status"]["allocation"]["devices"]["results"]
    return [f"{result['pool']}/{result['device']}" for result in results]


def fill(world: Any, make: Any, nodes: int = 1, devices: int = 2) -> None:
    world.api.add(DEVICE_CLASSES, make.device_class())
    for number in range(nodes):
        world.api.add(NODES, make.node(f"node-{number}"))
        world.api.add(RESOURCE_SLICES, make.slice(f"node-{number}", devices))


async def test_a_pod_with_a_template_gets_claim_devices_reservation_and_node(world: Any, make: Any) -> None:
    fill(world, make)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    await world.settle()
    pod = world.api[PODS, "ns/pod"]
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    assert pod["spec"]["nodeName"] == "node-0"
    assert pod["status"]["resourceClaimStatuses"] == [
        {"name": "entry-0", "resourceClaimName": claim["metadata"]["name"]}
    ]
    assert devices_of(claim) == ["node-0/dev-0"]
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    assert [(entry["name"], entry["uid"]) for entry in claim["status"]["reservedFor"]] == [
        ("pod", pod["metadata"]["uid"])
    ]
    assert world.messages("Scheduled") == ["Successfully assigned ns/pod to node-0"]
