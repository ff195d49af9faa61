"""The reference cases of the claim controller: objects before, one key, objects after (claim-controller.md)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from controllers_world import World
from corpus import each_case
from dra_api.codec import convert
from dra_api.releases import Release
from dra_api.resource import ResourceClaim
from dra_kube import POD_GROUPS, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Conflict, Resource
from dra_operator.allocator import Features
from dra_operator.cache import Source
from dra_operator.controllers import ControllerError
from dra_operator.controllers.claims import generate
from prometheus_client import CollectorRegistry

KINDS = {
    PODS: "pods",
    POD_GROUPS: "podGroups",
    RESOURCE_CLAIMS: "claims",
    RESOURCE_CLAIM_TEMPLATES: "templates",
}


def normal(claim: dict[str, Any]) -> dict[str, Any]:
    """Without what only servers add; an empty list equals a missing one, an empty status likewise."""
    meta = {
        name: value for name, value in claim["metadata"].items() if name not in ("resourceVersion", "uid") and value
    }
    status = {name: value for name, value in (claim.get("status") or {}).items() if value}
    rest = {name: value for name, value in claim.items() if name not in ("metadata", "status")}
    return {**rest, "metadata": meta, **({"status": status} if status else {})}


def being_deleted(obj: dict[str, Any]) -> dict[str, Any]:
    """The corpus writes a deletion timestamp that is set as null: an empty time is null in the reference's JSON."""
    if "deletionTimestamp" in obj["metadata"]:
        obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return obj


def survives(claim: dict[str, Any]) -> bool:
    """A server removes an object in deletion with its last finalizer; the reference's fake server does not."""
    return "deletionTimestamp" not in claim["metadata"] or bool(claim["metadata"].get("finalizers"))


def by_name(claims: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {claim["metadata"]["name"]: normal(claim) for claim in claims or () if survives(claim)}


def recorded(world: World, kind: Resource) -> dict[str, Any]:
    """The names of claims in the statuses of pods, or of PodGroups."""
    statuses = {
        obj["metadata"]["name"]: obj.get("status", {}).get("resourceClaimStatuses") for obj in world.api.of(kind)
    }
    return {name: entries for name, entries in statuses.items() if entries}


def created(registry: CollectorRegistry, **labels: str) -> float:
    return registry.get_sample_value("resourceclaim_controller_creates_total", labels) or 0


@pytest.mark.parametrize("case", each_case("claim-controller/cases.json", lambda case: case["name"].replace(" ", "-")))
async def test_one_sync_leaves_the_objects_of_the_reference(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    features = Features(
        release=Release.V1_36,
        admin_access=case["features"]["DRAAdminAccess"],
        prioritized_list=case["features"]["DRAPrioritizedList"],
        generic_workload=case["features"]["DRAWorkloadResourceClaims"],
        workload_resource_claims=case["features"]["DRAWorkloadResourceClaims"],
    )
    world = World(features)
    for resource, name in KINDS.items():
        for obj in case["initial"].get(name) or ():
            world.api.add(resource, being_deleted(obj))
    world.start()
    for obj in case["initial"].get("podsUnknownToController") or ():
        world.api.add(PODS, obj)
    for obj in case["initial"].get("claimsOnlyInMutationCache") or ():
        world.control.apply(Source.WATCH, convert(ResourceClaim, obj))  # as the answer to our own create would
    monkeypatch.setattr(generate, "generated_name", lambda *_: "")  # the reference leaves names to the server
    numbers = iter(range(1, 100))
    world.api.generate = lambda base: f"{base}-{next(numbers)}"
    if case["createConflicts"]:
        text = 'Operation cannot be fulfilled on resourceclaims.resource.k8s.io "fake name": fake conflict'
        world.api.before = lambda call: Conflict(409, "Conflict", text) if call.verb == "create" else None

    controller, _, key = case["key"].partition(":")
    handle = {
        "pod": world.control.generator.handle,
        "podgroup": world.control.group_generator.handle,
        "claim": world.control.releaser.handle,
    }[controller]
    expected = case["expect"]
    if expected.get("errorContains"):
        with pytest.raises(ControllerError, match=re.escape(expected["errorContains"])):
            await handle(key)
    else:
        await handle(key)
        assert by_name(world.api.of(RESOURCE_CLAIMS)) == by_name(expected["claims"])
        assert recorded(world, PODS) == (expected["podResourceClaimStatuses"] or {})
        assert recorded(world, POD_GROUPS) == (expected.get("podGroupResourceClaimStatuses") or {})
    metrics = expected["metrics"]
    assert created(world.registry, status="failure", admin_access="false") == metrics["failures"]
    assert created(world.registry, status="failure", admin_access="true") == metrics["failuresWithAdmin"]
    total = {
        admin: sum(created(world.registry, status=status, admin_access=admin) for status in ("success", "failure"))
        for admin in ("true", "false")
    }
    assert total == {"false": metrics["created"], "true": metrics["createdWithAdmin"]}
