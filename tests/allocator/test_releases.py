"""Where releases of Kubernetes decide differently: the same problem under 1.36 and 1.37 (allocator.md section 16)."""

from __future__ import annotations

from typing import Any

import pytest
from allocator_lab import Answer, claim, device, first_available, lab, make_node, pool, request, sub
from dra_api.releases.release import Release
from dra_api.values.quantity import Quantity
from dra_operator.allocator import Allocated, DeviceId, Failed, Features, Usage

Json = dict[str, Any]
OLD, NEW = Features(Release.V1_36), Features(Release.V1_37)
OPAQUE = {"driver": "drv", "parameters": {"a": 1}}


def names(features: Features, requests: list[Json], named: list[str], **options: Any) -> list[Any]:
    """The requests that each entry of the configuration names."""
    slices = pool(*(device(f"d{number}") for number in range(3)))
    outcome = lab(
        slices, [claim(*requests, config=[{"requests": named, "opaque": OPAQUE}])], features=features, **options
    ).decide()
    assert isinstance(outcome, Allocated)
    return [entry.requests for entry in outcome.results[0].devices.config or ()]


@pytest.mark.parametrize(
    ("requests", "named", "new"),
    [
        ([request("r1"), request("r2")], ["r1", "r2"], None),
        ([request("r1"), request("r2")], ["r1"], ("r1",)),
        ([first_available("r", sub("s"), sub("t"))], ["r/s"], None),
        ([first_available("r", sub("s"), sub("t"))], ["r"], None),
        ([first_available("r", sub("s"), sub("t")), request("q")], ["r/s"], ("r/s",)),
    ],
)
def test_a_configuration_for_all_requests_names_none_from_1_37_on(
    requests: list[Json], named: list[str], new: tuple[str, ...] | None
) -> None:
    """Whether it names requests or the chosen alternatives (K37-BUG-10, K37-BUG-11)."""
    assert names(OLD, requests, named) == [tuple(named)]
    assert names(NEW, requests, named) == [new]


def test_a_configuration_for_an_alternative_that_was_not_chosen_is_not_copied() -> None:
    for features in (OLD, NEW):
        assert names(features, [first_available("r", sub("s"), sub("t"))], ["r/t"]) == []


def consumed(features: Features, least: str, step: str, amount: str) -> str:
    policy = {"default": least, "validRange": {"min": least, "step": step}}
    capacity = {"memory": {"value": "100G", "requestPolicy": policy}}
    slices = pool(device("a", capacity=capacity, extra={"allowMultipleAllocations": True}))
    asked = request("r", capacity={"requests": {"memory": amount}})
    outcome = lab(slices, [claim(asked)], features=features).decide()
    assert isinstance(outcome, Allocated)
    (result,) = outcome.results[0].devices.results or ()
    return str((result.consumed_capacity or {})["memory"])


@pytest.mark.parametrize(
    ("least", "step", "amount", "old", "new"),
    [("1G", "1G", "1500M", "1953125Ki", "2G"), ("1Gi", "1Gi", "1500Mi", "2Gi", "2Gi"), ("2G", "1G", "1", "2G", "2G")],
)
def test_an_amount_that_is_rounded_is_written_as_its_step_from_1_37_on(
    least: str, step: str, amount: str, old: str, new: str
) -> None:
    """Its suffix is one of the family of the step (K37-FR-09)."""
    assert (consumed(OLD, least, step, amount), consumed(NEW, least, step, amount)) == (old, new)


def test_a_shared_device_with_too_little_left_makes_a_request_for_all_fail_from_1_37_on() -> None:
    """Only the capacity that it publishes leaves it out (K37-BUG-07)."""
    extra = {"allowMultipleAllocations": True}
    asked = request("r", allocationMode="All", capacity={"requests": {"memory": "5"}})

    def decided(features: Features, first: str, taken: str) -> list[list[str]] | str:
        devices = (
            device(name, capacity={"memory": {"value": size}}, extra=extra)
            for name, size in (("d1", first), ("d2", "10"))
        )
        usage = Usage()
        usage.take_share(DeviceId("drv", "p", "d1"), "share", {"memory": Quantity(taken).nanos})
        return lab(pool(*devices), [claim(asked)], features=features, usage=usage).devices()

    assert decided(OLD, "10", "8") == [["r=drv/p/d2"]]
    assert decided(NEW, "10", "8") == "none"
    for features in (OLD, NEW):  # too small from the start: left out
        assert decided(features, "4", "1") == [["r=drv/p/d2"]]


