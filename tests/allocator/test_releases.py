"""Where releases of Kubernetes decide differently: the same problem under 1.36 and 1.37 (allocator.md section 16)."""

from __future__ import annotations

from typing import Any

import pytest
from allocator_lab import Answer, claim, device, first_available, lab, make_node, pool, request, sub
from dra_api.releases import Release
from dra_api.values import Quantity
from dra_operator.allocator import Allocated, DeviceId, Failed, Features, Semantics, Usage
from dra_operator.allocator import search as search_module

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


@pytest.mark.rule("K37-BUG-10", "K37-BUG-11")
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
    """Whether it names requests or the chosen alternatives."""
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


@pytest.mark.rule("K37-FR-09")
@pytest.mark.parametrize(
    ("least", "step", "amount", "old", "new"),
    [("1G", "1G", "1500M", "1953125Ki", "2G"), ("1Gi", "1Gi", "1500Mi", "2Gi", "2Gi"), ("2G", "1G", "1", "2G", "2G")],
)
def test_an_amount_that_is_rounded_is_written_as_its_step_from_1_37_on(
    least: str, step: str, amount: str, old: str, new: str
) -> None:
    """Its suffix is one of the family of the step."""
    assert (consumed(OLD, least, step, amount), consumed(NEW, least, step, amount)) == (old, new)


@pytest.mark.rule("K37-BUG-07")
def test_a_shared_device_with_too_little_left_makes_a_request_for_all_fail_from_1_37_on() -> None:
    """Only the capacity that it publishes leaves it out."""
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


@pytest.mark.rule("K37-ALLOC-03")
def test_a_selector_reads_lists_without_their_gate_from_1_37_on() -> None:
    """The gate is about what constraints compare."""
    slices = pool(device("a", extra={"attributes": {"links": {"ints": [1, 2]}}}))
    asked = [claim(request("r", 'device.attributes["drv"].links.includes(2)'))]
    assert lab(slices, asked, features=OLD).devices() == "nodeError"
    assert lab(slices, asked, features=NEW).devices() == [["r=drv/p/a"]]


def counter_slice(pool_name: str, where: Json, count: int = 2) -> Json:
    sets = [{"name": "y", "counters": {"c": {"value": "1"}}}]
    about = {"name": pool_name, "generation": 1, "resourceSliceCount": count}
    return {
        "metadata": {"name": f"{pool_name}-c"},
        "spec": {"driver": "drv", "pool": about, "sharedCounters": sets, **where},
    }


@pytest.mark.rule("K37-BUG-16")
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
    """Its slices with counters concern only their nodes."""
    slices = [*wrong, *pool(device("a"), nodeName="n2")]
    asked = [claim(request("r", allocationMode="All"))]
    for features, expected in ((OLD, old), (NEW, new)):
        cluster = lab(slices, asked, features=features, semantics=Semantics.reference())
        assert cluster.devices(make_node("n2")) == expected, what
        assert cluster.devices() == "error", what
        cluster = lab(slices, asked, features=features)  # as 1.37 has it, and the error is that node's
        assert cluster.devices(make_node("n2")) == ("nodeError" if new == "error" else new), what
        assert cluster.devices() == "nodeError", what


@pytest.mark.rule("K37-BUG-16")
def test_counters_in_a_slice_for_another_node_are_found() -> None:
    """By the check whether the pool is complete."""
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


@pytest.mark.rule("K37-ALLOC-01", "K37-ALLOC-04", "K37-BUG-05")
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
    """The error names claim, request and device."""
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


@pytest.mark.rule("K37-ALLOC-01")
def test_a_fatal_amount_is_met_only_where_selectors_lead_and_the_search_arrives() -> None:
    """The capacity is counted after the selectors, device by device."""
    slices = pool(shareable("a", "10"), device("b", capacity={"memory": "-1"}, kind="odd"))

    def decided(*selectors: str, **fields: Any) -> Answer:
        return lab(slices, [claim(request("r", *selectors, **fields))], features=NEW).devices()

    assert decided() == [["r=drv/p/a"]]  # the first device serves
    assert decided(allocationMode="All") == "nodeError"
    assert decided('device.attributes["drv"].?kind.orValue("") == "odd"') == "nodeError"
    assert decided('device.attributes["drv"].?kind.orValue("") == ""', allocationMode="All") == [["r=drv/p/a"]]


def test_a_node_with_a_fatal_amount_is_tried_even_if_it_lacks_devices() -> None:
    """In the reference its answer ends the attempt, so that the index over nodes may not leave it out (E2E-055)."""
    asked = [claim(request("r", count=2))]
    odd, plain = device("a", capacity={"memory": "-1"}), device("a", capacity={"memory": "1"})
    for one, new in ((odd, ["n1"]), (plain, [])):
        for features, expected in ((OLD, []), (NEW, new)):
            cluster = lab(pool(one), asked, features=features, semantics=Semantics.reference())
            assert list(cluster.allocator.candidates(cluster.claims, cluster.usage)) == expected


