"""Devices as selectors see them (scheduling.md 6.5, allocator.md 6), and what a selector tells about itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.resource import Device
from dra_cel import (
    CompileError,
    DerivedAttribute,
    EvaluationError,
    Reference,
    Selector,
    compile,
    derived_attributes,
    device_selectors,
    prepare,
    selector_check,
)

DRIVER = "gpu.example.com"
RAW: dict[str, Any] = {
    "attributes": {
        "model": {"string": "A100"},
        "other.example.com/link": {"int": 8},
        "firmware": {"version": "1.2.3"},
        "healthy": {"bool": True},
    },
    "capacity": {"memory": {"value": "80Gi"}, "other.example.com/bandwidth": {"value": "400G"}},
    "allowMultipleAllocations": True,
}


def matches(expression: str, raw: dict[str, Any] = RAW, *, lists: bool = False) -> bool:
    environment = device_selectors(list_attributes=lists)
    return Selector(expression, environment).matches(prepare(DRIVER, convert(Device, raw), list_attributes=lists))


@pytest.mark.parametrize(
    ("why", "expression"),
    [
        ("unqualified names belong to the driver", f'device.attributes["{DRIVER}"].model == "A100"'),
        ("qualified names keep their domain", 'device.attributes["other.example.com"].link == 8'),
        ("capacities are quantities", 'device.capacity["other.example.com"].bandwidth == quantity("400G")'),
        ("versions are semantic versions", f'device.attributes["{DRIVER}"].firmware.major() == 1'),
        ("an unknown domain is an empty map", 'device.attributes["no.example.com"] == {}'),
        ("an unknown domain is not contained", '!("no.example.com" in device.attributes)'),
        ("unknown names can be asked for", f'!has(device.attributes["{DRIVER}"].nosuch)'),
        ("unknown names can have a default", f'device.attributes["{DRIVER}"].?nosuch.orValue(7) == 7'),
        ("the driver is a text", f'device.driver == "{DRIVER}"'),
        ("the switch for shared use", "device.allowMultipleAllocations"),
        ("a bool attribute is a result", f'device.attributes["{DRIVER}"].healthy'),
        ("a version never equals a text", f'device.attributes["{DRIVER}"].firmware != "1.2.3"'),
    ],
)
def test_sees(why: str, expression: str) -> None:
    assert matches(expression) is True, why


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        (f'device.attributes["{DRIVER}"].nosuch == 1', "no-such-key"),
        (f'device.attributes["{DRIVER}"].firmware == "1.2.3"', "no-such-overload"),
        (f'device.attributes["{DRIVER}"].model', "not-bool"),
    ],
)
def test_fails(expression: str, kind: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        matches(expression)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("attribute", "lists", "kind"),
    [
        ({"version": "1.2"}, False, "bad-attribute"),
        ({"versions": ["1.0.0", "x"]}, True, "bad-attribute"),
        ({"strings": ["a"]}, False, "unsupported-attribute"),
        ({}, True, "unsupported-attribute"),
    ],
    ids=["a bad version", "a bad version in a list", "a list while lists are off", "no value at all"],
)
def test_one_attribute_without_a_value_makes_every_selector_fail(attribute: object, lists: bool, kind: str) -> None:
    with pytest.raises(EvaluationError, match="attribute bad") as caught:
        matches("true", {"attributes": {"bad": attribute, "good": {"int": 1}}}, lists=lists)
    assert caught.value.kind == kind


def test_list_attributes_are_lists_when_they_are_on() -> None:
    raw = {"attributes": {"names": {"strings": ["a", "b"]}, "one": {"int": 1}}}
    base = f'device.attributes["{DRIVER}"]'
    assert matches(f'{base}.names.includes("b") && {base}.one.includes(1) && {base}.names[0] == "a"', raw, lists=True)


def test_stored_expressions_may_use_what_new_ones_may_not() -> None:
    expression = "device.allowMultipleAllocations"
    Selector(expression, device_selectors(consumable_capacity=False))
    with pytest.raises(CompileError):
        Selector(expression, device_selectors(new=True, consumable_capacity=False))


def test_values_longer_than_the_api_allows_are_evaluated_under_the_limit() -> None:
    raw = {"attributes": {"long": {"string": "a" * 5000}}}
    assert matches(f'device.attributes["{DRIVER}"].long.startsWith("aaa")', raw) is True


def test_references_name_what_is_looked_up_by_constant_names() -> None:
    selector = Selector(
        f'cel.bind(gpu, device.attributes["{DRIVER}"], gpu.model == "x" && gpu[device.driver] == 1) && '
        'device.capacity["a.example.com"].?memory.hasValue() && has(device.attributes["b.example.com"]["x"].y) && '
        '"z" in device.attributes["c.example.com"] && 1 in [2, 3]',
        device_selectors(),
    )
    assert selector.references == {
        Reference("attributes", DRIVER, "model"),
        Reference("capacity", "a.example.com", "memory"),
        Reference("attributes", "b.example.com", "x"),
        Reference("attributes", "c.example.com", "z"),
    }


DRIVERS_NAMED = {
    "device.driver == 'a' && device.attributes['b'].type == 'c'": {"a"},
    "'a' == device.driver": {"a"},
    "device.driver in ['a', 'b'] && 'c' in device.attributes['d']": {"a", "b"},
    "device.driver == 'a' && 1 == 1 || device.driver == string('b')": {"a", "b"},
    "cel.bind(it, device.driver, it == 'a' || it.startsWith('b'))": {"a"},
    "device.driver != 'a' && !(device.driver in ['b'])": set(),
    "device.driver == device.driver && device.driver.matches('a') && 'b' == 'c'": set(),
}


@pytest.mark.parametrize("expression", DRIVERS_NAMED)
def test_drivers_are_what_the_driver_is_compared_with(expression: str) -> None:
    assert Selector(expression, device_selectors()).drivers == DRIVERS_NAMED[expression]


def test_published_names_are_qualified() -> None:
    device = prepare(DRIVER, convert(Device, RAW))
    assert f"{DRIVER}/model" in device.published()
    assert "other.example.com/bandwidth" in device.published()


def test_the_same_expression_is_compiled_once() -> None:
    assert compile("device.driver == 'a'") is compile("device.driver == 'a'")


def test_the_check_for_validation_reports_errors_and_costs() -> None:
    check = selector_check(consumable_capacity=False)
    assert check("true", False) == (None, 0)
    assert check("device.driver", False).error == "1:1: must evaluate to bool or the unknown type, not string"
    assert check("device.allowMultipleAllocations", False).error is not None
    assert check("device.allowMultipleAllocations", True).error is None
    assert check("device.attributes.all(d, device.attributes.all(e, d.matches(e)))", True).max_cost > 1000


def test_a_device_that_cannot_be_read_fails_every_expression() -> None:
    device = prepare(DRIVER, convert(Device, {"attributes": {"firmware": {"version": "one"}}}))
    selector, derived = Selector("true", device_selectors()), DerivedAttribute("'x'", derived_attributes())
    in_parts = selector.matches_in_parts(device)
    asks: list[Callable[[], object]] = [
        lambda: selector.matches(device),
        lambda: next(in_parts),
        lambda: derived.of(device),
    ]
    for ask in asks:
        with pytest.raises(EvaluationError, match="attribute firmware: 'one' is not a semantic version"):
            ask()
