"""What the allocator gives, feature by feature, in tables that stand without the reference's data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from allocator_lab import (
    Answer,
    Cel,
    Lab,
    claim,
    device,
    device_class,
    first_available,
    held,
    lab,
    make_node,
    pool,
    request,
    sub,
)
from dra_api.codec import convert
from dra_api.resource import Device, DeviceClass, ResourceClaim, ResourceSlice
from dra_api.values import Quantity
from dra_operator.allocator import (
    Allocated,
    Allocator,
    DeviceId,
    Failed,
    Features,
    GaveUp,
    Inventory,
    Semantics,
    Usage,
    search,
)

A, B = 'device.attributes["drv"].model == "A"', 'device.attributes["drv"].model == "B"'
MODELS = pool(device("a1", model="A"), device("b1", model="B"), device("a2", model="A"))
TAINT = {"taints": [{"key": "bad", "value": "x", "effect": "NoSchedule"}]}
MULTI = {"allowMultipleAllocations": True}
BASIC = Features(consumable_capacity=False, binding_conditions=False)


def match(attribute: str, *requests: str) -> dict[str, Any]:
    return {"matchAttribute": attribute, "requests": list(requests)}


def distinct(attribute: str, *requests: str) -> dict[str, Any]:
    return {"distinctAttribute": attribute, "requests": list(requests)}


def consumed(amount: str) -> Usage:
    """A state in which so much of the capacity ``mem`` of device ``a`` is consumed."""
    usage = Usage()
    usage.take_share(DeviceId("drv", "p", "a"), "share", {"mem": Quantity(amount).nanos})
    return usage


GIVES: dict[str, tuple[Lab, Answer]] = {
    "no claims need nothing": (lab(MODELS, []), []),
    "a claim without requests gets an empty result": (lab(MODELS, [claim()]), [[]]),
    "the first device in list order": (lab(MODELS, [claim(request("r"))]), [["r=drv/p/a1"]]),
    "the first that the selector selects": (lab(MODELS, [claim(request("r", B))]), [["r=drv/p/b1"]]),
    "class selectors count as well": (
        lab(MODELS, [claim(request("r", B, deviceClassName="a"))], classes=[device_class("a", A)]),
        "none",
    ),
    "several devices of one request in order": (
        lab(MODELS, [claim(request("r", A, count=2))]),
        [["r=drv/p/a1", "r=drv/p/a2"]],
    ),
    "a later request gets what is left": (
        lab(MODELS, [claim(request("r"), request("q", A))]),
        [["r=drv/p/a1", "q=drv/p/a2"]],
    ),
    "an earlier choice is changed when a later request needs the device": (
        lab(MODELS, [claim(request("r"), request("q", A, count=2))]),
        [["r=drv/p/b1", "q=drv/p/a1", "q=drv/p/a2"]],
    ),
    "also across claims": (
        lab(MODELS, [claim(request("r"), name="c1"), claim(request("q", A, count=2), name="c2")]),
        [["r=drv/p/b1"], ["q=drv/p/a1", "q=drv/p/a2"]],
    ),
    "devices in use are passed over": (
        lab(MODELS, [claim(request("r"))], usage=held("drv/p/a1")),
        [["r=drv/p/b1"]],
    ),
    "the same name in another driver's pool is another device": (
        lab(MODELS, [claim(request("r"))], usage=held("other/p/a1")),
        [["r=drv/p/a1"]],
    ),
    "pools in the order of driver and name": (
        lab(
            [*pool(device("d"), name="q"), *pool(device("d"), name="p"), *pool(device("d"), driver="aaa")],
            [claim(request("r", count=3))],
        ),
        [["r=aaa/p/d", "r=drv/p/d", "r=drv/q/d"]],
    ),
    "pools with binding conditions come last": (
        lab(
            [
                *pool(device("d", extra={"bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]})),
                *pool(device("d"), name="z"),
            ],
            [claim(request("r", count=2))],
        ),
        [["r=drv/z/d", "r=drv/p/d"]],
    ),
    "count zero is satisfied by nothing": (lab([], [claim(request("r", count=0))]), [[]]),
    "All takes every matching device": (
        lab(MODELS, [claim(request("r", A, allocationMode="All"))]),
        [["r=drv/p/a1", "r=drv/p/a2"]],
    ),
    "All fails when one of them is in use": (
        lab(MODELS, [claim(request("r", A, allocationMode="All"))], usage=held("drv/p/a2")),
        "none",
    ),
    "All fails when there is none": (lab([], [claim(request("r", allocationMode="All"))]), "none"),
    "All with a constraint that one violates is an error of the node": (
        lab(MODELS, [claim(request("r", allocationMode="All"), constraints=[match("drv/model")])]),
        "nodeError",
    ),
    "All fails, or is an error of the node, by the first device that it cannot have": (
        lab(
            pool(device("a", k=1), device("b", k=1)),
            [claim(request("r"), request("q", allocationMode="All"), constraints=[match("drv/k"), distinct("drv/k")])],
        ),
        "nodeError",
    ),
    "All is an error, not just impossible, with a used up device that a constraint forbids as well": (
        lab(
            pool(device("a", capacity={"mem": 4}, k=1, extra={"allowMultipleAllocations": True})),
            [claim(request("r"), request("q", allocationMode="All"), constraints=[distinct("drv/k")])],
        ),
        "nodeError",
    ),
    "All fails with a device that is used up": (
        lab(
            pool(device("a", capacity={"mem": 4}, extra={"allowMultipleAllocations": True})),
            [claim(request("r"), request("q", allocationMode="All"))],
        ),
        "none",
    ),
    "the first subrequest that works": (
        lab(MODELS, [claim(first_available("r", sub("x", B, count=2), sub("y", A, count=2)))]),
        [["r/y=drv/p/a1", "r/y=drv/p/a2"]],
    ),
    "a subrequest gives way when what follows needs its devices": (
        lab(MODELS, [claim(first_available("r", sub("x", A), sub("y", B)), request("q", A, count=2))]),
        [["r/y=drv/p/b1", "q=drv/p/a1", "q=drv/p/a2"]],
    ),
    "more than 32 in one alternative is skipped": (
        lab(
            pool(*(device(f"d{i:02}") for i in range(40))),
            [claim(request("r", count=30), first_available("q", sub("x", count=3), sub("y", count=2)))],
        ),
        [[*(f"r=drv/p/d{i:02}" for i in range(30)), "q/y=drv/p/d30", "q/y=drv/p/d31"]],
    ),
    "more than 32 in one alternative keep the search from a device that raises, also in a search that looks ahead": (
        lab(
            pool(*(device(f"d{i:02}", k=i // 31, ok=True) for i in range(31)), device("d31", k=1), device("d32", k=1)),
            [
                claim(
                    first_available("r", sub("x", 'device.attributes["drv"].ok', count=29), sub("y", count=1)),
                    request("q", 'device.attributes["drv"].k == 1', count=2),
                    request("none", 'device.attributes["drv"].k == 2', count=2),
                )
            ],
        ),
        "none",
    ),
    "more than 32 in one claim is fatal": (lab(MODELS, [claim(request("r", count=33))]), "error"),
    "equal attributes across requests": (
        lab(
            pool(device("a", k=1), device("b", k=2), device("c", k=2)),
            [claim(request("r"), request("q"), constraints=[match("drv/k")])],
        ),
        [["r=drv/p/b", "q=drv/p/c"]],
    ),
    "values of different types are not equal": (
        lab(
            pool(device("a", k=1), device("b", k=True), device("c", k="1")),
            [claim(request("r", count=2), constraints=[match("drv/k")])],
        ),
        "none",
    ),
    "a constraint concerns only its requests": (
        lab(
            pool(device("a", k=1), device("b", k=2), device("c", k=2)),
            [claim(request("r"), request("q"), request("s"), constraints=[match("drv/k", "q", "s")])],
        ),
        [["r=drv/p/a", "q=drv/p/b", "s=drv/p/c"]],
    ),
    "a missing attribute excludes the device": (
        lab(pool(device("a"), device("b", k=1)), [claim(request("r"), constraints=[match("drv/k")])]),
        [["r=drv/p/b"]],
    ),
    "prj006 three distinct values, not only distinct neighbours": (
        lab(
            pool(device("a", k=1), device("b", k=2), device("c", k=1), device("d", k=3)),
            [claim(request("r", count=3), constraints=[distinct("drv/k")])],
        ),
        [["r=drv/p/a", "r=drv/p/b", "r=drv/p/d"]],
    ),
    "lists match by a common element": (
        lab(
            pool(device("a", k=["x", "y"]), device("b", k=["z"]), device("c", k=["y"])),
            [claim(request("r", count=2), constraints=[match("drv/k")])],
            features=Features(list_attributes=True),
        ),
        [["r=drv/p/a", "r=drv/p/c"]],
    ),
    "lists match by an element that no device has alone": (
        lab(
            pool(
                device("a", model="A", k=["x"]),
                device("b", model="B", k=["z"]),
                device("c", model="A", k=["x", "y"]),
                device("d", model="B", k=["y", "z"]),
            ),
            [claim(request("r", A), request("q", B), constraints=[match("drv/k")])],
            features=Features(list_attributes=True),
        ),
        [["r=drv/p/c", "q=drv/p/d"]],
    ),
    "lists are distinct when they share nothing": (
        lab(
            pool(device("a", k=["x", "y"]), device("b", k=["y", "z"]), device("c", k=["z"])),
            [claim(request("r", count=2), constraints=[distinct("drv/k")])],
            features=Features(list_attributes=True),
        ),
        [["r=drv/p/a", "r=drv/p/c"]],
    ),
    "a value of no known type can stand alone": (
        lab(pool(device("a", k=["x"])), [claim(request("r", count=1), constraints=[distinct("drv/k")])]),
        [["r=drv/p/a"]],
    ),
    "but is never distinct from another, whichever comes first": (
        lab(
            pool(device("a", k=1), device("b", k=["x"]), device("c", k=2)),
            [claim(request("r", count=2), constraints=[distinct("drv/k")])],
        ),
        [["r=drv/p/a", "r=drv/p/c"]],
    ),
    "taints keep away": (
        lab(pool(device("a", extra=TAINT), device("b")), [claim(request("r"))]),
        [["r=drv/p/b"]],
    ),
    "unless tolerated": (
        lab(
            pool(device("a", extra=TAINT), device("b")),
            [claim(request("r", tolerations=[{"key": "bad", "operator": "Equal", "value": "x"}]))],
        ),
        [["r=drv/p/a"]],
    ),
    "partitions share their counters": (
        lab(
            pool(*(device(d, consumes={"gpu": {"slots": 2}}) for d in "abc"), counters={"gpu": {"slots": 5}}),
            [claim(request("r", count=2))],
        ),
        [["r=drv/p/a", "r=drv/p/b"]],
    ),
    "and there are no more than the counters hold": (
        lab(
            pool(*(device(d, consumes={"gpu": {"slots": 2}}) for d in "abc"), counters={"gpu": {"slots": 5}}),
            [claim(request("r", count=3))],
        ),
        "none",
    ),
    "counters of allocated devices are gone": (
        lab(
            pool(*(device(d, consumes={"gpu": {"slots": 2}}) for d in "abc"), counters={"gpu": {"slots": 5}}),
            [claim(request("r", count=2))],
            usage=held("drv/p/c"),
        ),
        "none",
    ),
    "prj007 two drivers' pools of one name have counters of their own": (
        lab(
            [
                *pool(device("a", consumes={"g": {"s": 1}}), counters={"g": {"s": 1}}),
                *pool(device("a", consumes={"g": {"s": 1}}), driver="drw", counters={"g": {"s": 1}}),
            ],
            [claim(request("r", count=2))],
        ),
        [["r=drv/p/a", "r=drw/p/a"]],
    ),
    "shares of one device consume its counters once": (
        lab(
            pool(device("a", consumes={"g": {"s": 1}}, capacity={"mem": 10}, extra=MULTI), counters={"g": {"s": 1}}),
            [claim(*(request(f"r{i}", capacity={"requests": {"mem": "4"}}) for i in range(2)))],
        ),
        [["r0=drv/p/a", "r1=drv/p/a"]],
    ),
    "a counter of which more is consumed than there is closes its pool also for others' consumers": (
        lab(
            pool(
                device("a", consumes={"g": {"s": 3}}),
                device("b", consumes={"g": {"t": 1}}),
                counters={"g": {"s": 2, "t": 1}},
            ),
            [claim(request("r"))],
            usage=held("drv/p/a"),
        ),
        "none",
    ),
    "shares of one device until its capacity is used up": (
        lab(
            pool(device("a", capacity={"mem": 10}, extra=MULTI), device("b", capacity={"mem": 10}, extra=MULTI)),
            [claim(*(request(f"r{i}", capacity={"requests": {"mem": "4"}}) for i in range(3)))],
        ),
        [["r0=drv/p/a", "r1=drv/p/a", "r2=drv/p/b"]],
    ),
    "one request gets different devices, not two shares of one": (
        lab(
            pool(device("a", capacity={"mem": 10}, extra=MULTI)),
            [claim(request("r", count=2, capacity={"requests": {"mem": "1"}}))],
        ),
        "none",
    ),
    "capacity requests filter devices that cannot be shared": (
        lab(
            pool(device("a", capacity={"mem": 1}), device("b", capacity={"mem": 8})),
            [claim(request("r", capacity={"requests": {"mem": "4"}}))],
        ),
        [["r=drv/p/b"]],
    ),
    "a capacity request is fatal while the gate is off, also an empty one": (
        lab(pool(device("a")), [claim(request("r", capacity={}))], features=Features(consumable_capacity=False)),
        "error",
    ),
    "the basic implementation ignores capacity requests": (
        lab(pool(device("a")), [claim(request("r", capacity={"requests": {"mem": "4"}}))], features=BASIC),
        [["r=drv/p/a"]],
    ),
    "a policy that forbids the whole capacity keeps plain requests away, also from devices that cannot be shared": (
        lab(
            pool(
                device("a", capacity={"mem": {"value": "8", "requestPolicy": {"validRange": {"max": "4"}}}}),
                device("b", capacity={"mem": 8}),
            ),
            [claim(request("r"))],
        ),
        [["r=drv/p/b"]],
    ),
    "a list of valid values that is empty forbids nothing": (
        lab(
            pool(device("a", capacity={"mem": {"value": "8", "requestPolicy": {"default": "1", "validValues": []}}})),
            [claim(request("r", capacity={"requests": {"mem": "3"}}))],
        ),
        [["r=drv/p/a"]],
    ),
    "not even a share of nothing fits where more is consumed than there is": (
        lab(
            pool(device("a", capacity={"mem": {"value": "4", "requestPolicy": {"default": "0"}}}, extra=MULTI)),
            [claim(request("r"))],
            usage=consumed("5"),
        ),
        "none",
    ),
    "less than nothing consumed does not make room for more than there is": (
        lab(
            pool(device("a", capacity={"mem": 4}, extra=MULTI)),
            [claim(request("r", capacity={"requests": {"mem": "5"}}))],
            usage=consumed("-5"),
        ),
        "none",
    ),
    "admin access sees devices in use": (
        lab(MODELS, [claim(request("r", adminAccess=True))], usage=held("drv/p/a1")),
        [["r=drv/p/a1"]],
    ),
    "a device appears once per claim, also with admin access": (
        lab(pool(device("a")), [claim(request("r"), request("q", adminAccess=True))]),
        "none",
    ),
    "admin access of another claim does not take the device away": (
        lab(
            pool(device("a")),
            [claim(request("r", adminAccess=True), name="c1"), claim(request("q"), name="c2")],
        ),
        [["r=drv/p/a"], ["q=drv/p/a"]],
    ),
    "admin access gets a share of a device of which another request takes all": (
        lab(
            pool(device("a", capacity={"mem": 4}, extra=MULTI)),
            [claim(request("r"), request("q", adminAccess=True))],
        ),
        [["r=drv/p/a", "q=drv/p/a"]],
    ),
    "a selector that raises is an error of the node when its device is reached": (
        lab(pool(device("a"), device("b", k=1)), [claim(request("r", 'device.attributes["drv"].k == 1'))]),
        "nodeError",
    ),
    "and harmless behind the first solution": (
        lab(pool(device("b", k=1), device("a")), [claim(request("r", 'device.attributes["drv"].k == 1'))]),
        [["r=drv/p/b"]],
    ),
    "and harmless on a device in use": (
        lab(
            pool(device("a"), device("b", k=1)),
            [claim(request("r", 'device.attributes["drv"].k == 1'))],
            usage=held("drv/p/a"),
        ),
        [["r=drv/p/b"]],
    ),
    "but not on a tainted one": (
        lab(
            pool(device("a", extra=TAINT), device("b", k=1)),
            [claim(request("r", 'device.attributes["drv"].k == 1'))],
        ),
        "nodeError",
    ),
    "and not for All on a device in use": (
        lab(
            pool(device("a"), device("b", k=1)),
            [claim(request("r", 'device.attributes["drv"].k == 1', allocationMode="All"))],
            usage=held("drv/p/a"),
        ),
        "nodeError",
    ),
    "a request that asks for nothing known is fatal": (lab(MODELS, [claim(first_available("r"))]), "error"),
    "an unknown class is fatal": (lab(MODELS, [claim(request("r", deviceClassName="nope"))]), "error"),
    "an expression that does not compile is fatal when it is needed": (
        lab(MODELS, [claim(request("r", "device.nope"))]),
        "error",
    ),
    "and not noticed where there are no devices": (lab([], [claim(request("r", "device.nope"))]), "none"),
}


@pytest.mark.rule("AL-06", "AL-07", "AL-08", "AL-09", "AL-10", "AL-11", "AL-13", "AL-14", "AL-15", "K37-GATE-06")
@pytest.mark.parametrize(("made", "expected"), GIVES.values(), ids=GIVES.keys())
def test_gives(made: Lab, expected: Answer) -> None:
    assert made.devices() == expected


def in_reference(made: Lab) -> Lab:
    """The same problem under the reference's semantics."""
    inventory = made.allocator.inventory
    other = Inventory(inventory.features, language=Cel(inventory.features), semantics=Semantics.reference())
    other.put_class(inventory.device_class("any") or pytest.fail("all problems here use this class"))
    for pool_id in inventory.pools():
        for slice_ in known.slices if (known := inventory.pool(pool_id)) else ():
            other.put_slice(inventory.slice(slice_.name) or pytest.fail(slice_.name))
    allocator = Allocator(other, new_share_id=lambda: "share")
    return Lab(allocator, made.claims, made.usage, made.value)