FRACTIONAL = Features(Release.V1_37, fractional_capacity_ranges=True)


@pytest.mark.rule("K37-FR-01", "K37-FR-02", "K37-FR-03", "K37-FR-04", "K37-GATE-05")
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
    slices = pool(shareable("a", "100G", default=policy["min"], validRange=policy))
    asked = [claim(request("r", capacity={"requests": {"memory": amount}}))]
    old = {"2G": "1953125Ki"}.get(off, off)  # always in the suffixes of powers of two
    for features, expected in ((FRACTIONAL, on), (NEW, off), (OLD, old)):
        outcome = lab(slices, asked, features=features).decide()
        if not isinstance(outcome, Allocated):
            assert {"Refused": "none", "Failed": "error"}[type(outcome).__name__] == expected
            continue
        (result,) = outcome.results[0].devices.results or ()
        assert str((result.consumed_capacity or {})["memory"]) == expected


def multi(name: str, **fields: Any) -> Json:
    """A device of which several claims get a share, without capacity of its own."""
    return device(name, consumes={"s": {"c": 1}}, extra={"allowMultipleAllocations": True}, **fields)


def drawing(name: str, **extra: Any) -> Json:
    return device(name, consumes={"s": {"c": 1}}, extra=extra)


BAD = {"taints": [{"key": "bad", "effect": "NoSchedule"}]}
ONE = {"s": {"c": 1}}
MENDED: dict[str, tuple[list[Json], Json, Answer]] = {
    "BUG-01: a tainted device keeps no counters": (
        pool(drawing("a", **BAD), drawing("b"), counters=ONE),
        claim(request("r")),
        [["r=drv/p/b"]],
    ),
    "BUG-01: a share that is taken back keeps no counters": (
        pool(multi("m", v=1), device("x", consumes=ONE, v=2), device("y", v=2), counters=ONE),
        claim(
            request("r1"),
            request("r2", 'device.attributes["drv"].v == 2 && !device.allowMultipleAllocations'),
            constraints=[{"matchAttribute": "drv/v"}],
        ),
        [["r1=drv/p/x", "r2=drv/p/y"]],
    ),
    "BUG-02: counters of two drivers with pools of one name": (
        [
            *pool(drawing("d"), driver="a.io", counters=ONE),
            *pool(drawing("d"), driver="b.io", counters=ONE),
        ],
        claim(request("r1", 'device.driver == "a.io"'), request("r2", 'device.driver == "b.io"')),
        [["r1=a.io/p/d", "r2=b.io/p/d"]],
    ),
    "BUG-06: all values that were chosen count": (
        pool(*(device(name, v=value) for name, value in (("a", 1), ("b", 2), ("c", 1), ("d", 3)))),
        claim(request("r", count=3), constraints=[{"distinctAttribute": "drv/v"}]),
        [["r=drv/p/a", "r=drv/p/b", "r=drv/p/d"]],
    ),
    "BUG-14: a device that is shared counts for counters": (
        pool(multi("m"), drawing("x"), counters=ONE),
        claim(request("q", "device.allowMultipleAllocations"), request("r", "!device.allowMultipleAllocations")),
        "none",
    ),
    "BUG-15: all devices with counters": (
        pool(drawing("a"), drawing("b"), counters={"s": {"c": 2}}),
        claim(request("r", allocationMode="All")),
        [["r=drv/p/a", "r=drv/p/b"]],
    ),
    "CAP-01: names of capacity are compared as they are written": (
        pool(device("a", capacity={"mem": 8}), device("b", capacity={"drv/mem": 8})),
        claim(request("r", capacity={"requests": {"drv/mem": "1"}})),
        [["r=drv/p/b"]],
    ),
    "FR-07: choices with fractions are compared exactly": (
        pool(shareable("a", "2", default="500m", validValues=["500m", "1500m"])),
        claim(
            request("r", capacity={"requests": {"memory": "600m"}}),
            request("q", capacity={"requests": {"memory": "500m"}}),
        ),
        [["r=drv/p/a", "q=drv/p/a"]],
    ),
}


@pytest.mark.rule(
    "K37-BUG-01", "K37-BUG-02", "K37-BUG-06", "K37-BUG-14", "K37-BUG-15", "K37-CAP-01", "K37-FR-07",
)  # fmt: skip
@pytest.mark.parametrize("case", MENDED)
def test_what_1_37_mended_is_so_under_either_release(case: str) -> None:
    """Where Kubernetes 1.36 was wrong, nothing is repeated here; BUG-14 and BUG-15 are in 1.36.2 as well."""
    slices, asked, expected = MENDED[case]
    for features in (OLD, NEW):
        assert lab(slices, [asked], features=features).devices() == expected


