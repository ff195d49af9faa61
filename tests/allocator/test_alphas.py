"""Alpha features of Kubernetes 1.37, each with its gate on and off, and beside 1.36 (kubernetes-1.37.md)."""

from __future__ import annotations

import gc
from itertools import combinations
from random import Random
from typing import Any

import dra_operator.allocator.search as search_module
import pytest
from allocator_lab import Answer, claim, device, first_available, held, lab, pool, request, sub
from dra_api.codec import convert
from dra_api.core import Node
from dra_api.releases import Release
from dra_api.resource import DeviceAttribute, ResourceSlice
from dra_ledger.cel_language import CelSelectors
from dra_ledger.columns import DerivedColumn
from dra_operator.allocator import Allocated, DeviceId, Failed, Features, Refused, Rule, Semantics
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import fewer

Json = dict[str, Any]
OLD, OFF = Features(Release.V1_36), Features(Release.V1_37)
SKIPPING = Features(Release.V1_37, optional_node_operations=True)
GROUPS = Features(Release.V1_37, compatibility_groups=True)


def node(*features: str) -> Node:
    return convert(Node, {"metadata": {"name": "n1"}, "status": {"declaredFeatures": list(features)}})


ABLE, PLAIN = node("DRAOptionalNodeOperations"), node()


def skipping(*devices: Json, operations: tuple[str, ...] = ("*",), name: str = "p") -> list[Json]:
    return pool(*devices, name=name, nodeName="n1", skipNodeOperations=list(operations))


# --- optional node operations ---


@pytest.mark.rule("K37-ONO-02", "K37-ONO-04")
@pytest.mark.parametrize(
    ("features", "where", "expected", "skipped"),
    [
        (OLD, PLAIN, [["r=drv/p/a"]], None),
        (OFF, ABLE, "none", None),
        (SKIPPING, PLAIN, "none", None),
        (SKIPPING, ABLE, [["r=drv/p/a"]], ("NodeUnprepareResources",)),
    ],
)
def test_a_device_whose_driver_skips_calls_needs_the_gate_and_a_node_that_declares_it(
    features: Features, where: Node, expected: Answer, skipped: tuple[str, ...] | None
) -> None:
    """1.36 does not know the field."""
    slices = skipping(device("a"), operations=("NodeUnprepareResources",))
    cluster = lab(slices, [claim(request("r"))], features=features)
    assert cluster.devices(where) == expected
    outcome = cluster.decide(where)
    if isinstance(outcome, Allocated):
        (result,) = outcome.results[0].results
        assert result.skip_node_operations == skipped
    else:
        assert isinstance(outcome, Refused)
        assert outcome.refusal.rule is Rule.NODE_OPERATIONS
        assert "DRAOptionalNodeOperations" in outcome.refusal.fix


@pytest.mark.rule("K37-ONO-04")
def test_other_devices_are_chosen_on_a_node_without_the_feature() -> None:
    """The check is per slice."""
    slices = [*skipping(device("a"), name="p"), *pool(device("b"), name="q")]
    for where, expected in ((ABLE, "drv/p/a"), (PLAIN, "drv/q/b")):
        assert lab(slices, [claim(request("r"))], features=SKIPPING).devices(where) == [[f"r={expected}"]]


@pytest.mark.rule("K37-ONO-15")
def test_a_request_for_all_fails_as_a_whole_on_a_node_without_the_feature() -> None:
    """The device is refused late, so that it counts as one of all."""
    slices = [*skipping(device("a"), name="p"), *pool(device("b"), name="q")]
    cluster = lab(slices, [claim(request("r", allocationMode="All"))], features=SKIPPING)
    assert cluster.devices(PLAIN) == "none"
    assert cluster.devices(ABLE) == [["r=drv/p/a", "r=drv/q/b"]]


