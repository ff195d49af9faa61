"""A gang gets a joint plan exactly if exhaustive search finds one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_operator.allocator import Allocator, DeviceId, Usage
from dra_operator.scheduling import CycleState, Nodes, NoPlace, Plan
from dra_operator.scheduling.gang import SameValues
from dra_operator.scheduling.state import LoadedNode, pod_requests
from gang_lab import decided_together
from msgspec import structs
from placement_lab import allocator, case, claim, node, pod, wants

RACK = "example.com/rack"


def member(name: str, *wanted: dict[str, Any], cpu: str = "1", **spec: Any) -> tuple[Pod, list[ResourceClaim]]:
    made = pod(cpu, **spec)
    meta = structs.replace(made.metadata, name=name, uid=f"uid-{name}", labels=spec.pop("labels", None))
    return structs.replace(made, metadata=meta), [claim(f"{name}-{number}", it) for number, it in enumerate(wanted)]


def states(
    members: Sequence[tuple[Pod, list[ResourceClaim]]], nodes: Nodes, devices: Allocator, usage: Usage | None = None
) -> list[CycleState]:
    return [case(it, claims, nodes, devices, usage=usage or Usage()) for it, claims in members]


def decided(made: Sequence[CycleState], topology: str = "", value: str | None = None) -> tuple[Plan, ...] | NoPlace:
    return decided_together(made, SameValues(topology, label=value))


def check(made: Sequence[CycleState], plans: Sequence[Plan], nodes: Sequence[LoadedNode]) -> None:
    """Each claim has devices, none is given twice, and no node has more pods or cpu than it can."""
    taken = [DeviceId.of(result) for it in plans for got in it.allocations.values() for result in got.results]
    assert len(taken) == len(set(taken))
    for state, it in zip(made, plans, strict=True):
        assert it.allocations.keys() == {claim.metadata.uid for claim in state.resource_claims}
        assert all(DeviceId.of(result).pool == it.node for got in it.allocations.values() for result in got.results)
    for loaded in nodes:
        cpu = sum(_cpu(made[number].pod) for number, it in enumerate(plans) if it.node == loaded.name)
        assert cpu <= 4


def _cpu(it: Pod) -> int:
    return pod_requests(it)["cpu"] // 10**9


def test_all_members_get_a_place_and_devices_of_their_own() -> None:
    nodes = [node("a"), node("b")]
    made = states([member(f"m{n}", wants()) for n in range(4)], Nodes(nodes), allocator(a="xx", b="xx"))
    plans = decided(made)
    assert isinstance(plans, tuple)
    check(made, plans, nodes)


def test_a_member_takes_other_devices_where_a_later_one_needs_its_first_choice() -> None:
    nodes = [node("a")]
    made = states([member("any", wants()), member("picky", wants(selector="x"))], Nodes(nodes), allocator(a="xy"))
    plans = decided(made)
    assert isinstance(plans, tuple)
    check(made, plans, nodes)
    [got] = plans[1].allocations.values()
    assert [result.device for result in got.results] == ["dev-0"]


def test_members_of_one_claim_get_the_same_devices() -> None:
    nodes = Nodes([node("a"), node("b")])
    [(one, claims), (two, _)] = [member("one", wants()), member("two")]
    plans = decided(states([(one, claims), (two, claims)], nodes, allocator(a="x", b="x")))
    assert isinstance(plans, tuple)
    assert plans[0].node == plans[1].node
    assert len([got for it in plans for got in it.allocations]) == 1


def test_a_refusal_says_how_many_fit_and_that_a_gang_is_too_large_for_the_cluster() -> None:
    nodes = Nodes([node("a"), node("b")])
    refused = decided(states([member(f"m{n}", wants()) for n in range(4)], nodes, allocator(a="xx", b="x")))
    assert isinstance(refused, NoPlace)
    assert refused.message.startswith("only 3 of 4 pods fit together; pod m3 fits on no other node: 0/2 nodes are ")
    assert refused.message.endswith("; the pods would not fit even if all nodes and devices were free")


def test_a_gang_that_only_waits_for_others_is_not_called_too_large() -> None:
    nodes = Nodes([node("a", used={"cpu": "3"})])
    refused = decided(states([member(f"m{n}") for n in range(2)], nodes, allocator()))
    assert isinstance(refused, NoPlace)
    assert "even if" not in refused.message
    assert refused.short_of_room


def test_a_topology_keeps_the_gang_in_the_fullest_domain_that_takes_it() -> None:
    racks = {"a": "1", "b": "2", "c": "2", "d": "3", "e": "3"}
    used = {"b": {"cpu": "2"}, "c": {"cpu": "2"}}
    nodes = Nodes([node(name, labels={RACK: rack}, used=used.get(name)) for name, rack in racks.items()])
    made = states([member(f"m{n}", cpu="2") for n in range(2)], nodes, allocator())
    plans = decided(made, RACK)
    assert isinstance(plans, tuple)
    assert {it.node for it in plans} == {"a"}
    three = decided(states([member(f"m{n}", cpu="2") for n in range(3)], nodes, allocator()), RACK)
    assert isinstance(three, tuple)
    assert {it.node for it in three} == {"d", "e"}
    held = decided(made, RACK, "2")
    assert isinstance(held, tuple)
    assert {it.node for it in held} == {"b", "c"}


def test_rules_between_members_count_and_leave_no_trace() -> None:
    labels = {"app": "g"}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    nodes = Nodes([node(name, labels={"kubernetes.io/hostname": name}) for name in "abc"])
    made = states([member(f"m{n}", affinity=apart, labels=labels) for n in range(3)], nodes, allocator())
    plans = decided(made)
    assert isinstance(plans, tuple)
    assert {it.node for it in plans} == {"a", "b", "c"}
    assert not list(nodes.pods_by_node)
    four = states([member(f"m{n}", affinity=apart, labels=labels) for n in range(4)], nodes, allocator())
    assert isinstance(decided(four), NoPlace)
    assert not list(nodes.pods_by_node)


@pytest.mark.parametrize("part", range(4))
def test_a_plan_is_found_exactly_where_exhaustive_search_finds_one(part: int) -> None:
    answers = [_agrees(seed) for seed in range(part * 100, part * 100 + 100)]
    assert 20 < sum(answers) < 80, "the cases should be of both kinds"


def _agrees(seed: int) -> bool:
    dice = random.Random(seed)
    kinds = {name: [dice.choice("xxy") for _ in range(dice.randint(0, 4))] for name in "abc"[: dice.randint(1, 3)]}
    nodes = [node(name) for name in kinds]
    asked = [_wish(dice) for _ in range(dice.randint(2, 6))]
    members = [
        member(f"m{n}", *([wants(count=count, selector=selector)] if count else []), cpu=cpu)
        for n, (count, selector, cpu) in enumerate(asked)
    ]
    made = states(members, Nodes(nodes), allocator(**kinds))
    found = decided(made)
    if isinstance(found, tuple):
        check(made, found, nodes)
    else:
        assert not found.is_error, found.message
    exists = any(_fits(asked, where, kinds) for where in product(kinds, repeat=len(asked)))
    assert isinstance(found, tuple) == exists, (seed, asked, kinds)
    return exists


def _wish(dice: random.Random) -> tuple[int, str | None, str]:
    return dice.choice((0, 1, 1, 2)), dice.choice((None, None, "x", "y")), dice.choice(("1", "1", "2", "3"))


def _fits(asked: Sequence[tuple[int, str | None, str]], where: Sequence[str], kinds: dict[str, list[str]]) -> bool:
    """By counting: those that want a kind take it, and the others have to make do with what is left."""
    for name, there in kinds.items():
        here = [it for it, place in zip(asked, where, strict=True) if place == name]
        wanted = {kind: sum(count for count, selector, _ in here if selector == kind) for kind in "xy"}
        if sum(int(cpu) for *_, cpu in here) > 4 or sum(count for count, *_ in here) > len(there):
            return False
        if any(number > there.count(kind) for kind, number in wanted.items()):
            return False
    return True