@pytest.mark.parametrize("what", [what for what, (_, expected) in GIVES.items() if expected == "nodeError"])
def test_an_error_of_a_node_ends_the_attempt_for_all_in_the_reference(what: str) -> None:
    assert in_reference(GIVES[what][0]).devices() == "error"


def only_result(made: Lab) -> Any:
    outcome = made.decide()
    assert isinstance(outcome, Allocated)
    (result,) = outcome.results
    return result


@pytest.mark.parametrize(("made", "expected"), GIVES.values(), ids=GIVES.keys())
def test_gives_the_same_when_it_looks_ahead_from_the_start(
    made: Lab, expected: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FAILURES_BEFORE_PRUNING", -1)
    assert made.devices() == expected


@pytest.mark.rule("AL-15")
def test_a_share_says_what_it_consumes() -> None:
    policy = {"default": "1", "validRange": {"min": "2", "step": "2", "max": "8"}}
    shared = device("a", capacity={"mem": {"value": "10", "requestPolicy": policy}, "cores": "4"}, extra=MULTI)
    result = only_result(lab(pool(shared), [claim(request("r", capacity={"requests": {"mem": "3"}}))]))
    (given,) = result.devices.results
    assert given.share_id == "share-0"
    assert given.consumed_capacity == {"mem": Quantity("4"), "cores": Quantity("4")}


CONSUMES = {
    "less than the least": ("1", {"min": "1500m", "step": "1500m"}, "1500m"),
    "the least, which is no whole number, where steps are": ("1500m", {"min": "1500m", "step": "1500m"}, "2"),
    "the least without steps": ("1500m", {"min": "1500m"}, "1500m"),
    "more than the least": ("3", {"min": "2", "step": "2"}, "4"),
    "a step": ("4", {"min": "2", "step": "2"}, "4"),
}


@pytest.mark.rule("AL-15")
@pytest.mark.parametrize(("wanted", "allowed", "expected"), CONSUMES.values(), ids=CONSUMES.keys())
def test_a_share_of_a_range_consumes_whole_steps(wanted: str, allowed: dict[str, str], expected: str) -> None:
    capacity = {"mem": {"value": "8", "requestPolicy": {"default": "8", "validRange": allowed}}}
    made = lab(
        pool(device("a", capacity=capacity, extra=MULTI)), [claim(request("r", capacity={"requests": {"mem": wanted}}))]
    )
    (given,) = only_result(made).devices.results
    assert given.consumed_capacity == {"mem": Quantity(expected)}


def test_results_copy_what_binding_needs() -> None:
    conditions = {"bindingConditions": ["ready"], "bindingFailureConditions": ["broken"], "bindsToNode": True}
    slices = pool(device("a", extra=conditions), allNodes=True)
    result = only_result(lab(slices, [claim(request("r", tolerations=[{"operator": "Exists"}]))]))
    (given,) = result.devices.results
    assert given.binding_conditions == ("ready",)
    assert given.binding_failure_conditions == ("broken",)
    assert given.tolerations is not None
    (term,) = result.node_selector.node_selector_terms
    assert term.match_fields[0].values == ("n1",)
    off = lab(slices, [claim(request("r"))], features=Features(binding_conditions=False))
    assert off.devices() == "none"


def test_node_selectors_of_slices_are_merged() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["z1"]}
    rack = {"key": "rack", "operator": "Exists"}

    def network(name: str, *requirements: Any) -> Any:
        terms = {"nodeSelectorTerms": [{"matchExpressions": list(requirements)}]}
        return pool(device("d"), name=name, nodeSelector=terms)

    made = lab([*network("p", zone), *network("q", zone, rack)], [claim(request("r", count=2))])
    outcome = made.decide(make_node("n7", zone="z1", rack="7"))
    assert isinstance(outcome, Allocated)
    selector = outcome.results[0].node_selector
    assert selector is not None
    (term,) = selector.node_selector_terms or ()
    assert [requirement.key for requirement in term.match_expressions or ()] == ["zone", "rack"]
    assert made.devices(make_node("n8", zone="z2")) == "none"


