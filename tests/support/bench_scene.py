"""A cluster in which a pod would run, to be broken: the parts of the bench of causes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from literal_advice import World
from scheduling_causes import asks, cel, claim, device_class, node, pod, slice_
from told import Json

GPUS: Final = ("gpu-1", "gpu-2")


@dataclass
class Scene:
    """A world that is being broken; ``random`` decides how."""

    world: World
    random: Random
    mends: list[Callable[[World], None]] = field(default_factory=list)
    """What a person does whom the answer tells to, apart from proven fixes."""

    @property
    def claims(self) -> list[Json]:
        """The claim of the pod, or the template that it is made from."""
        return [it for key in (("ResourceClaim", "c"), ("ResourceClaimTemplate", "t")) if (it := self.world.find(*key))]

    def requests(self) -> Iterator[Json]:
        """What the pod asks for."""
        for it in self.claims:
            spec = it["spec"]["spec"] if it["kind"] == "ResourceClaimTemplate" else it["spec"]
            for request in spec["devices"]["requests"]:
                yield from request.get("firstAvailable") or [request["exactly"]]

    def select(self, expression: str) -> None:
        """One more selector of the request."""
        for request in self.requests():
            request.setdefault("selectors", []).append(cel(expression))

    @property
    def pod(self) -> Json:
        """The pod that waits."""
        return self.world["Pod", "waits"]

    def devices(self) -> Iterator[Json]:
        """All devices of the driver that is asked for."""
        for name in GPUS:
            yield from self.world["ResourceSlice", f"{name}-gpu"]["spec"]["devices"]

    def nodes(self) -> list[Json]:
        """All nodes."""
        return self.world.of_kind("Node")


Break = Callable[[Scene], str]
"""Breaks the scene, and returns the pattern of what the answer has to name."""


def working(random: Random) -> Scene:
    """A cluster in which the pod would run."""
    slices = []
    for name in GPUS:
        devices = []
        for number in range(2):
            attributes: Json = {
                "model": {"string": "a100"},
                "numa": {"int": number},
                "driverVersion": {"version": "535.104.5"},
                "root": {"string": f"root-{number}"},
            }
            devices.append(
                {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": "40Gi"}}}
            )
        slices.append(slice_(name, devices))
    nics = [
        slice_(name, [{"name": "nic-0", "attributes": {"model": {"string": "cx7"}}}], driver="nic.example.com")
        for name in GPUS
    ]
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "dra-operator-dra-scheduler", "namespace": "kube-system"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2030-01-01T11:59:58.000000Z"},
    }
    template = random.random() < 0.4
    mine = claim(asks())
    entry: Json = {"name": "gpu", "resourceClaimName": "c"}
    if template:
        mine = {
            **mine,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "t", "namespace": "ns"},
            "spec": {"spec": mine["spec"]},
        }
        entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
    nodes = [node(name) for name in (*GPUS, "cpu-1")]
    for it in nodes:
        it["status"]["allocatable"]["pods"] = "20"
    waits = pod("waits", schedulerName="dra-scheduler", resourceClaims=[entry])
    every = [device_class(), device_class("nic", "nic.example.com"), *nodes, *slices, *nics, lease, mine, waits]
    return Scene(World(every), random)
