"""API servers that lack a version of the API, or have gates off (INT-014, INT-016, INT-020, INT-021, INT-025).

Each serves one old version only, and knows no partitions, alternatives, or device status. They serve all tests of the
file, and the end-to-end tests' own cluster takes no part.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import envtest
import pytest
from dra_api.releases import Release
from dra_api.resource import FINALIZER
from dra_devcluster.apiserver import serve_in_thread
from dra_kube import RESOURCE_CLAIMS, Api, Invalid, Object, connection
from dra_kubeletplugin import DroppedFields, Pool, Recoverable, SlicePublisher, counter_set, device

DRIVER = "gpu.example.com"
GATES = dict.fromkeys(
    (
        "DRAPartitionableDevices",
        "DRAPrioritizedList",
        "DRAResourceClaimDeviceStatus",
        "DRADeviceBindingConditions",  # they depend on the status of devices
        "DRAResourceClaimGranularStatusAuthorization",
    ),
    False,
)


@pytest.fixture(scope="module", params=["v1beta1", "v1beta2"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def kubeconfig(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An API server that serves no other version."""
    folder = tmp_path_factory.mktemp(version)
    served = {each: each == version for each in envtest.VERSIONS}
    if binaries := envtest.assets():
        with envtest.configured_api_server(binaries, folder, served, GATES) as real:
            yield real
    else:
        versions = {f"resource.k8s.io/{each}": value for each, value in served.items()}
        with serve_in_thread(api_versions=versions, feature_gates=GATES, release=Release.V1_36) as server:
            yield server.write_kubeconfig(folder / "kubeconfig")


@pytest.fixture
async def api(kubeconfig: Path) -> AsyncIterator[Api]:
    async with Api(connection(kubeconfig)) as client:
        yield client


async def stored(api: Api, version: str) -> list[Object]:
    """The slices as the server has them, in the version that it serves."""
    return list((await api.raw_get(f"/apis/resource.k8s.io/{version}/resourceslices"))["items"])


async def settled(publisher: SlicePublisher) -> None:
    await asyncio.wait_for(publisher.settled(), 60)


async def test_int_014_020_021_slices_come_without_partitions_which_is_reported_once(api: Api, version: str) -> None:
    """The publisher rests: it does not try again what the server drops."""
    errors: list[Recoverable] = []
    parted = device("part", attributes={"x": 1}, consumes={"set": {"slots": 1}})
    wanted = {
        "plain": Pool.of([device("whole", attributes={"x": 1})], all_nodes=True),
        "parted": Pool.of([parted], shared_counters=[counter_set("set", {"slots": 1})], all_nodes=True),
    }
    async with SlicePublisher(api, DRIVER, on_error=lambda error, _: errors.append(error)) as publisher:
        publisher.publish(wanted)
        await settled(publisher)
        slices = await stored(api, version)
        written = replace(publisher.statistics)
        publisher.publish(wanted)
        await settled(publisher)
        assert publisher.statistics == written
        publisher.publish({})
        await settled(publisher)
    body = {"attributes": {"x": {"int": 1}}}
    kept = {"basic": body} if version == "v1beta1" else body
    devices = [entry for slice_ in slices for entry in slice_["spec"].get("devices") or ()]
    assert sorted(devices, key=lambda each: str(each["name"])) == [{"name": name, **kept} for name in ("part", "whole")]
    assert all("sharedCounters" not in slice_["spec"] for slice_ in slices)
    assert {type(error) for error in errors} == {DroppedFields}
    assert {error.features for error in errors if isinstance(error, DroppedFields)} == {("DRAPartitionableDevices",)}
    assert await stored(api, version) == []


async def test_int_016_a_request_whose_alternatives_are_dropped_is_refused(api: Api) -> None:
    """So that nothing is scheduled by it."""
    alternatives = [{"name": "one", "deviceClassName": "gpu"}]
    with pytest.raises(Invalid, match=r"deviceClassName|exactly"):
        await api.create(RESOURCE_CLAIMS, claim({"name": "req", "firstAvailable": alternatives}))


async def test_int_025_what_is_said_of_devices_is_dropped(api: Api) -> None:
    made = await api.create(RESOURCE_CLAIMS, claim({"name": "req", "exactly": {"deviceClassName": "gpu"}}, FINALIZER))
    place = {"driver": DRIVER, "pool": "pool", "device": "dev"}
    said = {**place, "data": {"key": "value"}}
    status = {"allocation": {"devices": {"results": [{"request": "req", **place}]}}, "devices": [said]}
    kept = (await api.update(RESOURCE_CLAIMS, made | {"status": status}, "status"))["status"]
    assert kept["allocation"]["devices"]["results"] == [{"request": "req", **place}]
    assert "devices" not in kept


def claim(request: Object, *finalizers: str) -> Object:
    """A claim with this request."""
    meta = {"name": "claim", "namespace": "default", "finalizers": list(finalizers)}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    return {**kind, "metadata": meta, "spec": {"devices": {"requests": [request]}}}