def test_the_same_for_devices_everywhere() -> None:
    assert only_result(lab(pool(device("a"), allNodes=True), [claim(request("r"))])).node_selector is None
    named = only_result(lab(pool(device("a"), allNodes=True, nodeName=""), [claim(request("r"))])).node_selector
    assert named is not None  # no name at all is something else than an empty one


def test_configuration_of_classes_and_claim() -> None:
    opaque: dict[str, Any] = {"driver": "drv", "parameters": {"k": 1}}
    classes = [device_class("any", config=[{"opaque": opaque}]), device_class("other", config=[{"opaque": opaque}])]
    requests = [request("r"), request("q", deviceClassName="other"), request("s")]
    config: list[dict[str, Any]] = [
        {"opaque": opaque},
        {"requests": ["q"], "opaque": opaque},
        {"requests": ["no-such-request"], "opaque": opaque},
    ]
    result = only_result(lab(MODELS, [claim(*requests, config=config)], classes=classes))
    assert [(entry.source, entry.requests) for entry in result.devices.config] == [
        ("FromClass", ("r", "s")),
        ("FromClass", ("q",)),
        ("FromClaim", None),
        ("FromClaim", ("q",)),
    ]


@pytest.mark.rule("K37-PRIO-02")
def test_chosen_subrequests() -> None:
    alternatives = first_available("r", sub("x", B, count=2), sub("y", A))
    outcome = lab(MODELS, [claim(alternatives, request("q"))]).decide()
    assert isinstance(outcome, Allocated)
    assert [(choice.claim, choice.request, choice.index) for choice in outcome.chosen] == [(0, "r", 1)]


