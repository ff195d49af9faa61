"""What must hold for a pod's claims before any node is looked at, and where allocated ones let it run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.releases import Release
from dra_api.resource import ResourceClaim
from dra_operator.allocator import NodeSelectionError
from dra_operator.scheduling.claims import Readiness, claim_readiness
from dra_operator.scheduling.claims.readiness import CLAIM_UNMADE, Allocations, ready_claims, unservable
from dra_operator.scheduling.state import Obstacle
from placement_lab import claim, node, pod, prefers, wants

NAMED: list[dict[str, Any]] = [{"name": "gpu", "resourceClaimName": "c"}, {"name": "too", "resourceClaimName": "c"}]
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_a_claim_that_two_entries_name_is_there_once() -> None:
    found = ready_claims(pod(claims=NAMED), {"ns/c": claim("c", wants())}.get)
    assert not isinstance(found, Obstacle)
    assert [(use.entry, use.claim.key) for use in found] == [("gpu", "ns/c")]


@pytest.mark.rule("SC-01")
@pytest.mark.parametrize(
    ("entries", "claims", "text", "being_made"),
    [
        (NAMED, [], 'resourceclaim "c" not found: create it, or correct resourceClaimName', False),
        (NAMED, [claim("c", metadata={"deletionTimestamp": "2030-01-01T00:00:00Z"})], "is being deleted", False),
        ([{"name": "gpu", "resourceClaimTemplateName": "t"}], [], "not created yet", True),
    ],
    ids=["a claim that does not exist", "a claim that is being deleted", "a claim that is still to be generated"],
)
def test_claims_that_are_not_ready_are_named(
    entries: list[dict[str, Any]], claims: list[ResourceClaim], text: str, *, being_made: bool
) -> None:
    found = ready_claims(pod(claims=entries), {one.key: one for one in claims}.get)
    assert isinstance(found, Obstacle)
    assert text in found.text
    assert (found.reason is CLAIM_UNMADE) is being_made


@pytest.mark.rule("SC-01")
def test_a_generated_claim_has_to_belong_to_the_pod() -> None:
    status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "made"}]}
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}
    body = convert(Pod, {"metadata": {"namespace": "ns", "name": "pod"}, "spec": spec, "status": status})
    found = ready_claims(body, {"ns/made": claim("made", wants())}.get)
    assert isinstance(found, Obstacle)
    assert "made" in found.text


@pytest.mark.parametrize(
    ("asked", "classes", "prioritized_list", "lacks"),
    [
        (wants(), {"gpu"}, True, None),
        (wants(), set(), True, "claim ns/c, request r: device class gpu does not exist"),
        (prefers("a"), set(), True, "claim ns/c, request r/sub-0: device class gpu does not exist"),
        (prefers("a"), {"gpu"}, False, "request r: has subrequests, but the DRAPrioritizedList feature is disabled"),
    ],
    ids=["a class that exists", "a class that does not", "the class of an alternative", "alternatives are off"],
)
def test_a_request_that_no_node_can_serve_is_named(
    asked: dict[str, Any], classes: set[str], *, prioritized_list: bool, lacks: str | None
) -> None:
    found = unservable([claim("c", asked)], classes.__contains__, prioritized_list=prioritized_list)
    assert (found is None) is (lacks is None)
    if found is not None and lacks is not None:
        assert lacks in found.text


def allocated(name: str, *terms: dict[str, Any]) -> ResourceClaim:
    selector = {"nodeSelector": {"nodeSelectorTerms": list(terms)}} if terms else {}
    return claim(name, wants(), status={"allocation": selector})


def on(*names: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [*names]}]}


ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}


@pytest.mark.parametrize(
    ("claims", "nodes", "elsewhere"),
    [
        ([claim("c", wants())], None, set()),
        ([allocated("c")], None, set()),
        ([allocated("c", on("n1"))], {"n1"}, set()),
        ([allocated("c", on("n2"))], {"n2"}, {"uid-c"}),
        ([allocated("c", on("n1"), on("n2"))], {"n1", "n2"}, set()),
        ([allocated("c", on("n1")), allocated("d", on("n2"))], set(), {"uid-d"}),
        ([allocated("c", ZONE)], None, {"uid-c"}),
        ([allocated("c", on("n1"), ZONE)], None, set()),
        ([allocated("failed", on("n1"))], set(), {"uid-failed"}),
    ],
    ids=[
        "not allocated",
        "for all nodes",
        "for this node",
        "for another node",
        "for one of two",
        "for two different nodes",
        "for nodes with a label",
        "for a node or a label",
        "a claim that failed",
    ],
)
def test_allocated_claims_decide_where_the_pod_can_run(
    claims: list[ResourceClaim], nodes: set[str] | None, elsewhere: set[str]
) -> None:
    allocations = Allocations(claims, {"uid-failed"})
    assert allocations.nodes == nodes
    assert allocations.elsewhere(node("n1").node) == elsewhere


def test_an_allocation_for_nodes_that_cannot_be_understood_is_an_error() -> None:
    with pytest.raises(NodeSelectionError, match="Bogus"):
        Allocations([allocated("c", {"matchExpressions": [{"key": "k", "operator": "Bogus"}]})], ())


def binding(conditions: list[dict[str, str]], timestamp: str | None = "2030-01-01T00:00:00Z") -> ResourceClaim:
    device = {"driver": "d", "pool": "p", "device": "a"}
    result = {**device, "request": "r", "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}
    allocation = {"devices": {"results": [result]}, "allocationTimestamp": timestamp}
    status = {"allocation": allocation, "devices": [{**device, "device": "z"}, {**device, "conditions": conditions}]}
    return claim("c", wants(), status=status)


def said(type_: str, status: str) -> dict[str, str]:
    return {"type": type_, "status": status, "reason": "Because", "message": "so"}


@pytest.mark.parametrize(
    ("of", "after", "state"),
    [
        (claim("c", wants()), 0, Readiness.READY),
        (binding([said("ready", "True")]), 0, Readiness.READY),
        (binding([said("ready", "False")]), 600, Readiness.PENDING),
        (binding([said("broken", "False")]), 601, Readiness.TIMED_OUT),
        (binding([said("ready", "True"), said("broken", "True")]), 0, Readiness.FAILED),
        (binding([], None), 10_000, Readiness.PENDING),
        (binding([], "yesterday"), 10_000, Readiness.PENDING),
    ],
    ids=[
        "not allocated",
        "ready",
        "pending",
        "too late",
        "broken",
        "a missing time",
        "a malformed time",
    ],
)
def test_a_claim_waits_for_its_devices_but_not_for_ever(of: ResourceClaim, after: int, state: Readiness) -> None:
    assert claim_readiness(of, NOW + timedelta(seconds=after)).state is state


@pytest.mark.rule("K37-ONO-05", "K37-ONO-06")
@pytest.mark.parametrize(
    ("release", "declared", "consumer", "elsewhere", "text"),
    [
        (Release.V1_36, [], {"resource": "pods"}, set(), ""),
        (Release.V1_37, [], {"resource": "pods"}, {"uid-c"}, "resourceclaim not available on the node"),
        (Release.V1_37, ["DRAOptionalNodeOperations"], {"resource": "pods"}, set(), ""),
        (
            Release.V1_37,
            [],
            {"apiGroup": "scheduling.k8s.io", "resource": "podgroups"},
            {"uid-c"},
            "resource claim default/c allocation requires DRAOptionalNodeOperations feature on the node",
        ),
    ],
    ids=["1.36", "1.37", "a node with the feature", "a claim of a PodGroup"],
)
def test_a_claim_whose_driver_skips_calls_is_used_on_nodes_that_declare_it(
    release: Release, declared: list[str], consumer: dict[str, str], elsewhere: set[str], text: str
) -> None:
    """On other nodes it counts as unavailable, for a PodGroup with the feature in words."""
    result = {"request": "r", "driver": "d", "pool": "p", "device": "a", "skipNodeOperations": ["*"]}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"name": "user", "uid": "user", **consumer}],
    }
    meta = {"name": "c", "namespace": "default", "uid": "uid-c"}
    claims = [convert(ResourceClaim, {"metadata": meta, "status": status})]
    where = convert(Node, {"metadata": {"name": "n1"}, "status": {"declaredFeatures": declared}})
    allocations = Allocations(claims, (), release=release)
    assert allocations.elsewhere(where) == elsewhere
    if elsewhere:
        assert allocations.obstacle(where, elsewhere).text == text
