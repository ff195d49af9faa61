"""The reference's traces of the scheduler plugin, in the phases that exist here (scheduling.md section 4).

The phases of one attempt are one call of the controller placement. What the claims look like at the end of the last
phase, and whether the pod was bound or refused, must be the same. Reasons are compared where the text is specified.
The operator gives numbers where the reference says "cannot allocate all claims".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace as replace_in
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from controllers_world import World
from corpus import each_case
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.meta import ObjectMeta
from dra_api.releases import Release
from dra_api.resource import Device, ResourceClaim
from dra_api.values import Quantity, format_time
from dra_kube import (
    DEVICE_CLASSES,
    NODES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Forbidden,
    Resource,
    Unreachable,
)
from dra_operator.allocator import Features
from dra_operator.controllers import ControllerError
from dra_operator.kube import ClaimChanged
from fake_api import Call

KINDS: dict[str, Resource] = {
    "ResourceSlice": RESOURCE_SLICES,
    "ResourceClaim": RESOURCE_CLAIMS,
    "DeviceClass": DEVICE_CLASSES,
    "Node": NODES,
    "Pod": PODS,
}
NOT_MAPPED = {
    "DRA-disabled": "there is no operator without DRA",
    "canceled": "an attempt is not cancelled from outside",
}
OTHER_PLUGINS = {
    "non-DRA-extended-resource-name-with-zero-allocatable": (
        "0/1 nodes are available: 1 Insufficient example.com/gpu",
        "no class serves the resource, so that the traced plugin leaves it to the one that compares amounts",
    ),
}
"""Pods that the reference refuses in a phase that its traces do not show; an attempt of ours has all phases."""
OUR_WORDS = {"cannot schedule extended resource claim": "waiting for stale extended-resource claim "}
PROVEN = "timed out trying to allocate devices"
"""Where the reference searches until its time is over, ours has counted that there are too few devices."""
OTHER_POD = Pod(metadata=ObjectMeta(namespace="default", name="other-pod", uid="other"))
NOW = "2026-06-01T12:00:00Z"


def in_second_alpha(obj: dict[str, Any]) -> dict[str, Any]:
    """A slice with what its devices bring of their node as 1.37 says it, which knows no defaults."""
    for device in obj["spec"].get("devices") or () if obj["kind"] == "ResourceSlice" else ():
        for name, first in (device.pop("nodeAllocatableResourceMappings", None) or {}).items():
            factor = first.get("allocationMultiplier", "1")
            key = {"capacityKey": first["capacityKey"], "capacityMultiplier": factor} if "capacityKey" in first else {}
            resources = device.setdefault("nodeAllocatableResources", {})
            resources[name] = {"mapping": key or {"deviceMultiplier": factor}}
    return obj


def recorded(status: dict[str, Any], field: str) -> list[Any]:
    """What a pod's status says that devices bring: ``resources`` in the traces, ``mapping`` from 1.37 on."""
    found = []
    for entry in status.get("nodeAllocatableResourceClaimStatuses") or ():
        amounts = entry[field]
        pairs = amounts.items() if isinstance(amounts, dict) else [(it["name"], it["quantity"]) for it in amounts]
        of_name = {name: Quantity(text) for name, text in pairs}
        found.append((entry["resourceClaimName"], entry["containers"], of_name))
    return found


def at(text: str) -> str:
    """``$now`` and ``$now-600s`` as times."""
    if not text.startswith("$now"):
        return text
    seconds = int(text.removeprefix("$now").removesuffix("s") or 0)
    return format_time(datetime.fromisoformat(NOW) + timedelta(seconds=seconds))


