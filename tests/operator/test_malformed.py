"""Malformed objects cost only themselves, and a malformed claim keeps its devices."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock, patch

import msgspec
import orjson
import pytest
from aiohttp import web
from controllers_world import World
from dra_api.codec import shallow
from dra_api.meta import ObjectVersion
from dra_api.resource import FINALIZER, AllocationResult
from dra_kube import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Change
from dra_operator.allocator import Features, Usage
from dra_operator.app.operator import Operator
from dra_operator.app.settings import OperatorSettings
from dra_operator.sources import audit
from dra_operator.sources.malformed import (
    COMMON_WARNING_LINES,
    FIRST_WARNING_LINES,
    WARNING_SECONDS,
    MalformedObjects,
)
from faults import DropEvents, Fault, FaultProxy, Target
from faults.proxy import Exchange
from objects import Make
from supervised import LiveCluster, Supervising
from waiting import until

CLAIMS = Target(verbs=("list",), resource="resourceclaims")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mangle(Fault):
    """The list shows the claim ``held`` with a field that no client can read."""

    field: str
    value: Any

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        answer = await exchange.forward()
        content = orjson.loads(answer.body)
        for item in content["items"]:
            if item["metadata"]["name"] == "held" and "status" in item:
                *path, last = self.field.split(".")
                part = item
                for name in path:
                    part = part[int(name)] if name.isdigit() else part.get(name, {})
                part[last] = self.value
        return web.Response(status=answer.code, body=orjson.dumps(content), content_type="application/json")


async def hold_a_device(cluster: LiveCluster) -> dict[str, Any]:
    """A claim that another writer allocated: the first device of the only node."""
    spec = {"devices": {"requests": [{"name": "req", "exactly": {"deviceClassName": "gpu"}}]}}
    claim = await cluster.api.create(RESOURCE_CLAIMS, {"metadata": {"name": "held", "namespace": "ns"}, "spec": spec})
    result = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    claim["status"] = {"allocation": {"devices": {"results": [result]}}}
    updated: dict[str, Any] = await cluster.api.update(RESOURCE_CLAIMS, claim, "status")
    return updated


async def test_a_malformed_object_costs_only_itself(
    cluster: LiveCluster, supervising: Supervising, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.furnish()
    async with supervising() as site:
        operator = site.operator
        good = (await cluster.api.list(RESOURCE_SLICES))[0][0]
        bad = {**good, "metadata": {**good["metadata"], "resourceVersion": "999999"}, "spec": {"driver": 7}}
        await site.ready()
        with caplog.at_level(logging.WARNING):
            operator.take(Change.of("MODIFIED", bad, RESOURCE_SLICES))
            operator.take(Change.of("MODIFIED", bad, RESOURCE_SLICES))
        (message,) = [record.message for record in caplog.records if "malformed" in record.message]
        assert "ResourceSlice node-0-gpu is malformed" in message
        assert "$.spec.driver" in message
        operator.take(Change.of("ADDED", {"metadata": {"name": "other", "resourceVersion": "1"}}, NODES))
        assert "other" in operator.control.cluster.nodes
        assert "node-0-gpu" in operator.control.cluster.slices  # as it was before
        assert site.metric("dra_operator_malformed_objects_total", resource="resourceslices.resource.k8s.io") == 1


async def refused(cluster: LiveCluster, name: str) -> None:
    """Wait until the pod says that it has no place."""

    async def has_condition() -> bool:
        conditions = (await cluster.pod(name))["status"].get("conditions") or ()
        return any(entry["type"] == "PodScheduled" and entry["status"] == "False" for entry in conditions)

    await until(f"{name} refused", has_condition)


async def delete(cluster: LiveCluster, proxy: FaultProxy) -> None:
    await cluster.api.delete(RESOURCE_CLAIMS, "held", "ns")


async def delete_unnoticed(cluster: LiveCluster, proxy: FaultProxy) -> None:
    with proxy.suffering(DropEvents(Target(verbs=("watch",), resource="resourceclaims", name="held"))):
        await cluster.api.delete(RESOURCE_CLAIMS, "held", "ns")
        proxy.break_streams("resourceclaims")
        await cluster.bound("second")


async def mend(cluster: LiveCluster, proxy: FaultProxy) -> None:
    """The watch shows a version that can be read, and holds nothing."""
    claim = await cluster.api.get(RESOURCE_CLAIMS, "held", "ns")
    await cluster.api.update(RESOURCE_CLAIMS, claim | {"status": {}}, "status")


@pytest.mark.parametrize(
    ("field", "value", "end"),
    [
        ("status.reservedFor", 7, delete),
        ("status.allocation.devices.results.0.consumedCapacity", {"memory": []}, delete_unnoticed),
        ("spec.devices.requests", "none", mend),
    ],
)
async def test_a_claim_that_cannot_be_read_at_start_keeps_its_devices_until_it_is_corrected_or_gone(
    cluster: LiveCluster,
    proxy: FaultProxy,
    supervising: Supervising,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    field: str,
    value: object,
    end: Callable[[LiveCluster, FaultProxy], Awaitable[None]],
) -> None:
    monkeypatch.setattr(audit, "AUDIT_GAP_SECONDS", 0.1)
    await cluster.furnish(devices=2, template=True)
    await hold_a_device(cluster)
    with proxy.suffering(Mangle(CLAIMS, field=field, value=value)):
        async with supervising() as site:
            await site.ready()
            assert "ResourceClaim ns/held is malformed" in caplog.text
            assert "devices stay in use: gpu.example.com/node-0/dev-0" in caplog.text
            await cluster.place("first")
            (made,) = [one for one in await cluster.claims() if one["metadata"]["name"] != "held"]
            assert made["status"]["allocation"]["devices"]["results"][0]["device"] == "dev-1"
            await cluster.add_pod("second")
            await refused(cluster, "second")
            await end(cluster, proxy)
            await cluster.bound("second")


async def test_a_claim_that_first_arrives_malformed_keeps_its_devices(
    cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the watch, and with an entry that names no device beside one that does."""
    monkeypatch.setattr(audit.Audit, "call", lambda self, resource: None)  # it would see that no server has the claim
    await cluster.furnish(devices=1, template=True)
    results = [{"device": 7}, {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}]
    claim = {
        "metadata": {"name": "odd", "namespace": "ns", "uid": "u-odd", "resourceVersion": "1"},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    async with supervising(OperatorSettings()) as site:
        await site.ready()
        site.operator.take(Change.of("ADDED", claim, RESOURCE_CLAIMS))
        await cluster.add_pod("pod")
        await refused(cluster, "pod")
        site.operator.take(Change.of("DELETED", claim, RESOURCE_CLAIMS))
        await cluster.bound("pod")


def claim_change(version: int, *devices: str, data: bytes = b"null") -> Change:
    """As a watch brings it; ``data``: JSON in its status."""
    results = [{"request": "r", "driver": "d", "pool": "p", "device": device} for device in devices]
    meta = {"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": str(version)}
    status = {"allocation": {"devices": {"results": results}} if devices else None, "devices": [{"data": "DATA"}]}
    content = json.dumps({"metadata": meta, "spec": {}, "status": status}).encode().replace(b'"DATA"', data)
    found = ObjectVersion("c", "u", str(version), "ns")
    return Change("MODIFIED", found, msgspec.Raw(shallow(content)), RESOURCE_CLAIMS, "v1")


@pytest.fixture
async def unaudited(
    cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Operator]:
    """An operator that is told of claims by the test: an audit would see that no server has them."""
    monkeypatch.setattr(audit.Audit, "call", lambda self, resource: None)
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        yield site.operator


def malformed_of(operator: Operator) -> MalformedObjects:
    assert operator._parts is not None
    return operator._parts.malformed_objects


@pytest.mark.parametrize("devices", [(), ("b",)])
async def test_a_malformed_version_that_its_correction_overtakes_holds_nothing(
    unaudited: Operator, devices: tuple[str, ...]
) -> None:
    """Both are taken in in their order, and the first one once more if a list brings it late."""
    deep = claim_change(10_005, "a", data=b"[" * 100_000 + b"]" * 100_000)
    unaudited.take(deep)
    assert malformed_of(unaudited).partially_decoded
    unaudited.take(claim_change(10_006, *devices))
    unaudited.take(deep)
    assert not malformed_of(unaudited).partially_decoded
    allocated = unaudited.control.cluster.allocated_devices
    assert allocated.holds("u") == bool(devices)
    assert {it.device for it in allocated.usage.devices() if it.driver == "d"} == set(devices)


async def test_a_late_good_version_does_not_free_the_devices_of_a_later_malformed_one(unaudited: Operator) -> None:
    """A list had the malformed one; the watch is still behind."""
    later = broken("u", "10006", "b")
    malformed_of(unaudited).take(RESOURCE_CLAIMS, later, ValueError("some field"))
    unaudited.take(claim_change(10_005, "a"))
    usage = unaudited.control.cluster.allocated_devices.usage
    assert {it.device for it in usage.devices() if it.driver == "d"} == {"b"}


async def test_a_large_claim_that_is_corrected_is_malformed_no_more(unaudited: Operator) -> None:
    """The cache keeps it without its bulk."""
    malformed_of(unaudited).take(RESOURCE_CLAIMS, broken("u", "10005", "a"), ValueError("some field"))
    unaudited.take(claim_change(10_006, "a", data=b'"%s"' % (b"x" * 100_000)))
    assert not malformed_of(unaudited).partially_decoded


def quarantined(usage: Usage, *known: str) -> MalformedObjects:
    """``known``: the resourceVersions that the cache knows."""
    held: dict[str, AllocationResult] = {}

    def hold(uid: str, allocation: AllocationResult | None) -> None:
        if uid in held:
            usage.remove(held.pop(uid))
        if allocation is not None:
            usage.add(allocation)
            held[uid] = allocation

    def is_known(resource: object, version: ObjectVersion) -> bool:
        return version.resource_version in known

    return MalformedObjects(hold, is_known=is_known)


def broken(uid: str, version: str, *devices: str) -> dict[str, Any]:
    results = [{"driver": "d", "pool": "p", "device": device, "bindingConditions": 7} for device in devices]
    meta = {"name": "c", "namespace": "ns", "uid": uid, "resourceVersion": version}
    return {"metadata": meta, "status": {"allocation": {"devices": {"results": results}}}}


def test_what_counts_for_a_malformed_claim_is_what_its_last_version_names() -> None:
    usage = Usage()
    malformed_objects = quarantined(usage)
    fault = ValueError("some field")
    malformed_objects.take(RESOURCE_CLAIMS, broken("u1", "1", "a"), fault)
    malformed_objects.take(RESOURCE_CLAIMS, broken("u1", "2", "a", "b"), fault)
    assert {device.device for device in usage.devices()} == {"a", "b"}
    malformed_objects.take(RESOURCE_CLAIMS, broken("u1", "3"), fault)
    assert {device.device for device in usage.devices()} == {"a", "b"}, "no device at all may be part of what is wrong"
    malformed_objects.take(RESOURCE_CLAIMS, broken("u2", "4", "c"), fault)
    assert {device.device for device in usage.devices()} == {"c"}, "another claim of that name"
    malformed_objects.deleted("ns/c", "u1")
    assert {device.device for device in usage.devices()} == {"c"}, "a late deletion of the other one"
    malformed_objects.deleted("ns/c", "u2")
    assert not list(usage.devices())


@pytest.mark.parametrize("status", [{}, {"allocation": None}, None])
def test_a_malformed_claim_that_says_that_it_has_no_allocation_holds_nothing(status: dict[str, Any] | None) -> None:
    usage = Usage()
    malformed_objects = quarantined(usage)
    malformed_objects.take(RESOURCE_CLAIMS, broken("u1", "1", "a"), ValueError("some field"))
    malformed_objects.take(RESOURCE_CLAIMS, broken("u1", "2") | {"status": status}, ValueError("some field"))
    assert not list(usage.devices())
    assert not malformed_objects.partially_decoded


async def test_a_malformed_claim_without_an_allocation_frees_what_its_last_good_version_had_once() -> None:
    """Each end of a hold has all waiting pods tried again, and a user may change such a claim many times a second."""
    world = World(Features())
    world.furnish()
    result = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    status = {"allocation": {"devices": {"results": [result]}}}
    good = world.api.add(RESOURCE_CLAIMS, Make.claim("c", finalizers=[FINALIZER]) | {"status": status})
    control = world.start()
    malformed_objects = MalformedObjects(control.hold)
    looks = Mock(wraps=control.look_again)
    with patch.object(control, "look_again", looks):
        for version in ("1000", "1001", "1002"):
            claim = broken(good["metadata"]["uid"], version) | {"status": {}}
            malformed_objects.take(RESOURCE_CLAIMS, claim, ValueError("some field"))
    assert not list(control.cluster.allocated_devices.holders())
    assert looks.call_count == 1


def test_a_version_that_the_cache_knows_or_a_newer_malformed_one_overtook_counts_for_nothing() -> None:
    """As an item of a list that was late."""
    usage = Usage()
    malformed_objects = quarantined(usage, "7")
    fault = ValueError("some field")
    malformed_objects.take(RESOURCE_CLAIMS, broken("u1", "7", "a"), fault)
    assert not list(usage.devices())
    malformed_objects.take(RESOURCE_CLAIMS, broken("u1", "10", "b"), fault)
    malformed_objects.take(RESOURCE_CLAIMS, broken("u1", "9", "a"), fault)
    malformed_objects.take(RESOURCE_CLAIMS, broken("u0", "8", "a"), fault)
    assert {device.device for device in usage.devices()} == {"b"}


def test_ten_thousand_malformed_objects_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """A tenant may store so many, and change them all the time."""
    seconds = 0.0
    malformed_objects = MalformedObjects(lambda _, __: None, clock=lambda: seconds)
    for number in range(10_000):
        malformed_objects.take(RESOURCE_CLAIMS, broken(f"u{number}", "1"), ValueError("some field"))
    written = len(caplog.records)
    assert COMMON_WARNING_LINES / 2 < written < COMMON_WARNING_LINES
    seconds = WARNING_SECONDS
    malformed_objects.take(RESOURCE_CLAIMS, broken("last", "1"), ValueError("some field"))
    left_out = 10_000 - written
    assert caplog.records[-1].getMessage().endswith(f"(before that, warnings of {left_out} others were left out)")
    malformed_objects.take(RESOURCE_CLAIMS, broken("last", "2"), ValueError("some field"))
    assert caplog.records[-1].getMessage().endswith("some field")


def test_objects_of_one_namespace_do_not_silence_those_of_others(caplog: pytest.LogCaptureFixture) -> None:
    malformed_objects = MalformedObjects(lambda _, __: None, clock=lambda: 0.0)

    def come(namespace: str, objects: int) -> int:
        """Return how many of the objects have a line of their own."""
        before = len(caplog.records)
        for number in range(objects):
            claim = broken(f"{namespace}{number}", "1")
            claim["metadata"]["namespace"] = namespace
            malformed_objects.take(RESOURCE_CLAIMS, claim, ValueError("some field"))
        return len(caplog.records) - before

    first = come("hog", 10_000)
    assert 1 < come("second", 10_000) < first
    assert come("third", 3) == 3
    assert all(come(f"one-of-many-{number}", 1) == 1 for number in range(FIRST_WARNING_LINES - 3))
    assert come("one-too-many", 1) == 0, "nor may the log be filled from many namespaces"
    assert len(caplog.records) < FIRST_WARNING_LINES + COMMON_WARNING_LINES
