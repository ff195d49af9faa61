"""Which class serves an extended resource (scheduling.md 7.1)."""

from __future__ import annotations

from itertools import permutations

import pytest
from dra_api.codec import convert
from dra_api.quota import classes_by_resource, may_be_devices
from dra_api.resource import DeviceClass

GPU = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/"


def device_class(name: str, created: str | None, resource: str | None = GPU) -> DeviceClass:
    spec = {"extendedResourceName": resource} if resource is not None else {}
    return convert(DeviceClass, {"metadata": {"name": name, "creationTimestamp": created}, "spec": spec})


OLD, YOUNG = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


@pytest.mark.parametrize(
    ("classes", "winner"),
    [
        pytest.param([device_class("a", OLD), device_class("b", YOUNG)], "b", id="the youngest"),
        pytest.param([device_class("b", OLD), device_class("a", OLD)], "a", id="of equal age the smaller name"),
        pytest.param([device_class("a", None), device_class("b", OLD)], "b", id="a class without age is the oldest"),
        pytest.param([device_class("a", OLD), device_class("b", YOUNG, "other/x")], "a", id="another resource"),
        pytest.param(
            [device_class("a", OLD), device_class("b", YOUNG, None), device_class("c", YOUNG, "")], "a", id="none"
        ),
    ],
)
def test_the_class_of_a_resource(classes: list[DeviceClass], winner: str) -> None:
    for order in permutations(classes):
        mapping = classes_by_resource(order)
        assert mapping[GPU] == winner
        assert {IMPLICIT + item.metadata.name: item.metadata.name for item in classes}.items() <= mapping.items()


@pytest.mark.parametrize(
    ("resource", "answer"),
    [
        (GPU, True),
        (IMPLICIT + "gpu", True),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("pods", False),
        ("kubernetes.io/batch-cpu", False),
        ("requests.example.com/gpu", False),
    ],
)
def test_what_devices_might_stand_behind(resource: str, answer: bool) -> None:
    assert may_be_devices(resource) is answer