@pytest.mark.rule("K37-ALLOC-05")
def test_errors_name_selector_device_and_what_it_publishes() -> None:
    made = lab(pool(device("a", model="A")), [claim(request("r", 'device.attributes["drv"].k == 1'))])
    outcome = made.decide()
    assert isinstance(outcome, Failed)
    for text in ("claim default/c", "selector #0", "CEL runtime error", "drv/p/a", "model"):
        assert text in str(outcome.error)


def test_a_spent_budget_is_not_a_refusal() -> None:
    many = pool(*(device(f"d{i}", k=i % 3, u=i) for i in range(12)))
    made = lab(many, [claim(request("r", count=6), constraints=[match("drv/k")])])
    outcome = made.decide(budget=3)
    assert isinstance(outcome, GaveUp)
    assert outcome.steps >= 3
    assert "gave up" in str(outcome)
    assert made.devices() == "none"


def test_an_allocator_has_a_budget_for_decisions_without_one() -> None:
    many = pool(*(device(f"d{i}", k=i % 3, u=i) for i in range(12)))
    made = lab(many, [claim(request("r", count=6), constraints=[match("drv/k")])])
    frugal = Allocator(made.allocator.inventory, new_share_id=lambda: "share", budget=3)
    assert isinstance(frugal.allocate(make_node("n1"), made.claims, made.usage), GaveUp)
    assert not isinstance(frugal.allocate(make_node("n1"), made.claims, made.usage, budget=10_000), GaveUp)


