"""What a ResourcePoolStatusRequest is told from 1.37 on, beside what 1.36 says (kubernetes-1.37.md section 13)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from dra_api.codec import convert, to_dict
from dra_api.releases import Release
from dra_api.resource import AllocationResult, PoolStatus, ResourcePoolStatusRequest, ResourceSlice
from dra_operator.allocator import Features, Usage
from dra_operator.controllers.pools import incomplete_pools, pool_answer

Json = dict[str, Any]
DRIVER, PROFILE = "gpu.example.com", "ex.com/profile"
OLD = Features(Release.V1_36, pool_status=True)
NEW = Features(Release.V1_37, pool_status=True)
TYPES = Features(Release.V1_37, pool_status=True, partition_types=True)


def partition(name: str, cost: str, **more: Any) -> Json:
    """A device that draws on the memory, and whose type is the first part of its name."""
    counters = [{"counterSet": "s", "counters": {"mem": {"value": cost}}}]
    attributes = {PROFILE: {"string": name.partition("-")[0]}}
    return {"name": name, "attributes": attributes, "consumesCounters": counters, **more}


def counters(total: str = "80Gi") -> Json:
    return {"sharedCounters": [{"name": "s", "counters": {"mem": {"value": total}}}]}


FULL, HALVES = partition("full", "80Gi"), (partition("half-0", "40Gi"), partition("half-1", "40Gi"))
PARTITIONS = [counters(), {"devices": [FULL, *HALVES], "partitionTypeAttribute": PROFILE}]


def asked(
    slices: Sequence[Json], held: Iterable[Json] = (), features: Features = TYPES, announced: int = 0, **spec: Any
) -> PoolStatus:
    """What is said of the pool that these slices make; ``held`` are results of one claim."""
    pool = {"name": "p", "generation": 1, "resourceSliceCount": announced or len(slices)}
    published = [
        convert(
            ResourceSlice,
            {"metadata": {"name": f"s{number}"}, "spec": {"driver": DRIVER, "pool": pool, "nodeName": "n", **slice_}},
        )
        for number, slice_ in enumerate(slices)
    ]
    results = [{"request": "r", "driver": DRIVER, "pool": "p", **result} for result in held]
    usage = Usage([convert(AllocationResult, {"devices": {"results": results}})])
    request = convert(ResourcePoolStatusRequest, {"metadata": {"name": "q"}, "spec": {"driver": DRIVER, **spec}})
    status = pool_answer(request, published, usage, "2026-01-01T00:00:00Z", features)
    (only,) = status.pools or ()
    return only


def types(status: PoolStatus) -> list[str]:
    return [f"{it.type} {it.total}/{it.allocatable}" for it in status.partition_summary or ()]


def counts(status: PoolStatus) -> tuple[int | None, ...]:
    return status.total_devices, status.allocated_devices, status.available_devices, status.unavailable_devices


def taint(effect: str) -> Json:
    return {"taints": [{"key": "k", "effect": effect}]}


@pytest.mark.rule("K37-PS-02")
def test_a_tainted_device_is_unavailable_from_1_37_on_unless_it_is_allocated() -> None:
    """Unavailable are devices that are tainted and not allocated."""
    tainted = [{"name": name, **taint(effect)} for name, effect in (("a", "NoSchedule"), ("b", "NoExecute"))]
    slices = [{"devices": [*tainted, {"name": "c", **taint("None")}, {"name": "d"}]}]
    assert counts(asked(slices, [{"device": "a"}], OLD)) == (4, 1, 3, 0)
    assert counts(asked(slices, [{"device": "a"}], NEW)) == (4, 1, 2, 1)
    without = Features(Release.V1_37, pool_status=True, device_taints=False, taint_rules=False)
    assert counts(asked(slices, [{"device": "a"}], without)) == (4, 1, 3, 0)


@pytest.mark.rule("K37-PS-06")
@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ([], ["full 1/1", "half 2/2"]),
        ([{"device": "half-0"}], ["full 1/0", "half 2/1"]),
        ([{"device": "half-0", "adminAccess": True}], ["full 1/1", "half 2/2"]),
        ([{"device": "half-0"}, {"device": "half-1"}], ["full 1/0", "half 2/0"]),
        ([{"device": "full"}], ["full 1/0", "half 2/0"]),
    ],
)
def test_partitions_are_counted_by_type(held: list[Json], expected: list[str]) -> None:
    """Each type as if nothing else were allocated."""
    assert types(asked(PARTITIONS, held)) == expected
    for features in (OLD, NEW):  # the release lacks the gate, or the gate is off
        assert asked(PARTITIONS, held, features).partition_summary is None


@pytest.mark.rule("K37-PS-06")
def test_a_tainted_partition_counts_as_allocatable() -> None:
    """Partitions are counted whatever taints they have."""
    tainted = [{**HALVES[0], **taint("NoSchedule")}, HALVES[1]]
    status = asked([counters(), {"devices": tainted, "partitionTypeAttribute": PROFILE}])
    assert (types(status), status.unavailable_devices) == (["half 2/2"], 1)


@pytest.mark.rule("K37-PS-04", "K37-PS-05", "K37-PS-08", "K37-PS-09")
@pytest.mark.parametrize(
    ("slices", "code"),
    [
        (
            [
                counters(),
                {"devices": [FULL, {**HALVES[0], "attributes": {}}], "partitionTypeAttribute": PROFILE},
            ],
            "PartitionTypeMissing: ",
        ),
        (
            [
                counters(),
                {"devices": [{**FULL, "attributes": {PROFILE: {"int": 1}}}], "partitionTypeAttribute": PROFILE},
            ],
            "PartitionTypeMissing: ",
        ),
        ([{"devices": [{"name": "a"}], "partitionTypeAttribute": PROFILE}], "PartitionTypeMissing: "),
        (
            [
                counters(),
                {"devices": [HALVES[0], partition("half-1", "30Gi")], "partitionTypeAttribute": PROFILE},
            ],
            "PartitionCostMismatch: ",
        ),
        (
            [
                counters(),
                {
                    "devices": [partition(f"t{number}-0", "1Gi") for number in range(33)],
                    "partitionTypeAttribute": PROFILE,
                },
            ],
            "PartitionSummaryOverCap: ",
        ),
    ],
    ids=["no attribute", "no text", "no counters", "other cost", "too many types"],
)
def test_an_error_takes_the_place_of_the_partitions_and_leaves_the_counts(slices: list[Json], code: str) -> None:
    """The error has a code, and stands in validationError."""
    status = asked(slices)
    assert status.partition_summary is None
    assert (status.validation_error or "").startswith(code)
    assert status.total_devices
    assert incomplete_pools([status]) == 0  # not tried again
    assert asked(slices, features=OLD).validation_error is None


@pytest.mark.rule("K37-PS-05")
def test_costs_are_compared_by_value() -> None:
    """1Gi is 1024Mi."""
    same = [partition("half-0", "1Gi"), partition("half-1", "1024Mi")]
    assert types(asked([counters(), {"devices": same, "partitionTypeAttribute": PROFILE}])) == ["half 2/2"]


@pytest.mark.rule("K37-PS-03")
def test_a_slice_without_an_attribute_has_the_one_of_the_request() -> None:
    """Also if other slices of the pool name one."""
    own, other = {"devices": [FULL], "partitionTypeAttribute": PROFILE}, {"devices": list(HALVES)}
    renamed = [{**it, "attributes": {"kind": {"string": "part"}}} for it in HALVES]
    assert types(asked([counters(), own, other])) == ["full 1/1"]
    assert types(asked([counters(), other])) == []
    assert asked([counters(), other]).validation_error is None
    both = asked([counters(), own, {"devices": renamed}], defaultPartitionTypeAttribute=f"{DRIVER}/kind")
    assert [(it.attribute, it.type) for it in both.partition_summary or ()] == [
        (PROFILE, "full"),
        (f"{DRIVER}/kind", "part"),
    ]


@pytest.mark.rule("K37-PS-04")
def test_a_key_with_the_domain_counts_before_the_bare_one() -> None:
    """The type of a partition is the value of a qualified name first."""
    attributes = {"kind": {"string": "bare"}, f"{DRIVER}/kind": {"string": "whole"}}
    devices = [{**FULL, "attributes": attributes}]
    assert types(asked([counters(), {"devices": devices, "partitionTypeAttribute": f"{DRIVER}/kind"}])) == ["whole 1/1"]


def shared(name: str, size: str = "10Gi") -> Json:
    return {"name": name, "allowMultipleAllocations": True, "capacity": {"mem": {"value": size}}}


def share(device: str, amount: str, **more: Any) -> Json:
    return {"device": device, "shareID": f"{device}-{amount}", "consumedCapacity": {"mem": amount}, **more}


@pytest.mark.rule("K37-PS-10")
def test_shared_devices_are_summed_up_from_1_37_on() -> None:
    """The pool has a summary of what its shared devices have left."""
    slices = [{"devices": [shared("a"), shared("b"), {"name": "c", "capacity": {"mem": {"value": "1Gi"}}}]}]
    held = [share("a", "4Gi"), share("a", "3Gi"), share("b", "1Gi", adminAccess=True)]
    assert asked(slices, held, OLD).shareable_summary is None
    status = asked(slices, held, NEW)
    assert (status.allocated_devices, to_dict(status.shareable_summary)) == (
        1,
        {
            "fullyAvailableDevices": 1,
            "partiallyAvailableDevices": 1,
            "capacity": [{"name": "mem", "total": "20Gi", "consumed": "7Gi", "available": "13Gi"}],
        },
    )
    assert asked([{"devices": [{"name": "c"}]}], features=NEW).shareable_summary is None


@pytest.mark.rule("K37-PS-08", "K37-PS-09")
def test_too_many_shared_capacities_take_the_partitions_away_as_well() -> None:
    """At most 32 entries fit; one more is an error."""
    capacity = {f"c{number}": {"value": "1"} for number in range(33)}
    wide = {"devices": [{**shared("a"), "capacity": capacity}]}
    status = asked([*PARTITIONS, wide])
    assert (status.validation_error or "").startswith("ShareableSummaryOverCap: ")
    assert (status.partition_summary, status.shareable_summary) == (None, None)
    broken = asked(
        [counters(), {"devices": [{**FULL, "attributes": {}}, shared("a")], "partitionTypeAttribute": PROFILE}]
    )
    assert (broken.validation_error or "").startswith("PartitionTypeMissing: ")
    assert broken.shareable_summary is not None


@pytest.mark.rule("K37-PS-11")
def test_a_pool_that_lacks_slices_says_so_by_a_code_from_1_37_on() -> None:
    """That alone is tried again."""
    old, new = (asked(PARTITIONS, (), features, announced=3) for features in (OLD, NEW))
    text = f"pool {DRIVER}/p is incomplete: observed 2/3 slices at generation 1"
    assert (old.validation_error, new.validation_error) == (text, f"PoolIncomplete: {text}")
    assert incomplete_pools([old, new]) == 2
