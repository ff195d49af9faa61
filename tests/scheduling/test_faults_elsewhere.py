"""A fault of what one node sees never makes a pod wait that fits elsewhere (allocator.md section 15).

Random problems of all features, and beside them every fault that a driver can publish: on a further node, on one that
the pod does not get, or for nodes by a selector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from allocator_lab import Json, Lab, claim, device, first_available, lab, make_node, pool, request, sub
from allocator_problems import LocalMaker, Maker, laboratory, make_case
from dra_api.codec import DecodeError, convert
from dra_api.core import Node
from dra_api.resource import ResourceSlice
from dra_operator.allocator import Semantics
from dra_operator.scheduling import NoPlace, Plan, decided, plan
from dra_operator.scheduling.state import LoadedNode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placement_lab import case, pod
from rounds import fewer, fresh

ALL: Json = {"allocationMode": "All"}
MODEL = 'device.attributes["drv"].model == "A"'
BAD_SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Gt", "values": ["far"]}]}]}
FAR = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["far"]}]}
TWO_TERMS = {"nodeSelectorTerms": [FAR, FAR]}


def half_published(**where: Any) -> list[Json]:
    slices = pool(device("d", model="A"), **where)
    slices[0]["spec"]["pool"]["resourceSliceCount"] = 2
    return slices


def two_halves_disagree(**where: Any) -> list[Json]:
    """Too many slices, and each says another number."""
    return [
        {
            "metadata": {"name": f"h-{number}"},
            "spec": {**slice_["spec"], "pool": {**about, "resourceSliceCount": number}},
        }
        for number in (1, 3)
        for slice_ in pool(device(f"d{number}", model="A"), **where)
        for about in (slice_["spec"]["pool"],)
    ]


def with_counters(sets: int, **where: Any) -> list[Json]:
    slices = pool(device("d", model="A", consumes={"set": {"slots": 1}}), counters={"set": {"slots": 1}}, **where)
    slices[1]["spec"]["sharedCounters"] *= sets
    if not sets:
        slices[1]["spec"]["sharedCounters"] = [{"name": "other", "counters": {"slots": {"value": "1"}}}]
    return slices


def of_two_generations(**where: Any) -> list[Json]:
    slices = [*pool(device("d", model="A"), **where), *pool(device("e", model="A"), **where)]
    slices[1]["metadata"] = {"name": "newer"}
    slices[1]["spec"]["pool"] = {**slices[1]["spec"]["pool"], "generation": 2, "resourceSliceCount": 2}
    return slices


def per_device(**where: Any) -> list[Json]:
    devices = (device("d", model="A", extra={"nodeSelector": BAD_SELECTOR}), device("e", model="A", extra=where))
    return pool(*devices, perDeviceNodeSelection=True)


FAULTS: dict[str, Callable[..., list[Json]]] = {
    "half published": half_published,
    "slices that disagree about their number": two_halves_disagree,
    "a name twice": lambda **where: pool(device("d", model="A"), device("d", model="A"), **where),
    "unknown counters": lambda **where: with_counters(0, **where),
    "counters twice": lambda **where: with_counters(2, **where),
    "more devices than a claim may have": lambda **where: pool(
        *(device(f"d{number}", model="A", k=number % 3) for number in range(40)), **where
    ),
    "devices without attributes": lambda **where: pool(device("a"), device("b"), **where),
    "attributes of another type": lambda **where: pool(device("a", model=1, k="x", u=True), **where),
    "a list where selectors expect one value": lambda **where: pool(device("a", model=["A", "B"], k=[1]), **where),
    "a version that is none": lambda **where: pool(
        device("a", extra={"attributes": {"model": {"version": "no"}}}), **where
    ),
    "negative capacity": lambda **where: pool(device("a", model="A", capacity={"drv/mem": "-1"}), **where),
    "two generations": of_two_generations,
    "an older generation, of which the newer one is elsewhere": lambda **where: [
        *pool(device("d", model="A"), **where),
        *(
            {"metadata": {"name": "far"}, "spec": {**it["spec"], "pool": {**it["spec"]["pool"], "generation": 5}}}
            for it in pool(device("d"), nodeName="far")
        ),
    ],
    "nothing at all": lambda **where: pool(**where),
    "a device with a malformed selector": per_device,
}
SELECTORS: dict[str, Json] = {"a malformed selector": BAD_SELECTOR, "a selector with several terms": TWO_TERMS}


def broken(fault: str, name: str, driver: str, **where: Any) -> list[ResourceSlice]:
    """The slices of a pool of its own with a fault."""
    slices = FAULTS[fault](**where)
    for slice_ in slices:
        slice_["metadata"] = {"name": f"{name}-{slice_['metadata']['name']}"}
        slice_["spec"] = {**slice_["spec"], "driver": driver, "pool": {**slice_["spec"]["pool"], "name": name}}
    return [convert(ResourceSlice, slice_) for slice_ in slices]


def attempt(made: Lab, nodes: list[Node]) -> Plan | NoPlace:
    """Where a pod with the claims gets a node; the nodes are empty but for devices in use."""
    states = [LoadedNode(node, {}) for node in nodes]
    return decided(plan(case(pod(), made.claims, states, made.allocator, usage=made.usage)))


def with_room(node: Json) -> Node:
    return convert(Node, {**node, "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}})


@settings(suppress_health_check=list(HealthCheck), max_examples=fewer(300), deadline=None)
@given(st.randoms(use_true_random=False))
def test_no_fault_makes_a_pod_wait_that_fitted_elsewhere(source: Random) -> None:
    problem = make_case(source, source.choice((Maker, LocalMaker)))
    made = laboratory(problem)
    nodes = [*map(with_room, problem["nodes"]), with_room({"metadata": {"name": "far", "labels": {}}})]
    before = attempt(made, nodes)
    if not isinstance(before, Plan):
        return
    others = [node.metadata.name for node in nodes if node.metadata.name != before.node]
    inventory = made.allocator.inventory
    for number in range(source.randint(1, 3)):
        fault, driver = source.choice(list(FAULTS)), source.choice(("drv", "other", "third"))
        where: Json = {"nodeName": source.choice(others)}
        if source.random() < 0.3 and before.node != "far":  # where some of the selectors lead
            where = {"nodeSelector": source.choice(list(SELECTORS.values()))}
        for slice_ in broken(fault, f"x{number}", driver, **where):
            inventory.put_slice(slice_)
        after = attempt(made, nodes)
        assert isinstance(after, Plan), f"{fault} of {driver} at {where}: {after.message}"


def test_the_faults_are_faults() -> None:
    """Each of them keeps some pod from its node that would fit with one ordinary device there."""
    asked = [
        request("r", MODEL, **ALL),
        request("r", 'device.attributes["drv"].k < 2', **ALL),
        request("r", MODEL, capacity={"requests": {"drv/mem": "1"}}),
        request("r", MODEL),
        request("r", MODEL, count=2),
    ]
    harmless = set()
    for fault in FAULTS:
        slices = [*broken(fault, "x", "drv", nodeName="n1")]
        kept_off = 0
        for wanted in asked:
            made = lab(pool(device("z", model="A", k=1, capacity={"drv/mem": 4})), [claim(wanted)])
            fitted = isinstance(made.devices(), list)
            for slice_ in slices:
                made.allocator.inventory.put_slice(slice_)
            kept_off += fitted and not isinstance(made.devices(), list)
        if not kept_off:
            harmless.add(fault)
    # Slices that are for no node, or hold nothing, are no obstacle on any.
    assert harmless == {
        "nothing at all",
        "an older generation, of which the newer one is elsewhere",
    }


GOOD = pool(device("d", model="A"), name="good", nodeName="n2")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_reference_lets_some_of_them_hold_the_pod_back(fault: str) -> None:
    """So that the comparison is worth something; here the pod gets its node."""
    for semantics, is_reference in ((Semantics(), False), (Semantics.reference(), True)):
        made = lab(GOOD, [claim(request("r", MODEL, **ALL))], semantics=semantics)
        for slice_ in broken(fault, "x", "drv", nodeName="n1"):
            made.allocator.inventory.put_slice(slice_)
        found = attempt(made, [with_room({"metadata": {"name": name}}) for name in ("n1", "n2")])
        if not is_reference:
            assert isinstance(found, Plan)
        elif fault in HOLDS_BACK:
            assert isinstance(found, NoPlace)
            assert found.is_error


HOLDS_BACK = {
    "half published",
    "slices that disagree about their number",
    "a name twice",
    "unknown counters",
    "counters twice",
    "more devices than a claim may have",
    "devices without attributes",
    "two generations",
}


@pytest.mark.parametrize("fault", ["half published", "a name twice", "more devices than a claim may have"])
def test_the_alternative_is_tried_behind_a_request_for_all_devices(fault: str) -> None:
    wanted = first_available("r", sub("all", MODEL, **ALL), sub("one", MODEL))
    made = lab([], [claim(wanted)])
    for slice_ in [
        *broken(fault, "x", "drv", nodeName="n1"),
        *broken("devices without attributes", "y", "z", nodeName="n1"),
    ]:
        made.allocator.inventory.put_slice(slice_)
    for good in pool(device("d", model="A"), name="good"):
        made.allocator.inventory.put_slice(convert(ResourceSlice, good))
    assert made.devices(make_node("n1")) == [["r/one=drv/good/d"]]


def test_a_pool_of_a_driver_that_cannot_be_meant_is_nothing_to_a_request_for_all() -> None:
    named = request("r", 'device.driver == "drv"', **ALL)
    for fault in FAULTS:
        made = lab(pool(device("d", model="A")), [claim(named)])
        for slice_ in broken(fault, "x", "other", nodeName="n1"):
            made.allocator.inventory.put_slice(slice_)
        assert made.devices() == [["r=drv/p/d"]], fault


# --- anything at all in a slice or a node ---

NASTY: tuple[Any, ...] = (
    *("", "x" * 63, "x" * 300, "A b", "a/b/c", "0", "-1", "1e400", "9223372036854775807Gi", "NaN", "0x10", "é"),
    *(0, -1, 1, 2**31, 2**63 - 1, True, False, None),
    *([], {}, [{}], [None], {"": {}}, [BAD_SELECTOR], {"nodeSelectorTerms": []}, {"nodeSelectorTerms": [{}]}),
)
"""Values that no field likes."""
EXTRAS: tuple[tuple[str, Any], ...] = (
    (
        "taints",
        [{"key": "k", "effect": "NoExecute"}, {"effect": "Unknown"}, {"key": "k", "value": "v", "effect": "None"}],
    ),
    ("bindingConditions", ["ready", "ready"]),
    ("bindingFailureConditions", ["x" * 400]),
    ("bindsToNode", True),
    ("allowMultipleAllocations", True),
    ("capacity", {"drv/mem": {"value": "4", "requestPolicy": {"validRange": {"min": "8", "max": "1", "step": "0"}}}}),
    ("capacity", {"drv/mem": {"value": "4", "requestPolicy": {"default": "9", "validValues": []}}}),
    ("capacity", {"drv/mem": {"value": "1", "requestPolicy": {"default": "-1", "validRange": {"min": "-5"}}}}),
    ("consumesCounters", [{"counterSet": "none", "counters": {"slots": {"value": "1"}}}] * 2),
    ("consumesCounters", [{"counterSet": "set", "counters": {"slots": {"value": "-9223372036854775808"}}}]),
    ("attributes", {"model": {}, "k": {"int": 1, "string": "A"}, "a/b/c": {"bool": True}, "": {"version": "1"}}),
    (
        "attributes",
        {"model": {"string": "x" * 70}, "k": {"int": 2**63 - 1}, "l": {"ints": []}, "v": {"version": "01.x"}},
    ),
    ("nodeAllocatableResourceMappings", {"cpu": {"capacityKey": "none"}, "": {"allocationMultiplier": "-1"}}),
    ("nodeName", "elsewhere"),
    ("allNodes", False),
)
"""Fields of a device that few drivers set, with values that none should."""


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [it for key, inner in items for it in ((*path, key), *places_in(inner, (*path, key)))]


def spoilt(source: Random, obj: Json, kept: frozenset[str]) -> Json:
    """The object with some values replaced, but for those below ``kept``: where it is must stay as it is."""
    made: Json = deepcopy(obj)
    for _ in range(source.randint(1, 3)):
        paths = [it for it in places_in(made) if len(it) > 1 and kept.isdisjoint(it)]
        if not paths:
            break
        *way, last = source.choice(paths)
        inside: Any = made
        for key in way:
            inside = inside[key]
        if source.random() < 0.15 and isinstance(inside, dict):
            del inside[last]
        else:
            inside[last] = deepcopy(source.choice(NASTY))
    return made


def spoilt_slices(source: Random, problem: Json, where: Json) -> Iterator[ResourceSlice]:
    """Slices of pools of their own: those of a fault, or of the problem itself, with anything in them."""
    number, driver = source.randrange(10**6), source.choice(("drv", "other", "third"))
    slices = FAULTS[source.choice(list(FAULTS))](**where)
    if problem["slices"] and source.random() < 0.5:
        slices = [deepcopy(it) for it in problem["slices"]]
        for it in slices:
            for field in ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"):
                it["spec"].pop(field, None)
            it["spec"] |= where
    for count, it in enumerate(slices):
        for entry in it["spec"].get("devices") or ():
            if source.random() < 0.4:
                name, value = source.choice(EXTRAS)
                entry[name] = deepcopy(value)
        made = spoilt(source, it, KEPT)
        # Another pool than those of the problem: a pool that is spoilt where the pod fits is another matter.
        made["metadata"] = {"name": f"spoilt-{number}-{count}"}
        about = made["spec"].get("pool")
        made["spec"] |= {"driver": driver}
        if isinstance(about, dict):
            about["name"] = f"spoilt-{number}"
        try:
            yield convert(ResourceSlice, made)
        except DecodeError:  # the operator keeps it apart
            continue


KEPT = frozenset({"metadata", "nodeName", "nodeSelector", "allNodes"})
NODE = {
    "metadata": {"name": "n", "labels": {"zone": "a"}, "annotations": {}},
    "spec": {"unschedulable": False, "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
    "status": {
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10", "example.com/gpu": "1"},
        "conditions": [{"type": "Ready", "status": "True"}],
        "images": [{"names": ["a"], "sizeBytes": 1}],
    },
}


def spoilt_node(source: Random) -> LoadedNode | None:
    """A node with anything in it; None if it cannot be read."""
    made = spoilt(source, NODE, frozenset({"name"}))
    name = source.choice(("spoilt", "x" * 253, "UPPER case", "a.b"))
    made["metadata"] = {**(made["metadata"] if isinstance(made["metadata"], dict) else {}), "name": name}
    try:
        return LoadedNode(convert(Node, made), {})
    except DecodeError:
        return None


def spoils(seed: int, semantics: Semantics | None = None) -> str | None:
    """Why a pod waits that fitted before slices and nodes came with anything in them; None if it does not."""
    source = Random(seed)
    problem = make_case(source, source.choice((Maker, LocalMaker)))
    made = laboratory(problem, semantics)
    nodes = [*map(with_room, problem["nodes"]), with_room({"metadata": {"name": "far", "labels": {}}})]
    before = attempt(made, nodes)
    if not isinstance(before, Plan):
        return None
    others = [node.metadata.name for node in nodes if node.metadata.name != before.node]
    states = [LoadedNode(node, {}) for node in nodes]
    for _ in range(source.randint(1, 4)):
        where: Json = {"nodeName": source.choice(others)}
        if source.random() < 0.2 and before.node != "far":
            where = {"nodeSelector": source.choice(list(SELECTORS.values()))}
        for slice_ in spoilt_slices(source, problem, where):
            if slice_.spec.node_name != before.node:  # another name may stand there as well
                made.allocator.inventory.put_slice(slice_)
        if (node := spoilt_node(source)) is not None and node.name not in {it.name for it in states}:
            states.insert(source.randint(0, len(states)), node)
        after = decided(plan(case(pod(), made.claims, states, made.allocator, usage=made.usage)))
        if not isinstance(after, Plan):
            return after.message
    return None


def test_nothing_that_stands_in_a_slice_or_a_node_makes_a_pod_wait_that_fitted_elsewhere() -> None:
    seeds = [*range(fewer(150)), *fresh(150)]
    assert {seed: why for seed in seeds if (why := spoils(seed)) is not None} == {}


def test_what_stands_in_slices_holds_pods_back_where_a_node_fails_the_attempt() -> None:
    """So that the test above is worth something: the reference gives up at the first node with an error."""
    reference = Semantics.reference()
    assert any(spoils(seed, reference) is not None for seed in range(200))
