"""Orders of devices: what can be allocated stays the same, every answer keeps the rules, and each does what it says."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from random import Random
from typing import Any
from unittest.mock import patch

import allocator_oracle.search as oracle
import msgspec
import pytest
from allocator_lab import (
    Lab,
    claim,
    device,
    difference,
    first_available,
    held,
    lab,
    make_node,
    outcome_kind,
    pool,
    request,
    sub,
)
from allocator_oracle.pools import Candidate, candidates
from allocator_problems import CrowdedMaker, Maker, ask_oracle, comparable, laboratory, make_case
from corpus import kit
from dra_api.codec import convert, to_dict
from dra_api.core import Node
from dra_api.resource import AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import DEVICE_ORDERS, Allocated, Allocator, DeviceId, Failed, Features
from dra_operator.allocator.ordering import supply
from dra_operator.allocator.ordering.supply import RIVALRY_THOUSANDTHS, Kinds, contested
from kit_cases import expected
from rounds import a_third

Json = dict[str, Any]
ORDERS = [name for name in DEVICE_ORDERS if name != "reference"]
ROOT, NUMA = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"


def by(order: str, of: Lab) -> Lab:
    """The same laboratory with an order; the mix is what the claims ask for."""
    numbers = iter(range(10_000))
    allocator = Allocator(of.allocator.inventory, new_share_id=lambda: f"share-{next(numbers)}", order=order)
    for _ in range(20):
        allocator.learned.learn(allocator.compile(of.claims))
    return dataclasses.replace(of, allocator=allocator)


def keeps_the_rules(case: Json, node: Json, outcome: Allocated) -> bool:
    """The oracle, which may take nothing but the devices of the answer in turn, finds the answer as well."""
    given: dict[tuple[int, str], list[DeviceId]] = {}
    for claim_number, result in enumerate(outcome.results):
        for it in result.results:
            given.setdefault((claim_number, it.request), []).append(DeviceId.of(it))
    devices = oracle.Search._devices

    def of_claim(self: oracle.Search, claim: int, *rest: Any) -> oracle.End:
        self.claim = claim  # type: ignore[attr-defined]
        return devices(self, claim, *rest)

    def offered(self: oracle.Search, wanted: oracle.Wanted, have: int, _: int) -> Iterator[tuple[int, Candidate]]:
        its = given.get((self.claim, wanted.name), [])[have:]  # type: ignore[attr-defined]
        if wanted.collected is not None:
            yield have, wanted.collected[have]
            return
        yield from ((have, candidate) for candidate in candidates(self._pools) if candidate.id in its[:1])

    with patch.object(oracle.Search, "_offered", offered), patch.object(oracle.Search, "_devices", of_claim):
        found = ask_oracle(case, node)
    return found is not None and found.outcome == "allocated" and _sorted(found.results) == _sorted(outcome.results)


def _sorted(results: Any) -> list[Json]:
    """Whatever the order of devices within a claim."""
    made = comparable(results)
    for result in made:
        result.get("devices", {}).get("results", []).sort(key=repr)
        for term in result.get("nodeSelector", {}).get("nodeSelectorTerms", []):
            for requirements in term.values():
                requirements.sort(key=repr)
    return made


def differing(case: Json, order: str) -> Iterator[str]:
    """On which nodes of a case an order changes more than which devices are taken."""
    usual = laboratory(case)
    ordered = by(order, usual)
    for node in case["nodes"]:
        before, after = (it.decide(convert(Node, node)) for it in (usual, ordered))
        if type(before) is not type(after):
            yield f"{node['metadata']['name']}: {outcome_kind(after)} instead of {outcome_kind(before)}"
        elif isinstance(before, Failed) and isinstance(after, Failed) and str(before.error) != str(after.error):
            yield f"{node['metadata']['name']}: {after.error} instead of {before.error}"
        elif isinstance(before, Allocated) and isinstance(after, Allocated):
            if before.chosen != after.chosen:
                yield f"{node['metadata']['name']}: other alternatives"
            elif before.results != after.results and not keeps_the_rules(case, node, after):
                yield f"{node['metadata']['name']}: {comparable(after.results)} breaks a rule"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("maker", [Maker, CrowdedMaker])
def test_random_problems_are_allocated_as_before_and_keep_the_rules(order: str, maker: type[Maker]) -> None:
    wrong = {}
    for number in range(25):
        case = make_case(Random(f"order/{number}"), maker)
        if found := list(differing(case, order)):
            wrong[number] = found
    assert not wrong


@pytest.mark.parametrize("order", DEVICE_ORDERS)
def test_the_kit_agrees_under_every_order(order: str) -> None:
    """In the kind of each answer; with the reference's order in all of it."""
    wrong = {}
    for case in a_third(kit("allocator/generated")[::8]):
        ordered = by(order, laboratory(case))
        for expect in expected(case, "documented") or ():
            node = next(node for node in case["nodes"] if node["metadata"]["name"] == expect["node"])
            outcome = ordered.decide(convert(Node, node))
            if order == "reference" and difference(outcome, expect["outcome"], expect.get("results")):
                wrong[case["name"]] = to_dict(outcome.results) if isinstance(outcome, Allocated) else outcome
            elif outcome_kind(outcome) != expect["outcome"]:
                wrong[case["name"]] = outcome
    assert not wrong


