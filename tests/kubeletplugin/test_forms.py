"""Partitions on each release: counters beside their devices until 1.34, in slices of their own since (POOL_RULES)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from allocator_lab import claim, lab, make_node, request
from dra_api.gates import POOL_RULES, FeatureGates
from dra_api.meta import ObjectMeta
from dra_api.releases import Release
from dra_api.resource import Device, DeviceTaint, ResourceSlice
from dra_api.validation import validate_resource_slice
from dra_devcluster.apiserver import DevApiServer
from dra_kube import NODES, RESOURCE_SLICES, Api, ApiError, Invalid, connection
from dra_kubeletplugin import (
    Owner,
    Pool,
    PoolInvalid,
    PoolRefused,
    Recoverable,
    Slice,
    SlicePublisher,
    counter_set,
    device,
    marked_for,
)
from dra_kubeletplugin.slices.plan import Publication, in_form_of, plan_pool
from dra_kubeletplugin.slices.pool_sync import checked
from dra_kubeletplugin.testing import PluginApi
from dra_operator.allocator import Features, Usage
from hypothesis import given
from hypothesis import strategies as st

OLD, NEW = (Release.V1_33, Release.V1_34), (Release.V1_35, Release.V1_36, Release.V1_37)


def gpus(count: int, parts: int = 7) -> Pool:
    """GPUs of so many parts, each with counters of its own."""
    devices: list[Device] = []
    for gpu in range(count):
        devices.append(device(f"gpu-{gpu}", consumes={f"gpu-{gpu}": {"memory": parts, "slices": parts}}))
        devices += [
            device(f"gpu-{gpu}-{part}", consumes={f"gpu-{gpu}": {"memory": 1, "slices": 1}}) for part in range(parts)
        ]
    sets = [counter_set(f"gpu-{gpu}", {"memory": parts, "slices": parts}) for gpu in range(count)]
    return Pool.of(devices, shared_counters=sets)


def gates(release: Release) -> FeatureGates:
    return FeatureGates.of({"DRAPartitionableDevices": True, "DRADeviceTaints": True}, release)


def faults(pool: Pool, release: Release) -> list[str]:
    """What an API server of the release has against the pool as the library writes it for that."""
    publication = Publication("gpu.example.com", "pool", Owner.node("worker-1", "uid"), "worker-1")
    return [
        str(fault)
        for write in plan_pool(publication, in_form_of("pool", checked("pool", pool), release), ()).create
        for fault in validate_resource_slice(
            ResourceSlice(metadata=ObjectMeta(name="s"), spec=write.spec), gates=gates(release)
        )
    ]


@pytest.mark.parametrize("release", [*OLD, *NEW], ids=str)
@pytest.mark.parametrize("count", [1, 8, 9, 30])
def test_a_pool_with_partitions_is_valid_on_each_release(release: Release, count: int) -> None:
    assert faults(gpus(count), release) == []
    assert faults(dict(marked_for("other", {"p": gpus(count)}))["p"], release) == []


@pytest.mark.parametrize("release", [*OLD, *NEW], ids=str)
def test_the_form_of_another_release_is_refused(release: Release) -> None:
    """The library and the development server knew that of 1.35 alone."""
    other = in_form_of("p", gpus(2), Release.V1_36 if release in OLD else Release.V1_34)
    publication = Publication("gpu.example.com", "pool", Owner.node("worker-1", "uid"), "worker-1")
    told = [
        str(fault)
        for write in plan_pool(publication, other, ()).create
        for fault in validate_resource_slice(
            ResourceSlice(metadata=ObjectMeta(name="s"), spec=write.spec), gates=gates(release)
        )
    ]
    expected = "must reference a counterSet defined in" if release in OLD else "only one of `sharedCounters` or `dev"
    assert told
    assert all(expected in fault for fault in told)


@pytest.mark.parametrize(
    ("pool", "text"),
    [
        (Pool.of([device(f"d{n}", consumes={"s": {"c": 1}}) for n in range(129)],
                 shared_counters=[counter_set("s", {"c": 9})]),
         'pool "p": the devices from "d0" to "d128" draw from the same counters, and do not fit into one slice, as API '
         "servers before Kubernetes 1.35 want it: such a slice has at most 128 devices"),
        (Pool.of([device("d", consumes={f"s{n}": {f"c{c}": 1 for c in range(16)} for n in range(3)})],
                 shared_counters=[counter_set(f"s{n}", {f"c{c}": 1 for c in range(16)}) for n in range(3)]),
         "32 counters"),
    ],
)  # fmt: skip
def test_what_no_slice_of_an_old_release_can_hold_is_an_error(pool: Pool, text: str) -> None:
    with pytest.raises(PoolInvalid, match=text):
        in_form_of("p", pool, Release.V1_34)


sets_of_devices = st.lists(st.sets(st.sampled_from("abcdefgh"), max_size=2), max_size=30)


@given(sets_of_devices, st.sampled_from([*OLD, *NEW]), st.booleans())
def test_the_form_changes_no_device_and_no_counter(drawn: list[set[str]], release: Release, beside: bool) -> None:
    pool = Pool.of(
        [
            device(f"d{number}", consumes={name: {"c": 1} for name in sorted(names)})
            for number, names in enumerate(drawn)
        ],
        shared_counters=[counter_set(name, {"c": 9}) for name in "abcdefgh"],
    )
    if beside:
        devices, counters = ([each for part in pool.slices for each in getattr(part, name)]
                             for name in ("devices", "shared_counters"))  # fmt: skip
        pool = Pool(slices=(Slice(devices=tuple(devices), shared_counters=tuple(counters)),))
    formed = in_form_of("p", pool, release)
    for name in ("devices", "shared_counters"):
        before, after = ([each for part in it.slices for each in getattr(part, name)] for it in (pool, formed))
        assert sorted(before, key=lambda each: each.name) == sorted(after, key=lambda each: each.name)
    assert in_form_of("p", formed, release).slices == formed.slices
    assert faults(pool, release) == []


# --- on servers ---


@asynccontextmanager
async def server(folder: Path, release: Release) -> AsyncIterator[Api]:
    enabled = {"DRAPartitionableDevices": True, "DRADeviceTaints": True}
    async with DevApiServer(release=release, feature_gates=enabled) as running:
        async with Api(connection(running.write_kubeconfig(folder / "kubeconfig"))) as api:
            await api.create(NODES, {"metadata": {"name": "worker-1"}})
            yield api


@pytest.mark.parametrize("release", [*OLD, *NEW], ids=str)
async def test_partitions_are_published_and_allocated_on_each_release(tmp_path: Path, release: Release) -> None:
    errors: list[Recoverable] = []
    async with server(tmp_path, release) as api:
        owner = Owner.node("worker-1")
        async with SlicePublisher(api, "drv", owner=owner, on_error=lambda error, _: errors.append(error)) as publisher:
            publisher.publish({"worker-1": gpus(3)})
            await publisher.settled()
            writes = publisher.statistics.creates
            publisher.publish({"worker-1": gpus(3)})
            await publisher.settled()
            assert publisher.statistics.creates == writes
        slices, _ = await api.list(RESOURCE_SLICES)
        assert not errors
        assert any("sharedCounters" in s["spec"] and "devices" in s["spec"] for s in slices) == (release in OLD)
        body = slices[0] | {"metadata": {"name": "other"}}
        both = body["spec"] | {"sharedCounters": [{"name": "s", "counters": {"c": {"value": "1"}}}],
                               "devices": [{"name": "x"}]}  # fmt: skip
        if release in NEW:
            with pytest.raises(ApiError, match="only one of"):
                await api.create(RESOURCE_SLICES, body | {"spec": both})
    features = Features.of(gates(release))
    outcome = lab(slices, [claim(request("r", count=21))], features=features, usage=Usage(
        shares=features.consumable_capacity)).devices(make_node("worker-1"))  # fmt: skip
    assert outcome == [[f"r=drv/worker-1/gpu-{gpu}-{part}" for gpu in range(3) for part in range(7)]], "no whole one"


async def test_counters_are_written_anew_when_the_api_server_was_upgraded(api: PluginApi) -> None:
    errors: list[Recoverable] = []

    def store(body: dict[str, Any]) -> None:
        if api.release >= Release.V1_35 and {"devices", "sharedCounters"} <= body["spec"].keys():
            raise Invalid(422, "Invalid", "only one of `sharedCounters` or `devices` is allowed")

    api.store, api.release = store, Release.V1_34
    async with SlicePublisher(
        api.client, "drv", owner=Owner.node("worker-1"), on_error=lambda error, _: errors.append(error)
    ) as publisher:
        publisher.publish({"p": gpus(1)})
        await publisher.settled()
        assert [sorted(each["spec"].keys() & {"devices", "sharedCounters"}) for each in api.slices()] == [
            ["devices", "sharedCounters"]
        ]
        api.release = Release.V1_35
        publisher.publish({"p": gpus(2)})
        await publisher.settled()
        assert sorted(key for each in api.slices() for key in each["spec"].keys() & {"devices", "sharedCounters"}) == [
            "devices",
            "sharedCounters",
        ]
        assert not errors
        api.store = lambda body: (_ for _ in ()).throw(Invalid(422, "Invalid", "never"))
        publisher.publish({"p": gpus(3)})
        await publisher.settled()
        assert [type(error) for error in errors] == [PoolRefused]


def test_a_pool_without_counters_asks_for_no_release_and_stays_as_it_is() -> None:
    taint = (DeviceTaint(key="k", effect="NoSchedule"),)
    pool = Pool.of([device("a", taints=taint)])
    assert all(in_form_of("p", pool, release) is pool for release in Release)


def test_each_release_has_its_rules() -> None:
    assert set(POOL_RULES) == set(Release)
    assert [release for release, rules in POOL_RULES.items() if rules.counters_beside_devices] == [
        Release.V1_32,
        *OLD,
    ]