def timed(value: object) -> Any:
    if isinstance(value, dict):
        if "allocationTimestamp" in value and value["allocationTimestamp"] is None:
            value = {**value, "allocationTimestamp": "0001-01-01T00:00:00Z"}  # an empty time is null in the corpus
        return {name: timed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [timed(item) for item in value]
    return at(value) if isinstance(value, str) else value


def normal(claim: dict[str, Any]) -> dict[str, Any]:
    claim = json.loads(json.dumps(claim))
    meta = {
        name: value for name, value in claim["metadata"].items() if name not in ("uid", "resourceVersion") and value
    }
    status = claim.get("status") or {}
    for result in (status.get("allocation") or {}).get("devices", {}).get("results") or ():
        result.pop("device")
        result.pop("shareID", None)
    status = {name: value for name, value in status.items() if value}
    return {"metadata": meta, "spec": claim["spec"], "status": status}


ERRORS_OF_ONE_NODE = {"CEL-runtime-error-for-one-of-three-nodes", "CEL-runtime-error-for-one-of-two-nodes"}
"""The reference holds the pod back on all nodes, DEVIATE (allocator.md section 15)."""


class CorpusLanguage:
    """The few selectors of the corpus."""

    def compile(self, expression: str) -> Callable[[str, Device], bool]:
        from dra_cel import compile, prepare

        selector = compile(expression)
        return lambda driver, device: selector.matches(prepare(driver, device))


def furnish(world: World, case: dict[str, Any]) -> None:
    for name, resource in (
        ("nodes", NODES),
        ("classes", DEVICE_CLASSES),
        ("podGroups", POD_GROUPS),
        ("claims", RESOURCE_CLAIMS),
    ):
        for obj in timed(case.get(name) or ()):
            world.api.add(resource, obj)
    for obj in timed(case.get("objects") or ()):
        world.api.add(KINDS[obj["kind"]], in_second_alpha(obj))
    pod = timed(case["pod"])
    pod["spec"]["schedulerName"] = "dra-scheduler"
    if not case["features"].get("DRAWorkloadResourceClaims"):
        pod["spec"].pop("schedulingGroup", None)  # a server drops it unless it handles groups; then the pod waits
    world.api.add(PODS, pod)


def inject(world: World, case: dict[str, Any]) -> None:
    """What the phases of the trace say that goes wrong."""
    phases = {step["phase"]: step for step in case["steps"]}
    if case.get("failPatch"):  # by an error that is no answer of a server; the trace ends before it is undone
        world.api.before = lambda call: Unreachable("patch error") if call.verb == "patch" else None
    if "unreserverAfterBindFailure" in phases:
        refused = (
            (RESOURCE_CLAIMS.plural, None)
            if "claim creation errors" in phases["prebind"].get("error", "")
            else (PODS.plural, "binding")
        )
        world.api.before = lambda call: (
            Forbidden(403, "Forbidden", "no") if call.verb == "create" and (call.plural, call.sub) == refused else None
        )
    if "unreserveBeforePreBind" in phases:
        to_claims = ("create", "update")
        world.api.before = lambda call: (
            Forbidden(403, "Forbidden", "no") if call.plural == "resourceclaims" and call.verb in to_claims else None
        )
    if "externalUpdate" in phases:
        changes = [timed(obj) for obj in phases["externalUpdate"].get("objects") or phases["externalUpdate"]["claims"]]

        def behind_our_back(call: Call) -> None:
            while changes and call.verb == "get" and call.plural == "resourceclaims":
                obj = changes.pop()
                world.api.change(RESOURCE_CLAIMS, f"default/{obj['metadata']['name']}", partial(replace, new=obj))

        world.api.before = behind_our_back


def replace(old: dict[str, Any], new: dict[str, Any]) -> None:
    kept = {name: old["metadata"][name] for name in ("uid", "resourceVersion")}
    old.clear()
    old.update(new, metadata={**new["metadata"], **kept})


@pytest.mark.parametrize("case", each_case("scheduler-plugin/cases.json"))
async def test_one_attempt_leaves_the_claims_of_the_reference(case: dict[str, Any]) -> None:
    if reason := NOT_MAPPED.get(case["name"]):
        pytest.skip(reason)
    gates = [gate for gate, on in case["features"].items() if on]
    if "DRAWorkloadResourceClaims" in gates:  # the trace is of a release in which groups are alpha
        world = World(Features.from_gates([*gates, "GenericWorkload"], Release.V1_36))
    else:
        world = World(Features.from_gates(gates))
    world.language = CorpusLanguage()
    world.now = NOW
    world.api.generate = lambda base: f"{base}0"
    world.times = replace_in(world.times, unmade_claims=30.0, faulty_templates=30.0)  # the reference is silent
    if case.get("args", {}).get("filterTimeout") == "1ns":
        world.times = replace_in(world.times, filter_timeout=1e-9)
    furnish(world, case)
    world.start()
    for claim in timed(case.get("inFlightClaims") or ()):
        struct = convert(ResourceClaim, claim)
        assert struct.status.allocation is not None
        world.cluster.allocated_devices.assume(struct, struct.status.allocation, OTHER_POD)
    inject(world, case)
    key = f"default/{case['pod']['metadata']['name']}"
    with suppress(ControllerError, ClaimChanged):
        await world.attempt(key)

    last = case["steps"][-1]
    pod = world.api[PODS, key]
    if case["name"] in ERRORS_OF_ONE_NODE:
        assert "CEL runtime error" in str(refusal(case))
        assert pod["spec"].get("nodeName"), "another node fits"
        return
    expected = {claim["metadata"]["name"]: normal(timed(claim)) for claim in last["claims"]}
    for name in undated(case) & expected.keys():
        expected[name]["status"].get("allocation", {}).pop("allocationTimestamp", None)
    assert {claim["metadata"]["name"]: normal(claim) for claim in world.api.of(RESOURCE_CLAIMS)} == expected
    assert extended_status(pod) == next(map(extended_status, last.get("pods") or ()), None)
    messages = [entry["message"] for entry in pod.get("status", {}).get("conditions") or () if entry.get("message")]
    if case["name"] in OTHER_PLUGINS:
        assert messages == [OTHER_PLUGINS[case["name"]][0]]
        return
    traced = last["pods"][0]["status"] if last.get("pods") else {}
    assert recorded(pod.get("status", {}), "mapping") == recorded(traced, "resources")
    assert bool(pod["spec"].get("nodeName")) == (last["phase"] == "prebind" and last["status"] == "Success")
    if not pod["spec"].get("nodeName") and (reasons := refusal(case)):
        check_reasons(reasons, messages)


def undated(case: dict[str, Any]) -> set[str]:
    """Claims whose allocation has no time at the start.

    The reference gives it one with the next reservation, which no API server accepts (4.7).
    """
    claims = case.get("claims") or ()
    allocations = {claim["metadata"]["name"]: claim.get("status", {}).get("allocation") for claim in claims}
    return {name for name, found in allocations.items() if found and "allocationTimestamp" not in found}


def extended_status(pod: dict[str, Any]) -> Any:
    return pod.get("status", {}).get("extendedResourceClaimStatus")


def refusal(case: dict[str, Any]) -> list[str]:
    """The reasons given to the pod before anything was reserved for it."""
    steps = [step for step in case["steps"] if step["phase"].startswith(("PreEnqueue", "prefilter", "filter"))]
    return next((step["reasons"] for step in steps if step.get("reasons")), [])


def check_reasons(reasons: list[str], messages: list[str]) -> None:
    for reason in reasons:
        if "not created yet" in reason:
            assert not messages  # nothing to tell: the claim is being made
        elif reason == "cannot allocate all claims" or reason.endswith(PROVEN):
            assert messages[0].startswith("0/")
        elif reason in OUR_WORDS:
            assert messages[0].startswith(OUR_WORDS[reason])
        else:
            assert reason.partition(" CEL runtime error")[0] in messages[0]
            assert ("CEL runtime error" in reason) == ("CEL runtime error" in messages[0])
