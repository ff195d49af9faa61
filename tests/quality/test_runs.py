"""Runs of the trace in the repository: their figures are recorded, and hold for any machine.

Whether the policies do as in the study is checked against its published runs, which are not in the repository
(``docs/quality.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from dra_operator.quality.policies import POLICIES
from dra_operator.quality.states import Fragmentation, NodeKinds, Room, State, StateTable, prices
from dra_operator.quality.study import NO_NODE_NUMBER, Run, measured, moved
from dra_operator.quality.trace import Shape, TraceNode, TracePod, TypicalPod, Workload, read_nodes, read_pods, workload
from trace_objects import made_traces


@cache
def stand_in(seed: int, inflate: float = 1.3) -> Workload:
    trace = made_traces()
    with (trace / "nodes.csv").open() as nodes, (trace / "pods.csv").open() as pods:
        return workload(read_pods(pods), read_nodes(nodes), seed, inflate)


@pytest.mark.parametrize(
    ("policy", "placed", "at_100", "at_130"),
    [
        ("emptiest", 1623, (88.8519, 68.1225), (94.61, 97.79)),
        ("fgd", 1430, (94.96, 99.65), (94.96, 99.65)),
        ("frag", 1452, (96.71, 100.0), (96.71, 100.0)),
    ],
)
def test_a_run_allocates_exactly_what_is_recorded(
    policy: str, placed: int, at_100: tuple[float, float], at_130: tuple[float, float]
) -> None:
    run = Run(stand_in(1), POLICIES[policy])
    curve = measured(run)
    found = [tuple(round(it, 4) for it in curve.at(percent)) for percent in (100, 130)]
    assert (run.placed, found) == (placed, [at_100, at_130])


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_gives_away_more_than_a_node_has_or_refuses_a_pod_that_fits(policy: str) -> None:
    """The state is kept here again, in plain numbers, from the placements alone."""
    base = stand_in(2, 0)
    short = base._replace(arrivals=base.arrivals[:150], nodes=base.nodes[:7])
    left = [Left(node) for node in short.nodes]
    turned_away = 0
    for it in Run(short, POLICIES[policy]).placements():
        if it.node == NO_NODE_NUMBER:
            turned_away += 1
            assert not any(node.fits(it.pod) for node in left)
        else:
            assert left[it.node].fits(it.pod)
            assert len(set(it.devices)) == it.pod.shape.gpus
            left[it.node].take(it.pod, it.devices)
    assert turned_away > 10


@pytest.mark.parametrize("policy", ["random", "emptiest", "frag"])
def test_a_gang_is_placed_whole_or_not_at_all(policy: str) -> None:
    """The state is kept here again; a gang that does not find room leaves nothing behind."""
    base = stand_in(2, 0)
    short = base._replace(arrivals=base.arrivals[:150], nodes=base.nodes[:7], has_gangs=True)
    left = [Left(node) for node in short.nodes]
    run = Run(short, POLICIES[policy])
    placements = run.placements()
    split = refused = 0
    for pod in short.arrivals:
        its = [next(placements) for _ in range(max(1, pod.shape.gpus))]
        assert sum(it.pod.shape.total for it in its) == pod.shape.total
        nodes = {it.node for it in its}
        if NO_NODE_NUMBER in nodes:
            assert nodes == {NO_NODE_NUMBER}
            refused += len(its) > 1
            continue
        split += len(nodes) > 1
        for it in its:
            assert left[it.node].fits(it.pod)
            left[it.node].take(it.pod, it.devices)
    assert not list(placements)
    assert split > 0
    assert refused > 0


def test_a_gang_that_finds_room_for_some_of_its_pods_only_gives_it_back() -> None:
    node = TraceNode("n", 100_000, 10**6, 3, "A")
    four, three = (TracePod(f"of-{size}", 10, Shape(100, 1000, size, "")) for size in (4, 3))
    run = Run(stand_in(2, 0)._replace(arrivals=[four, three], nodes=[node], has_gangs=True), POLICIES["emptiest"])
    assert [it.node for it in run.placements()] == [NO_NODE_NUMBER] * 4 + [0] * 3
    assert run.placed == 3


@pytest.mark.parametrize("policy", ["best-fit", "emptiest"])
def test_moves_allocate_more_and_no_node_has_more_than_there_is(policy: str) -> None:
    run = Run(stand_in(1), POLICIES[policy])
    found = moved(run, 2)
    assert found.after > found.before
    assert 0 < found.moved <= found.pods * 2 / 100
    left = [run.state(node) for node in range(len(run.workload.nodes))]
    assert min(min(it.gpus) for it in left) >= 0
    assert min(it.cpu for it in left) >= 0
    assert min(map(run.memory, range(len(left)))) >= 0
    assert found.capacity - sum(sum(it.gpus) for it in left) == found.after


def test_the_smallest_share_whose_place_suffices_is_moved() -> None:
    """300 and 500 have one GPU: the other one, with 300 left, takes no more than the smaller of them."""
    nodes = [TraceNode(f"n{number}", 100_000, 10**6, 1, "A") for number in range(2)]
    arrivals = [
        TracePod(f"p{number}", 10, Shape(100, milli, 1, "")) for number, milli in enumerate((500, 300, 700, 500))
    ]
    run = Run(stand_in(2, 0)._replace(arrivals=arrivals, nodes=nodes), POLICIES["best-fit"])
    found = moved(run, 50)
    assert (found.before, found.after, found.moved) == (1500, 2000, 1)


class Left:
    """What is left of a node."""

    def __init__(self, node: TraceNode) -> None:
        self.cpu, self.memory, self.gpus, self.model = node.cpu, node.memory, [1000] * node.gpus, node.model

    def fits(self, pod: TracePod) -> bool:
        shape = pod.shape
        free = sum(left >= shape.milli for left in self.gpus) if shape.gpus else 0
        has_model = not shape.gpus or shape.accepts(self.model)
        return self.cpu >= shape.cpu and self.memory >= pod.memory and free >= shape.gpus and has_model

    def take(self, pod: TracePod, devices: Sequence[int]) -> None:
        self.cpu -= pod.shape.cpu
        self.memory -= pod.memory
        for device in devices:
            self.gpus[device] -= pod.shape.milli
            assert self.gpus[device] >= 0


def test_room_looks_one_arrival_ahead_where_pods_take_whole_gpus() -> None:
    """A share of 600 leaves 400 in vain: 0.6 of it now, and once it has come all of it."""
    node = TraceNode("n", 100_000, 1, 1, "A")
    share, whole = TracePod("s", 0, Shape(0, 600, 1, "")), TracePod("w", 0, Shape(0, 1000, 1, ""))
    kinds = NodeKinds([node])
    table = StateTable(kinds)
    states = table.states([table.number(kinds.empty(node, 0))])
    assert Room([share], kinds).wasted(states).tolist() == [240]
    now, after_share = 240 / 2, (400 + 400) / 2
    assert Room([share, whole], kinds).wasted(states).tolist() == [now / 2 + (after_share + 0) / 2 / 2]


def test_fragmentation_is_summed_in_the_order_of_the_study() -> None:
    """Exactly: the last digit decides how the study cuts a score. Each kind of pods names a model here."""
    typical = [TypicalPod(Shape(100 * n, 10 * n + 1, 1, "A" if n % 3 else "B"), 0.1 / (n + 3)) for n in range(1, 60)]
    nodes = [TraceNode(f"n{n}", 5000, 1, 3, "AB"[n % 2]) for n in range(6)]
    kinds = NodeKinds(nodes)
    table, states = StateTable(kinds), []
    for number, node in enumerate(nodes):
        states.append(table.number(kinds.empty(node, 0).after(Shape(611 * number, 97 * number, 1, ""), [0])))
    found = Fragmentation(typical, kinds).of(table.states(states)).tolist()
    assert found == [summed(typical, kinds, table.state(it)) for it in states]


def summed(typical: Sequence[TypicalPod], kinds: NodeKinds, state: State) -> float:
    """The same in plain numbers, one after the other."""
    sums = dict.fromkeys([(False, False), (True, False), (False, True), "access"], 0.0)
    idle = sum(state.gpus)
    for shape, part in typical:
        cpu, gpu = state.cpu >= shape.cpu, any(it >= shape.milli for it in state.gpus)
        if not shape.accepts(kinds.listed[state.kind].model):
            sums["access"] += part * idle
        elif cpu and gpu:
            sums[True, False] += part * sum(it for it in state.gpus if it < shape.milli)
        else:
            sums[cpu, gpu] += part * idle
    return sum(sums.values())


def test_pods_are_repeated_or_removed_until_they_ask_for_the_demand() -> None:
    for inflate in (0.5, 1.3):
        run = stand_in(3, inflate)
        capacity = 1000 * sum(node.gpus for node in run.nodes)
        asked = sum(pod.shape.total for pod in run.arrivals)
        assert inflate * capacity - 8000 <= asked <= inflate * capacity + 7000
    assert sorted(stand_in(3, 0).arrivals) == list(stand_in(3, 0).pods)


def test_a_model_that_few_nodes_have_costs_pods_that_could_go_elsewhere() -> None:
    nodes = [TraceNode(f"n{number}", 100_000, 10**6, 4, "rare" if number < 2 else "common") for number in range(10)]
    any_model, named = Shape(1000, 1000, 1, ""), Shape(1000, 1000, 1, "rare")
    pods = [TracePod(f"p{number}", 1, named if number % 2 else any_model) for number in range(20)]
    kinds = NodeKinds(nodes)
    found = prices(pods, kinds)
    rare, common = (next(n for n, it in enumerate(kinds.listed) if it.model == m) for m in ("rare", "common"))
    assert found[any_model][common] == 0 < found[any_model][rare]
    assert (found[named][rare], found[named][common]) == (0, np.inf)


def test_pods_that_fit_no_node_are_turned_away() -> None:
    nodes, pods = [TraceNode("n", 1000, 10, 1, "A")], [TracePod("p", 1, Shape(1000, 1000, 4, ""))]
    for policy in POLICIES.values():
        assert [it.node for it in Run(workload(pods, nodes, 1, 0), policy).placements()] == [NO_NODE_NUMBER]