def taken(order: str, of: Lab) -> list[str]:
    """The names of the devices."""
    found = by(order, of).devices()
    assert isinstance(found, list)
    return sorted(text.rpartition("/")[2] for text in found[0])


def gpus(roots: str) -> list[Json]:
    """GPUs g0, g1 and so on; a letter for each says below which root it is. Two roots each are on one NUMA node."""
    devices = []
    for number, root in enumerate(roots):
        attributes: Json = {ROOT: root, NUMA: (ord(root) - ord("a")) // 2}
        devices.append(device(f"g{number}", **attributes))
    return pool(*devices)


@pytest.mark.parametrize(
    ("roots", "count", "expected"),
    [
        pytest.param("aaabb", 2, ["g3", "g4"], id="the smallest root that suffices"),
        pytest.param("aaabb", 3, ["g0", "g1", "g2"], id="the only root that suffices"),
        pytest.param("abcccd", 2, ["g2", "g3"], id="no other root suffices"),
        pytest.param("abbccdd", 4, ["g3", "g4", "g5", "g6"], id="the NUMA node that suffices, if no root does"),
        pytest.param("abbccdd", 3, ["g0", "g1", "g2"], id="the smallest NUMA node that suffices"),
    ],
)
def test_aligned_devices_leave_large_groups_whole(roots: str, count: int, expected: list[str]) -> None:
    assert taken("aligned", lab(gpus(roots), [claim(request("r", count=count))])) == expected


def test_a_claim_goes_on_below_the_root_that_it_has_begun() -> None:
    asked = [claim(request("q", count=2), request("r"))]
    assert taken("aligned", lab(gpus("abbb"), asked)) == ["g1", "g2", "g3"]


def shared(*left: int) -> Lab:
    """Devices that are shared, of whose 1000 thousandths so much is left; a claim asks for 300."""
    some = [
        device(f"g{number}", capacity={"milli": 1000}, extra={"allowMultipleAllocations": True})
        for number in range(len(left))
    ]
    made = lab(pool(*some), [claim(request("r", capacity={"requests": {"milli": "300"}}))])
    for number, it in enumerate(left):
        if it < 1000:
            id_ = DeviceId("drv", "p", f"g{number}")
            made.usage.take_share(id_, f"s{number}", {"milli": (1000 - it) * 10**9})
    return made


@pytest.mark.parametrize(
    ("order", "left", "expected"),
    [
        ("reference", (1000, 700, 400), "g0"),
        ("best-fit", (1000, 700, 400), "g2"),
        ("best-fit", (1000, 200, 700), "g2"),
        ("least-loss", (1000, 700, 650), "g2"),
    ],
)
def test_a_share_is_cut_from_the_device_that_the_order_says(order: str, left: tuple[int, ...], expected: str) -> None:
    assert taken(order, shared(*left)) == [expected]


def test_least_loss_keeps_room_for_what_is_asked_most() -> None:
    """A share of 300 would make the device with 500 left useless to shares of 500; one with 800 left can spare it."""
    made = shared(800, 500)
    assert taken("best-fit", made) == ["g1"]
    ordered = by("least-loss", made)
    halves = lab((), [claim(request("r", capacity={"requests": {"milli": "500"}}), name="half")]).claims
    for _ in range(100):
        ordered.allocator.learned.learn(ordered.allocator.compile(halves))
    assert ordered.devices() == [["r=drv/p/g0"]]


@pytest.mark.skipif(supply.__file__.endswith(".so"), reason="compiled code does not see another limit")
def test_of_amounts_that_are_left_only_some_are_kept_and_answers_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each claim for another amount leaves other amounts; the devices that no request was cut from stay alike."""
    left = (1000, 1000, 1000, 999, 998, 800, 700, 500)

    def answers() -> tuple[list[list[str] | str], list[int]]:
        made, found = by("least-loss", shared(*left)), []
        for milli in range(300, 340):
            asked = lab((), [claim(request("r", capacity={"requests": {"milli": str(milli)}}))]).claims
            found.append(dataclasses.replace(made, claims=asked).devices()[0])
        mix = made.allocator.learned.mix
        kept = [it for it in gc.get_objects() if isinstance(it, Kinds) and it.mix is mix]
        return found, [len(it.counted._entries) for kinds in kept for it in kinds._known.values()]

    (usual, without_limit), limit = answers(), 4
    monkeypatch.setattr(Kinds, "_MOST_LEFT", limit)
    limited, kept = answers()
    assert max(without_limit) > 40
    assert max(kept) == limit
    assert limited == usual


def test_best_fit_takes_the_smallest_device_that_suffices() -> None:
    some = [device(f"g{number}", capacity={"memory": size}) for number, size in enumerate(("80Gi", "24Gi", "40Gi"))]
    assert taken("best-fit", lab(pool(*some), [claim(request("r"))])) == ["g1"]


def test_where_the_node_selectors_of_its_devices_cannot_be_merged_the_order_of_the_reference_counts() -> None:
    either = [
        {"matchExpressions": [{"key": "z", "operator": "DoesNotExist"}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
    ]
    some = pool(device("g0", capacity={"memory": "80Gi"}))
    some += pool(device("g1", capacity={"memory": "24Gi"}), name="q", nodeSelector={"nodeSelectorTerms": either})
    assert by("best-fit", lab(some, [claim(request("r"))])).devices() == [["r=drv/p/g0"]]
    assert by("best-fit", lab(some[1:], [claim(request("r"))])).devices() == "nodeError"


def slices_of_two_gpus(**where: Any) -> list[Json]:
    """Partitions of two GPUs of four slices: of one slice each, of two beside each other, and of all four."""
    ones = [
        device(f"one-{gpu}{at}", kind="one", consumes={f"gpu{gpu}": {f"slice{at}": 1}})
        for gpu in (0, 1)
        for at in range(4)
    ]
    twos = [
        device(f"two-{gpu}{at}", kind="two", consumes={f"gpu{gpu}": {f"slice{at}": 1, f"slice{at + 1}": 1}})
        for gpu in (0, 1)
        for at in (0, 2)
    ]
    counters = {f"gpu{gpu}": {f"slice{at}": 1 for at in range(4)} for gpu in (0, 1)}
    fours = [device(f"four-{gpu}", kind="four", consumes={f"gpu{gpu}": counters[f"gpu{gpu}"]}) for gpu in (0, 1)]
    return pool(*ones, *twos, *fours, counters=counters, **where)


def kind(name: str) -> str:
    return f'device.attributes["drv"].kind == "{name}"'


@pytest.mark.parametrize(
    ("order", "expected"), [("reference", "one-00"), ("best-fit", "one-10"), ("least-loss", "one-10")]
)
def test_a_partition_is_cut_where_others_are(order: str, expected: str) -> None:
    """GPU 1 has lost its slice 1: the slice beside it serves no partition of two."""
    made = lab(slices_of_two_gpus(), [claim(request("r", kind("one")))], usage=held("drv/p/one-11"))
    ordered = by(order, made)
    twos = lab((), [claim(request("r", kind("two")), name="two")]).claims
    for _ in range(40):
        ordered.allocator.learned.learn(ordered.allocator.compile(twos))
    found = ordered.devices()
    assert found == [[f"r=drv/p/{expected}"]]


@pytest.mark.parametrize(
    ("times", "expected"), [({"one": 50, "first": 48, "four": 2}, "one-10"), ({"one": 52, "first": 48}, "one-02")]
)
def test_large_partitions_keep_their_place_although_they_are_seldom_asked_for(
    times: dict[str, int], expected: str
) -> None:
    """To take a slice costs GPU 0 its place for all four slices, the last one, and GPU 1 its first two slices."""
    some = slices_of_two_gpus()
    for number in (0, 1):
        halves = {f"gpu{number}": {"slice0": 1, "slice1": 1}}
        some[0]["spec"]["devices"].append(device(f"first-{number}", kind="first", consumes=halves))
    made = lab(some, [claim(request("r", kind("one")))], usage=held("drv/p/two-12"))
    ordered = dataclasses.replace(
        made, allocator=Allocator(made.allocator.inventory, new_share_id=str, order="least-loss")
    )
    for name, count in times.items():
        asked = lab((), [claim(request("r", kind(name)), name=name)]).claims
        for _ in range(3 * count):
            ordered.allocator.learned.learn(ordered.allocator.compile(asked))
    assert ordered.devices() == [[f"r=drv/p/{expected}"]]


def test_alternatives_come_before_the_order() -> None:
    """The first request takes the device that the reference takes: the choice of alternatives depends on it."""
    some = pool(device("g0", capacity={"memory": "80Gi"}), device("g1", capacity={"memory": "24Gi"}))
    is_large = 'device.capacity["drv"].memory.isGreaterThan(quantity("40Gi"))'
    asked = [claim(request("r"), first_available("s", sub("large", is_large), sub("any")))]
    assert lab(some, asked).devices() == [["r=drv/p/g0", "s/any=drv/p/g1"]]
    assert by("best-fit", lab(some, asked)).devices() == [["r=drv/p/g0", "s/any=drv/p/g1"]]
    assert taken("best-fit", lab(some, [claim(first_available("s", sub("any")))])) == ["g1"]


def test_an_answer_that_breaks_a_rule_is_told_from_one_that_does_not() -> None:
    """The check of this file can fail."""
    for number in range(100):
        case = make_case(Random(f"order/{number}"), Maker)
        for node in case["nodes"]:
            outcome = laboratory(case).decide(convert(Node, node))
            if isinstance(outcome, Allocated) and (result := outcome.results[0]).devices.results:
                wrong = allocation_of(result.devices.results[0], "unknown")
                other = outcome._replace(results=(wrong, *outcome.results[1:]))
                assert keeps_the_rules(case, node, outcome)
                assert not keeps_the_rules(case, node, other)
                return
    pytest.fail("no case is allocated")


def test_a_partition_is_cut_where_a_large_one_is_further_from_being_free() -> None:
    """On GPU 0 one departure frees all four slices, on GPU 1 it takes two; what is free now is the same on both."""
    taken = held("drv/p/two-00", "drv/p/one-10", "drv/p/one-11")
    ordered = by("least-loss", lab(slices_of_two_gpus(), [claim(request("r", kind("one")))], usage=taken))
    fours = lab((), [claim(request("r", kind("four")), name="four")]).claims
    for _ in range(80):
        ordered.allocator.learned.learn(ordered.allocator.compile(fours))
    assert ordered.devices() == [["r=drv/p/one-12"]]


def allocation_of(given: DeviceRequestAllocationResult, device: str) -> AllocationResult:
    """One device instead of another."""
    return AllocationResult(devices=DeviceAllocationResult(results=(msgspec.structs.replace(given, device=device),)))


def test_what_orders_cost_is_charged_as_steps_of_the_search() -> None:
    some = pool(*(device(f"g{number}") for number in range(100)))
    usual, ordered = lab(some, [claim(request("r"))]), by("least-loss", lab(some, [claim(request("r"))]))
    before, after = usual.decide(), ordered.decide()
    assert isinstance(before, Allocated)
    assert isinstance(after, Allocated)
    assert after.steps - before.steps == 100


def test_the_mix_forgets_what_is_asked_no_more_and_leaves_costly_selectors_out() -> None:
    language = CelSelectors(Features())
    old, new = (lab((), [claim(request("r", kind(name)))], language=language) for name in ("old", "new"))
    costly = lab((), [claim(request("r", " && ".join(kind("x") for _ in range(300))))])
    learned, compiler = old.allocator.learned, old.allocator
    for of, pods in ((old, 1000), (new, 3000), (costly, 1000)):
        for _ in range(pods):
            learned.learn(compiler.compile(of.claims))
    shares = {it.alternative.expressions: it.weight for it in learned.mix.classes}
    assert shares.keys() == {(kind("old"),), (kind("new"),)}
    assert shares[(kind("new"),)] > 8 * shares[(kind("old"),)]


def test_nothing_is_kept_of_a_mix_that_was_replaced() -> None:
    """Not even by a node that is not asked about any more."""
    ordered = by("least-loss", lab(slices_of_two_gpus(allNodes=True), [claim(request("r", kind("one")))]))
    for name in ("n1", "n2"):
        assert isinstance(ordered.decide(make_node(name)), Allocated)
    mix = ordered.allocator.learned.mix
    assert sum(isinstance(it, Kinds) and it.mix is mix for it in gc.get_objects()) == 1
    twos = lab((), [claim(request("r", kind("two")), name="two")]).claims
    while ordered.allocator.learned.mix is mix:
        ordered.allocator.learned.learn(ordered.allocator.compile(twos))
    assert isinstance(ordered.decide(make_node("n1")), Allocated)
    gc.collect()
    assert not any(isinstance(it, Kinds) and it.mix is mix for it in gc.get_objects())


@pytest.mark.parametrize(
    ("times", "expected"), [({"two": 50, "first": 50}, "two-00"), ({"two": 99, "first": 1}, "two-12")]
)
def test_a_place_that_a_rival_needs_is_used_up_first(times: dict[str, int], expected: str) -> None:
    """A first lies in the low half alone. On GPU 0 the low half is free for both; on GPU 1 the high one, for a two."""
    some = slices_of_two_gpus()
    for number in (0, 1):
        halves = {f"gpu{number}": {"slice0": 1, "slice1": 1}}
        some[0]["spec"]["devices"].append(device(f"first-{number}", kind="first", consumes=halves))
    made = lab(some, [claim(request("r", kind("two")))], usage=held("drv/p/two-02", "drv/p/first-1"))
    ordered = dataclasses.replace(
        made, allocator=Allocator(made.allocator.inventory, new_share_id=str, order="least-loss")
    )
    claims = {name: lab((), [claim(request("r", kind(name)), name=name)]).claims for name in times}
    ordered.allocator.learned.take([(ordered.allocator.compile(claims[it]), count, 0) for it, count in times.items()])
    assert ordered.devices() == [[f"r=drv/p/{expected}"]]


PROFILES: dict[str, tuple[int, list[range]]] = {
    "1g": (1, [range(at, at + 1) for at in range(7)]),
    "2g": (2, [range(at, at + 2) for at in (0, 2, 4)]),
    "3g": (3, [range(4), range(4, 8)]),
    "4g": (4, [range(4)]),
    "7g": (7, [range(8)]),
}
"""Of an A100: the slices of compute, and the slices of memory of each placement."""


def test_only_classes_that_take_place_one_for_one_are_rivals() -> None:
    """4g of 3g, in the low half. A 1g or 2g shuts a 4g out as well, but keeps clear of it; a 7g takes both halves."""
    devices = [(name, size, its) for name, (size, places) in PROFILES.items() for its in places]
    classes = [[at for at, it in enumerate(devices) if it[0] == name] for name in PROFILES]

    def fitting(taken: int | None) -> list[list[int]]:
        whole = []
        for its in classes:
            used, left, found = set(devices[taken][2]) if taken is not None else set[int](), 7, []
            left -= devices[taken][1] if taken is not None else 0
            for at in its:
                if devices[at][1] <= left and used.isdisjoint(devices[at][2]):
                    found.append(at)
                    used |= set(devices[at][2])
                    left -= devices[at][1]
            whole.append(found)
        return whole

    after = {at: fitting(at) for at in range(len(devices))}
    low = next(at for at, it in enumerate(devices) if it[0] == "3g")
    less = contested(fitting(None), after, [10, 10, 40, 50, 0])
    assert less == [{}, {}, {low: RIVALRY_THOUSANDTHS * 40 * 50 // 110**2}, {}, {}]
