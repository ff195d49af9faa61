"""The devices of a gang have the same value of an attribute, as ``matchAttribute`` means it for one claim."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import AllocationResult, ResourceClaim, ResourceSlice
from dra_operator.allocator import Allocator, DeviceId, Features, Usage
from dra_operator.scheduling import InPieces, Nodes, NoPlace, Plan
from dra_operator.scheduling.gang import SameValues, members
from dra_operator.scheduling.gang.members import GROUPS_BETWEEN_PAUSES, domains_of
from dra_operator.scheduling.state import GANG_MATCH_ATTRIBUTE, Gang, Obstacle, gang_of
from msgspec import structs
from placement_lab import case, claim, decided_together, node, pod, publishing, wants

DOMAIN = "nvlink.example.com/domain"
RACK = "example.com/rack"
CASES = int(os.environ.get("GANG_VALUE_CASES", "60"))
LISTS = Features(list_attributes=True)
Published = dict[str, dict[str, Any]]
MARKED: Published = {"x": {"bool": True}}


def having(value: Any, *more: str) -> Published:
    """A device with this value of the attribute, and others that selectors ask for."""
    kinds: dict[type, tuple[str, str]] = {bool: ("bool", "bools"), int: ("int", "ints"), str: ("string", "strings")}
    one, several = kinds[type(value[0] if isinstance(value, list) else value)]
    return {DOMAIN: {several if isinstance(value, list) else one: value}, **{it: {"bool": True} for it in more}}


def member(name: str, *wanted: dict[str, Any], **more: Any) -> tuple[Pod, list[ResourceClaim]]:
    made = pod("1")
    meta = structs.replace(made.metadata, name=name, uid=f"uid-{name}")
    return structs.replace(made, metadata=meta), [claim(f"{name}-{n}", it, **more) for n, it in enumerate(wanted)]


def plan(
    devices: Allocator,
    members: Sequence[tuple[Pod, list[ResourceClaim]]],
    nodes: Nodes | None = None,
    usage: Usage | None = None,
    **same: Any,
) -> tuple[Plan, ...] | NoPlace:
    nodes = nodes or Nodes([node(id_.pool) for id_ in sorted(devices.inventory.pools())])
    made = [case(it, claims, nodes, devices, usage=usage or Usage()) for it, claims in members]
    return decided_together(made, SameValues(attribute=DOMAIN, **same))


def devices_of(plans: tuple[Plan, ...] | NoPlace) -> list[DeviceId]:
    assert isinstance(plans, tuple), plans
    return sorted(DeviceId.of(it) for each in plans for got in each.allocations.values() for it in got.results)


def pools(plans: tuple[Plan, ...] | NoPlace) -> list[str]:
    return [it.pool for it in devices_of(plans)]


def refusal(answer: tuple[Plan, ...] | NoPlace) -> str:
    assert isinstance(answer, NoPlace)
    return answer.message


def allocated(*devices: str) -> AllocationResult:
    results = [
        {"request": "r", "driver": "gpu.example.com", "pool": pool, "device": device}
        for pool, device in (it.split("/") for it in devices)
    ]
    return convert(AllocationResult, {"devices": {"results": results}})


def several(number: int, *wanted: dict[str, Any]) -> list[tuple[Pod, list[ResourceClaim]]]:
    return [member(f"m{n}", *wanted or (wants(),)) for n in range(number)]


@pytest.mark.parametrize(("one", "other"), [("d1", "d2"), (1, 2), (True, False), ("1", 1), (True, 1)])
def test_all_devices_have_one_value_across_nodes(one: Any, other: Any) -> None:
    devices = publishing({"a": [having(one), having(other)], "b": [having(other), having(one)]})
    got = devices_of(plan(devices, several(2)))
    assert [(it.pool, it.device) for it in got] in ([("a", "dev-0"), ("b", "dev-1")], [("a", "dev-1"), ("b", "dev-0")])


def test_a_value_of_devices_that_all_nodes_can_use_is_possible_in_every_rack() -> None:
    """A pool that publishes nothing just now does not matter."""
    devices = publishing({"a": [having("small")], "b": [having("small")]})
    shown = [{"name": f"n{number}", "attributes": having("net")} for number in range(2)]
    for name, count in (("net", 1), ("half", 2)):
        about = {"name": name, "generation": 1, "resourceSliceCount": count}
        spec = {"driver": "gpu.example.com", "allNodes": True, "pool": about, "devices": shown}
        devices.inventory.put_slice(convert(ResourceSlice, {"metadata": {"name": name}, "spec": spec}))
    nodes = Nodes([node(name, labels={RACK: name}) for name in "ab"])
    plans = plan(devices, several(2), nodes, topology=RACK)
    assert pools(plans) == ["net", "net"]


def test_versions_compare_as_strings() -> None:
    of = [{DOMAIN: {"version": version}} for version in ("1.0.0", "1.0.1", "1.0.0")]
    assert {it.device for it in devices_of(plan(publishing({"a": of}), several(2)))} == {"dev-0", "dev-2"}


def test_the_value_with_the_fewest_free_devices_that_suffices_is_taken() -> None:
    devices = publishing({"a": [having("large")] * 3, "b": [having("small")] * 2, "c": [having("tiny")]})
    assert pools(plan(devices, several(2))) == ["b", "b"]
    assert pools(plan(devices, several(3))) == ["a", "a", "a"]
    usage = Usage([allocated("a/dev-0", "a/dev-1")])
    assert pools(plan(devices, several(1), usage=usage)) == ["a"]


def test_a_label_and_an_attribute_with_a_value_for_each_node_are_divided_in_pieces() -> None:
    """Nearly all pairs are empty: with 5,000 nodes and 40,000 values there are 200 million of them."""
    names = [f"n{number}" for number in range(300)]
    devices = publishing({name: [having(name)] for name in names})
    made = Nodes([node(name, labels={RACK: name}) for name in names])
    members = [case(it, claims, made, devices, usage=Usage()) for it, claims in several(2)]

    def divided(topology: str = "") -> tuple[int, int]:
        """How many domains there are, and the pauses until then."""
        dividing = InPieces(domains_of(members, SameValues(topology, DOMAIN)))
        pauses = len(list(dividing))
        assert not isinstance(dividing.answer, NoPlace)
        return len(dividing.answer), pauses

    count, pauses = divided(RACK)
    assert count == 300
    assert pauses - divided()[1] == 300 // GROUPS_BETWEEN_PAUSES


def test_too_many_pairs_of_label_and_attribute_end_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MOST_DOMAIN_PAIRS", 3)
    devices = publishing({name: [having(name)] for name in "abcd"})
    made = Nodes([node(name, labels={RACK: name}) for name in "abcd"])
    said = refusal(plan(devices, several(2), made, topology=RACK))
    assert said == (
        "gave up: example.com/rack and nvlink.example.com/domain have more than 3 values together; ask for one of them"
    )


def test_lists_need_a_value_in_common() -> None:
    of = {"a": [having(["x", "y"])], "b": [having(["y", "z"])], "c": [having(["z", "x"])]}
    assert len(set(pools(plan(publishing(of, LISTS), several(2))))) == 2
    assert isinstance(plan(publishing(of, LISTS), several(3)), NoPlace)
    of["c"] = [having("y")]
    assert pools(plan(publishing(of, LISTS), several(3))) == ["a", "b", "c"]


def test_a_list_is_no_value_where_lists_are_off() -> None:
    devices = publishing({"a": [having(["x"])] * 2}, Features(list_attributes=False))
    assert refusal(plan(devices, several(2))) == f"no published device has the attribute {DOMAIN}"


def test_a_device_without_the_attribute_is_not_taken() -> None:
    assert pools(plan(publishing({"a": [MARKED], "b": [having("d1")]}), several(1))) == ["b"]


def test_a_request_for_all_devices_takes_all_of_a_node_or_none() -> None:
    everything = {"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}
    devices = publishing({"a": [having("d1"), having("d2")], "b": [having("d2")]})
    assert pools(plan(devices, [member("m", everything)])) == ["b"]
    assert isinstance(plan(devices, [member("m", everything), member("n", wants(count=2))]), NoPlace)


def test_devices_of_one_node_are_chosen_anew_among_those_with_the_value() -> None:
    devices = publishing({"a": [having("d1", "x"), having("d1"), having("d2"), having("d3", "x")]})
    got = devices_of(plan(devices, [member("any", wants()), member("picky", wants(selector="x"))]))
    assert {it.device for it in got} == {"dev-0", "dev-1"}


def test_a_pod_without_devices_may_be_where_no_device_has_the_value() -> None:
    nodes = Nodes([node("a", allocatable={"cpu": "1", "pods": "10"}), node("z")])
    plans = plan(publishing({"a": [having("d1")]}), [member("worker", wants()), member("launcher")], nodes)
    assert isinstance(plans, tuple)
    assert [it.node for it in plans] == ["a", "z"]


def test_with_a_topology_both_have_one_value() -> None:
    devices = publishing({"a": [having("d1")], "b": [having("d2")], "c": [having("d2")], "d": [having("d2")]})
    racks = {"a": "1", "b": "1", "c": "2", "d": "2"}
    nodes = Nodes([node(name, labels={RACK: rack}) for name, rack in racks.items()])
    assert pools(plan(devices, several(2), nodes, topology=RACK)) == ["c", "d"]
    found = refusal(plan(devices, several(3), nodes, topology=RACK))
    where = f"on nodes with the same value of {RACK} and devices with the same value of {DOMAIN}, closest with d2;"
    assert f"only 2 of 3 pods fit together {where}" in found


def test_pods_that_run_and_claims_with_devices_fix_the_value() -> None:
    devices = publishing({"a": [having("d1")], "b": [having("d2")] * 3})
    assert pools(plan(devices, several(1))) == ["a"]
    usage = Usage([allocated("b/dev-0")])
    assert pools(plan(devices, several(1), usage=usage, running=(allocated("b/dev-0"),))) == ["b"]
    held = member("held", wants(), status={"allocation": {"devices": {"results": [RESULT]}}})
    plans = plan(devices, [held, *several(1)], usage=usage)
    assert pools(plans) == ["b"]
    gone = (allocated("b/dev-7"),)
    assert pools(plan(devices, several(1), running=gone)) == ["a"], "a device that is gone says nothing"


RESULT = {"request": "r", "driver": "gpu.example.com", "pool": "b", "device": "dev-0"}


def test_pods_that_run_with_several_values_leave_no_plan() -> None:
    devices = publishing({"a": [having("d1")], "b": [having("d2"), MARKED]})
    assert refusal(plan(devices, several(1), running=(allocated("a/dev-0", "b/dev-0"),))) == (
        f"its pods have devices without a common value of {DOMAIN}, such as gpu.example.com/b/dev-0, which has another "
        "one than others of the gang"
    )
    assert refusal(plan(devices, several(1), running=(allocated("b/dev-1"),))).endswith("b/dev-1, which has none")


def test_a_refusal_names_the_value_that_came_closest_and_what_is_missing() -> None:
    devices = publishing({"a": [having("d1")] * 2, "b": [having("d2")] * 3})
    assert refusal(plan(devices, several(4))) == (
        f"only 3 of 4 pods fit together on devices with the same value of {DOMAIN}, closest with d2; pod m3 fits on no "
        'other node: 0/1 nodes are available: 1 cannot satisfy claim ns/m3-0 request "r" (needs 1 device; '
        "3 of 3 match, all in use); the pods would not fit even if all nodes and devices were free"
    )
    two = publishing({"a": [having("d1"), having("d2")]})
    assert f"(needs 2 devices with {DOMAIN} d1; 2 of 2 match, 1 without the value of the gang)" in refusal(
        plan(two, several(1, wants(count=2)))
    )
    assert refusal(plan(publishing({"a": [MARKED]}), several(2))) == f"no published device has the attribute {DOMAIN}"


@pytest.mark.parametrize("name", ["domain", "", "nvlink.example.com/", "a/b/c d", "nvlink.example.com/8way"])
def test_a_malformed_attribute_is_an_obstacle_of_the_pod(name: str) -> None:
    found = gang_of(_annotated({GANG_MATCH_ATTRIBUTE: name}))
    assert isinstance(found, Obstacle)
    assert found.text == (
        f'{GANG_MATCH_ATTRIBUTE}: "{name}" is not a device attribute; name it with its domain, as matchAttribute does'
    )


def test_pods_that_name_different_attributes_are_of_different_gangs() -> None:
    plain, matched = (gang_of(_annotated(it)) for it in ({}, {GANG_MATCH_ATTRIBUTE: DOMAIN}))
    assert isinstance(plain, Gang)
    assert isinstance(matched, Gang)
    assert (plain.attribute, matched.attribute) == ("", DOMAIN)
    assert plain.key != matched.key


def _annotated(annotations: dict[str, str]) -> Pod:
    made = pod()
    wish = {"dra.kopf.dev/gang": "g", "dra.kopf.dev/gang-size": "2", **annotations}
    return structs.replace(made, metadata=structs.replace(made.metadata, annotations=wish))


def test_a_plan_is_found_exactly_where_exhaustive_search_finds_one() -> None:
    answers = [_agrees(seed) for seed in range(CASES)]
    assert CASES / 5 < sum(answers) < CASES * 4 / 5, "the cases should be of both kinds"


def _agrees(seed: int) -> bool:
    dice = random.Random(seed)
    published = {name: [_device(dice) for _ in range(dice.randint(1, 4))] for name in "abc"[: dice.randint(1, 3)]}
    asked = [(dice.choice((1, 1, 2)), dice.choice((None, None, "x"))) for _ in range(dice.randint(2, 4))]
    members = [member(f"m{n}", wants(count=count, selector=kind)) for n, (count, kind) in enumerate(asked)]
    found = plan(publishing(published, LISTS), members)
    if isinstance(found, tuple):
        taken = devices_of(found)
        assert len(taken) == len(set(taken)) == sum(count for count, _ in asked)
        assert frozenset.intersection(*(_values(published[it.pool][int(it.device[4:])]) for it in taken))
    else:
        assert not found.is_error, found.message
    values = frozenset.union(*(_values(it) for own in published.values() for it in own))
    exists = any(any(_ways(asked, _with(published, value))) for value in values)
    assert isinstance(found, tuple) == exists, (seed, asked, published)
    return exists


def _device(dice: random.Random) -> Published:
    value = dice.choice(("p", "p", "q", "q", 1, ["p", "q"], None))
    more = dice.choice(((), ("x",)))
    return having(value, *more) if value is not None else {it: {"bool": True} for it in more}


def _values(published: Published) -> frozenset[object]:
    [(kind, value)] = published.get(DOMAIN, {"strings": []}).items()
    return frozenset(value) if kind.endswith("s") else frozenset([value])


def _with(published: dict[str, list[Published]], value: object) -> dict[str, list[Published]]:
    return {name: [it for it in own if value in _values(it)] for name, own in published.items()}


def _ways(asked: Sequence[tuple[int, str | None]], free: dict[str, list[Published]]) -> Iterator[bool]:
    """By trying all devices of all nodes for one member after the other."""
    if not asked:
        yield True
        return
    (count, kind), *others = asked
    for name, own in free.items():
        numbers = [number for number, it in enumerate(own) if kind is None or kind in it]
        for taken in combinations(numbers, count):
            left = [it for number, it in enumerate(own) if number not in taken]
            yield from _ways(others, {**free, name: left})