@pytest.mark.rule("K37-ONO-04")
def test_a_selector_that_fails_on_such_a_device_stays_fatal() -> None:
    """The check comes after selectors."""
    asked = [claim(request("r", 'device.attributes["drv"].missing == 1'))]
    assert lab(skipping(device("a")), asked, features=SKIPPING).devices(PLAIN) == "nodeError"


# --- compatibility groups ---


def part(name: str, *groups: str, set_: str = "s", cost: str = "20Gi", **extra: Any) -> Json:
    """A device that draws on a counter set, in these compatibility groups."""
    drawn = {"counterSet": set_, "counters": {"mem": {"value": cost}}}
    return device(name, extra={"consumesCounters": [{**drawn, "compatibilityGroups": list(groups)}], **extra})


def parts(*devices: Json, name: str = "p", sets: tuple[str, ...] = ("s", "t")) -> list[Json]:
    return pool(*devices, name=name, counters={set_: {"mem": "80Gi"} for set_ in sets})


@pytest.mark.rule("K37-CG-01", "K37-CG-02", "K37-CG-03", "K37-CG-04", "K37-CG-05", "K37-CG-06")
@pytest.mark.parametrize(
    ("devices", "taken", "asked", "expected"),
    [
        ([part("a", "x"), part("b", "x")], "a", {}, ["b"]),
        ([part("a", "x"), part("b", "y")], "a", {}, None),
        ([part("a", "x", "y"), part("b", "y", "z"), part("c", "x")], "ab", {}, None),
        ([part("a", "x", "y"), part("b", "y", "z"), part("c", "y")], "ab", {}, ["c"]),
        ([part("a", "x"), part("b")], "a", {}, None),
        ([part("a"), part("b"), part("c", "x")], "a", {}, ["b"]),
        ([part("a", "x"), part("b", "y"), part("c", "y")], "", {"count": 2}, ["b", "c"]),
        ([part("a", "x"), part("b", "y", set_="t")], "a", {}, ["b"]),
        ([part("a", "x"), part("b", "y")], "", {"allocationMode": "All"}, None),
        ([part("a", "x"), part("b", "x")], "", {"allocationMode": "All"}, ["a", "b"]),
    ],
    ids=["CG1", "CG2", "CG3", "two in common", "CG4", "none at all", "CG5", "CG6", "CG10", "all compatible"],
)
def test_devices_on_a_counter_set_need_a_group_in_common(
    devices: list[Json], taken: str, asked: Json, expected: list[str] | None
) -> None:
    """Up to 1.36 groups are not known."""
    usage = held(*(f"drv/p/{name}" for name in taken))
    wanted = [claim(request("r", **asked))]
    answer: Answer = "none" if expected is None else [[f"r=drv/p/{name}" for name in expected]]
    assert lab(parts(*devices), wanted, features=GROUPS, usage=usage).devices() == answer
    assert lab(parts(*devices), wanted, features=OLD, usage=usage).devices() != "none"


def test_what_a_device_drew_that_is_not_published_any_more_is_unknown() -> None:
    """CG7 of the reference, which counts what is published now."""
    usage, wanted = held("drv/p/a"), [claim(request("r"))]
    for semantics, answer in ((Semantics.reference(), [["r=drv/p/b"]]), (Semantics(), "none")):
        made = lab(parts(part("b", "y")), wanted, features=GROUPS, semantics=semantics, usage=usage)
        assert made.devices() == answer


@pytest.mark.rule("K37-CG-04")
def test_two_sets_have_to_admit_a_device_that_draws_on_both() -> None:
    """Each set is compared for itself."""
    both = part("c", "x")
    both["consumesCounters"].append({**both["consumesCounters"][0], "counterSet": "t"})
    for second, expected in (("x", [["r=drv/p/c"]]), ("y", "none")):
        devices = (part("a", "x"), part("b", second, set_="t"), both)
        cluster = lab(parts(*devices), [claim(request("r"))], features=GROUPS, usage=held("drv/p/a", "drv/p/b"))
        assert cluster.devices() == expected