def test_a_selector_reads_lists_without_their_gate_from_1_37_on() -> None:
    """The gate is about what constraints compare (K37-ALLOC-03)."""
    slices = pool(device("a", extra={"attributes": {"links": {"ints": [1, 2]}}}))
    asked = [claim(request("r", 'device.attributes["drv"].links.includes(2)'))]
    assert lab(slices, asked, features=OLD).devices() == "error"
    assert lab(slices, asked, features=NEW).devices() == [["r=drv/p/a"]]


def counter_slice(pool_name: str, where: Json, count: int = 2) -> Json:
    sets = [{"name": "y", "counters": {"c": {"value": "1"}}}]
    about = {"name": pool_name, "generation": 1, "resourceSliceCount": count}
    return {
        "metadata": {"name": f"{pool_name}-c"},
        "spec": {"driver": "drv", "pool": about, "sharedCounters": sets, **where},
    }


@pytest.mark.parametrize(
    ("what", "wrong", "old", "new"),
    [
        ("incomplete", [counter_slice("q", {"nodeName": "n1"})], "error", [["r=drv/p/a"]]),
        (
            "invalid",
            pool(device("b", consumes={"x": {"c": 1}}), name="q", counters={"y": {"c": 1}}),
            "error",
            [["r=drv/p/a"]],
        ),
        ("for all nodes", [counter_slice("q", {"allNodes": True})], "error", "error"),
    ],
)
def test_a_broken_pool_of_another_node_is_nothing_to_a_request_for_all_from_1_37_on(
    what: str, wrong: list[Json], old: Answer, new: Answer
) -> None:
    """Its slices with counters concern only their nodes (K37-BUG-16)."""
    slices = [*wrong, *pool(device("a"), nodeName="n2")]
    asked = [claim(request("r", allocationMode="All"))]
    for features, expected in ((OLD, old), (NEW, new)):
        cluster = lab(slices, asked, features=features)
        assert cluster.devices(make_node("n2")) == expected, what
        assert cluster.devices() == "error", what


def test_counters_in_a_slice_for_another_node_are_found() -> None:
    """K37-BUG-16: by the check whether the pool is complete."""
    (devices, _) = pool(
        device("a", consumes={"y": {"c": 1}}), device("b", consumes={"y": {"c": 1}}), counters={}, allNodes=True
    )
    for features in (OLD, NEW):
        cluster = lab([counter_slice("p", {"nodeName": "n1"}), devices], [claim(request("r"))], features=features)
        assert cluster.devices(make_node("n2")) == cluster.devices() == [["r=drv/p/a"]]
        both = lab([counter_slice("p", {"nodeName": "n1"}), devices], [claim(request("r", count=2))], features=features)
        assert both.devices(make_node("n2")) == "none"


def shareable(name: str, value: str, **policy: Any) -> Json:
    memory = {"value": value, **({"requestPolicy": policy} if policy else {})}
    return device(name, capacity={"memory": memory}, extra={"allowMultipleAllocations": True})


HUGE = "9223372036854775807"


@pytest.mark.parametrize(
    ("one", "amount", "old", "fault"),
    [
        (shareable("a", "10Gi"), "-1Gi", [["r=drv/p/a"]], "-1Gi of memory is negative: ask for zero or more"),
        (
            shareable("a", "10", default="-1"),
            None,
            [["r=drv/p/a"]],
            "it would consume -1 of memory, which is negative: have its driver publish no such amount",
        ),
        (
            device("a", capacity={"memory": "-1"}),
            None,
            [["r=drv/p/a"]],
            "it would consume -1 of memory, which is negative: have its driver publish no such amount",
        ),
        (
            shareable("a", HUGE, default="1", validRange={"min": "1", "step": "2"}),
            HUGE,
            [["r=drv/p/a"]],
            None,
        ),
        (
            shareable("a", HUGE, default="0", validRange={"min": "0", "step": "2"}),
            HUGE,
            "none",
            f"{HUGE} of memory is more than can be counted when it is rounded up: ask for less",
        ),
    ],
)
def test_an_amount_that_is_negative_or_cannot_be_counted_ends_the_attempt_from_1_37_on(
    one: Json, amount: str | None, old: Answer, fault: str | None
) -> None:
    """The error names claim, request and device (K37-ALLOC-01, K37-ALLOC-04, K37-BUG-05)."""
    modes: list[Json] = [{}, {"allocationMode": "All"}]
    for fields in modes:
        asked = [claim(request("r", **fields, capacity={"requests": {"memory": amount}} if amount else None))]
        assert lab(pool(one), asked, features=OLD).devices() == old
        outcome = lab(pool(one), asked, features=NEW).decide()
        if fault is None:
            assert isinstance(outcome, Allocated)
            continue
        assert isinstance(outcome, Failed)
        expected = f"claim default/c, request r: checking capacity for device drv/p/a: {fault}"
        assert (type(outcome.error).__name__, str(outcome.error)) == ("CapacityError", expected)


