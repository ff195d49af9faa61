"""Properties of random expressions: nothing but CelError escapes, and the three ways to reckon agree.

* A compiled selector that returns an answer returns the machine's answer.
* What an evaluation costs never exceeds the strict bound, on which the decision to compile rests.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.resource import Device
from dra_cel import CelError, EvaluationError, PreparedDevice, Selector, device_selectors, prepare
from dra_cel.analysis.cost import estimate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounds import fewer

DEVICES = [
    {
        "attributes": {
            "model": {"string": "A100"},
            "index": {"int": 2},
            "zero": {"int": 0},
            "one": {"int": 1},
            "ok": {"bool": True},
            "off": {"bool": False},
            "ver": {"version": "1.2.3"},
            "names": {"strings": ["a", "b"]},
            "ints": {"ints": [1, 2]},
            "flags": {"bools": [True, False]},
            "other.example.com/link": {"int": 8},
            "versions": {"versions": ["1.0.0"]},
        },
        "capacity": {"memory": {"value": "80Gi"}, "cores": {"value": "108"}, "half": {"value": "500m"}},
    },
    {
        "attributes": {
            "model": {"version": "2.0.0"},
            "index": {"string": "A100"},
            "ok": {"int": 1},
            "ver": {"string": "x"},
        }
    },
    {"attributes": {"model": {"bool": True}, "index": {"bool": False}, "names": {"int": 1}, "ints": {"string": "ab"}}},
    {},
]
LISTS = device_selectors(list_attributes=True)
DRIVER = "gpu.example.com"


def prepared() -> list[PreparedDevice]:
    return [prepare(DRIVER, convert(Device, device), list_attributes=True) for device in DEVICES]


NAMES = ["model", "index", "zero", "one", "ok", "off", "ver", "names", "ints", "flags", "versions", "missing"]
CONSTANTS = [
    "true",
    "false",
    "null",
    "0",
    "1",
    "2",
    "-1",
    "1u",
    "2u",
    "1.0",
    "2.5",
    '"A100"',
    '"a"',
    '""',
    'b"a"',
    "[1, 2]",
    '["a", "b"]',
    "[]",
    "{}",
    '{"a": 1}',
    "{1: true}",
    "{true: 1}",
    "[true]",
    "[1.0]",
    'semver("1.2.3")',
    'quantity("80Gi")',
    'duration("1s")',
    'timestamp("2021-01-01T00:00:00Z")',
    "dyn(1)",
    "dyn(true)",
    'dyn("a")',
    "9223372036854775807",
    "optional.of(1)",
    "optional.none()",
    "type(1)",
    'ip("10.0.0.1")',
    "9007199254740993",
]
ATOMS = st.one_of(
    st.sampled_from(CONSTANTS),
    st.sampled_from(NAMES).map(lambda name: f'device.attributes["{DRIVER}"].{name}'),
    st.sampled_from(NAMES).map(lambda name: f'device.attributes["{DRIVER}"].?{name}'),
    st.sampled_from(["memory", "cores", "half", "missing"]).map(lambda name: f'device.capacity["{DRIVER}"].{name}'),
    st.sampled_from(
        [
            "device.driver",
            "device.allowMultipleAllocations",
            f'device.attributes["{DRIVER}"]',
            "device.attributes",
            f'device.capacity["{DRIVER}"]',
            "device.attributes.nosuch",
            "device.capacity",
            "x",
            "y",
        ]
    ),
)
BINARY = ["&&", "||", "==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "in"]
CALLS = [
    "size({0})",
    "{0}.size()",
    "!({0})",
    "-({0})",
    "string({0})",
    "int({0})",
    "double({0})",
    "bool({0})",
    "uint({0})",
    "type({0})",
    "dyn({0})",
    "{0}.includes({1})",
    "{0}.compareTo({1})",
    "{0}.isGreaterThan({1})",
    "{0}.isLessThan({1})",
    "{0}.startsWith({1})",
    "{0}.contains({1})",
    "{0}.matches({1})",
    "{0}.orValue({1})",
    "{0}.or({1})",
    "{0}.hasValue()",
    "{0}.value()",
    "optional.of({0})",
    "optional.ofNonZeroValue({0})",
    "[{0}, {1}]",
    "[{0}]",
    '{{"a": {0}}}',
    "({0})[{1}]",
    "({0})[?{1}]",
    "({0}).a",
    "({0}).?a",
    "has(({0}).a)",
    "({0} ? {1} : {2})",
    "{0}.all(x, {1})",
    "{0}.exists(x, {1})",
    "{0}.exists_one(x, {1})",
    "{0}.map(x, {1})",
    "{0}.filter(x, {1})",
    "{0}.map(x, {1}, {2})",
    "{0}.all(x, y, {1})",
    "{0}.exists(x, y, {1})",
    "{0}.transformList(x, y, {1})",
    "{0}.transformMap(x, y, {1})",
    "cel.bind(x, {0}, {1})",
    "{0}.optMap(x, {1})",
    "{0}.optFlatMap(x, {1})",
    "{0}.sum()",
    "{0}.max()",
    "{0}.isSorted()",
    "{0}.indexOf({1})",
    "{0}.join()",
    "{0}.join({1})",
    "{0}.split({1})",
    "{0}.replace({1}, {2})",
    "sets.contains({0}, {1})",
    "{0}.sort()",
    "{0}.reverse()",
    "{0}.distinct()",
    "{0}.flatten()",
    "{0}.first()",
    '"%s".format([{0}])',
    "{0}.lowerAscii()",
    "{0}.asInteger()",
    "{0}.major()",
    "{0}.add({1})",
    "{0}.sortBy(x, {1})",
    "lists.range({0})",
    "{0}.find({1})",
]
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(BINARY), inner).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"),
        st.tuples(st.sampled_from(CALLS), inner, inner, inner).map(lambda parts: parts[0].format(*parts[1:])),
    ),
    max_leaves=8,
)
BOOLEANS = st.tuples(EXPRESSIONS, st.sampled_from(["==", "!=", "in", "<"]), EXPRESSIONS).map(
    lambda parts: f"cel.bind(x, 1, cel.bind(y, device.driver, {parts[0]} {parts[1]} {parts[2]}))"
)
PROFILE = settings(max_examples=fewer(600), suppress_health_check=list(HealthCheck))


def verdict(value: object) -> Any:
    return value.kind if isinstance(value, EvaluationError) else value


@PROFILE
@given(expression=st.one_of(BOOLEANS, EXPRESSIONS))
def test_a_compiled_selector_never_contradicts_the_machine_nor_the_cost_bound(expression: str) -> None:
    try:
        selector = Selector(expression, LISTS)
    except CelError:
        return
    bound = estimate(selector._root, LISTS, strict=True).max
    for device in prepared():
        precise, cost = selector.explain(device)
        assert cost <= bound
        try:
            answer: Any = selector.matches(device)
        except CelError as error:
            answer = error
        assert verdict(answer) == verdict(precise)


@pytest.mark.parametrize("seconds", [5.0])
def test_random_expressions_take_no_long_time(seconds: float) -> None:
    @settings(max_examples=fewer(150), suppress_health_check=list(HealthCheck))
    @given(expression=EXPRESSIONS)
    def run(expression: str) -> None:
        started = time.process_time()
        with suppress(CelError):
            Selector(expression, LISTS).explain(prepared()[0])
        assert time.process_time() - started < seconds

    run()