@pytest.mark.rule("K37-CG-05")
def test_groups_of_devices_for_other_nodes_count() -> None:
    """The counters are of the whole pool."""
    sets, here, there = (parts(part("b", "y"))[1], parts(part("b", "y"))[0], parts(part("a", "x"))[0])
    there["metadata"]["name"], there["spec"]["nodeName"] = "there", "n2"
    slices = [sets, here, there]
    for slice_ in slices:
        slice_["spec"]["pool"] = {"name": "p", "generation": 1, "resourceSliceCount": 3}
    asked = [claim(request("r"))]
    assert lab(slices, asked, features=GROUPS).devices() == [["r=drv/p/b"]]
    assert lab(slices, asked, features=GROUPS, usage=held("drv/p/a")).devices() == "none"


@pytest.mark.rule("K37-CG-07")
def test_further_shares_of_a_device_are_not_asked_again() -> None:
    """Not even if it stands beside one that it is not compatible with."""
    shared = part("a", "x", allowMultipleAllocations=True)
    usage = held("drv/p/b")
    usage.take_share(DeviceId("drv", "p", "a"), "share", {})
    wanted = [claim(request("r"))]
    assert lab(parts(shared, part("b", "y")), wanted, features=GROUPS, usage=usage).devices() == [["r=drv/p/a"]]
    assert lab(parts(shared, part("b", "y")), wanted, features=GROUPS, usage=held("drv/p/b")).devices() == "none"


@pytest.mark.rule("K37-CG-08")
def test_admin_access_asks_for_no_group() -> None:
    """Neither for its own device beside those in use, nor for the devices of others beside its own."""
    slices = parts(part("a", "x"), part("b", "y", attributes={"k": {"int": 1}}))
    only_b = 'device.attributes["drv"].?k.orValue(0) == 1'
    for admin, expected in ((True, [["r=drv/p/b"]]), (False, "none")):
        asked = [claim(request("r", only_b, adminAccess=admin))]
        assert lab(slices, asked, features=GROUPS, usage=held("drv/p/a")).devices() == expected
    both = [claim(request("q", adminAccess=True), name="c1"), claim(request("r", only_b), name="c2")]
    assert lab(slices, both, features=GROUPS).devices() == [["q=drv/p/a"], ["r=drv/p/b"]]


def test_a_refusal_names_the_counter_set() -> None:
    outcome = lab(
        parts(part("a", "x"), part("b", "y")), [claim(request("r"))], features=GROUPS, usage=held("drv/p/a")
    ).decide()
    assert isinstance(outcome, Refused)
    assert outcome.refusal.rule is Rule.COMPATIBILITY
    assert "1 not compatible with devices in use" in outcome.refusal.line()
    assert "counter set s" in outcome.refusal.fix


@pytest.mark.rule("K37-CG-09")
@pytest.mark.parametrize(
    ("slices", "asked", "expected"),
    [
        (parts(part("a", "x"), part("b", set_="t")), {}, "none"),
        ([*parts(part("a", "x")), *parts(part("b"), name="q")], {}, [["r=drv/q/b"]]),
        ([*parts(part("a", "x")), *parts(part("b"), name="q")], {"allocationMode": "All"}, "nodeError"),
        (parts(part("a"), part("b")), {"count": 2}, [["r=drv/p/a", "r=drv/p/b"]]),
    ],
    ids=["CG8", "CG9", "CG9 all", "CG9b"],
)
def test_with_the_gate_off_a_slice_with_groups_is_as_if_it_were_not_there(
    slices: list[Json], asked: Json, expected: Answer
) -> None:
    """Its pool lacks a slice."""
    wanted = [claim(request("r", **asked))]
    assert lab(slices, wanted, features=OFF).devices() == expected
    assert not isinstance(lab(slices, wanted, features=OLD).devices(), str)