def test_a_fatal_amount_is_met_only_where_selectors_lead_and_the_search_arrives() -> None:
    """K37-ALLOC-01: the capacity is counted after the selectors, device by device."""
    slices = pool(shareable("a", "10"), device("b", capacity={"memory": "-1"}, kind="odd"))

    def decided(*selectors: str, **fields: Any) -> Answer:
        return lab(slices, [claim(request("r", *selectors, **fields))], features=NEW).devices()

    assert decided() == [["r=drv/p/a"]]  # the first device serves
    assert decided(allocationMode="All") == "error"
    assert decided('device.attributes["drv"].?kind.orValue("") == "odd"') == "error"
    assert decided('device.attributes["drv"].?kind.orValue("") == ""', allocationMode="All") == [["r=drv/p/a"]]


def test_a_node_with_a_fatal_amount_is_tried_even_if_it_lacks_devices() -> None:
    """Its answer ends the attempt, so that the index over nodes may not leave it out (E2E-055)."""
    asked = [claim(request("r", count=2))]
    odd, plain = device("a", capacity={"memory": "-1"}), device("a", capacity={"memory": "1"})
    for one, new in ((odd, ["n1"]), (plain, [])):
        for features, expected in ((OLD, []), (NEW, new)):
            cluster = lab(pool(one), asked, features=features)
            assert list(cluster.allocator.candidates(cluster.claims, cluster.usage)) == expected


FRACTIONAL = Features(Release.V1_37, fractional_capacity_ranges=True)


@pytest.mark.parametrize(
    ("policy", "amount", "on", "off"),
    [
        ({"min": "100m", "step": "100m", "max": "2"}, "250m", "300m", "1"),
        ({"min": "100m", "step": "100m", "max": "2"}, "50m", "100m", "100m"),
        ({"min": "100m", "step": "100m", "max": "2"}, "2100m", "none", "none"),
        ({"min": "100m", "step": "100m", "max": "2"}, "250u", "100m", "100m"),
        ({"min": "100m", "step": "100m", "max": "2"}, "150500u", "error", "1"),
        ({"min": "1Gi", "step": "1Gi"}, "1500Mi", "2Gi", "2Gi"),
        ({"min": "1u", "step": "1u"}, "5u", "1", "1"),
        ({"min": "1", "step": "1"}, "1000500u", "error", "2"),
        ({"min": "1", "step": "1"}, "1500m", "2", "2"),
        ({"min": "1G", "step": "1G"}, "1500M", "2G", "2G"),
    ],
)
def test_a_range_counts_in_thousandths_with_its_gate(policy: Json, amount: str, on: str, off: str) -> None:
    """K37-FR-01 to K37-FR-04; the cases F1 to F6 and F10 to F12 of the specification."""
    slices = pool(shareable("a", "100G", default=policy["min"], validRange=policy))
    asked = [claim(request("r", capacity={"requests": {"memory": amount}}))]
    for features, expected in ((FRACTIONAL, on), (NEW, off)):
        outcome = lab(slices, asked, features=features).decide()
        if not isinstance(outcome, Allocated):
            assert {"Refused": "none", "Failed": "error"}[type(outcome).__name__] == expected
            continue
        (result,) = outcome.results[0].devices.results or ()
        assert str((result.consumed_capacity or {})["memory"]) == expected
