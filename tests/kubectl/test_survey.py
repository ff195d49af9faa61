"""What ``why`` takes over from one node to those alike is what each of them says itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_operator.allocator import Refusal
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.why.nodes import NodeSaid, survey
from dra_operator.scheduling import CycleState, PodFilter, pre_filter
from dra_operator.scheduling.state import LoadedNode

DRIVER = "gpu.example.com"


def _fleet(random: Random) -> Iterator[Object]:
    """Nodes that are alike in part, and a pod that waits for devices."""
    yield convert(DeviceClass, {"metadata": {"name": "gpu"}, "spec": {"selectors": [_cel("device.driver != ''")]}})
    for number in range(30):
        name, devices = f"node-{number}", random.choice([0, 1, 2, 4])
        taints = [{"key": "dedicated", "effect": "NoSchedule"}] if random.random() < 0.3 else []
        room = {"cpu": random.choice(["2", "8"]), "pods": "110"}
        yield convert(Node, {"metadata": {"name": name}, "spec": {"taints": taints}, "status": {"allocatable": room}})
        yield convert(ResourceSlice, _slice(name, [_device(random, place) for place in range(devices)], random))
        for place in range(devices):
            if random.random() < 0.4:
                yield _claim(f"{name}-{place}", 1, [], {"request": "gpu", "driver": DRIVER, "pool": name}, place)
    wanted = random.choice([[], [_cel(f'device.attributes["{DRIVER}"].model == "h100"')]])
    yield _claim("waits", random.choice([1, 2, 3]), wanted)
    container = {"name": "main", "resources": {"requests": {"cpu": random.choice(["1", "4"])}}}
    claims = [{"name": "gpu", "resourceClaimName": "waits"}]
    spec = {"schedulerName": "dra-scheduler", "containers": [container], "resourceClaims": claims}
    yield convert(Pod, {"metadata": {"name": "waits", "namespace": "team", "uid": "pod"}, "spec": spec})


def _cel(expression: str) -> dict[str, Any]:
    return {"cel": {"expression": expression}}


def _device(random: Random, place: int) -> dict[str, Any]:
    device: dict[str, Any] = {"name": f"gpu-{place}", "attributes": {"model": {"string": random.choice("ah") + "100"}}}
    if random.random() < 0.05:
        device["taints"] = [{"key": "flaky", "effect": "NoSchedule"}]
    if random.random() < 0.05:
        device["attributes"] = {}
    return device


def _slice(node: str, devices: list[dict[str, Any]], random: Random) -> dict[str, Any]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": random.choice([1, 1, 1, 2])}
    driver = random.choice([DRIVER, DRIVER, "nic.example.com"])
    return {"metadata": {"name": node}, "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}}


def _claim(
    name: str, count: int, selectors: list[Any], given: dict[str, str] | None = None, place: int = 0
) -> ResourceClaim:
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count, "selectors": selectors}
    results = [] if given is None else [given | {"device": f"gpu-{place}"}]
    return convert(
        ResourceClaim,
        {
            "metadata": {"name": name, "namespace": "team", "uid": name},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
            "status": {"allocation": {"devices": {"results": results}}} if results else {},
        },
    )


def _surveyed(objects: list[Object]) -> list[NodeSaid]:
    made = pipeline(Observed(objects, datetime.now(UTC), namespace="team"))
    pod = made.cluster.pods.get("team/waits")
    assert pod is not None
    state = pre_filter(pod, made.cluster.snapshot(made.allocator, made.now))
    assert isinstance(state, CycleState)
    return list(survey(state, PodFilter(state)))


def _numbers(outline: Refusal | None) -> object:
    if outline is None:
        return None
    return (outline.rule, outline.request, outline.closeness, outline.lost, outline.detail, len(outline.held))


@pytest.mark.parametrize("seed", range(25))
def test_nodes_alike_say_the_same_as_if_each_is_asked(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = list(_fleet(Random(seed)))
    once = _surveyed(objects)
    monkeypatch.setattr(PodFilter, "likeness", lambda *_: None)
    each = _surveyed(objects)
    assert len({id(one.said) for one in once}) < len({id(one.said) for one in each})
    for one, its in zip(once, each, strict=True):
        assert one.state.name == its.state.name
        assert one.said.same_changes == its.said.same_changes
        assert one.distance == its.distance
        assert type(one.said.devices) is type(its.said.devices)
        assert _numbers(one.said.outline) == _numbers(its.said.outline)


def test_of_fifty_nodes_alike_one_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    serve = PodFilter.serve

    def noted(self: PodFilter, state: LoadedNode) -> Any:
        asked.append(state.name)
        return serve(self, state)

    monkeypatch.setattr(PodFilter, "serve", noted)
    objects: list[Object] = [convert(DeviceClass, {"metadata": {"name": "gpu"}})]
    for number in range(50):
        name = f"node-{number}"
        objects.append(convert(Node, {"metadata": {"name": name}, "status": {"allocatable": {"pods": "110"}}}))
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": [{"name": "gpu-0"}]}
        objects.append(convert(ResourceSlice, {"metadata": {"name": name}, "spec": spec}))
    waits = [it for it in _fleet(Random(0)) if it.metadata.name == "waits"]
    assert len(_surveyed([*objects, *waits])) == 50
    assert asked == ["node-0"]