@pytest.mark.rule("K37-CG-09")
def test_a_slice_that_gets_groups_with_the_gate_off_is_forgotten_and_comes_back() -> None:
    """The slice that it had before does not stay."""
    cluster = lab(parts(part("a")), [claim(request("r"))], features=OFF)
    inventory = cluster.allocator.inventory
    for groups, expected in ((("x",), "none"), ((), [["r=drv/p/a"]]), (("x",), "none")):
        inventory.put_slice(convert(ResourceSlice, parts(part("a", *groups))[0]))
        assert cluster.devices() == expected
    inventory.remove_slice("drv-p-1")
    assert cluster.devices() == "none"


def compatible(groups: dict[str, dict[str, set[str]]], devices: list[str]) -> bool:
    """On each set: no device has groups, or all have one in common."""
    for set_ in ("s", "t"):
        there = [groups[name][set_] for name in devices if set_ in groups[name]]
        if any(there) and not set.intersection(*there):
            return False
    return True


def first_choice(groups: dict[str, dict[str, set[str]]], taken: list[str], counts: list[int]) -> Answer:
    """By trying all combinations in the order of the reference."""

    def rest(chosen: list[list[str]]) -> list[list[str]] | None:
        if len(chosen) == len(counts):
            return chosen
        used = [*taken, *(name for part in chosen for name in part)]
        for names in combinations([name for name in sorted(groups) if name not in used], counts[len(chosen)]):
            if compatible(groups, [*used, *names]) and (found := rest([*chosen, list(names)])) is not None:
                return found
        return None

    found = rest([])
    if found is None:
        return "none"
    return [[f"r{number}=drv/p/{name}" for number, names in enumerate(found) for name in names]]


@pytest.mark.rule("K37-CG-02", "K37-CG-04", "K37-CG-06")
@pytest.mark.parametrize("failures", [-1, 12], ids=["pruned from the start", "as usual"])
@settings(max_examples=fewer(40), deadline=None)
@given(source=st.randoms(use_true_random=False))
def test_the_first_compatible_devices_are_found(failures: int, source: Random) -> None:
    """Whatever is pruned."""
    groups = {
        f"d{number}": {
            set_: set(source.sample("xyz", source.choice((0, 1, 1, 2))))
            for set_ in source.sample("st", source.choice((1, 1, 2)))
        }
        for number in range(7)
    }
    taken = [name for name in groups if source.random() < 0.15]
    counts = [source.randint(1, 3) for _ in range(source.randint(1, 2))]
    devices = []
    for name, by_set in groups.items():
        made = device(name, consumes={set_: {"mem": 1} for set_ in by_set})
        for consumption in made["consumesCounters"]:
            consumption["compatibilityGroups"] = sorted(by_set[consumption["counterSet"]])
        devices.append(made)
    asked = [claim(*(request(f"r{number}", count=count) for number, count in enumerate(counts)))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "FAILURES_BEFORE_PRUNING", failures)
        cluster = lab(parts(*devices), asked, features=GROUPS, usage=held(*(f"drv/p/{name}" for name in taken)))
        allowed = compatible(groups, taken)
        assert cluster.devices() == (first_choice(groups, taken, counts) if allowed else cluster.devices())


# --- derived attributes ---

FAMILY = "example.com/family"
DERIVED = Features(Release.V1_37, derived_attributes=True)
BEFORE_DASH = 'device.attributes["drv"].model.split("-")[0]'


def computing(name: str = "r", *selectors: str, expression: str = BEFORE_DASH, **fields: Any) -> Json:
    return request(name, *selectors, derivedAttributes=[{"name": FAMILY, "expression": expression}], **fields)


def models(**by_name: str) -> list[Json]:
    return pool(*(device(name, model=model) for name, model in by_name.items()))


MATCH, DISTINCT = {"matchAttribute": FAMILY}, {"distinctAttribute": FAMILY}
THREE = models(d1="A100-40", d2="H100-80", d3="A100-80")


