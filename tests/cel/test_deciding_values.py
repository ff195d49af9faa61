"""A selector's answer is remembered by what it reads of a device, and is the one that it gives without memory."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.resource import Device
from dra_cel import EvaluationError, PreparedDevice, Selector, device_selectors, prepare
from dra_cel.selector import MOST_ANSWERS
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import fewer

DRIVER = "gpu.example.com"
OF_DRIVER = f'device.attributes["{DRIVER}"]'
FEW_VALUES = [
    f'device.driver == "{DRIVER}"',
    "device.allowMultipleAllocations",
    f'{OF_DRIVER}.model == "a100"',
    f'"model" in {OF_DRIVER} && {OF_DRIVER}.model == "a100"',
    f'"model" in {OF_DRIVER}',
    f"has({OF_DRIVER}.model)",
    f'{OF_DRIVER}.?model.orValue("none") == "none"',
    f'{OF_DRIVER}[?"model"].hasValue()',
    f'{OF_DRIVER}["model"] in ["a100", "h100"]',
    f'{OF_DRIVER}.index > 1 || device.attributes["other.example.com"].link == 8',
    f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("40Gi"))',
    f'["a100", "h100"].exists(it, it == {OF_DRIVER}.model)',
]
ANY_VALUE = [
    f'device.attributes.exists(domain, domain == "{DRIVER}")',
    f'"{DRIVER}" in device.attributes',
    f'{OF_DRIVER}.exists(name, name == "model")',
    f"cel.bind(own, {OF_DRIVER}, has(own.model))",
    f'{OF_DRIVER}[["mod", "el"].join()] == "a100"',
    f'["model", "index"].exists(name, name in {OF_DRIVER})',
    f'device.?attributes["{DRIVER}"].hasValue()',
    f'device.attributes[?"{DRIVER}"].hasValue()',
    f"size({OF_DRIVER}) > 1",
    'device.attributes[device.driver].model == "a100"',
    'device.attributes["other.example.com/a"].b == "a100"',
    " || ".join(f"{OF_DRIVER}.n{number} == 1" for number in range(9)),
]
VALUES = st.sampled_from(
    [
        {"string": "a100"},
        {"string": "h100"},
        {"int": 8},
        {"int": 1},
        {"bool": True},
        {"version": "1.2.3"},
        {"version": "no version"},
        {"strings": ["a100"]},
        {},
    ]
)
NAMES = st.sampled_from(["model", f"{DRIVER}/model", "index", "other.example.com/link", "other.example.com/a/b", "x"])
CAPACITY = st.sampled_from([{}, {"memory": {"value": "80Gi"}}, {f"{DRIVER}/memory": {"value": "40Gi"}}])


@st.composite
def devices(draw: st.DrawFn) -> tuple[str, Device]:
    fields: dict[str, Any] = {
        "name": "gpu",
        "attributes": draw(st.dictionaries(NAMES, VALUES, max_size=4)),
        "capacity": draw(CAPACITY),
        "allowMultipleAllocations": draw(st.booleans()),
    }
    return draw(st.sampled_from([DRIVER, "other.example.com"])), convert(Device, fields)


def compiled(expression: str) -> Selector:
    return Selector(expression, device_selectors(list_attributes=True))


def ready(driver: str, device: Device) -> PreparedDevice:
    return prepare(driver, device, list_attributes=True)


def said(selector: Selector, driver: str, device: Device, *, remembers: bool) -> bool | str:
    try:
        if remembers:
            return selector.selects(driver, device, ready)
        return selector.matches(ready(driver, device))
    except EvaluationError as error:
        return error.kind


@settings(max_examples=fewer(150), deadline=None)
@given(st.sampled_from(FEW_VALUES + ANY_VALUE), st.lists(devices(), min_size=2, max_size=12))
def test_a_remembered_answer_is_that_of_the_device_itself(expression: str, some: list[tuple[str, Device]]) -> None:
    selector = compiled(expression)
    for driver, device in some:
        assert said(selector, driver, device, remembers=True) == said(selector, driver, device, remembers=False)


def asked(expression: str, *some: dict[str, Any]) -> int:
    """How many of the devices are made ready."""
    selector, number = compiled(expression), 0

    def counted(driver: str, device: Device) -> PreparedDevice:
        nonlocal number
        number += 1
        return ready(driver, device)

    for fields in some:
        selector.selects(DRIVER, convert(Device, fields), counted)
    return number


def gpu(uuid: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        name: {"string": "a100"} for name in ("model", f"{DRIVER}/link", "other.example.com/link")
    }
    attributes |= {"index": {"int": 2}, "uuid": {"string": uuid}, "version": {"version": "1.2.3"}}
    return {"name": uuid, "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}


@pytest.mark.parametrize("expression", [text for text in FEW_VALUES if "allow" not in text])
def test_devices_that_are_alike_to_a_selector_are_asked_once(expression: str) -> None:
    assert asked(expression, gpu("one"), gpu("two"), gpu("three")) == 1


@pytest.mark.parametrize("expression", FEW_VALUES)
def test_a_device_without_any_value_is_not_taken_for_one_that_has_them(expression: str) -> None:
    selector, (bare, full) = compiled(expression), (convert(Device, it) for it in ({"name": "bare"}, gpu("full")))
    for device in (full, bare, full):
        assert said(selector, DRIVER, device, remembers=True) == said(selector, DRIVER, device, remembers=False)


@pytest.mark.parametrize("expression", ANY_VALUE[:5])
def test_a_selector_that_may_read_any_value_is_asked_of_each_device(expression: str) -> None:
    assert asked(expression, gpu("one"), gpu("two"), gpu("three")) == 3


def test_few_answers_are_remembered() -> None:
    """Those about values that differ from device to device push each other out."""
    expression = f'{OF_DRIVER}.uuid == "nvidia-1"'
    some = [gpu(f"nvidia-{number}") for number in range(MOST_ANSWERS + 1)]
    assert asked(expression, *some, some[-1]) == len(some)
    assert asked(expression, *some, some[0]) == len(some) + 1
