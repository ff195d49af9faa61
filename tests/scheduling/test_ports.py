"""Host ports: two pods on one node cannot hold the same one."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_operator.scheduling import NoPlace, Plan
from dra_operator.scheduling.state import LoadedNode, add, node_requests, subtract
from placement_lab import allocator, decide, node


def pod(*ports: dict[str, Any], sidecar: dict[str, Any] | None = None, **spec: Any) -> Pod:
    containers = [{"name": f"c{number}", "ports": [port]} for number, port in enumerate(ports)]
    init = [{"name": "s", "ports": [sidecar], "restartPolicy": "Always"}] if sidecar else []
    body = {"containers": containers, "initContainers": init, **spec}
    return convert(Pod, {"metadata": {"name": "p"}, "spec": body})


def port(number: int, ip: str = "", protocol: str = "") -> dict[str, Any]:
    return {"containerPort": 80, "hostPort": number, "hostIP": ip, "protocol": protocol}


def node_with(*pods: Pod) -> LoadedNode:
    used: dict[str, int] = {}
    for it in pods:
        used = add(used, node_requests(it, ()))
    return node("n").with_load(used)


def place(pod: Pod, state: LoadedNode) -> Plan | NoPlace:
    return decide(pod, [], [state], allocator())


A, B = "10.0.0.1", "10.0.0.2"
CONTAINER_PORT = {"containerPort": 80}
CASES = [
    ("the same port", pod(port(80)), pod(port(80)), "80/TCP"),
    ("another port", pod(port(80)), pod(port(81)), None),
    ("another protocol", pod(port(80)), pod(port(80, protocol="UDP")), None),
    ("TCP is the default", pod(port(80, protocol="TCP")), pod(port(80)), "80/TCP"),
    ("the same address", pod(port(80, A)), pod(port(80, A)), "80/TCP"),
    ("another address", pod(port(80, A)), pod(port(80, B)), None),
    ("every address meets one", pod(port(80, A)), pod(port(80)), "80/TCP"),
    ("one address meets every one", pod(port(80, "0.0.0.0")), pod(port(80, A)), "80/TCP"),
    ("the second container", pod(port(80)), pod(port(81), port(80)), "80/TCP"),
    ("a sidecar", pod(sidecar=port(80)), pod(port(80)), "80/TCP"),
    ("a port of the pod's own network", pod(CONTAINER_PORT), pod(CONTAINER_PORT), None),
    (
        "in the node's network every port counts",
        pod(CONTAINER_PORT, hostNetwork=True),
        pod(port(80, protocol="TCP")),
        "80/TCP",
    ),
    ("no ports", pod(), pod(), None),
]


@pytest.mark.parametrize(("there", "comes", "taken"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_port_that_is_taken_keeps_the_pod_away(there: Pod, comes: Pod, taken: str | None) -> None:
    answer = place(comes, node_with(there))
    if taken is None:
        assert answer == Plan("n", {})
        return
    text = f"0/1 nodes are available: 1 host port {taken} is taken"
    assert answer == NoPlace(text, "port", short_of_room=True), "the pod waits for another one to end"


def test_an_ordinary_init_container_holds_no_port() -> None:
    init = pod(initContainers=[{"name": "i", "ports": [port(80)]}])
    assert place(pod(port(80)), node_with(init)) == Plan("n", {})


def test_the_port_is_free_again_when_its_pod_is_gone() -> None:
    one, other = pod(port(80), port(80, A)), pod(port(80, B))
    state = node_with(one, other)
    state = state.with_load(subtract(state.used, node_requests(one, ())))
    assert isinstance(place(pod(port(80, B)), state), NoPlace)
    assert place(pod(port(80, A)), state) == Plan("n", {})
    state = state.with_load(subtract(state.used, node_requests(other, ())))
    assert place(pod(port(80)), state) == Plan("n", {})