def derived(slices: list[Json], *asked: Json, constraint: Json = MATCH, features: Features = DERIVED) -> Answer:
    answer = lab(slices, [claim(*asked, constraints=[constraint])], features=features, language=CelSelectors(features))
    return answer.devices()


def failure(slices: list[Json], *asked: Json, features: Features = DERIVED) -> str:
    made = lab(slices, [claim(*asked, constraints=[MATCH])], features=features, language=CelSelectors(features))
    outcome = made.decide()
    assert isinstance(outcome, Failed)
    return str(outcome.error)


@pytest.mark.rule("K37-DA-06", "K37-DA-08")
def test_constraints_compare_what_requests_compute() -> None:
    assert derived(THREE, computing(count=2)) == [["r=drv/p/d1", "r=drv/p/d3"]]
    assert derived(THREE, computing(count=2), constraint=DISTINCT) == [["r=drv/p/d1", "r=drv/p/d2"]]
    hidden = pool(
        *({**it, "attributes": {**it["attributes"], FAMILY: {"string": it["name"]}}} for it in _devices(THREE))
    )
    assert derived(hidden, computing(count=2)) == [["r=drv/p/d1", "r=drv/p/d3"]]


def _devices(slices: list[Json]) -> list[Json]:
    found: list[Json] = slices[0]["spec"]["devices"]
    return found


@pytest.mark.rule("K37-DA-05")
def test_with_the_gate_off_a_derived_attribute_is_an_error_and_1_36_does_not_know_it() -> None:
    """The error comes before the expression is looked at."""
    assert failure(THREE, computing("r", "broken(", count=2), features=OFF) == (
        "claim default/c, request r: has derived attributes, but the DRADerivedAttributes feature is disabled"
    )
    assert derived(THREE, computing(count=2), features=OLD) == "none"  # no device publishes it


@pytest.mark.rule("K37-DA-07", "K37-DA-10")
def test_an_expression_that_fails_on_a_device_ends_the_attempt_if_the_search_arrives_there() -> None:
    slices = pool(device("d1"), *_devices(models(d2="H100-80", d3="A100-80")))
    assert failure(slices, computing(count=2)).startswith(
        f"evaluate derived attribute {FAMILY} of request r on device drv/p/d1: "
    )
    has_model = 'has(device.attributes["drv"].model)'
    assert derived(slices, computing("r", has_model, count=2)) == "none"
    assert derived(slices, computing("r", has_model)) == [["r=drv/p/d2"]]
    assert derived(slices, computing("r", has_model, allocationMode="All")) == "nodeError"  # the constraint is violated
    late = pool(*_devices(THREE), device("d4"))
    assert derived(late, computing(count=2)) == [["r=drv/p/d1", "r=drv/p/d3"]]  # d4 is never tried
    assert failure(late, computing(count=3)).startswith(f"evaluate derived attribute {FAMILY} of request r on device")


@pytest.mark.rule("K37-DA-10")
@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("device.(", f"compile derived attribute {FAMILY} of request r: "),
        ('{"a": 1}', f"compile derived attribute {FAMILY} of request r: "),
        ("[1, 2][5]", f"evaluate derived attribute {FAMILY} of request r on device drv/p/d1: "),
        ('dyn({"a": 1})', f"evaluate derived attribute {FAMILY} of request r on device drv/p/d1: "),
        ('[dyn(1), dyn("a")]', f"evaluate derived attribute {FAMILY} of request r on device drv/p/d1: "),
    ],
)
def test_an_expression_that_gives_no_attribute_ends_the_attempt(expression: str, text: str) -> None:
    """It does not compile, it fails, or its value is of another type."""
    assert failure(THREE, computing(expression=expression)).startswith(text)


