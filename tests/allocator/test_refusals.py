"""Why claims do not fit, as values and as texts. ``refusals.txt`` has the exact texts of each situation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from allocator_lab import Lab, claim, device, first_available, held, lab, make_node, pool, request, sub
from dra_api.values import Quantity
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import AttributeValue, DeviceId, Failed, Features, GaveUp, NodeFailure, Refused, Rule, Usage

Json = dict[str, Any]
GALLERY = Path(__file__).with_name("refusals.txt")
A, B = 'device.attributes["drv"].model == "A"', 'device.attributes["drv"].model == "B"'
TAINT = {"taints": [{"key": "bad", "effect": "NoSchedule"}]}
DRAIN = {"taints": [{"key": "drain", "value": "yes", "effect": "NoExecute"}]}
TWO_TAINTS = {"taints": TAINT["taints"] + DRAIN["taints"]}
HALF_TAINTED = pool(device("a", root=0), device("b", root=0, extra=TAINT), device("c", root=1))
EIGHT = [device(f"a{i}", model="A", root=i // 2, extra=TAINT if i in (4, 5) else {}) for i in range(6)]
EIGHT += [device(f"b{i}", model="B", root=9) for i in range(2)]
FOUR, PLAIN = pool(*EIGHT[:4]), request("r")
ROOT = {"matchAttribute": "drv/root"}
DISTINCT = {"distinctAttribute": "drv/root"}
BINDING = {"bindingConditions": ["x"], "bindingFailureConditions": ["y"]}
OFF = Features(binding_conditions=False)
GPU = [device(f"d{size}", consumes={"gpu-0": {"memory": f"{size}Gi"}}) for size in (40, 20, 30)]
PARTITIONS = pool(*GPU, counters={"gpu-0": {"memory": "40Gi"}})
SLOTS = [device(name, consumes={set_: {"slots": 2}}) for name, set_ in (("a", "g"), ("b", "g"), ("c", "h"))]
PARTED = pool(*SLOTS[:2], counters={"g": {"slots": 4}})
PER_DEVICE = pool(*({"name": f"d{n}", "nodeName": f"n{n}"} for n in (1, 2, 3)), perDeviceNodeSelection=True)


def announced(slices: list[Json], **about: int) -> list[Json]:
    """The slices with something else said about their pool."""
    return [{**s, "spec": {**s["spec"], "pool": {**s["spec"]["pool"], **about}}} for s in slices]


NIC = pool(device("n"), name="nics", driver="nic")
HALF_NIC = announced(pool(device("n"), name="half", driver="nic"), resourceSliceCount=2)
OF_DRIVER = 'device.driver == "drv"'


def shared(name: str, memory: str, **policy: Any) -> Json:
    """A device that can be shared."""
    capacity = {"memory": {"value": memory, **({"requestPolicy": policy} if policy else {})}}
    return device(name, capacity=capacity, extra={"allowMultipleAllocations": True})


def grouped(name: str, group: str) -> Json:
    made = device(name, consumes={"g": {"slots": 1}})
    made["consumesCounters"][0]["compatibilityGroups"] = [group]
    return made


def wants(amount: str, request_name: str = "r", capacity: str = "memory") -> Json:
    """A request for some capacity."""
    return request(request_name, capacity={"requests": {capacity: amount}})


def share(amount: str) -> Usage:
    """A share of device ``a`` is taken."""
    usage = Usage()
    usage.take_share(DeviceId("drv", "p", "a"), "share", {"memory": Quantity(amount).nanos})
    return usage


NEWER = announced(pool(device("b"), name="p", nodeName="n2"), generation=2)
SITUATIONS: dict[str, tuple[Rule, Lab]] = {
    "nothing is published for the node": (
        Rule.NO_DEVICES,
        lab(pool(device("a"), nodeName="n2"), [claim(PLAIN)]),
    ),
    "only an older generation is published for the node": (
        Rule.NO_DEVICES,
        lab([*FOUR, *({**taking, "metadata": {"name": "theirs"}} for taking in NEWER)], [claim(PLAIN)]),
    ),
    "slices are missing": (
        Rule.NO_DEVICES,
        lab(announced(FOUR, resourceSliceCount=3), [claim(PLAIN)]),
    ),
    "two devices have one name": (
        Rule.INVALID_POOL,
        lab(pool(device("a"), device("a")), [claim(PLAIN)]),
    ),
    "a counter set is not defined": (
        Rule.INVALID_POOL,
        lab(pool(*SLOTS), [claim(PLAIN)]),
    ),
    "a counter is not defined": (
        Rule.INVALID_POOL,
        lab(pool(*SLOTS, counters={"g": {"slots": 1}, "h": {"holes": 1}}), [claim(PLAIN)]),
    ),
    "a counter set is defined twice": (
        Rule.INVALID_POOL,
        lab(announced([*PARTED, {**PARTED[1], "metadata": {"name": "drv-p-2"}}], resourceSliceCount=3), [claim(PLAIN)]),
    ),
    "one selector matches nothing": (
        Rule.SELECTOR,
        lab(pool(*EIGHT), [claim(request("r", "true", 'device.attributes["drv"].model == "C"'))]),
    ),
    "no device matches among those of several drivers": (
        Rule.SELECTOR,
        lab([*pool(*EIGHT), *NIC], [claim(request("r", 'device.attributes["drv"].?model.orValue("") == "C"'))]),
    ),
    "too few devices match among those of several drivers": (
        Rule.SELECTOR,
        lab(
            [*pool(*EIGHT), *NIC], [claim(request("r", 'device.attributes["drv"].?model.orValue("") == "B"', count=3))]
        ),
    ),
    "the driver that is asked for publishes nothing": (
        Rule.NO_DEVICES,
        lab([*NIC, *HALF_NIC], [claim(request("r", OF_DRIVER))], language=CelSelectors(Features())),
    ),
    "the driver that is asked for has an incomplete pool": (
        Rule.NO_DEVICES,
        lab(
            [*NIC, *HALF_NIC, *announced(FOUR, resourceSliceCount=2)],
            [claim(request("r", OF_DRIVER))],
            language=CelSelectors(Features()),
        ),
    ),
    "too few devices of the driver that is asked for match": (
        Rule.SELECTOR,
        lab(
            [*NIC, *HALF_NIC, *pool(*EIGHT)],
            [claim(request("r", OF_DRIVER, B, count=3))],
            language=CelSelectors(Features()),
        ),
    ),
    "selectors exclude each other": (
        Rule.SELECTOR,
        lab(pool(*EIGHT), [claim(request("r", A, B))]),
    ),
    "too few devices match, and not all of these are usable": (
        Rule.SELECTOR,
        lab(pool(*EIGHT[3:]), [claim(request("r", B, count=4))], usage=held("drv/p/b0")),
    ),
    "too few devices match": (
        Rule.SELECTOR,
        lab(pool(*EIGHT), [claim(request("r", B, count=3))]),
    ),
    "too few devices are published": (
        Rule.SELECTOR,
        lab(pool(device("a")), [claim(request("r", count=3))]),
    ),
    "all devices are wanted, and none matches": (
        Rule.SELECTOR,
        lab(pool(device("b", model="B")), [claim(request("r", A, allocationMode="All"))]),
    ),
    "devices of the pool are for other nodes": (
        Rule.NODE,
        lab(PER_DEVICE, [claim(request("r", count=2))]),
    ),
    "binding conditions are off": (
        Rule.BINDING_CONDITIONS,
        lab(pool(device("a", extra=BINDING)), [claim(PLAIN)], features=OFF),
    ),
    "most devices are in use": (
        Rule.IN_USE,
        lab(pool(*EIGHT), [claim(request("r", A, count=4))], usage=held("drv/p/a0", "drv/p/a1", "drv/p/a2")),
    ),
    "all devices are wanted, and one is in use": (
        Rule.IN_USE,
        lab(FOUR, [claim(request("r", allocationMode="All"))], usage=held("drv/p/a0")),
    ),
    "all devices are wanted, two are in use and one is tainted": (
        Rule.IN_USE,
        lab(
            pool(device("a"), device("b"), device("c", extra=TAINT)),
            [claim(request("r", allocationMode="All"))],
            usage=held("drv/p/a", "drv/p/b"),
        ),
    ),
    "the devices in use suffice only with one that is tainted": (
        Rule.IN_USE,
        lab(
            pool(device("a"), device("b", extra=TAINT), device("c", extra=TAINT)),
            [claim(request("r", count=2))],
            usage=held("drv/p/a", "drv/p/b"),
        ),
    ),
    "devices in use could not serve the request if they were free": (
        Rule.IN_USE,
        lab(
            pool(device("a", capacity={"memory": "8Gi"})),
            [claim(wants("20Gi"))],
            usage=held("drv/p/a"),
        ),
    ),
    "one taint": (
        Rule.TAINTS,
        lab(pool(device("a", extra=TAINT)), [claim(PLAIN)]),
    ),
    "several taints, one of them with a value": (
        Rule.TAINTS,
        lab(
            pool(
                *(
                    device(f"d{n}", extra={"taints": [{"key": "drain", "value": "yes", "effect": "NoExecute"}]})
                    for n in "12"
                ),
                device("d3", extra=TAINT),
            ),
            [claim(PLAIN)],
        ),
    ),
    "every device has two taints": (
        Rule.TAINTS,
        lab(pool(device("a", extra=TWO_TAINTS), device("b", extra=TWO_TAINTS)), [claim(PLAIN)]),
    ),
    "devices with different taints are all needed": (
        Rule.TAINTS,
        lab(pool(device("a", extra=TAINT), device("b", extra=DRAIN)), [claim(request("r", count=2))]),
    ),
    "too little capacity is left": (
        Rule.CAPACITY,
        lab(pool(shared("a", "16Gi"), shared("b", "8Gi")), [claim(wants("12Gi"))], usage=share("6Gi")),
    ),
    "no device is large enough": (
        Rule.CAPACITY,
        lab(pool(shared("a", "16Gi"), shared("b", "8Gi")), [claim(wants("20Gi"))]),
    ),
    "the request policy rounds up": (
        Rule.CAPACITY,
        lab(
            pool(shared("a", "16Gi", default="1Gi", validValues=["1Gi", "12Gi"])),
            [claim(wants("11Gi"))],
            usage=share("6Gi"),
        ),
    ),
    "a share takes everything unless it says how much": (
        Rule.CAPACITY,
        lab(pool(shared("a", "16Gi")), [claim(PLAIN)], usage=share("6Gi")),
    ),
    "the request policy lists other amounts": (
        Rule.CAPACITY,
        lab(pool(shared("a", "16", default="1", validValues=["1", "2"])), [claim(wants("3"))]),
    ),
    "the request policy has a range": (
        Rule.CAPACITY,
        lab(
            pool(shared("a", "16", default="1", validRange={"min": "1", "max": "4", "step": "1"})), [claim(wants("5"))]
        ),
    ),
    "a capacity that no device has": (
        Rule.CAPACITY,
        lab(pool(shared("a", "16")), [claim(wants("2", capacity="mem"))]),
    ),
    "the node does not declare that it can skip calls": (
        Rule.NODE_OPERATIONS,
        lab(
            pool(device("a"), device("b"), nodeName="n1", skipNodeOperations=["*"]),
            [claim(PLAIN)],
            features=Features(optional_node_operations=True),
        ),
    ),
    "a device in use has other compatibility groups": (
        Rule.COMPATIBILITY,
        lab(
            pool(grouped("a", "x"), grouped("b", "y"), counters={"g": {"slots": 3}}),
            [claim(PLAIN)],
            features=Features(compatibility_groups=True),
            usage=held("drv/p/a"),
        ),
    ),
    "partitions take more of a counter than is left": (
        Rule.COUNTERS,
        lab(PARTITIONS, [claim(PLAIN)], usage=held("drv/p/d30")),
    ),
    "counters are overdrawn": (
        Rule.COUNTERS,
        lab(
            pool(*SLOTS, counters={"g": {"slots": 3}, "h": {"slots": 2}}),
            [claim(PLAIN)],
            usage=held("drv/p/a", "drv/p/b"),
        ),
    ),
    "partitionable devices are off": (
        Rule.COUNTERS,
        lab(pool(*SLOTS), [claim(PLAIN)], features=Features(partitionable_devices=False)),
    ),
    "the largest group with an equal value is too small": (
        Rule.CONSTRAINT,
        lab(FOUR, [claim(request("r", A, count=4), constraints=[ROOT])]),
    ),
    "list attributes are off": (
        Rule.CONSTRAINT,
        lab(
            pool(device("a", root=["x", "y"]), device("b", root="y")),
            [claim(request("r", count=2), constraints=[ROOT])],
            features=Features(list_attributes=False),
        ),
    ),
    "devices with an equal value are in use": (
        Rule.CONSTRAINT,
        lab(FOUR, [claim(request("r", A, count=2), constraints=[ROOT])], usage=held("drv/p/a0", "drv/p/a2")),
    ),
    "a device with an equal value is tainted": (
        Rule.CONSTRAINT,
        lab(HALF_TAINTED, [claim(request("r", count=2), constraints=[ROOT])]),
    ),
    "a device with an equal value is tainted and in use": (
        Rule.CONSTRAINT,
        lab(HALF_TAINTED, [claim(request("r", count=2), constraints=[ROOT])], usage=held("drv/p/b")),
    ),
    "a constraint over several requests": (
        Rule.CONSTRAINT,
        lab(FOUR, [claim(request("r", count=2), request("q"), constraints=[{**ROOT, "requests": ["r", "q"]}])]),
    ),
    "too few distinct values": (
        Rule.CONSTRAINT,
        lab(FOUR, [claim(request("r", count=3), constraints=[DISTINCT])]),
    ),
    "one distinct value": (
        Rule.CONSTRAINT,
        lab(pool(*EIGHT[:2]), [claim(request("r", count=2), constraints=[DISTINCT])]),
    ),
    "devices lack the attribute of a constraint": (
        Rule.CONSTRAINT,
        lab(pool(device("a", root=1), device("b"), device("c")), [claim(request("r", count=2), constraints=[ROOT])]),
    ),
    "too few devices have the value of the gang": (
        Rule.VALUE,
        lab(FOUR, [claim(request("r", count=3))], usage=held("drv/p/a0"), value=AttributeValue("drv/root", ("int", 1))),
    ),
    "the devices with the value of the gang are in use": (
        Rule.IN_USE,
        lab(FOUR, [claim(request("r", count=2))], usage=held("drv/p/a2"), value=AttributeValue("drv/root", ("int", 1))),
    ),
    "two requests want the same devices": (
        Rule.COMBINATION,
        lab(pool(device("a"), device("b")), [claim(request("r", count=2), request("q"))]),
    ),
    "two claims want the same devices": (
        Rule.COMBINATION,
        lab(
            pool(*EIGHT[:2], *EIGHT[6:]),
            [claim(request("r", A, count=2), request("b", B)), claim(request("q", A), name="d")],
        ),
    ),
    "partitions that only fit alone": (
        Rule.COMBINATION,
        lab(pool(*SLOTS[:2], counters={"g": {"slots": 3}}), [claim(PLAIN, request("q"))]),
    ),
    "shares that only fit alone": (
        Rule.COMBINATION,
        lab(pool(shared("a", "16Gi")), [claim(wants("10Gi"), wants("8Gi", "q"))]),
    ),
    "none of the alternatives fits": (
        Rule.SELECTOR,
        lab(pool(*EIGHT), [claim(first_available("r", sub("big", A, count=7), sub("small", B, count=3)))]),
    ),
}


def gallery() -> dict[str, tuple[str, str]]:
    """The one line and the full text of each situation, as written down."""
    sections = [section.strip().split("\n", 2) for section in GALLERY.read_text().split("\n## ")[1:]]
    return {name: (line, text) for name, line, text in sections}


def test_the_gallery_shows_every_situation_and_rule() -> None:
    assert list(gallery()) == list(SITUATIONS)
    assert {rule for rule, _ in SITUATIONS.values()} == set(Rule)


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_refusal_reads_as_in_the_gallery(name: str) -> None:
    rule, made = SITUATIONS[name]
    outcome = made.decide()
    assert isinstance(outcome, Refused | NodeFailure)
    assert outcome.refusal.rule is rule
    assert outcome.refusal.node == "n1"
    assert (outcome.refusal.line(), outcome.refusal.explain()) == gallery()[name]
    assert outcome.refusal.fix


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_refusal_read_late_says_what_was_so_when_the_decision_was_made(name: str) -> None:
    _, made = SITUATIONS[name]
    usage = made.usage.snapshot()
    outcome = made.allocator.allocate(make_node("n1"), made.allocator.compile(made.claims, made.value), usage)
    for name_ in "abc":
        usage.take_device(DeviceId("drv", "p", name_))
    made.allocator.allocate(make_node("n1"), made.claims, usage)
    assert isinstance(outcome, Refused | NodeFailure)
    assert (outcome.refusal.line(), outcome.refusal.explain()) == gallery()[name]


def test_a_refusal_read_late_knows_the_slices_of_then() -> None:
    made = lab(pool(device("a"), device("b")), [claim(request("r", count=3))])
    early, late = made.decide(), made.decide()
    assert isinstance(early, Refused)
    assert isinstance(late, Refused)
    expected = early.refusal
    made.allocator.inventory.remove_slice("drv-p-1")
    made.decide()
    assert late.refusal == expected


@pytest.mark.parametrize("name", SITUATIONS)
def test_numbers_and_nouns_agree(name: str) -> None:
    for text in gallery()[name]:
        assert not re.search(r"\b(?<!of )1 (\w+s\b(?<!matches)(?<!needs)|match\b|are\b|need\b|do\b)", text)
        assert not re.search(r"\b(?<!of )([02-9]|\d\d+) (device|value|request|slice|matches|is|needs|does)\b", text)


def test_devices_in_use_are_named_but_not_all_of_many() -> None:
    names = [f"drv/p/d{number}" for number in range(9)]
    outcome = lab(pool(*(device(f"d{number}") for number in range(9))), [claim(PLAIN)], usage=held(*names)).decide()
    assert isinstance(outcome, Refused)
    assert [str(id_) for id_ in outcome.refusal.held] == names[:8]


def test_one_line_stays_short_however_many_pools_are_in_trouble() -> None:
    many = [
        slice_
        for number in range(300)
        for slice_ in announced(pool(device("a"), name=f"{number}"), resourceSliceCount=2)
    ]
    outcome = lab(many, [claim(PLAIN)]).decide()
    assert isinstance(outcome, Refused)
    assert len(outcome.refusal.line()) < 400
    assert outcome.refusal.line().endswith("and 298 more)")
    assert len(outcome.refusal.pools) == 300


def test_giving_up_says_what_to_change() -> None:
    assert str(GaveUp("n1", 1)) == (
        "node n1: gave up after 1 step without an answer: the requests can be combined in too many ways; "
        "ask for fewer devices in one claim, or loosen its constraints"
    )


ERRORS: dict[str, tuple[Lab, str]] = {
    "a selector that fails names the request, the device and what that publishes": (
        lab(
            pool(device("a", model="A", capacity={"memory": 1})),
            [claim(request("r", 'device.attributes["drv"].x == 1'))],
        ),
        "claim default/c: selector #0: CEL runtime error: no such key: x (claim default/c, request r; device drv/p/a "
        "publishes attributes: model; capacity: memory); correct the name, or allow for devices without it, as in "
        'device.attributes["domain"].?name.orValue("")',
    ),
    "a selector that fails for another reason, whatever its text": (
        lab(
            pool(device("a", model="no such key")),
            [claim(request("r", 'timestamp(device.attributes["drv"].model) == timestamp("2026-01-01T00:00:00Z")'))],
        ),
        "claim default/c: selector #0: CEL runtime error: type conversion error from 'string' to "
        "'google.protobuf.Timestamp': 'no such key' (claim default/c, request r; device drv/p/a publishes "
        "attributes: model; capacity: none); correct the expression",
    ),
    "a class that is missing": (
        lab(FOUR, [claim(request("r", deviceClassName="gpu"))]),
        "claim default/c, request r: could not retrieve device class gpu: it does not exist: create it, or correct "
        "deviceClassName",
    ),
    "more devices than a claim may have": (
        lab(FOUR, [claim(request("r", count=33))]),
        "claim default/c: number of requested devices 33 exceeds the claim limit of 32: divide the requests among "
        "several claims",
    ),
    "all devices of a pool that is not complete": (
        lab(announced(FOUR, resourceSliceCount=2), [claim(request("r", allocationMode="All"))]),
        "claim default/c, request r: asks for all devices, but resource pool drv/p is currently being updated, since "
        "it announces 2 slices of its newest generation and has fewer: have its driver publish the whole pool, or ask "
        "for a number of devices",
    ),
    "all devices though they differ": (
        lab(FOUR, [claim(request("r", allocationMode="All"), constraints=[ROOT])]),
        "claim default/c, request r: cannot add device drv/p/a2 because a claim constraint would not be satisfied: all "
        "must have equal drv/root; ask for a number of devices, or narrow the selectors",
    ),
}


@pytest.mark.rule("AL-05", "AL-08")
@pytest.mark.parametrize(("made", "text"), ERRORS.values(), ids=ERRORS.keys())
def test_errors_name_object_field_and_remedy(made: Lab, text: str) -> None:
    outcome = made.decide()
    assert isinstance(outcome, Failed)
    assert str(outcome.error) == text


def refused_line(made: Lab) -> str:
    outcome = made.decide()
    assert isinstance(outcome, Refused)
    return outcome.refusal.line()


def test_what_is_left_is_never_negative() -> None:
    """The devices were published with more when they were allocated: what is taken of them is beyond what there is."""
    usage = Usage()
    usage.take_share(DeviceId("drv", "p", "a"), "s", {"memory": 3_000_000_000})
    lines = [refused_line(lab(pool(shared("a", "2")), [claim(wants("1"))], usage=usage))]
    gone = pool(
        device("a", consumes={"g": {"slots": 3}}),
        device("b", consumes={"g": {"slots": 1}}),
        counters={"g": {"slots": 2}},
    )
    lines.append(refused_line(lab(gone, [claim(PLAIN)], usage=held("drv/p/a"))))
    two = pool(shared("a", "2"), shared("b", "4"))
    lines.append(refused_line(lab(two, [claim(wants("3"), wants("3", "q"))], usage=usage)))
    assert "best device drv/p/a has 0 of 2 (overdrawn by 1) left" in lines[0]
    assert "of which 0 of 2 (overdrawn by 1) is left" in lines[1]
    assert "capacity memory: at least 6 needed, 4 left" in lines[2]
    assert not any(re.search(r"[ :(]-[0-9]", line) for line in lines)
