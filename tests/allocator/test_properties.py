"""Laws that hold for every problem, checked on generated ones."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import dra_operator.allocator.search as search_module
import pytest
from allocator_lab import Lab, claim, device, first_available, held, lab, outcome_kind, pool, request, sub
from dra_api.codec import convert
from dra_api.resource import AllocationResult, ResourceSlice
from dra_ledger.basics import each
from dra_operator.allocator import Allocated, AllocationError, Usage
from dra_operator.allocator.search import BranchState
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import fewer

Json = dict[str, Any]
SELECTORS = (
    'device.attributes["drv"].model == "A"',
    'device.attributes["drv"].model == "B"',
    "true",
    'device.attributes["drv"].u != 3',
)
RELAXED = settings(max_examples=fewer(120))


@st.composite
def devices(draw: st.DrawFn, name: str, counters: bool) -> Json:
    """A device; now and then shareable, consuming, tainted, or without an attribute."""
    attributes = {"model": draw(st.sampled_from("AB")), "k": draw(st.integers(0, 2))}
    if draw(st.booleans()):
        attributes["u"] = draw(st.integers(0, 3))
    extra: Json = {}
    capacity = None
    kind = draw(st.sampled_from(("plain", "plain", "shared", "tainted")))
    if kind == "shared":
        extra["allowMultipleAllocations"] = True
        capacity = {"mem": draw(st.integers(2, 6))}
    if kind == "tainted":
        extra["taints"] = [{"key": "bad", "effect": draw(st.sampled_from(("NoSchedule", "None")))}]
    consumes = {"set": {"slots": draw(st.integers(1, 3))}} if counters and draw(st.booleans()) else None
    return device(name, consumes=consumes, capacity=capacity, extra=extra, **attributes)


@st.composite
def pools(draw: st.DrawFn) -> list[Json]:
    """One or two complete pools of the node, cut into slices."""
    slices: list[Json] = []
    for name in ("p", "q")[: draw(st.integers(1, 2))]:
        counters = draw(st.booleans())
        members = [draw(devices(f"{name}{i}", counters)) for i in range(draw(st.integers(1, 5)))]
        cut = draw(st.integers(0, len(members)))
        sets = {"set": {"slots": draw(st.integers(2, 6))}} if counters else None
        first, *rest = pool(*members[:cut], name=name, counters=sets)
        (second,) = pool(*members[cut:], name=name)
        second = {"metadata": {"name": first["metadata"]["name"] + "b"}, "spec": second["spec"]}
        whole = [first, second, *rest]
        for slice_ in whole:
            slice_["spec"]["pool"]["resourceSliceCount"] = len(whole)
        slices += whole
    return slices


@st.composite
def requests(draw: st.DrawFn, name: str) -> Json:
    def wanted() -> tuple[tuple[str, ...], Json]:
        fields: Json = {"count": draw(st.integers(1, 3))}
        if draw(st.integers(0, 9)) == 0:
            fields = {"allocationMode": "All"}
        if draw(st.integers(0, 4)) == 0:
            fields["tolerations"] = [{"operator": "Exists"}]
        if draw(st.integers(0, 4)) == 0:
            fields["capacity"] = {"requests": {"mem": str(draw(st.integers(1, 4)))}}
        return (draw(st.sampled_from(SELECTORS)),), fields

    if draw(st.integers(0, 3)) == 0:
        subs = []
        for number in range(2):
            selectors, fields = wanted()
            subs.append(sub(f"s{number}", *selectors, **fields))
        return first_available(name, *subs)
    selectors, fields = wanted()
    if draw(st.integers(0, 7)) == 0:
        fields["adminAccess"] = True
    return request(name, *selectors, **fields)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Json], list[Json], list[str]]:
    """Slices, claims, devices in use."""
    slices = draw(pools())
    claims = []
    for number in range(draw(st.integers(1, 2))):
        names = [f"r{i}" for i in range(draw(st.integers(1, 4)))]
        constraints = []
        for kind in ("matchAttribute", "distinctAttribute"):
            if draw(st.integers(0, 2)) == 0:
                attribute = draw(st.sampled_from(("drv/k", "drv/u")))
                scope = draw(st.lists(st.sampled_from(names), unique=True))
                constraints.append({kind: attribute, "requests": scope})
        members = [draw(requests(name)) for name in names]
        claims.append(claim(*members, name=f"c{number}", constraints=constraints))
    everything = [f"drv/{s['spec']['pool']['name']}/{d['name']}" for s in slices for d in s["spec"].get("devices", [])]
    used = draw(st.lists(st.sampled_from(everything), unique=True, max_size=2)) if everything else []
    return slices, claims, used


def build(problem: tuple[list[Json], list[Json], list[str]]) -> Lab:
    slices, claims, used = problem
    return lab(slices, claims, usage=held(*used))


@RELAXED
@given(problems())
def test_equal_inputs_give_equal_outcomes(problem: tuple[list[Json], list[Json], list[str]]) -> None:
    one, other = build(problem), build(problem)
    assert one.devices() == other.devices()
    assert one.devices() == other.devices()  # and again, now that everything is known


@RELAXED
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_in_which_slices_arrive_does_not_matter(
    problem: tuple[list[Json], list[Json], list[str]], shuffle: random.Random
) -> None:
    slices, claims, used = problem
    mixed = list(slices)
    shuffle.shuffle(mixed)
    late = lab(mixed[: len(mixed) // 2], claims, usage=held(*used))
    late.devices()  # decided too early, and again when all slices are there
    for slice_ in mixed:
        late.allocator.inventory.put_slice(convert(ResourceSlice, slice_))
    assert late.devices() == build(problem).devices()


@RELAXED
@given(problems())
def test_a_guided_search_finds_the_same_first_solution(problem: tuple[list[Json], list[Json], list[str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "FAILURES_BEFORE_PRUNING", 10**9)
        plain = build(problem).decide()
        patch.setattr(search_module, "FAILURES_BEFORE_PRUNING", -1)
        guided = build(problem).decide()
    assert outcome_kind(plain) == outcome_kind(guided)
    assert getattr(plain, "results", None) == getattr(guided, "results", None)
    assert str(getattr(plain, "error", "")) == str(getattr(guided, "error", ""))


@RELAXED
@given(problems())
def test_nothing_is_given_twice_or_beyond_its_capacity(problem: tuple[list[Json], list[Json], list[str]]) -> None:
    made = build(problem)
    outcome = made.decide()
    if not isinstance(outcome, Allocated):
        return
    known = {(s["spec"]["pool"]["name"], d["name"]): d for s in problem[0] for d in s["spec"].get("devices", [])}
    exclusive: Counter[tuple[str, str]] = Counter()
    memory: Counter[tuple[str, str]] = Counter()
    slots: Counter[str] = Counter()
    used = {(pool_name, name) for _driver, pool_name, name in (text.split("/") for text in problem[2])}
    shares = []
    for result in outcome.results:
        for given_ in result.results:
            key = (given_.pool, given_.device)
            if given_.admin_access:
                continue
            if given_.share_id is not None:
                shares.append(given_.share_id)
                memory[key] += int(str((given_.consumed_capacity or {})["mem"]))
            else:
                exclusive[key] += 1
    for key in {*exclusive, *memory, *used}:
        for consumed in known[key].get("consumesCounters", []):
            slots[key[0]] += int(consumed["counters"]["slots"]["value"])
    assert all(count == 1 for count in exclusive.values())
    assert not used & set(exclusive)
    assert all(amount <= int(known[key]["capacity"]["mem"]["value"]) for key, amount in memory.items())
    assert len(set(shares)) == len(shares)
    for slice_ in problem[0]:
        name = slice_["spec"]["pool"]["name"]
        for set_ in slice_["spec"].get("sharedCounters", []):
            available = int(set_["counters"]["slots"]["value"])
            taken_now = any(key[0] == name and known[key].get("consumesCounters") for key in {*exclusive, *memory})
            assert not taken_now or slots[name] <= available


@RELAXED
@given(problems())
def test_an_allocation_is_in_the_way_until_it_is_removed(problem: tuple[list[Json], list[Json], list[str]]) -> None:
    made = build(problem)
    outcome = made.decide()
    if not isinstance(outcome, Allocated):
        return
    before = made.usage.snapshot()
    for result in outcome.results:
        made.usage.add(result)
    for result in reversed(outcome.results):
        made.usage.remove(result)
    assert made.usage == before
    assert made.devices() == build(problem).devices()


@pytest.mark.rule("AL-14")
@RELAXED
@given(problems(), st.lists(st.integers(0, 10**6), max_size=30))
def test_giving_back_is_the_exact_inverse_of_taking(
    problem: tuple[list[Json], list[Json], list[str]], choices: list[int]
) -> None:
    made = build(problem)
    try:
        stated = made.problem()
    except AllocationError:
        return  # fatal before any search
    state = BranchState(stated)
    domains = [domain for domains in stated.domains for domain in domains]
    ledgers = [ledger for domain in domains for ledger in domain.ledgers]

    def picture() -> Any:
        return state.taken, list(state.by_claim), list(state.results), [ledger.state() for ledger in ledgers]

    pictures = []
    for choice in choices:
        domain = domains[choice % len(domains)] if domains else None
        if domain is None:
            return
        free = domain.usable & ~state.blocked(domain)
        for ledger in domain.ledgers:
            free = ledger.admit(free, domain)
        options = list(each(free))
        if options and choice % 3:
            pictures.append(picture())
            state.take(domain, options[choice % len(options)])
        elif pictures:
            state.give_back()
            assert picture() == pictures.pop()
    while pictures:
        state.give_back()
        assert picture() == pictures.pop()


@settings(max_examples=fewer(60))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 2), st.integers(1, 5)), max_size=20))
def test_usage_forgets_exactly_what_was_removed(entries: list[tuple[bool, int, int, int]]) -> None:
    allocations = []
    for shared, number, share, amount in entries:
        result: Json = {"request": "r", "driver": "drv", "pool": "p", "device": f"d{number}"}
        if shared:
            result |= {"shareID": f"share-{share}", "consumedCapacity": {"mem": str(amount)}}
        allocations.append(convert(AllocationResult, {"devices": {"results": [result]}}))
    usage = Usage(allocations)
    half = allocations[::2]
    for allocation in half:
        usage.remove(allocation)
    assert usage == Usage(allocations[1::2])
    for allocation in half:
        usage.add(allocation)
    assert usage == Usage(allocations)