@pytest.mark.rule("K37-DA-09")
@pytest.mark.parametrize(
    "expression",
    ['"x"', "1", "true", 'semver("1.2.3")', 'device.attributes["drv"].model.size()', 'device.driver == "drv"'],
)
def test_every_type_of_attribute_can_be_computed(expression: str) -> None:
    """Each is compared by type and value."""
    assert derived(THREE, computing(count=3, expression=expression)) == [[f"r=drv/p/d{number}" for number in (1, 2, 3)]]


@pytest.mark.rule("K37-DA-09")
def test_a_computed_list_is_compared_with_the_gate_for_lists() -> None:
    """Without it a list stands alone, as a published one does."""
    both = Features(Release.V1_37, derived_attributes=True, list_attributes=True)
    asked = computing(count=3, expression='[string(device.attributes["drv"].model), "common"]')
    assert derived(THREE, asked, features=both) == [[f"r=drv/p/d{number}" for number in (1, 2, 3)]]
    assert derived(THREE, asked) == "none"
    apart = computing(count=2, expression='[string(device.attributes["drv"].model)]')
    assert derived(THREE, apart, constraint=DISTINCT, features=both) == [["r=drv/p/d1", "r=drv/p/d2"]]
    assert derived(THREE, apart, constraint=DISTINCT) == "none"


@pytest.mark.rule("K37-DA-10")
def test_nothing_is_left_of_a_device_on_which_an_expression_failed_for_the_next_alternative() -> None:
    slices = pool(device("d1", size=1), device("d2", size=2, model="A100-40"))
    items = [{"name": FAMILY, "expression": BEFORE_DASH}]
    alternatives = [
        sub(f"s{size}", f'device.attributes["drv"].size == {size}', derivedAttributes=items) for size in (1, 2)
    ]
    constraints = [{"matchAttribute": "drv/size"}, MATCH]
    asked = claim(first_available("r", *alternatives), constraints=constraints)
    assert lab(slices, [asked], features=DERIVED, language=CelSelectors(DERIVED)).devices() == [["r/s2=drv/p/d2"]]


@pytest.mark.rule("K37-DA-08")
def test_other_requests_of_the_constraint_use_what_is_published() -> None:
    """The computed value hides the published one for the request that computes it only."""
    slices = pool(
        device("d1", model="A100-40"),
        device("d2", model="H100-80", extra={"attributes": {FAMILY: {"string": "A100"}, "nic": {"bool": True}}}),
    )
    nic = request("n", 'device.attributes["drv"].?nic.orValue(false)')
    assert derived(slices, computing(), nic) == [["r=drv/p/d1", "n=drv/p/d2"]]
    assert derived(slices, nic, computing()) == [["n=drv/p/d2", "r=drv/p/d1"]]


