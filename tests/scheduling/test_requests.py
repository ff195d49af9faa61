"""What a pod asks of a node besides devices, at its worst moment."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.values import Quantity
from dra_operator.scheduling.state import node_requests, pod_requests, served_resources
from dra_operator.scheduling.state.node import POD_SLOTS

GPU = "example.com/gpu"


def pod(containers: list[Any], init: list[Any] | None = None, status: object = None, **spec: Any) -> Pod:
    def container(item: object) -> dict[str, Any]:
        requests, policy = item if isinstance(item, tuple) else (item, None)
        return {"resources": {"requests": requests}, "restartPolicy": policy}

    parts = {"containers": [*map(container, containers)], "initContainers": [*map(container, init or [])]}
    return convert(Pod, {"spec": {**parts, **spec}, "status": status or {}})


def in_billionths(amounts: dict[str, str]) -> dict[str, int]:
    return {name: Quantity(text).nanos for name, text in {**amounts, POD_SLOTS: "1"}.items()}


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
        pytest.param(pod([{GPU: "0"}]), {}, id="zero is nothing"),
        pytest.param(pod([]), {}, id="nothing"),
    ],
)
def test_the_worst_moment_of_a_pod(it: Pod, amounts: dict[str, str]) -> None:
    assert pod_requests(it) == in_billionths(amounts)


HUGE = "hugepages-2Mi"


@pytest.mark.parametrize(
    ("containers", "resources", "amounts"),
    [
        pytest.param(
            {"cpu": "1"}, {"requests": {"cpu": "3"}}, {"cpu": "3500m"}, id="a larger request replaces the sum"
        ),
        pytest.param(
            {"cpu": "2"}, {"requests": {"cpu": "1"}}, {"cpu": "1500m"}, id="a smaller request replaces it as well"
        ),
        pytest.param({"cpu": "2"}, {"requests": {"cpu": "0"}}, {"cpu": "500m"}, id="zero replaces it as well"),
        pytest.param(
            {"cpu": "2", "memory": "1Gi"},
            {"requests": {"memory": "2Gi"}},
            {"cpu": "2500m", "memory": "2Gi"},
            id="resources that the pod does not name stay",
        ),
        pytest.param({GPU: "1"}, {"requests": {GPU: "5"}}, {GPU: "1", "cpu": "500m"}, id="other resources stay"),
        pytest.param({HUGE: "2Mi"}, {"requests": {HUGE: "8Mi"}}, {HUGE: "8Mi", "cpu": "500m"}, id="huge pages"),
        pytest.param({}, {"limits": {"cpu": "4"}}, {"cpu": "4500m"}, id="a limit stands in for missing requests"),
        pytest.param({"cpu": "1"}, {"limits": {"cpu": "4"}}, {"cpu": "1500m"}, id="containers come before a limit"),
        pytest.param(
            {HUGE: "2Mi"}, {"limits": {HUGE: "8Mi"}}, {HUGE: "8Mi", "cpu": "500m"}, id="but not with huge pages"
        ),
        pytest.param({"cpu": "1"}, {}, {"cpu": "1500m"}, id="nothing replaces nothing"),
    ],
)
def test_requests_of_the_pod_replace_those_of_its_containers(
    containers: dict[str, str], resources: dict[str, Any], amounts: dict[str, str]
) -> None:
    it = pod([containers], resources=resources, overhead={"cpu": "500m"})
    assert pod_requests(it) == in_billionths(amounts)


def test_limits_stand_in_for_requests() -> None:
    it = convert(Pod, {"spec": {"containers": [{"resources": {"limits": {GPU: "2"}}}]}})
    assert pod_requests(it) == in_billionths({GPU: "2"})


def test_what_devices_serve_is_not_taken_from_the_node() -> None:
    mapping = {"containerName": "c", "resourceName": GPU, "requestName": "container-0-request-1"}
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "made", "requestMappings": [mapping]}}
    it = pod([{GPU: "2", "cpu": "1", "example.com/nic": "1"}], status=status)
    assert node_requests(it, served_resources(it)) == in_billionths({"cpu": "1", "example.com/nic": "1"})
    assert served_resources(pod([{GPU: "2"}])) == frozenset()
