"""Placement strategies: which of the nodes that fit is best, that a pod fits as before, and what it costs to know."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, cast

import pytest
from dra_api.codec import convert
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_operator.allocator import WEIGHT_OF_ALL, Allocator, DeviceId, Inventory, Mix, Totals, Usage
from dra_operator.allocator.ordering.mix import MixClass
from dra_operator.scheduling import PLACEMENT_STRATEGIES, Nodes, NoPlace, Pause, Placement, Plan, decided, plan
from dra_operator.scheduling.cycle import select_host
from dra_operator.scheduling.cycle.select_host import enough
from dra_operator.scheduling.strategies import ANNOTATION, BY_NAME, Candidate
from placement_lab import Attributes, allocator, case, claim, node, pod, prefers, wants

Json = dict[str, Any]
MIX_USERS = [name for name, it in BY_NAME.items() if it.uses_mix]


class Counting:
    """An allocator that counts how often each node is scored. It derives from nothing: allocators may be compiled."""

    def __init__(self, inventory: Inventory) -> None:
        self._allocator = Allocator(inventory, new_share_id=lambda: "share")
        self.scored_nodes = Counter[str]()

    def sketch(self, node: Any, *rest: Any) -> Any:
        self.scored_nodes[node.metadata.name] += 1
        return self._allocator.sketch(node, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._allocator, name)


def counting(inventory: Inventory) -> Allocator:
    return cast("Allocator", Counting(inventory))


def scored(allocator: Allocator) -> Counter[str]:
    """How often each node was."""
    return cast("Counting", allocator).scored_nodes


def cluster(left: Mapping[str, Sequence[int]], strategy: str = "") -> tuple[Allocator, Usage]:
    """Nodes with shared devices, of whose 1000 thousandths so much is left; ``strategy`` is what their class says."""
    inventory, usage = Inventory(language=Attributes()), Usage()
    metadata = {"name": "gpu", "annotations": {ANNOTATION: strategy}}
    inventory.put_class(convert(DeviceClass, {"metadata": metadata}))
    allocator = counting(inventory)
    for name, devices in left.items():
        offered = [
            {
                "name": f"dev-{number}",
                "allowMultipleAllocations": True,
                "attributes": {"any": {"bool": True}},
                "capacity": {"milli": {"value": "1000"}},
            }
            for number in range(len(devices))
        ]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.example.com", "nodeName": name, "pool": pool, "devices": offered}
        inventory.put_slice(convert(ResourceSlice, {"metadata": {"name": name}, "spec": spec}))
    for name, devices in left.items():
        for number, it in enumerate(devices):
            if it < 1000:
                take(allocator, usage, name, f"dev-{number}", 1000 - it)
    return allocator, usage


def take(allocator: Allocator, usage: Usage, name: str, device: str, milli: int) -> None:
    """A share of a device."""
    usage.take_share(DeviceId("gpu.example.com", name, device), f"{name}-{device}", {"milli": milli * 10**9})


def share(milli: int, count: int = 1, name: str = "c") -> ResourceClaim:
    request = wants(count=count)
    request["exactly"]["capacity"] = {"requests": {"milli": str(milli)}}
    return claim(name, request)


def placed(
    strategy: str,
    left: Mapping[str, Sequence[int]],
    wanted: ResourceClaim,
    mix: Sequence[ResourceClaim] = (),
    named: str = "",
) -> str:
    """``node: devices``."""
    allocator, usage = cluster(left, named)
    for _ in range(20 // max(1, len(mix))):
        for one in mix:
            allocator.learned.learn(allocator.compile([one]))
    nodes = Nodes([node(name) for name in left])
    found = decided(plan(case(pod(), [wanted], nodes, allocator, usage=usage), placement=Placement(strategy)))
    assert isinstance(found, Plan)
    (allocation,) = found.allocations.values()
    return f"{found.node}: {' '.join(it.device for it in allocation.results)}"


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("first-fit", "a: dev-0"),
        ("emptiest", "c: dev-0"),
        ("best-fit", "b: dev-1"),
        ("packing", "a: dev-1"),
        ("fgd", "b: dev-1"),
        ("frag", "b: dev-1"),
    ],
)
def test_each_strategy_has_its_best_node_and_device(strategy: str, expected: str) -> None:
    left = {"a": (1000, 500), "b": (700, 300), "c": (1000, 1000)}
    assert placed(strategy, left, share(300), [share(300), share(1000, 2, "large")]) == expected


@pytest.mark.parametrize("strategy", MIX_USERS)
def test_what_pods_usually_ask_for_decides(strategy: str) -> None:
    """One device of node b serves no pair; without pairs in the mix, b would be kept for requests of 600."""
    left = {"a": (1000, 1000), "b": (600, 1000)}
    pairs, parts = share(1000, 2, "pair"), share(600, 1, "part")
    assert placed(strategy, left, share(400), [pairs]) == "b: dev-0"
    assert placed(strategy, left, share(400), [parts]).startswith("a")


def best_node(
    strategy: str, nodes: Mapping[str, str], wanted: Sequence[ResourceClaim], cpu: str, mix_cpu: int, mix: int = 1
) -> str:
    """Of nodes with so much cpu and two devices each; ``z`` has none. Pods usually ask for ``mix`` devices."""
    allocator, usage = cluster({name: (1000, 1000) for name in nodes if name != "z"})
    for _ in range(20):
        allocator.learned.learn(allocator.compile([share(1000, mix, "usual")]), mix_cpu)
    states = Nodes([node(name, allocatable={"cpu": it, "memory": "8Gi", "pods": "10"}) for name, it in nodes.items()])
    state = case(pod(cpu=cpu), wanted, states, allocator, usage=usage)
    found = decided(plan(state, placement=Placement(strategy)))
    assert isinstance(found, Plan)
    return found.node


@pytest.mark.parametrize("strategy", MIX_USERS)
def test_devices_whose_node_lacks_the_cpu_for_usual_pods_are_taken_first(strategy: str) -> None:
    assert best_node(strategy, {"a": "32", "b": "4"}, [share(1000)], "1", 8000) == "b"
    assert best_node(strategy, {"a": "32", "b": "4"}, [share(1000)], "1", 0) == "a"


@pytest.mark.parametrize("strategy", MIX_USERS)
def test_a_pod_with_much_cpu_goes_where_devices_do_not_lose_it(strategy: str) -> None:
    assert best_node(strategy, {"a": "17", "b": "32"}, [share(1000)], "12", 8000) == "b"
    assert best_node(strategy, {"a": "17", "b": "32"}, [share(1000)], "1", 8000) == "a"


@pytest.mark.parametrize("strategy", MIX_USERS)
def test_a_pod_without_claims_goes_where_its_cpu_is_not_missed(strategy: str) -> None:
    nodes = {"a": "32", "b": "17", "c": "24", "z": "8"}
    assert best_node(strategy, nodes, [], "2", 8000) == "z"
    assert best_node(strategy, {"a": "9", "c": "24"}, [], "2", 8000) == "c"


def test_pods_without_claims_do_not_crowd_on_one_of_equal_nodes() -> None:
    allocator, usage = cluster({})
    nodes = Nodes([node("a", used={"cpu": "2"}), node("b", used={"cpu": "1"})])
    found = decided(plan(case(pod(), [], nodes, allocator, usage=usage), placement=Placement("frag")))
    assert isinstance(found, Plan)
    assert found.node == "b"


@pytest.mark.parametrize(
    ("strategy", "expected"), [("first-fit", "a"), ("emptiest", "a"), ("best-fit", "z"), ("packing", "z")]
)
def test_where_a_strategy_that_looks_at_no_mix_places_a_pod_without_claims(strategy: str, expected: str) -> None:
    """Node z has no devices, and the others are equal but for their cpu."""
    assert best_node(strategy, {"a": "9", "c": "24", "z": "8"}, [], "2", 8000) == expected


@pytest.mark.parametrize("strategy", [name for name, it in BY_NAME.items() if it.ranks_all_pods])
def test_a_pod_without_claims_is_not_tried_first_on_all_the_nodes_that_are_full(strategy: str) -> None:
    """They are the best by some scores."""
    allocator, usage = cluster({"a": (1000,)})
    nodes = Nodes([*(node(f"full-{number}", used={"cpu": "4"}) for number in range(20)), node("a")])
    asked: list[str] = []
    state = case(pod(), [], nodes, allocator, usage=usage)
    found = decided(plan(state, answered=lambda name, _answer: asked.append(name), placement=Placement(strategy)))
    assert isinstance(found, Plan)
    assert asked == ["a"]


def test_a_node_that_lacks_cpu_for_the_pod_is_not_scored() -> None:
    allocator, usage = cluster({"a": (1000,), "b": (1000,)})
    nodes = Nodes([node("a", allocatable={"cpu": "2"}), node("b", allocatable={"cpu": "8"})])
    wanted, placement = [share(300)], Placement("frag")
    decided(plan(case(pod(cpu="4"), wanted, nodes, allocator, usage=usage.snapshot()), placement=placement))
    assert scored(allocator) == {"b": 1}
    nodes.put(node("a", allocatable={"cpu": "8"}))
    decided(plan(case(pod(cpu="4"), wanted, nodes, allocator, usage=usage.snapshot()), placement=placement))
    assert scored(allocator) == {"a": 1, "b": 1}


def test_a_class_may_name_a_strategy_and_an_unknown_one_counts_as_none() -> None:
    left = {"a": (1000, 500), "b": (700, 300)}
    assert placed("first-fit", left, share(300), named="best-fit") == "b: dev-1"
    assert placed("best-fit", left, share(300), named="first-fit") == "a: dev-0"
    assert placed("best-fit", left, share(300), named="worst-fit") == "b: dev-1"


def random_problem(random: Random) -> tuple[Mapping[str, Sequence[int]], list[ResourceClaim]]:
    left = {f"n{number}": [random.choice((0, 300, 500, 1000)) for _ in range(2)] for number in range(5)}
    claims = [
        share(random.choice((200, 400, 600, 1000)), random.choice((1, 1, 2)), f"c{number}")
        for number in range(random.choice((1, 2)))
    ]
    return left, claims


@pytest.mark.parametrize("strategy", PLACEMENT_STRATEGIES)
def test_a_pod_fits_under_a_strategy_exactly_if_it_fits_without(strategy: str) -> None:
    fitting = 0
    for number in range(60):
        left, claims = random_problem(Random(number))
        found = []
        for placement in (None, Placement(strategy)):
            allocator, usage = cluster(left)
            nodes = Nodes([node(name) for name in left])
            state = case(pod(), claims, nodes, allocator, usage=usage)
            found.append(decided(plan(state, placement=placement)))
        usual, other = found
        assert type(usual) is type(other)
        if isinstance(usual, NoPlace):
            assert usual == other
        else:
            fitting += 1
            if strategy == "first-fit":
                assert usual == other
    assert 10 < fitting < 55


def test_only_nodes_that_changed_are_scored_again() -> None:
    allocator, usage = cluster({f"n{number}": (1000, 1000) for number in range(20)})
    nodes, placement = Nodes([node(f"n{number}") for number in range(20)]), Placement("best-fit")
    wanted = [share(300)]
    decided(plan(case(pod(), wanted, nodes, allocator, usage=usage.snapshot()), placement=placement))
    assert scored(allocator).total() == 20
    scored(allocator).clear()
    take(allocator, usage, "n7", "dev-0", 300)
    nodes.put(node("n9", used={"cpu": "1"}))
    found = decided(plan(case(pod(), wanted, nodes, allocator, usage=usage.snapshot()), placement=placement))
    assert scored(allocator) == {"n7": 1, "n9": 1}
    assert isinstance(found, Plan)
    assert found.node == "n7"


def test_the_first_pod_of_a_kind_has_no_more_nodes_scored_than_are_enough_and_pays_for_them() -> None:
    names = [f"n{number}" for number in range(400)]
    allocator, usage = cluster(dict.fromkeys(names, (1000,)))
    nodes, placement = Nodes(map(node, names)), Placement("best-fit")
    pauses = Counter(plan(case(pod(), [share(300)], nodes, allocator, usage=usage), placement=placement))
    assert scored(allocator).total() == enough(400) < 400
    assert pauses[Pause.SEARCHING] > 5
    decided(plan(case(pod(), [share(300)], nodes, allocator, usage=usage), placement=placement))
    decided(plan(case(pod(), [share(300)], nodes, allocator, usage=usage), placement=placement))
    assert scored(allocator).total() == 400


def test_an_attempt_that_has_seen_less_changes_no_scores() -> None:
    """It was put aside while another one went on, and sees what was free then."""
    names = [f"n{number}" for number in range(100)]
    allocator, usage = cluster(dict.fromkeys(names, (1000,)))
    nodes, placement, wanted = Nodes(map(node, names)), Placement("best-fit"), [share(300)]
    older = plan(case(pod(), wanted, nodes, allocator, usage=usage.snapshot()), placement=placement)
    while scored(allocator).total() < 20:
        next(older)
    take(allocator, usage, "n99", "dev-0", 300)
    newer = case(pod(), wanted, nodes, allocator, usage=usage.snapshot())
    decided(plan(newer, placement=placement))
    before = scored(allocator).total()
    decided(older)
    assert scored(allocator).total() == before
    found = decided(plan(newer, placement=placement))
    assert isinstance(found, Plan)
    assert found.node == "n99"


def test_better_alternatives_come_before_the_strategy() -> None:
    inventory = Inventory(language=Attributes())
    inventory.put_class(convert(DeviceClass, {"metadata": {"name": "gpu"}}))
    for name, attributes in {"a": ["slow", "fast"], "b": ["slow"]}.items():
        devices = [{"name": f"d{it}", "attributes": {it: {"bool": True}}} for it in attributes]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.example.com", "nodeName": name, "pool": pool, "devices": devices}
        inventory.put_slice(convert(ResourceSlice, {"metadata": {"name": name}, "spec": spec}))
    allocator, nodes = counting(inventory), Nodes([node("a"), node("b")])

    def best(*selectors: str) -> str:
        state = case(pod(), [claim("c", prefers(*selectors))], nodes, allocator)
        found = decided(plan(state, placement=Placement("best-fit")))
        assert isinstance(found, Plan)
        return found.node

    assert best("slow", "fast") == "b"
    assert best("fast", "slow") == "a"


def test_preferences_of_the_pod_weigh_more_than_the_strategy_which_counts_like_room() -> None:
    allocator, usage = cluster({"a": (1000, 1000), "b": (700, 300)})
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}
    affinity = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]}
    }
    nodes = Nodes([node("a", labels={"zone": "z"}), node("b")])
    state = case(pod(affinity=affinity), [share(300)], nodes, allocator, usage=usage)
    found = decided(plan(state, placement=Placement("best-fit")))
    assert isinstance(found, Plan)
    assert (found.node, found.scores) == ("a", (("node affinity", 200), ("best-fit", 0)))


def test_each_device_is_a_unit_of_its_node() -> None:
    allocator, usage = cluster({"a": (1000, 500)})
    before = allocator.sketch(node("a").node, allocator.compile([share(300)]), usage, "reference").before
    assert (before.units, before.whole, before.idle) == (2, 1, 1500)


def test_fragmentation_is_scored_as_the_study_does_it() -> None:
    """With the same truncation, from whole numbers."""
    asked = cluster({})[0].compile([share(300)]).stages[0].alternatives[0]
    mix, random = Mix((MixClass(asked, WEIGHT_OF_ALL),)), Random(1)
    for _ in range(300):
        before, after = random.randrange(9000), random.randrange(9000)
        expected = int(100 / (1 + math.exp((after - before) / 1000)))
        then, now = (Totals(0, (0,), (lost,), (0,), served=(1,)) for lost in (before, after))
        candidate = Candidate(mix, then, now, 0)
        assert BY_NAME["fgd"].score(candidate) == expected


@pytest.mark.parametrize(("taken", "is_useless"), [(900, False), (901, True), (1100, True)])
def test_a_device_is_lost_when_a_pod_takes_the_cpu_beside_it(taken: int, is_useless: bool) -> None:
    """A usual pod asks for 100 millicores, and 1000 are free."""
    asked = cluster({})[0].compile([share(1000)]).stages[0].alternatives[0]
    mix, idle = Mix((MixClass(asked, WEIGHT_OF_ALL, 100),)), Totals(1000, (1000,), (0,), (0,), served=(1,))
    score = BY_NAME["fgd"].score(Candidate(mix, idle, idle, 1000, taken))
    assert score == (26 if is_useless else 50)


@pytest.mark.parametrize("strategy", BY_NAME)
def test_nodes_that_are_alike_have_the_score_that_each_has_by_itself(strategy: str) -> None:
    """What is kept of one node for others changes no score."""
    random = Random(2)
    left = {f"n{number}": [random.choice((300, 500, 1000)) for _ in range(2)] for number in range(30)}
    allocator, usage = cluster(left)
    for one in (share(300), share(500), share(1000, 2)):
        allocator.learned.learn(allocator.compile([one]))
    program, order = allocator.compile([share(400)]), BY_NAME[strategy].device_order
    for name in left:
        alone, alone_usage = cluster({name: left[name]})
        for one in (share(300), share(500), share(1000, 2)):
            alone.learned.learn(alone.compile([one]))
        seen = allocator.sketch(node(name).node, program, usage, order)
        by_itself = alone.sketch(node(name).node, alone.compile([share(400)]), alone_usage, order)
        assert (seen.before, seen.after) == (by_itself.before, by_itself.after)


def test_a_tenant_with_pods_of_many_kinds_drives_out_its_own_rankings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select_host, "KEPT_RANKINGS", 3)
    allocator, usage = cluster({"a": (1000,)})
    nodes, placement = Nodes([node("a")]), Placement("best-fit")

    def places(namespace: str, amount: int) -> int:
        """How often the node is scored for the pod."""
        before = scored(allocator).total()
        wanted = [kinds.setdefault((namespace, amount), share(amount))]
        by = pod(meta={"namespace": namespace})
        decided(plan(case(by, wanted, nodes, allocator, usage=usage), placement=placement))
        return scored(allocator).total() - before

    kinds: dict[tuple[str, int], ResourceClaim] = {}
    asked = [("modest", 100), ("greedy", 200), ("greedy", 300), ("greedy", 200), ("greedy", 400)]
    assert [places(*it) for it in asked] == [1, 1, 1, 0, 1]
    assert [places(*it) for it in (("modest", 100), ("greedy", 200), ("greedy", 300))] == [0, 0, 1]


def test_a_node_on_which_a_selector_fails_has_no_score_and_keeps_no_pod_from_others() -> None:
    devices = allocator(a=["odd"], b=["x"])
    wanted = [claim("c", wants(selector="fails"))]
    found = decided(plan(case(pod(), wanted, [node("a"), node("b")], devices), placement=Placement("best-fit")))
    assert isinstance(found, Plan)
    assert found.node == "b"