@pytest.mark.parametrize("failures", [-1, 12], ids=["pruned from the start", "as usual"])
@settings(max_examples=fewer(40), deadline=None)
@given(source=st.randoms(use_true_random=False))
def test_computed_attributes_are_compared_as_published_ones(failures: int, source: Random) -> None:
    """The answer is the one for devices that publish what is computed, also where constraints overlap."""
    devices = [device(f"d{number}", model=source.choice("ABC"), size=source.randint(1, 2)) for number in range(8)]
    counts = [source.randint(1, 3) for _ in range(2)]
    constraints = [{"matchAttribute": "drv/size"}] * source.randint(0, 1) + [source.choice((MATCH, DISTINCT))]
    published = [{**it, "attributes": {**it["attributes"], FAMILY: it["attributes"]["model"]}} for it in devices]
    computed = [
        computing(f"r{number}", count=count, expression='device.attributes["drv"].model')
        for number, count in enumerate(counts)
    ]
    plain = [request(f"r{number}", count=count) for number, count in enumerate(counts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "FAILURES_BEFORE_PRUNING", failures)
        ours, theirs = (
            lab(pool(*some), [claim(*asked, constraints=constraints)], features=DERIVED, language=CelSelectors(DERIVED))
            for some, asked in ((devices, computed), (published, plain))
        )
        assert ours.devices() == theirs.devices()


def test_expressions_that_are_cheap_alone_are_refused_on_many_devices_where_others_wait() -> None:
    """128 devices and 32 expressions: nothing else would be done for seconds."""
    every = 'device.attributes["drv"]'
    names = [f"example.com/a{number}" for number in range(32)]
    items = [{"name": name, "expression": f"{every}.map(a, a + a).size() + {len(name)}"} for name in names]
    devices = pool(*(device(f"d{number}", model="m") for number in range(128)))
    constraints = [{"matchAttribute": name} for name in names]
    for requests, number, refused in ((1, 1, False), (1, 32, True), (32, 1, True)):
        asked = [request(f"r{place}", derivedAttributes=items[:number]) for place in range(requests)]
        made = [claim(*asked, constraints=constraints[:number])]
        cluster = lab(devices, made, features=DERIVED, language=CelSelectors(DERIVED))
        cluster.allocator.inventory.compiled.patient = False
        outcome = cluster.decide()
        if not refused:
            assert isinstance(outcome, Allocated)
            continue
        assert isinstance(outcome, Failed)
        assert str(outcome.error).startswith("gave up: derived attributes may cost ")


@pytest.mark.rule("K37-DA-11")
def test_a_search_keeps_what_it_computed_for_the_requests_before() -> None:
    """A search that goes back still knows what it computed for the earlier requests."""
    names = [f"example.com/a{number}" for number in range(32)]
    asked = [
        request(
            f"r{place}",
            derivedAttributes=[
                {"name": name, "expression": f'"r{place}" == "" ? "" : {BEFORE_DASH}'} for name in names
            ],
        )
        for place in range(3)
    ]
    slices = models(d1="A-1", d2="A-2", d3="B-1", d4="B-2", d5="B-3")
    constraints = [{"matchAttribute": name} for name in names]
    made = lab(slices, [claim(*asked, constraints=constraints)], features=DERIVED, language=CelSelectors(DERIVED))
    assert made.devices() == [["r0=drv/p/d3", "r1=drv/p/d4", "r2=drv/p/d5"]]


def test_no_computed_value_outlives_its_search() -> None:
    """A tenant's expressions decide how large the values are, on each node and device of the cluster."""
    made = lab(THREE, [claim(computing(), constraints=[MATCH])], features=DERIVED, language=CelSelectors(DERIVED))
    assert made.devices() != "none"
    gc.collect()
    assert not [found for found in gc.get_objects() if isinstance(found, DerivedColumn)]


def test_what_fails_on_a_device_is_kept_without_its_frames() -> None:
    """A traceback keeps the evaluation and the prepared device alive as long as the search goes on."""
    column = DerivedColumn(FAMILY, _fail, lists=False)
    column.cover(0b11)
    assert column.failed == 0b11
    for error in column.failures.values():
        assert str(error) == "no such key"
        assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)


def _fail(number: int) -> DeviceAttribute:
    try:
        raise KeyError(number)
    except KeyError as error:
        raise ValueError("no such key") from error


@pytest.mark.rule("K37-DA-12")
def test_a_costly_expression_is_refused_where_others_wait() -> None:
    names = 'device.attributes["drv"]'
    costly = f"{names}.map(a, {names}.map(b, {names}.map(c, c.size()))).size()"
    cluster = lab(
        THREE,
        [claim(computing(expression=costly), constraints=[MATCH])],
        features=DERIVED,
        language=CelSelectors(DERIVED),
    )
    assert cluster.devices() == [["r=drv/p/d1"]]
    cluster.allocator.inventory.compiled.patient = False
    outcome = cluster.decide()
    assert isinstance(outcome, Failed)
    assert str(outcome.error).startswith("gave up: a derived attribute may cost ")
