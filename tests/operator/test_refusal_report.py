"""What the command line adds to refusals: selectors beside devices, who holds what, and many nodes in few lines."""

from __future__ import annotations

from typing import Any

import pytest
from allocator_lab import claim, device, device_class, lab, make_node, pool, request
from dra_api.codec import convert
from dra_api.resource import ResourceClaim
from dra_operator.allocator import DeviceId, Refused, Usage
from dra_operator.commands.refusal_report import grouped, holders

Json = dict[str, Any]
DEVICES = [
    device("a", model="A", capacity={"memory": "40Gi"}),
    device("b", model="B", fast=True, capacity={"drv/memory": "80Gi"}),
    device("c", model="B"),
]
MISMATCHES = {
    "another value is wanted": (
        'device.attributes["drv"].model == "C"',
        ["devices publish attribute drv/model: B (2), A (1)"],
    ),
    "the name is wrong": (
        'device.attributes["drv"].?modle.orValue("") == "A"',
        ["no device publishes attribute drv/modle, in drv they publish fast, model"],
    ),
    "the domain is wrong": (
        'has(device.attributes["other"].model)',
        ["no device publishes attribute other/model, nor any other of other"],
    ),
    "some devices lack the attribute": (
        '"fast" in device.attributes["drv"] && !device.attributes["drv"]["fast"]',
        ["devices publish attribute drv/fast: true (1); 2 devices lack it"],
    ),
    "more capacity is wanted": (
        'device.capacity["drv"].?memory.hasValue() && device.capacity["drv"].memory.isGreaterThan(quantity("99Gi"))',
        ["devices publish capacity drv/memory: 40Gi (1), 80Gi (1); 1 device lacks it"],
    ),
    "another driver is wanted": ('device.driver == "other"', ["drivers of the devices: drv (3)"]),
    "nothing that is published counts": ("false", []),
}


CHANGE = "nearest fix: change selector #0 of the request, or publish devices that it matches"
OTHER_DRIVER = (
    "nearest fix: run a driver that publishes devices for this node (see: kubectl get resourceslices), or correct the "
    "driver that the selectors name"
)


def lines_of(*claims: Json, nodes: int = 1, usage: Usage | None = None) -> list[str]:
    """The lines about as many equal nodes, which refuse the last claim; the others are allocated."""
    everywhere = [
        slice_ for number in range(1, nodes + 1) for slice_ in pool(*DEVICES, name=f"p{number}", nodeName=f"n{number}")
    ]
    classes = [device_class("any", 'device.driver == "drv" || true')]
    made = lab(everywhere, claims[-1:], classes=classes, usage=usage)
    plan = made.allocator.compile(made.claims)
    refusals = []
    for number in range(1, nodes + 1):
        node = make_node(f"n{number}")
        outcome = made.decide(node)
        assert isinstance(outcome, Refused)
        refusals.append((node, outcome.refusal))
    held = holders(convert(ResourceClaim, other) for other in claims[:-1])
    return list(grouped(refusals, made.allocator.inventory, plan, held))


@pytest.mark.parametrize(("selector", "published"), MISMATCHES.values(), ids=MISMATCHES.keys())
def test_selectors_stand_beside_what_devices_publish(selector: str, published: list[str]) -> None:
    lines = [line.strip() for line in lines_of(claim(request("r", selector)))]
    one = lines.index(f"selector #0 of claim default/c, request r matches 0 of 3 devices: {selector}")
    assert lines[one - 1] == 'selector #0 of class any matches 3 of 3 devices: device.driver == "drv" || true'
    drivers = ["drivers of the devices: drv (3)"]  # the class asks for the driver as well
    assert lines[one + 1 :] == [
        *dict.fromkeys([*drivers, *published]),
        OTHER_DRIVER if "device.driver" in selector else CHANGE,
    ]


def test_the_selectors_are_those_of_the_refused_claim_if_another_has_a_request_of_the_same_name() -> None:
    made = lab(pool(*DEVICES), [claim(request("r"), name="fits"), claim(request("r", "false"), name="not")])
    node = make_node("n1")
    outcome = made.decide(node)
    assert isinstance(outcome, Refused)
    lines = list(grouped([(node, outcome.refusal)], made.allocator.inventory, made.allocator.compile(made.claims), {}))
    assert "    selector #0 of claim default/not, request r matches 0 of 3 devices: false" in lines


def test_who_holds_the_devices_is_reported() -> None:
    def allocated(name: str, device: str, *users: str, admin: bool = False) -> Json:
        result = {"request": "r", "driver": "drv", "pool": "p1", "device": device, "adminAccess": admin}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": user, "uid": user} for user in users],
        }
        return {**claim(request("r"), name=name), "status": status}

    others = [
        allocated("one", "a", "web-0"),
        allocated("two", "b"),
        allocated("many", "c", *(f"job-{number}" for number in range(5))),
        allocated("watcher", "c", admin=True),
    ]
    usage = Usage()
    for name in "abc":
        usage.take_device(DeviceId("drv", "p1", name))
    lines = lines_of(*others, claim(request("r")), usage=usage)
    assert lines[4:] == [
        "    3 in use",
        "    drv/p1/a is held by claim default/one, reserved for web-0",
        "    drv/p1/b is held by claim default/two, not reserved",
        "    drv/p1/c is held by claim default/many, reserved for job-0, job-1, job-2 and 2 more",
        "  nearest fix: wait until 1 more matching device is free, or end a pod that uses one",
    ]


@pytest.mark.parametrize(
    ("nodes", "last"),
    [
        (2, "  1 other node fails for the same reason: n2"),
        (10, "  9 other nodes fail for the same reason: n2, n3, n4, n5, n6, n7, n8, n9 and 1 more"),
    ],
)
def test_nodes_with_the_same_obstacle_are_only_named(nodes: int, last: str) -> None:
    lines = lines_of(claim(request("r", count=4)), nodes=nodes)
    assert sum(line.startswith("node ") for line in lines) == 1
    assert lines[-1] == last