def test_a_decision_in_slices_is_the_same_decision() -> None:
    made = lab(MODELS, [claim(request("r"), request("q", A, count=2))])
    decision = made.allocator.search(make_node("n1"), made.claims, made.usage)
    pauses = 0
    while decision.advance(1) is None:
        pauses += 1
    assert pauses > 2
    assert decision.outcome is not None
    assert getattr(decision.outcome, "results", None) == getattr(made.decide(), "results", None)


def test_planning_takes_nothing_until_the_allocation_is_added() -> None:
    made = lab(pool(device("a")), [claim(request("r"))])
    first, second = made.decide(), made.decide()
    assert isinstance(first, Allocated)
    assert getattr(second, "results", None) == first.results
    made.usage.add(first.results[0])
    assert not made.usage.is_free(DeviceId("drv", "p", "a"))
    assert made.devices() == "none"
    made.usage.remove(first.results[0])
    assert made.devices() == [["r=drv/p/a"]]


def test_a_snapshot_is_independent() -> None:
    usage = held("drv/p/a")
    copy = usage.snapshot()
    usage.take_device(DeviceId("drv", "p", "b"))
    assert copy == held("drv/p/a")
    assert usage.touched_since(1) == {("drv", "p")}
    assert list(copy.devices()) == [DeviceId("drv", "p", "a")]
    assert copy != Usage()


