"""Which nodes are worth trying: never too few, errors first, kept up to date."""

from __future__ import annotations

from typing import Any

from allocator_lab import Lab, claim, device, device_class, first_available, lab, make_node, pool, request, sub
from dra_api.codec import convert
from dra_api.resource import DeviceClass, ResourceSlice
from dra_operator.allocator import Allocated, DeviceId, Failed, Usage
from hypothesis import given, settings
from hypothesis import strategies as st

A, B = 'device.attributes["drv"].model == "A"', 'device.attributes["drv"].model == "B"'


def node_pool(node: str, *models: str, **spec: Any) -> list[Any]:
    devices = (device(f"d{i}", model=model) if model else device(f"d{i}") for i, model in enumerate(models))
    return pool(*devices, name=node, **(spec or {"nodeName": node}))


THREE = [*node_pool("n1", "A", "B"), *node_pool("n2", "A", "A"), *node_pool("n3", "B")]


def names(made: Lab) -> list[str]:
    return sorted(made.allocator.candidates(made.claims, made.usage))


def test_nodes_with_enough_matching_devices() -> None:
    assert names(lab(THREE, [claim(request("r", A))])) == ["n1", "n2"]
    assert names(lab(THREE, [claim(request("r", A, count=2))])) == ["n2"]
    assert names(lab(THREE, [claim(request("r", A, count=3))])) == []


def test_every_request_must_fit() -> None:
    assert names(lab(THREE, [claim(request("r", A), request("q", B))])) == ["n1"]
    assert names(lab(THREE, [claim(request("r", A), name="c1"), claim(request("q", B), name="c2")])) == ["n1"]


def test_requests_with_the_same_selectors_need_different_devices() -> None:
    assert names(lab(THREE, [claim(request("r", A), request("q", A))])) == ["n2"]
    assert names(lab(THREE, [claim(request("r", A), name="c1"), claim(request("q", A), name="c2")])) == ["n2"]
    shared = pool(device("d", model="A", extra={"allowMultipleAllocations": True}), name="n4", nodeName="n4")
    assert "n4" in names(lab([*THREE, *shared], [claim(request("r", A), request("q", A))]))


def test_one_alternative_suffices() -> None:
    assert names(lab(THREE, [claim(first_available("r", sub("x", A, count=2), sub("y", B)))])) == ["n1", "n2", "n3"]


def test_devices_in_use_do_not_count_until_they_are_free_again() -> None:
    made = lab(THREE, [claim(request("r", A))])
    assert names(made) == ["n1", "n2"]
    made.usage.take_device(DeviceId("drv", "n1", "d0"))
    assert names(made) == ["n2"]
    outcome = made.decide(make_node("n2"))
    assert isinstance(outcome, Allocated)
    made.usage.add(outcome.results[0])
    assert names(made) == ["n2"]  # one of two is left
    made.usage.take_device(DeviceId("drv", "n2", "d1"))
    assert names(made) == []
    made.usage.remove(outcome.results[0])
    assert names(made) == ["n2"]


def test_snapshots_old_and_new_are_counted_as_they_are() -> None:
    made = lab(THREE, [claim(request("r", A))])

    def offered(usage: Usage) -> list[str]:
        return sorted(made.allocator.candidates(made.claims, usage))

    before = made.usage.snapshot()
    made.usage.take_device(DeviceId("drv", "n1", "d0"))
    after = made.usage.snapshot()
    fork = before.snapshot()
    fork.take_device(DeviceId("drv", "n2", "d0"))
    fork.take_device(DeviceId("drv", "n2", "d1"))
    for _ in range(2):
        assert offered(before) == ["n1", "n2"]
        assert offered(after) == ["n2"]
        assert offered(made.usage) == ["n2"]
        assert offered(fork) == ["n1"]


def test_admin_access_and_all_look_at_devices_in_use() -> None:
    for fields in ({"adminAccess": True}, {"allocationMode": "All"}):
        made = lab(THREE, [claim(request("r", A, **fields))])
        made.usage.take_device(DeviceId("drv", "n1", "d0"))
        assert names(made) == ["n1", "n2"]


