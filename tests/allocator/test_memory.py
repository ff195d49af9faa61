"""What is remembered is bounded, and neither remembering nor forgetting changes an answer."""

from __future__ import annotations

from random import Random

import pytest
from allocator_lab import Json, claim, device, device_class, lab, make_node, outcome_kind, pool, request
from allocator_problems import Maker, comparable, laboratory, make_case
from dra_api.codec import convert, to_dict
from dra_api.core import Node
from dra_api.resource import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice
from dra_ledger.basics import CLASSES, Journal, Memo
from dra_ledger.slices import Interner
from dra_operator.allocator import Allocated, Failed, Outcome, Refused
from dra_operator.allocator.node_index import NodeIndex
from dra_operator.allocator.problem.node_state import NodeState, NodeStates
from dra_operator.allocator.problem.problem import NodeProblem
from dra_operator.allocator.pruning.pruner import Pruner
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import fewer


def test_a_journal_forgets_the_oldest_changes_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "_LIMIT", 4)
    journal: Journal[str] = Journal()
    for key in "abcde":
        journal.add(key)
    assert journal.revision == 5
    assert journal.since(1) is None
    assert journal.since(2) == {"c", "d", "e"}
    assert journal.since(5) == set()


def test_a_memo_forgets_what_it_has_known_longest() -> None:
    memo: Memo[str, int] = Memo(2)
    for number, key in enumerate("abc"):
        assert memo.put(key, number) == number
    assert [memo.get(key) for key in "abc"] == [None, 1, 2]


def test_parts_of_slices_are_shared_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(text: str) -> tuple[object, ...]:
        (raw,) = pool(device("a", model=text, capacity={"memory": text}))
        (made,) = interner.slice(convert(ResourceSlice, raw)).spec.devices or ()
        return made.capacity, *(made.attributes or {}).values()

    monkeypatch.setattr(Interner, "_LIMIT", 2)
    interner = Interner()
    first = parts("1Gi")
    assert all(one is other for one, other in zip(parts("1Gi"), first, strict=True))
    parts("2Gi")
    again = parts("1Gi")
    assert again == first, "the limit is passed"
    assert not any(one is other for one, other in zip(again, first, strict=True))


def test_an_index_that_forgets_queries_still_answers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeIndex, "_KEPT", 1)
    wanted = [claim(request("r", f'device.attributes["drv"].model == "{model}"'), name=model) for model in "ABC"]
    made = lab(pool(*(device(f"d{model}", model=model) for model in "AB")), wanted)
    for _ in range(2):
        found = [list(made.allocator.candidates([one], made.usage)) for one in made.claims]
        assert found == [["n1"], ["n1"], []]


def test_what_selectors_have_found_belongs_to_the_namespace_whose_claim_asked() -> None:
    """Or one tenant's selectors would push out those of classes and of others."""

    def asking(name: str, namespace: str, *selectors: str) -> Json:
        made = claim(request("r", *selectors), name=name)
        return {**made, "metadata": {**made["metadata"], "namespace": namespace}}

    by_class = asking("by-class", "modest")
    wanted = [asking("own", tenant, f'device.attributes["drv"].model == "{tenant}"') for tenant in ("modest", "greedy")]
    made = lab(pool(device("a", model="modest")), [by_class, *wanted], classes=[device_class("any", "true")])
    compiled = made.allocator.inventory.compiled
    for one in made.claims:
        made.allocator.candidates([one], made.usage)
    owners = []
    for one in made.claims:
        (alternative,) = made.allocator.compile([one]).stages[0].alternatives
        owners.append(compiled.kept.tenant_of(alternative.expressions))
    assert owners == [CLASSES, "modest", "greedy"]


def said(outcome: Outcome) -> tuple[object, ...]:
    """All that an outcome says, without share ids."""
    results = comparable(outcome.results) if isinstance(outcome, Allocated) else None
    why = getattr(outcome, "refusal", None) or str(getattr(outcome, "error", ""))
    return outcome_kind(outcome), outcome.steps, results, why


def test_claims_that_ask_for_the_same_are_compiled_once_and_named_in_errors_each() -> None:
    failing = request("r", 'device.attributes["drv"].nothing == 1')
    made = lab(pool(device("a")), [claim(failing, name=name) for name in "ab"])
    programs = [made.allocator.compile([one]) for one in made.claims]
    assert programs[0].stages[0] is programs[1].stages[0]
    for one, name in zip(made.claims, "ab", strict=True):
        outcome = made.allocator.allocate(make_node("n1"), [one], made.usage)
        assert isinstance(outcome, Failed)
        assert str(outcome.error).startswith(f"claim default/{name}: selector #0")
        assert f"(claim default/{name}, request r; device drv/p/a publishes" in str(outcome.error)


def test_a_class_that_changes_is_looked_at_again() -> None:
    made = lab(pool(device("a")), [claim(request("r"), name=name) for name in "ab"])
    assert isinstance(made.allocator.allocate(make_node("n1"), made.claims[:1], made.usage), Allocated)
    made.allocator.inventory.put_class(convert(DeviceClass, device_class("any", "false")))
    assert isinstance(made.allocator.allocate(make_node("n1"), made.claims[1:], made.usage), Refused)