class Fickle:
    """Fails when it is asked for the first time, and never again."""

    def __init__(self) -> None:
        self.failed = False

    def compile(self, expression: str) -> Callable[[str, Device], bool]:
        def predicate(driver: str, device: Device) -> bool:
            if not self.failed:
                self.failed = True
                raise ValueError("once")
            return True

        return predicate


def test_a_selector_that_fails_only_once_still_ends_the_attempt() -> None:
    inventory = Inventory(language=Fickle())
    inventory.put_class(convert(DeviceClass, device_class("any", "x")))
    inventory.put_slice(convert(ResourceSlice, pool(device("a"))[0]))
    wanted = convert(ResourceClaim, claim(request("r")))
    outcome = Allocator(inventory, new_share_id=str).allocate(make_node("n1"), [wanted], Usage())
    assert isinstance(outcome, Failed)
    assert "request r: a selector failed on device drv/p/a, but not when" in str(outcome.error)


class Failing:
    """Selectors that fail on each device with their own text, and how often they are asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def compile(self, expression: str) -> Callable[[str, Device], bool]:
        def fail(driver: str, device: Device) -> bool:
            self.asked.append(expression)
            raise ValueError(f"{expression} fails")

        return fail


def test_a_selector_that_failed_is_not_asked_again_when_the_claim_is_tried_again() -> None:
    inventory = Inventory(language=(language := Failing()))
    inventory.put_class(convert(DeviceClass, device_class("any")))
    inventory.put_slice(convert(ResourceSlice, pool(device("a"))[0]))
    allocator = Allocator(inventory, new_share_id=str)
    for expression in ("x", "x", "y", "y", "x"):
        outcome = allocator.allocate(
            make_node("n1"), [convert(ResourceClaim, claim(request("r", expression)))], Usage()
        )
        assert isinstance(outcome, Failed)
        assert f"{expression} fails" in str(outcome.error)
    # Each is evaluated once, and once more for the text of its error. Of two claims a node keeps the latest error.
    assert language.asked == ["x", "x", "y", "y", "x"]


def test_a_program_counts_the_claims_behind_a_fault_since_it_holds_them_too() -> None:
    made = lab(pool(device("a")), [claim(request("r", deviceClassName="gone")), claim(request("r", "true || " * 99))])
    program = made.allocator.compile(made.claims)
    assert program.fault is not None
    assert program.bytes + program.more_bytes > 99 * len("true || ")


def test_capacity_that_a_device_no_longer_has_belongs_to_no_claim() -> None:
    shared = device("a", capacity={"mem": "4"}, extra=MULTI)
    usage = consumed("3")
    usage.take_share(DeviceId("drv", "p", "a"), "old", {"gone": Quantity("9").nanos})
    for amount, expected in (("1", [["r=drv/p/a"]]), ("2", "none")):
        wanted = claim(request("r", capacity={"requests": {"mem": amount}}))
        assert lab(pool(shared), [wanted], usage=usage).devices() == expected
