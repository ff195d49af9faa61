"""Which drivers a selector rules out, whatever their devices publish."""

from __future__ import annotations

import pytest
from dra_cel import compile

OWN, OTHER = "gpu.example.com", "nic.example.com"
NAMES = ", ".join(f'"d{number}.example.com"' for number in range(64))
MODEL = 'device.attributes["gpu.example.com"].model == "a100"'

NAMES_ONE = {
    "an equation": 'device.driver == "gpu.example.com"',
    "an equation the other way round": '"gpu.example.com" == device.driver',
    "one of several terms": f'{MODEL} && device.driver == "gpu.example.com"',
    "a term of a term": f'({MODEL} && (device.driver == "gpu.example.com" && true))',
    "a list": 'device.driver in ["gpu.example.com", "old.example.com"]',
    "a choice": 'device.driver == "gpu.example.com" || device.driver == "old.example.com"',
    "the beginning of the name": 'device.driver.startsWith("gpu.")',
    "a pattern": 'device.driver.matches("^gpu[.]")',
    "a negation": '!(device.driver == "nic.example.com")',
}
NAMES_NONE = {
    "attributes alone": MODEL,
    "a choice between driver and attribute": f'device.driver == "gpu.example.com" || {MODEL}',
    "a condition about both": f'(device.driver == "gpu.example.com") == ({MODEL})',
    "a name that is bound": 'cel.bind(d, device.driver, d == "gpu.example.com")',
    "a loop": '["gpu.example.com"].exists(d, d == device.driver)',
    "whether there is a driver": "has(device.driver)",
    "too long a list": f"device.driver in [{NAMES}]",
}


@pytest.mark.parametrize("name", NAMES_ONE)
def test_a_selector_that_names_a_driver_rules_others_out(name: str) -> None:
    selector = compile(NAMES_ONE[name])
    assert selector.names_driver
    assert selector.excludes(OTHER)
    assert not selector.excludes(OWN)


@pytest.mark.parametrize("name", NAMES_NONE)
def test_a_selector_that_names_none_rules_none_out(name: str) -> None:
    selector = compile(NAMES_NONE[name])
    assert not selector.names_driver
    assert not selector.excludes(OTHER)


def test_a_term_that_fails_rules_nothing_out() -> None:
    assert not compile('device.driver.substring(100) == "x"').excludes(OTHER)


def test_a_term_that_costs_much_rules_nothing_out() -> None:
    assert compile(f"device.driver.matches('{'x' * 100}')").excludes(OTHER)
    assert not compile(f"device.driver.matches('{'x' * 4000}')").excludes(OTHER)