def test_slices_and_classes_that_change() -> None:
    made = lab(THREE, [claim(request("r"))], classes=[device_class("any", A)])
    inventory = made.allocator.inventory
    assert names(made) == ["n1", "n2"]
    (changed,) = node_pool("n3", "A")
    inventory.put_slice(convert(ResourceSlice, changed))
    assert names(made) == ["n1", "n2", "n3"]
    inventory.remove_slice("drv-n1-1")
    assert names(made) == ["n2", "n3"]
    inventory.put_class(convert(DeviceClass, device_class("any", B)))
    assert names(made) == []


def test_network_devices_count_for_every_node() -> None:
    network = node_pool("net", "A", allNodes=True)
    made = lab([*THREE, *network], [claim(request("r", A))])
    assert made.allocator.candidates(made.claims, made.usage).anywhere
    assert names(lab([*THREE, *network], [claim(request("r", A, count=2))])) == ["n1", "n2"]


def test_a_node_whose_selector_raises_comes_first() -> None:
    """E2E-055: the attempt ends with the error although another node would do."""
    made = lab([*THREE, *node_pool("n4", "")], [claim(request("r", A))])
    candidates = list(made.allocator.candidates(made.claims, made.usage))
    assert candidates[0] == "n4"
    assert sorted(candidates) == ["n1", "n2", "n4"]
    assert isinstance(made.decide(make_node("n4")), Failed)


def test_an_unusable_pool_makes_its_node_suspicious_for_all() -> None:
    broken = pool(device("a"), device("a"), name="n4", nodeName="n4")
    assert names(lab([*THREE, *broken], [claim(request("r"))])) == ["n1", "n2", "n3"]
    everything = lab([*THREE, *broken], [claim(request("r", allocationMode="All"))])
    assert next(iter(everything.allocator.candidates(everything.claims, everything.usage))) == "n4"


def test_faulty_claims_are_not_hidden() -> None:
    made = lab(THREE, [claim(request("r", deviceClassName="nope"))])
    assert made.allocator.candidates(made.claims, made.usage).anywhere
    assert isinstance(made.decide(), Failed)


def test_counting_can_be_interrupted_and_goes_on() -> None:
    slices = [slice_ for number in range(100) for slice_ in node_pool(f"n{number:03}", "A" if number % 2 else "B")]
    made = lab(slices, [claim(request("r", A))])
    allocator = made.allocator
    pieces = allocator.catch_up(made.claims, made.usage)
    next(pieces)
    del pieces
    made.usage.take_device(DeviceId("drv", "n001", "d0"))
    assert sum(1 for _ in allocator.catch_up(made.claims, made.usage)) > 2
    assert list(allocator.catch_up(made.claims, made.usage)) == []
    assert names(made) == [f"n{number:03}" for number in range(3, 100, 2)]


def test_excluded_nodes_have_a_reason() -> None:
    made = lab(THREE, [claim(request("r", A, count=3))])
    candidates = made.allocator.candidates(made.claims, made.usage)
    assert candidates.refusal is not None
    assert "needs 3" in candidates.refusal.line()
    assert "n1" not in candidates


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from(["A", "B", ""]), max_size=3), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from([A, B, "true"]), st.integers(0, 2)), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=4),
)
def test_no_node_that_fits_or_fails_is_left_out(models: Any, wanted: Any, used: Any) -> None:
    slices = [slice_ for number, members in enumerate(models) for slice_ in node_pool(f"n{number}", *members)]
    requests = [request(f"r{i}", selector, count=count) for i, (selector, count) in enumerate(wanted)]
    made = lab(slices, [claim(*requests)])
    made.allocator.candidates(made.claims, made.usage)
    for node, number in used:
        made.usage.take_device(DeviceId("drv", f"n{node}", f"d{number}"))
    candidates = made.allocator.candidates(made.claims, made.usage)
    offered = set(candidates)
    for number in range(len(models)):
        outcome = made.decide(make_node(f"n{number}"))
        if isinstance(outcome, Allocated | Failed) and not candidates.anywhere:
            assert f"n{number}" in offered
            assert f"n{number}" in candidates
