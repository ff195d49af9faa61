"""Which node a pod goes to, and the explanation when there is none (scheduling.md 4.2 to 4.4)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_api.values import Quantity
from dra_operator.allocator import Allocated, Usage
from dra_operator.scheduling import Nodes, NoPlace, Plan
from dra_operator.scheduling.claims import Readiness, claim_readiness
from dra_operator.scheduling.claims.readiness import CLAIM_UNMADE, CLASS_MISSING, ready_claims, unservable
from dra_operator.scheduling.state import LoadedNode, Obstacle, pod_requests
from hypothesis import given
from hypothesis import strategies as st
from objects import owner
from placement_lab import Watched, allocator, claim, decide, node, pod, prefers, wants


def place(pod: Pod, *nodes: LoadedNode) -> Plan | NoPlace:
    return decide(pod, [], nodes, allocator())


def stuck_in(answer: NoPlace) -> set[str]:
    """The UIDs of the claims that the pod may give back."""
    return {claim.metadata.uid for _, claim in answer.stuck}


TAINT = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
REQUIRED = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
        }
    }
}
NOT_SELECTED = "node(s) didn't match the pod's node selector or affinity"
OBSTACLES: dict[str, tuple[Pod, LoadedNode, str]] = {
    "cordoned": (pod(), node("n", spec={"unschedulable": True}), "node(s) were unschedulable"),
    "tainted": (pod(), node("n", spec={"taints": [TAINT]}), "node(s) had untolerated taint {dedicated: x}"),
    "wrong label": (
        pod(nodeSelector={"zone": "a"}),
        node("n"),
        "node(s) didn't match the pod's node selector or affinity",
    ),
    "wrong affinity": (pod(affinity=REQUIRED), node("n"), NOT_SELECTED),
    "without a feature for the pod's network": (
        pod(hostNetwork=True, hostUsers=False),
        node("n"),
        "node(s) didn't declare the feature UserNamespacesHostNetworkSupport",
    ),
    "too little cpu": (pod("3"), node("n", used={"cpu": "1500m"}), "Insufficient cpu"),
    "unknown resource": (
        pod(overhead={"example.com/fpga": "1"}),
        node("n"),
        "cannot fit resource example.com/fpga: neither the node nor a device class offers it",
    ),
    "too little of a resource that the node counts": (
        pod(overhead={"example.com/fpga": "2"}),
        node("n", allocatable={"cpu": "4", "example.com/fpga": "1"}),
        "Insufficient example.com/fpga",
    ),
    "too many pods": (pod(), node("n", used={"pods": "10"}), "too many pods on the node"),
}


@pytest.mark.parametrize("case", OBSTACLES)
def test_a_node_is_refused_when_it_is(case: str) -> None:
    wanting, state, text = OBSTACLES[case]
    answer = place(wanting, state)
    assert isinstance(answer, NoPlace)
    assert answer.message == f"0/1 nodes are available: 1 {text}"
    assert answer.short_of_room == case.startswith(("too little", "too many"))


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "dedicated", "operator": "Equal", "value": "x", "effect": "NoSchedule"},
        {"key": "dedicated", "operator": "Exists"},
        {"operator": "Exists"},
        {"key": "dedicated", "value": "x"},
    ],
)
def test_a_tolerated_taint_is_no_obstacle(toleration: dict[str, str]) -> None:
    assert place(pod(tolerations=[toleration]), node("n", spec={"taints": [TAINT]})) == Plan("n", {})


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "other", "operator": "Exists"},
        {"key": "dedicated", "value": "y"},
        {"key": "dedicated", "operator": "Exists", "effect": "NoExecute"},
        {"value": "x"},
    ],
)
def test_a_toleration_of_something_else_does_not_help(toleration: dict[str, str]) -> None:
    assert isinstance(place(pod(tolerations=[toleration]), node("n", spec={"taints": [TAINT]})), NoPlace)


def test_containers_add_up_sidecars_stay_and_init_containers_run_alone() -> None:
    def container(cpu: str, **more: str) -> dict[str, Any]:
        return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "initContainers": [container("3"), container("1", restartPolicy="Always"), container("2500m")],
        "containers": [container("1"), {"name": "limit", "resources": {"limits": {"cpu": "500m"}}}],
        "overhead": {"cpu": "100m"},
    }
    wanted = pod_requests(convert(Pod, {"metadata": {"name": "p"}, "spec": spec}))
    assert wanted == {"cpu": Quantity("3600m").nanos, "pods": Quantity("1").nanos}


@pytest.mark.rule("NR-20")
def test_the_emptiest_node_wins_and_the_name_decides_between_equals() -> None:
    nodes = [node("a", used={"cpu": "2"}), node("c"), node("b")]
    assert place(pod(), *nodes) == Plan("b", {})


@pytest.mark.rule("NR-20")
def test_a_preferred_alternative_outweighs_an_empty_node() -> None:
    """4.4: 8 minus the index of the chosen sub-request."""
    nodes = [node("empty"), node("full", used={"cpu": "3", "pods": "8"})]
    devices = allocator(empty=["slow"], full=["fast"])
    answer = decide(pod(), [claim("c", prefers("fast", "slow"))], nodes, devices)
    assert isinstance(answer, Plan)
    assert answer.node == "full"


def test_equal_reasons_are_counted_together_the_most_frequent_first() -> None:
    nodes = [
        node("a", spec={"unschedulable": True}),
        node("b", used={"cpu": "4"}),
        node("c", used={"cpu": "4"}),
    ]
    answer = place(pod(), *nodes)
    assert isinstance(answer, NoPlace)
    assert answer.message == "0/3 nodes are available: 2 Insufficient cpu, 1 node(s) were unschedulable"


def test_too_few_devices_are_explained_with_numbers() -> None:
    answer = decide(pod(), [claim("c", wants(count=2))], [node("a")], allocator(a=["x"]))
    assert isinstance(answer, NoPlace)
    assert 'ns/c request "r" (needs 2 devices; 1 of 1 matches' in answer.message
    assert "needs 2" in answer.message
    assert not answer.is_error


def test_a_cluster_without_nodes_says_so() -> None:
    answer = place(pod())
    assert isinstance(answer, NoPlace)
    assert answer.message == "0/0 nodes are available: the cluster has no nodes"


def test_a_selector_that_fails_on_one_node_keeps_the_pod_from_that_node_only() -> None:
    for good, bad in (("a", "b"), ("b", "a")):
        devices = allocator(**{good: ["x"], bad: ["odd"]})
        answer = decide(pod(), [claim("c", wants(selector="fails"))], [node("a"), node("b")], devices)
        assert isinstance(answer, Plan)
        assert answer.node == good


def test_a_selector_that_fails_is_named_if_no_node_fits() -> None:
    """Also where the index over nodes leaves the node out, and among many others."""
    names = [f"n{number:02}" for number in range(40)]
    devices = allocator(**{names[-1]: ["odd"]})
    asked = claim("c", wants(count=2, selector="fails"))
    answer = decide(pod(), [asked], [node(name) for name in names], devices)
    assert isinstance(answer, NoPlace)
    assert not answer.is_error
    assert "CEL runtime error" in answer.message


def test_a_request_that_no_node_can_serve_ends_the_attempt() -> None:
    answer = decide(pod(), [claim("c", wants(count=33))], [node("a"), node("b")], allocator(a=["x"]))
    assert isinstance(answer, NoPlace)
    assert answer.is_error


def test_an_allocated_claim_decides_the_node() -> None:
    here = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}
    allocated = claim("c", wants(), status={"allocation": {"devices": {}, "nodeSelector": here}})
    assert decide(pod(), [allocated], [node("a"), node("b")], allocator()) == Plan("b", {})
    answer = decide(pod(), [allocated], [node("a")], allocator())
    assert isinstance(answer, NoPlace)
    assert stuck_in(answer) == {"uid-c"}


def bound_to(name: str) -> dict[str, Any]:
    """The status of a claim whose devices only this node reaches."""
    fields = [{"key": "metadata.name", "operator": "In", "values": [name]}]
    return {"allocation": {"devices": {}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]}}}


ON_NODES_IN_ZONE_Z = {
    "allocation": {
        "devices": {},
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}]
        },
    }
}


@pytest.mark.parametrize("status", [bound_to("c"), ON_NODES_IN_ZONE_Z], ids=["by name", "by label"])
@pytest.mark.parametrize(("devices_of_b", "given_back"), [(["x"], {"uid-held"}), (["y"], set()), ([], set())])
def test_a_claim_is_given_back_only_if_the_others_get_devices_where_it_is_not(
    status: dict[str, Any], devices_of_b: list[str], given_back: set[str]
) -> None:
    held, missing = claim("held", wants(), status=status), claim("open", wants(selector="x"))
    answer = decide(pod(), [held, missing], [node("a"), node("b")], allocator(a=["y"], b=devices_of_b))
    assert isinstance(answer, NoPlace)
    assert stuck_in(answer) == given_back


def test_giving_a_claim_back_in_vain_is_no_reason_to_hide_what_is_missing() -> None:
    held, missing = claim("held", wants(), status=ON_NODES_IN_ZONE_Z), claim("open", wants(selector="x"))
    answer = decide(pod(), [held, missing], [node("a")], allocator(a=["y"]))
    assert isinstance(answer, NoPlace)
    assert answer.message.startswith('0/1 nodes are available: 1 cannot satisfy claim ns/open request "r" (needs 1')


@pytest.mark.rule("K37-WL-27")
def test_all_claims_get_devices_on_one_node_or_none_does() -> None:
    devices = allocator(a=["x"], b=["x", "x"])
    answer = decide(pod(), [claim("c", wants()), claim("d", wants())], [node("a"), node("b")], devices)
    assert isinstance(answer, Plan)
    assert answer.node == "b"
    assert set(answer.allocations) == {"uid-c", "uid-d"}


@given(st.permutations(["a", "b", "c", "d"]))
def test_the_order_of_the_nodes_does_not_matter(order: list[str]) -> None:
    devices = allocator(a=["x"], b=["y"], c=["x"], d=["y"])
    answer = decide(pod(), [claim("c", wants(selector="x"))], [node(name) for name in order], devices)
    assert isinstance(answer, Plan)
    assert answer.node == "a"


# --- many nodes ---


MANY = [node(f"n{number:03}") for number in range(300)]
EVERYWHERE = {f"n{number:03}": ["x"] for number in range(300)}


def test_only_the_node_that_has_the_devices_is_looked_at() -> None:
    nodes = Watched(MANY)
    answer = decide(pod(), [claim("c", wants(selector="y"))], nodes, allocator(**{**EVERYWHERE, "n271": ["y"]}))
    assert isinstance(answer, Plan)
    assert answer.node == "n271"
    assert set(nodes.looked) == {"n271"}


def test_the_search_ends_with_the_first_of_many_nodes_that_fit_and_it_is_the_emptiest() -> None:
    nodes = Watched([state.with_load({"cpu": Quantity("1").nanos}) for state in MANY[:200]] + MANY[200:])
    answer = decide(pod(), [claim("c", wants())], nodes, allocator(**EVERYWHERE))
    assert isinstance(answer, Plan)
    assert answer.node == "n200"
    assert nodes.looked == ["n200"]


def test_nodes_that_were_not_asked_are_counted_as_well() -> None:
    nodes = Watched(MANY)
    answer = decide(pod(), [claim("c", wants(count=2))], nodes, allocator(**{**EVERYWHERE, "n007": []}))
    assert isinstance(answer, NoPlace)
    assert answer.message.startswith(
        '0/300 nodes are available: 300 cannot satisfy claim ns/c request "r" (needs 2 devices; 1 of 1 matches)'
    )
    assert len(nodes.looked) < 30


def test_nodes_excluded_for_different_requests_are_not_blamed_on_one() -> None:
    models = {f"n{number:03}": ["x"] if number % 2 else ["y"] for number in range(300)}
    wanted = [claim("c", wants(selector="x")), claim("d", wants(selector="y"))]
    answer = decide(pod(), wanted, MANY, allocator(**models))
    assert isinstance(answer, NoPlace)
    counts = [int(number) for number in re.findall(r"(\d+) cannot satisfy", answer.message)]
    assert sum(counts) == 300
    assert "283 cannot satisfy one of the requests (too few free devices match)" in answer.message


def test_a_claim_bound_to_one_node_is_looked_at_there_only() -> None:
    here = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n042"]}]}]}
    bound = claim("c", wants(), status={"allocation": {"devices": {}, "nodeSelector": here}})
    nodes = Watched(MANY)
    answer = decide(pod(), [bound, claim("d", wants())], nodes, allocator(**EVERYWHERE))
    assert isinstance(answer, Plan)
    assert (answer.node, set(nodes.looked)) == ("n042", {"n042"})
    refused = decide(pod("5"), [bound], MANY, allocator())
    assert isinstance(refused, NoPlace)
    assert (
        refused.message == "0/300 nodes are available: 299 resourceclaim not available on the node, 1 Insufficient cpu"
    )
    assert stuck_in(refused) == set()  # no other node would take the pod either
    stuck = decide(pod(), [bound], [state for state in MANY if state.name != "n042"], allocator())
    assert isinstance(stuck, NoPlace)
    assert stuck_in(stuck) == {"uid-c"}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from(["x", "y", "xx", "xy", ""])), max_size=6),
    st.sampled_from([["x"], ["y"], ["x", "y"], ["x", "x"]]),
)
def test_the_answer_is_that_of_asking_every_node(cluster: list[tuple[int, bool, str]], selectors: list[str]) -> None:
    states = [
        node(f"n{number}", used={"cpu": str(cpu)}, spec={"unschedulable": cordoned})
        for number, (cpu, cordoned, _) in enumerate(cluster)
    ]
    devices = allocator(**{f"n{number}": list(models) for number, (_, _, models) in enumerate(cluster)})
    wanted = [claim(f"c{number}", wants(selector=text)) for number, text in enumerate(selectors)]
    fitting = [
        state
        for state in states
        if Nodes().rules_of(pod("2")).obstacle(state) is None
        and isinstance(devices.allocate(state.node, wanted, Usage()), Allocated)
    ]
    answer = decide(pod("2"), wanted, states, devices)
    best = min(fitting, key=lambda state: (-state.emptiness, state.name), default=None)
    assert (answer.node if isinstance(answer, Plan) else None) == (best.name if best else None)


# --- before any node is looked at ---

OWNED = {"ownerReferences": [owner("pod")]}
USE = {"name": "e", "resourceClaimName": "c"}
NOT_READY: dict[str, tuple[ResourceClaim | None, str]] = {
    "is not there": (None, 'resourceclaim "c" not found: create it, or correct resourceClaimName'),
    "is being deleted": (
        claim("c", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        'resourceclaim "c" is being deleted',
    ),
}


@pytest.mark.parametrize("case", NOT_READY)
def test_a_pod_is_not_tried_while_its_claim(case: str) -> None:
    found, text = NOT_READY[case]
    obstacle = ready_claims(pod(claims=[USE]), lambda key: found)
    assert isinstance(obstacle, Obstacle)
    assert text in obstacle.text


def test_a_claim_that_is_still_being_made_is_nothing_to_tell() -> None:
    entry = {"name": "e", "resourceClaimTemplateName": "t"}
    waiting = ready_claims(pod(claims=[entry]), lambda key: None)
    assert isinstance(waiting, Obstacle)
    assert waiting.reason is CLAIM_UNMADE


def test_a_claim_named_twice_counts_once() -> None:
    """Both entries mean one claim, which is allocated once (PRJ-009)."""
    twice = [USE, {"name": "again", "resourceClaimName": "c"}]
    found = ready_claims(pod(claims=twice), lambda key: claim("c"))
    assert not isinstance(found, Obstacle)
    assert [entry for entry, _ in found] == ["e"]


def test_a_missing_class_is_named_with_its_request() -> None:
    wanted = [claim("c", wants()), claim("d", prefers("x"))]
    missing = unservable(wanted, lambda name: False, prioritized_list=True)
    assert missing == Obstacle(CLASS_MISSING, "claim ns/c, request r", "gpu")
    assert missing.text == (
        "claim ns/c, request r: device class gpu does not exist: create it, or correct deviceClassName"
    )
    missing = unservable(wanted[1:], lambda name: False, prioritized_list=True)
    assert missing == Obstacle(CLASS_MISSING, "claim ns/d, request r/sub-0", "gpu")
    assert unservable(wanted, lambda name: True, prioritized_list=True) is None


# --- binding conditions ---

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
CONDITIONS: dict[str, tuple[list[tuple[str, str]], str, Readiness]] = {
    "nothing reported": ([], "2026-01-01T11:59:00Z", Readiness.PENDING),
    "all conditions true": ([("ready", "True"), ("attached", "True")], "2026-01-01T11:00:00Z", Readiness.READY),
    "one of two true": ([("ready", "True"), ("attached", "False")], "2026-01-01T11:59:00Z", Readiness.PENDING),
    "never ready in time": ([("ready", "True")], "2026-01-01T11:49:00Z", Readiness.TIMED_OUT),
    "failed": ([("ready", "True"), ("attached", "True"), ("broken", "True")], "2026-01-01T11:59:00Z", Readiness.FAILED),
    "no time of allocation": ([], "", Readiness.PENDING),
    "nonsense for a time": ([], "yesterday", Readiness.PENDING),
}


@pytest.mark.parametrize("case", CONDITIONS)
def test_a_device_with_binding_conditions_is_judged_by_what_is_reported(case: str) -> None:
    reported, allocated_at, expected = CONDITIONS[case]
    device = {"driver": "d", "pool": "p", "device": "x"}
    result = {
        **device,
        "request": "r",
        "bindingConditions": ["ready", "attached"],
        "bindingFailureConditions": ["broken"],
    }
    status = {
        "allocation": {"devices": {"results": [result]}, "allocationTimestamp": allocated_at},
        "devices": [{**device, "conditions": [{"type": name, "status": value} for name, value in reported]}],
    }
    assert claim_readiness(claim("c", status=status), NOW).state is expected