@pytest.mark.rule("K37-ALLOC-02", "K37-BUG-03")
def test_a_device_of_which_a_share_is_in_use_has_paid_its_counters() -> None:
    """Whether or not it consumes capacity: further shares cost none, and all others have what is left."""
    for features in (OLD, NEW):
        usage = Usage(shares=True)
        usage.take_share(DeviceId("drv", "p", "m"), "s1", {})
        slices = pool(multi("m"), drawing("x"), counters=ONE)
        assert lab(slices, [claim(request("r"))], features=features, usage=usage).devices() == [["r=drv/p/m"]]
        other = [claim(request("r", "!device.allowMultipleAllocations"))]
        assert lab(slices, other, features=features, usage=usage).devices() == "none"


@pytest.mark.rule("K37-BUG-08")
def test_a_list_that_was_narrowed_is_wide_again_on_the_way_back() -> None:
    devices = [device(name, v=values) for name, values in (("a", [1, 2]), ("b", [2]), ("c", [1]), ("d", [1]))]
    asked = claim(request("r", count=3), constraints=[{"matchAttribute": "drv/v"}])
    for release in (Release.V1_36, Release.V1_37):
        found = lab(pool(*devices), [asked], features=Features(release, list_attributes=True)).devices()
        assert found == [["r=drv/p/a", "r=drv/p/c", "r=drv/p/d"]]


@pytest.mark.rule("K37-BUG-09")
def test_a_configuration_is_copied_once_however_many_requests_it_is_for() -> None:
    for features in (OLD, NEW):
        assert len(names(features, [request("r1"), request("r2")], ["r1", "r2"])) == 1


def half_of_a_pool(*devices: Json) -> list[Json]:
    """One of two slices."""
    (slice_,) = pool(*devices)
    slice_["spec"]["pool"]["resourceSliceCount"] = 2
    return [slice_]


@pytest.mark.parametrize(("release", "given"), [(release, release < Release.V1_35) for release in Release])
def test_the_devices_of_an_incomplete_pool_are_given_until_1_34(release: Release, given: bool) -> None:
    """To requests for a number; a request for all has to know all. The index over nodes agrees."""
    slices = half_of_a_pool(device("a"), device("b"))
    cluster = lab(slices, [claim(request("r"))], features=Features(release))
    assert cluster.devices() == ([["r=drv/p/a"]] if given else "none")
    candidates = cluster.allocator.candidates(cluster.allocator.compile(cluster.claims), cluster.usage)
    assert ("n1" in candidates) is given
    everything = lab(slices, [claim(request("r", allocationMode="All"))], features=Features(release))
    assert everything.devices() == "nodeError"


@pytest.mark.parametrize("release", [Release.V1_32, Release.V1_34, Release.V1_35])
def test_an_incomplete_pool_with_two_devices_of_one_name_gives_none(release: Release) -> None:
    cluster = lab(half_of_a_pool(device("a"), device("a")), [claim(request("r"))], features=Features(release))
    assert cluster.devices() == ("nodeError" if release < Release.V1_35 else "none")


@pytest.mark.parametrize("patience", [-1, search_module.FAILURES_BEFORE_PRUNING])
@pytest.mark.parametrize("release", Release)
def test_all_of_nothing_is_nothing_in_1_32_and_a_refusal_since(
    release: Release, patience: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the search looks ahead, from the start or when it takes long."""
    monkeypatch.setattr(search_module, "FAILURES_BEFORE_PRUNING", patience)
    everything = request("all", 'device.driver == "other"', allocationMode="All")
    cluster = lab(pool(device("a")), [claim(everything, request("r"))], features=Features(release))
    outcome = cluster.decide()
    if release > Release.V1_32:
        assert cluster.devices() == "none"
        return
    assert isinstance(outcome, Allocated)
    assert cluster.devices() == [["r=drv/p/a"]]
    alone = lab([], [claim(everything)], features=Features(release))
    outcome = alone.decide()
    assert isinstance(outcome, Allocated)
    assert outcome.results[0].devices.results is None
    assert outcome.results[0].node_selector is None
    candidates = alone.allocator.candidates(alone.allocator.compile(alone.claims), alone.usage)
    assert candidates.anywhere
    half = [*half_of_a_pool(device("b")), *pool(device("a"), name="q")]
    mine = request("all", 'device.driver == "drv"', allocationMode="All")
    assert lab(half, [claim(mine)], features=Features(release)).devices() == "nodeError"
