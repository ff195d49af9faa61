"""Which class serves an extended resource, and what a pod asks for (scheduling.md 7.1)."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.extended_resources import classes_by_resource, extended_resources_of, pod_requests
from dra_api.resource import DeviceClass

GPU = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/"


def device_class(name: str, created: str | None, resource: str | None = GPU) -> DeviceClass:
    spec = {"extendedResourceName": resource} if resource is not None else {}
    return convert(DeviceClass, {"metadata": {"name": name, "creationTimestamp": created}, "spec": spec})


OLD, YOUNG = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


@pytest.mark.parametrize(
    ("classes", "winner"),
    [
        pytest.param([device_class("a", OLD), device_class("b", YOUNG)], "b", id="the youngest"),
        pytest.param([device_class("b", OLD), device_class("a", OLD)], "a", id="of equal age the smaller name"),
        pytest.param([device_class("a", None), device_class("b", OLD)], "b", id="a class without age is the oldest"),
        pytest.param([device_class("a", OLD), device_class("b", YOUNG, "other/x")], "a", id="another resource"),
        pytest.param(
            [device_class("a", OLD), device_class("b", YOUNG, None), device_class("c", YOUNG, "")], "a", id="none"
        ),
    ],
)
def test_the_class_of_a_resource(classes: list[DeviceClass], winner: str) -> None:
    for order in permutations(classes):
        mapping = classes_by_resource(order)
        assert mapping[GPU] == winner
        assert {IMPLICIT + item.metadata.name: item.metadata.name for item in classes}.items() <= mapping.items()


def pod(containers: list[Any], init: list[Any] | None = None, **spec: Any) -> Pod:
    def container(item: Any) -> dict[str, Any]:
        requests, policy = item if isinstance(item, tuple) else (item, None)
        return {"resources": {"requests": requests}, "restartPolicy": policy}

    parts = {"containers": [*map(container, containers)], "initContainers": [*map(container, init or [])]}
    return convert(Pod, {"spec": {**parts, **spec}})


@pytest.mark.parametrize(
    ("it", "amounts"),
    [
        pytest.param(pod([{GPU: "1"}, {GPU: "2", "cpu": "1"}]), {GPU: "3", "cpu": "1"}, id="containers run together"),
        pytest.param(pod([{GPU: "1"}], [{GPU: "3"}, {GPU: "2"}]), {GPU: "3"}, id="init containers run one by one"),
        pytest.param(pod([{GPU: "1"}], [({GPU: "2"}, "Always")]), {GPU: "3"}, id="sidecars stay"),
        pytest.param(
            pod([{GPU: "1"}], [({GPU: "2"}, "Always"), {GPU: "4"}]), {GPU: "6"}, id="an init container beside a sidecar"
        ),
        pytest.param(
            pod([{GPU: "1"}], [{GPU: "4"}, ({GPU: "2"}, "Always")]), {GPU: "4"}, id="an init container before a sidecar"
        ),
        pytest.param(pod([{"cpu": "1"}], overhead={"cpu": "500m"}), {"cpu": "1500m"}, id="overhead"),
        pytest.param(pod([]), {}, id="nothing"),
    ],
)
def test_the_worst_moment_of_a_pod(it: Pod, amounts: dict[str, str]) -> None:
    assert {name: str(amount) for name, amount in pod_requests(it).items()} == amounts


def test_limits_stand_in_for_requests() -> None:
    it = convert(Pod, {"spec": {"containers": [{"resources": {"limits": {GPU: "2"}}}]}})
    assert {name: str(amount) for name, amount in pod_requests(it).items()} == {GPU: "2"}


def test_a_pod_is_concerned_by_resources_that_a_class_serves() -> None:
    classes = classes_by_resource([device_class("a", OLD)])
    it = pod([{GPU: "1", IMPLICIT + "a": "0", "example.com/other": "1", "cpu": "1"}])
    assert extended_resources_of(it, classes) == {GPU: "a"}
    assert extended_resources_of(pod([{IMPLICIT + "a": "1"}]), classes) == {IMPLICIT + "a": "a"}
