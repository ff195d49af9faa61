"""Pods that ask for extended resources: what devices serve, where, and with which claim (scheduling.md 7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from dra_api.codec import convert, to_dict
from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_operator.allocator import Allocated, ClaimError, Usage
from dra_operator.scheduling import Nodes, NoPlace, Plan
from dra_operator.scheduling.claims import ExtendedResources
from dra_operator.scheduling.claims.readiness import extended_claims
from dra_operator.scheduling.state import LoadedNode
from hypothesis import given
from hypothesis import strategies as st
from objects import user
from placement_lab import Watched, allocator, claim, decide, node, wants

GPU, NIC = "example.com/gpu", "example.com/nic"
CLASSES = {GPU: "gpu", NIC: "gpu"}
ALL = {"cpu": "4", "pods": "10"}


def asking(*containers: Mapping[str, str], **more: Any) -> Pod:
    """A pod whose containers ask for these amounts."""
    parts = [{"name": f"c{number}", "resources": {"requests": dict(item)}} for number, item in enumerate(containers)]
    body = {"metadata": {"namespace": "ns", "name": "pod", "uid": "uid-pod"}, "status": more.pop("status", {})}
    return convert(Pod, {**body, "spec": {"containers": parts, **more}})


def counting(name: str, used: dict[str, str] | None = None, **counted: str) -> LoadedNode:
    """A node that counts gpus and nics itself."""
    resources = {f"example.com/{kind}": amount for kind, amount in counted.items()}
    return node(name, used=used, allocatable={**ALL, **resources})


def made_claim(answer: Plan) -> list[tuple[str, str, int]]:
    """Request, class and count of what the claim for extended resources asks for."""
    requests = answer.extended.requests if answer.extended is not None else ()
    return [(request.name, exact.device_class_name, exact.count) for request in requests if (exact := request.exactly)]


def placed(pod: Pod, *nodes: LoadedNode, **devices: list[str]) -> Plan | NoPlace:
    return decide(pod, [], nodes, allocator(**devices), ExtendedResources(pod, CLASSES))


SERVED: dict[str, tuple[Pod, LoadedNode, tuple[str, ...]]] = {
    "a node that does not know the resource leaves it to devices": (asking({GPU: "1"}), node("n"), (GPU,)),
    "so does one that has none of it": (asking({GPU: "1"}), counting("n", gpu="0"), (GPU,)),
    "a node that counts it serves it itself": (asking({GPU: "1"}), counting("n", gpu="1"), ()),
    "one resource each": (asking({GPU: "1", NIC: "1"}), counting("n", gpu="1"), (NIC,)),
    "zero quantities are not asked for": (asking({GPU: "0", NIC: "1"}), node("n"), (NIC,)),
    "what no class serves is not for devices": (asking({"example.com/fpga": "1", "cpu": "1"}), node("n"), ()),
}


@pytest.mark.parametrize("case", SERVED)
def test_what_devices_serve_on_a_node(case: str) -> None:
    pod, state, served = SERVED[case]
    assert ExtendedResources(pod, CLASSES).served_on(state) == served


@given(
    st.lists(st.sets(st.sampled_from([GPU, NIC, "example.com/fpga"])), max_size=5), st.sets(st.sampled_from([GPU, NIC]))
)
def test_the_groups_of_nodes_are_what_asking_every_node_gives(counted: list[set[str]], wanted: set[str]) -> None:
    states = [
        node(f"n{number}", allocatable={**ALL, **dict.fromkeys(names, "1")}) for number, names in enumerate(counted)
    ]
    extended = ExtendedResources(asking(dict.fromkeys(wanted, "1")), CLASSES)
    groups = extended.groups(Nodes(states))
    named = {name for members in groups.values() for name in members or ()}
    found = {
        state.name: served
        for served, members in groups.items()
        for state in states
        if (state.name in members if members is not None else state.name not in named)
    }
    assert found == {state.name: extended.served_on(state) for state in states}
    assert all(members is None or members for members in groups.values())


def test_a_pod_gets_a_claim_of_its_own_behind_its_other_claims() -> None:
    """The reference allocates the claims of the pod first, so that the same devices are left for this one."""
    pod = asking({GPU: "2"})
    answer = decide(
        pod, [claim("c", wants())], [node("n")], allocator(n=["x", "x", "x"]), ExtendedResources(pod, CLASSES)
    )
    assert isinstance(answer, Plan)
    assert made_claim(answer) == [("container-0-request-0", "gpu", 2)]
    assert answer.served == (GPU,)
    devices = {uid: [result.device for result in allocation.results] for uid, allocation in answer.allocations.items()}
    assert devices == {"uid-c": ["dev-0"], "uid-pod<extended-resources>": ["dev-1", "dev-2"]}


def test_a_node_with_a_device_plugin_needs_no_claim() -> None:
    answer = placed(asking({GPU: "2"}), counting("n", gpu="2"))
    assert answer == Plan("n", {})


def test_one_resource_of_the_node_and_one_of_devices() -> None:
    answer = placed(asking({GPU: "1", NIC: "1"}), counting("n", gpu="1"), n=["x"])
    assert isinstance(answer, Plan)
    assert (answer.served, made_claim(answer)) == ((NIC,), [("container-0-request-1", "gpu", 1)])


REFUSED: dict[str, tuple[Pod, LoadedNode, dict[str, list[str]], str]] = {
    "no devices": (
        asking({GPU: "2"}),
        node("n"),
        {},
        'cannot satisfy extended resource example.com/gpu (device class gpu) request "container-0-request-0" '
        "(needs 2 devices; no devices)",
    ),
    "too few devices": (
        asking({NIC: "1"}, {GPU: "3"}),
        node("n"),
        {"n": ["x", "x"]},
        'cannot satisfy extended resource example.com/gpu (device class gpu) request "container-1-request-0"',
    ),
    "devices, but no cpu": (asking({GPU: "1", "cpu": "9"}), node("n"), {"n": ["x"]}, "Insufficient cpu"),
    "the device plugin's share is used up": (
        asking({GPU: "1"}),
        counting("n", {GPU: "2"}, gpu="2"),
        {"n": ["x"]},
        "Insufficient example.com/gpu",
    ),
    "neither node nor class offers it": (
        asking({GPU: "1", "example.com/fpga": "1"}),
        node("n"),
        {"n": ["x"]},
        "cannot fit resource example.com/fpga: neither the node nor a device class offers it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_pod_learns_which_resource_and_class_it_waits_for(case: str) -> None:
    pod, state, devices, text = REFUSED[case]
    answer = placed(pod, state, **devices)
    assert isinstance(answer, NoPlace)
    assert answer.message.startswith(f"0/1 nodes are available: 1 {text}")
    assert not answer.is_error


def test_nodes_are_refused_each_for_what_it_would_have_to_do() -> None:
    answer = placed(asking({GPU: "2"}), counting("plugin", gpu="1"), *(node(f"n{number}") for number in range(3)))
    assert isinstance(answer, NoPlace)
    assert answer.message.startswith(
        "0/4 nodes are available: 3 cannot satisfy extended resource example.com/gpu (device class gpu)"
    )
    assert answer.message.endswith("1 Insufficient example.com/gpu")


def test_a_resource_that_only_the_overhead_asks_for_can_be_mapped_to_no_container() -> None:
    pod = asking({"cpu": "1"}, overhead={GPU: "1"})
    with pytest.raises(ClaimError, match=r"no container asks for example\.com/gpu"):
        ExtendedResources(pod, CLASSES).claim_for((GPU,))
    answer = placed(pod, node("n"))
    assert isinstance(answer, NoPlace)
    assert answer.is_error


@pytest.mark.parametrize("with_plugin", [0, 10, 100])
def test_of_many_nodes_only_those_are_looked_at_that_may_serve_the_resource(with_plugin: int) -> None:
    """The only node that fits is the fullest; some others have a device plugin with nothing left."""
    plugins = [counting(f"plugin-{number:03}", {GPU: "1"}, gpu="1") for number in range(with_plugin)]
    others = [node(f"bare-{number:03}") for number in range(200)]
    nodes = Watched([*plugins, *others, node("only", used={"cpu": "3"})])
    pod = asking({GPU: "1"})
    answer = decide(pod, [], nodes, allocator(only=["x"]), ExtendedResources(pod, CLASSES))
    assert isinstance(answer, Plan)
    assert answer.node == "only"
    assert {name.partition("-")[0] for name in nodes.looked} == {"only", *(["plugin"] if with_plugin else [])}


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([None, "0", "1", "2"]), st.integers(0, 2)), max_size=6),
    st.integers(1, 2),
)
def test_the_answer_is_that_of_asking_every_node(cluster: list[tuple[int, str | None, int]], amount: int) -> None:
    states = [
        node(f"n{number}", used={"cpu": str(cpu)}, allocatable={**ALL, **({GPU: counted} if counted else {})})
        for number, (cpu, counted, _) in enumerate(cluster)
    ]
    devices = allocator(**{f"n{number}": ["x"] * count for number, (_, _, count) in enumerate(cluster)})
    pod = asking({GPU: str(amount), "cpu": "1"})
    extended = ExtendedResources(pod, CLASSES)

    def fits(state: LoadedNode) -> bool:
        served = extended.served_on(state)
        wanted = extended.claim_for(served)
        claims = [wanted.claim] if wanted else []
        has_room = Nodes().rules_of(pod).obstacle(state, served) is None
        return has_room and isinstance(devices.allocate(state.node, claims, Usage()), Allocated)

    best = min(filter(fits, states), key=lambda state: (-state.emptiness, state.name), default=None)
    answer = decide(pod, [], states, devices, extended)
    assert (answer.node if isinstance(answer, Plan) else None) == (best.name if best else None)


# --- claims of earlier attempts ---

RECORDED = {"extendedResourceClaimStatus": {"resourceClaimName": "made", "requestMappings": []}}
MINE = user("pod")


def made(*, node_name: str = "n", count: int = 1, reserved: bool = True, **metadata: Any) -> ResourceClaim:
    """A claim for extended resources as an earlier attempt left it."""
    fields = [{"key": "metadata.name", "operator": "In", "values": [node_name]}]
    results = [{"request": "container-0-request-0", "driver": "gpu.example.com", "pool": node_name, "device": "dev-0"}]
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]}}
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"}
    status = {"allocation": allocation, "reservedFor": [MINE] if reserved else []}
    request = ExtendedResources(asking({GPU: str(count)}), CLASSES).claim_for((GPU,))
    assert request is not None
    return claim(
        "made",
        *(to_dict(item) for item in request.requests),
        metadata={"annotations": annotations, **metadata},
        status=status,
    )


def test_only_a_complete_claim_is_kept() -> None:
    waiting = asking({GPU: "1"}, status=RECORDED)
    assert extended_claims(waiting, [made()]).made is not None
    kinds = {
        "not recorded": (asking({GPU: "1"}), made()),
        "not reserved": (waiting, made(reserved=False)),
        "being deleted": (waiting, made(deletionTimestamp="2026-01-01T00:00:00Z")),
        "another name": (waiting, made(name="other")),
    }
    for kind, (pod, found) in kinds.items():
        assert extended_claims(pod, [found]) == (None, (found,)), kind
    assert extended_claims(waiting, [claim("generated")]) == (None, ())


def kept(found: ResourceClaim, pod: Pod, *nodes: LoadedNode) -> Plan | NoPlace:
    extended = ExtendedResources(pod, CLASSES, found)
    return decide(pod, [found], nodes, allocator(n=["x", "x"], m=["x"]), extended)


def test_a_complete_claim_decides_where_the_pod_goes_and_is_used_as_it_is() -> None:
    assert kept(made(), asking({GPU: "1"}), node("a"), node("n", used={"cpu": "3"})) == Plan("n", {}, (GPU,))


@pytest.mark.parametrize(
    ("found", "state"),
    [
        pytest.param(made(count=2), node("n"), id="it asks for something else"),
        pytest.param(made(), counting("n", gpu="3"), id="a device plugin serves the resource by now"),
        pytest.param(made(node_name="gone"), node("n"), id="its node is gone"),
    ],
)
def test_a_complete_claim_of_no_use_any_more_is_given_back(found: ResourceClaim, state: LoadedNode) -> None:
    answer = kept(found, asking({GPU: "1"}), state)
    assert isinstance(answer, NoPlace)
    assert [claim.metadata.uid for _, claim in answer.stuck] == ["uid-made"]