def test_a_class_configures_claims_that_ask_for_the_same_until_it_changes() -> None:
    def config(value: str) -> list[Json]:
        return [{"opaque": {"driver": "drv", "parameters": {"mode": value}}}]

    own = [{**entry, "requests": ["r"]} for entry in config("own")]
    claims = [claim(request("r"), name="a"), claim(request("r"), name="b", config=own), claim(request("r"), name="c")]
    made = lab(pool(device("a")), claims, classes=[device_class("any", config=config("fast"))])

    def modes(position: int) -> list[str]:
        outcome = made.allocator.allocate(make_node("n1"), made.claims[position : position + 1], made.usage)
        assert isinstance(outcome, Allocated)
        return [
            str(entry["opaque"]["parameters"]["mode"]) for entry in to_dict(outcome.results[0])["devices"]["config"]
        ]

    assert (modes(0), modes(1)) == (["fast"], ["fast", "own"])
    made.allocator.inventory.put_class(convert(DeviceClass, device_class("any", config=config("slow"))))
    assert (modes(2), modes(1)) == (["slow"], ["slow", "own"])


def test_what_pruning_adds_to_requests_stays_in_its_problem() -> None:
    made = lab(pool(device("a"), device("b")), [claim(request("r0"), request("r1"), request("r2"))])
    inventory, program = made.allocator.inventory, made.allocator.compile(made.claims)
    states = NodeStates(inventory)
    state = states.get(inventory.view(make_node("n1")), made.usage, admin_exempt=False)
    pruned, later = NodeProblem(state, program), NodeProblem(state, program)
    Pruner(pruned)
    assert [len(domain.ledgers) for (domain,) in pruned.domains] == [1, 1, 1]
    assert [len(domain.ledgers) for (domain,) in (*later.domains, *NodeProblem(state, program).domains)] == [0] * 6


@settings(max_examples=fewer(60), deadline=None)
@given(source=st.randoms(use_true_random=False), forgetful=st.booleans())
def test_an_allocator_that_has_decided_before_answers_like_a_new_one(source: Random, forgetful: bool) -> None:
    """Claims come and go, decisions run at the same time and are dropped, devices are taken and given back."""
    cases = [make_case(source, Maker)]
    cases.append({**make_case(source, Maker), **{name: cases[0][name] for name in ("slices", "classes", "features")}})
    made = laboratory(cases[0])
    taken: list[AllocationResult] = []
    nodes = [convert(Node, node) for node in cases[0]["nodes"]]
    with pytest.MonkeyPatch.context() as patch:
        if forgetful:
            patch.setattr(NodeStates, "_NODES", 1)
            patch.setattr(NodeState, "_DOMAINS", 1)
        for _ in range(12):
            node, case = source.choice(nodes), source.choice(cases)
            claims = [convert(ResourceClaim, one) for one in case["claims"]]
            if source.random() < 0.3:
                made.allocator.search(node, claims, made.usage).advance(source.randrange(1, 9))
            outcome = made.allocator.allocate(node, claims, made.usage)
            fresh = laboratory(cases[0])
            assert said(outcome) == said(fresh.allocator.allocate(node, claims, made.usage))
            if isinstance(outcome, Allocated) and source.random() < 0.5:
                taken += outcome.results
                for result in outcome.results:
                    made.usage.add(result)
            elif taken and source.random() < 0.5:
                made.usage.remove(taken.pop(source.randrange(len(taken))))


def test_in_a_large_cluster_a_node_is_still_known_when_its_turn_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = lab((), [claim(request("r"))])
    nodes = [make_node(f"n{number}") for number in range(3000)]
    for node in nodes:
        made.decide(node)
    monkeypatch.delattr(NodeState, "__init__")
    for node in nodes:
        made.decide(node)


def test_what_a_node_keeps_of_claims_is_bounded_by_their_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen claims with 248 alternatives each would take half a megabyte on each node of the cluster."""
    monkeypatch.setattr(NodeState, "_DOMAINS", 3)
    wanted = [
        claim(*(request(f"{name}-{number}") for number in range(size)), name=name)
        for name, size in (("two", 2), ("one", 1), ("other", 1), ("four", 4))
    ]
    made = lab(pool(*(device(f"d{number}") for number in range(4))), wanted)
    inventory = made.allocator.inventory
    state = NodeStates(inventory).get(inventory.view(make_node("n1")), made.usage, admin_exempt=False)
    two, one, other, four = (made.allocator.compile([it]) for it in made.claims)
    for program in (two, one, other, four):
        NodeProblem(state, program)
    assert state.filtered.get(two.stages) is None, "the oldest one made room"
    assert state.filtered.get(one.stages) is not None
    assert state.filtered.get(other.stages) is not None
    assert state.filtered.get(four.stages) is None, "too large by itself"
