"""Details in which the reference differs from what one would expect: answer or kind of error, and cost.

Found by running random expressions through both implementations.
"""

from __future__ import annotations

import pytest
from dra_api.codec import convert
from dra_api.resource import Device
from dra_cel import CelError, CompileError, EvaluationError, Selector, device_selectors, prepare

DEVICE = prepare(
    "gpu.example.com",
    convert(
        Device,
        {
            "attributes": {
                "ok": {"bool": True},
                "ver": {"version": "1.2.3"},
                "model": {"string": "A100"},
                "flags": {"bools": [True, False]},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        },
    ),
    list_attributes=True,
)
ENVIRONMENT = device_selectors(list_attributes=True)

DETAILS: list[tuple[str, str, bool | str, int | None]] = [
    # costs
    (
        "a function of one operand is charged even if that failed",
        'int(device.attributes["x"].missing) == 1',
        "no-such-key",
        6,
    ),
    ("the last of several operands may fail and is charged all the same", '"%s".format([][0]) == ""', "index", 3),
    ("an earlier failure ends a call of several overloads free of charge", '[][0].indexOf("a", 1) == 1', "index", 3),
    ("matching a constant pattern is free of charge if there is no text", '[][0].matches("^a")', "index", 2),
    ("finding a pattern that is no constant evaluates both sides", "[][0].matches(device.driver)", "index", 8),
    ("nothing is in the empty list, and a conversion of that is constant", "bool(1 in [])", False, 0),
    ("a map with such a constant is constant", '{"a": 1 in []}.a', False, 2),
    (
        "has() of a conditional takes back a unit that was not charged",
        'has((device.driver == "" ? {} : {"a": 1}).a)',
        True,
        2,
    ),
    (
        "taking back from nothing wraps around the limit",
        "has((dyn(1) ? {} : {}).a)",
        "cost-limit",
        18446744073709551615,
    ),
    ("an optional index that fails is not charged", "[1][?[][7]].hasValue()", "index", 3),
    ("an index that fails is charged", "[1][[][7]] == 1", "index", 4),
    ("flattening to a negative depth costs as unsigned numbers do", "[1].flatten(-1) == []", "other", 10),
    (
        "flattening deeper below zero exceeds every limit",
        "[1].flatten(-62135596800) == []",
        "cost-limit",
        18446744011573954827,
    ),
    (
        "of several overloads for networks none adds the text's length",
        'cidr("2001:db8::1/128").containsIP(dyn("::1.2.3.4"))',
        False,
        6,
    ),
    # stops
    ("comparing the elements of a failed list is an internal error", "[][0].distinct() == [] || true", "other", 2),
    ("so is sorting a failed list by keys", '[device.attributes["x"].y].sortBy(e, 1) == [] || true', "other", 16),
    ("but sorting a list of unknown type is not", 'device.attributes["x"].y.sort() == [] || true', True, 5),
    ("a text is no list to compare the elements of", "dyn(device.driver).distinct() == [] || true", "other", 3),
    ("the depth of flattening must be a number", '[[1]].flatten(device.attributes["x"].y) == [] || true', "other", 4),
    ("bytes cannot be keys", "{bytes(device.driver): 1} == {} || true", "other", 4),
    ("versions cannot be keys", '{semver("1.2.3"): 1} == {} || true', "other", 1),
    ("formats cannot be looked up in a map", 'format.uuid() in dyn({"a": device.driver}) || true', "other", 34),
    ("but in an empty one they can", 'b"a" in {}', False, 1),
    ("nor can bytes be looked up in a constant list", 'dyn(b"a") in ["a"] || true', "other", 0),
    ("an attribute map only knows texts", "dyn(bytes(device.driver)) in device.attributes", False, 8),
    # keys
    ("addresses are keys by value", '{ip("1.2.3.4"): 1} == {ip("1.2.3.4"): 1}', True, 63),
    ("null is a key", "{null: 1} == {null: 1}", True, 1),
    ("a list is never the same key again", "{[device.driver]: 1}.size() == 1", True, 44),
    # indexes
    ("a type cannot be an index", "{int: 1}[int] == 1", "program", None),
    ("a time cannot be an index", "{timestamp(1): 1}[timestamp(1)] == 1", "program", None),
    ("a computed quantity cannot be an index", '{"a": device.driver}[dyn(quantity("1"))] == ""', "other", 36),
    ("not even an optional one", '{"a": device.driver}[?dyn(quantity("1"))].hasValue()', "other", 36),
    ("a number is no key of attributes, but a possible one", "device.attributes[dyn(1)] == {}", True, 3),
    # names
    ("a variable that holds a type is taken for the name of one", "cel.bind(t, int, t == int)", "program", None),
    ("also if the expression does not use it", "cel.bind(t, type(1), true)", "program", None),
    ("a loop over types is fine unless its variable is used", "[int].all(t, true)", True, 4),
    ("a leading dot finds local names as well", "[1, 2].all(x, .x > 0)", True, 11),
    ("a loop variable with a dot exists, but has no name", "[1].exists(.x, true)", True, 5),
    ("it cannot be used", "[1].exists(.x, x == 1)", "undeclared-reference", None),
    ("duration is known to the checker only", 'type(duration("1s")) == duration', "program", None),
    ("wrappers are known to the checker only", "google.protobuf.Int64Value == int", "program", None),
    ("the device's type is known to the checker only", "type(device) == kubernetes.DRADevice", "program", None),
    # optionals
    ("an absent value is not zero", "optional.ofNonZeroValue(optional.none()).hasValue()", True, 3),
    (
        "the first second of year 1 is zero",
        'optional.ofNonZeroValue(timestamp("0001-01-01T00:00:00Z")).hasValue()',
        False,
        2,
    ),
    ("the epoch is not", "optional.ofNonZeroValue(timestamp(0)).hasValue()", True, 2),
    (
        "a version in an optional survives no name",
        'cel.bind(x, optional.of(semver("1.2.3")), x.value().major() == 1)',
        "other",
        6,
    ),
    ("though it is present", 'cel.bind(x, optional.of(semver("1.2.3")), x.hasValue())', True, 4),
    ("nor a condition", 'optional.of(1).optMap(o, ip("::1")).value().isLoopback()', "other", 6),
    ("a format does", 'optional.of(1).optMap(o, format.uri()).value().validate("/a").hasValue()', False, 282),
    ("without a name a version does", 'device.attributes["gpu.example.com"].?ver.value().major() == 1', True, 7),
    (
        "an optional in an optional is flattened by a name",
        "cel.bind(x, optional.of(optional.of(1)), x.value() == dyn(1))",
        True,
        5,
    ),
    (
        "a type becomes its name",
        '(device.driver == "" ? optional.none() : optional.of(int)).value() == dyn("int")',
        True,
        5,
    ),
    # literals
    ("a duration is not made of a number", 'duration(5) < duration("1s")', "validator", None),
    (
        "a time out of range is refused before evaluation",
        "timestamp(99999999999999) == timestamp(1)",
        "validator",
        None,
    ),
    ("the first of two complaints about the same place counts", "[?optional]", "undeclared-reference", None),
    (
        "structures, lists and values of JSON",
        'google.protobuf.Struct{fields: {"a": [1]}} == {"a": [1.0]} && google.protobuf.Value{} == null',
        True,
        82,
    ),
    (
        "durations and timestamps as messages",
        'google.protobuf.Duration{seconds: 1} == duration("1s") && google.protobuf.Timestamp{} == timestamp(0)',
        True,
        82,
    ),
    ("the null of JSON", "google.protobuf.Value{null_value: google.protobuf.NullValue.NULL_VALUE} == null", True, 41),
    # types
    (
        "of several overloads lists go before texts",
        'cel.bind(v, device.attributes["x"].y.value(), v.indexOf("a") == 1 && v.startsWith("a"))',
        "no-matching-overload",
        None,
    ),
    ("wrappers mix with what they wrap", "[1, google.protobuf.Int64Value{value: 0}] != []", True, 50),
    # optionals
    (
        "a version in an optional does not compare with null in one",
        'device.attributes["gpu.example.com"].?ver == optional.of(null)',
        "no-such-overload",
        6,
    ),
    # times
    (
        "a time minus the longest span overflows",
        'timestamp("2021-01-01T00:00:00Z") - duration("-2562047h47m16.854775808s") == timestamp(0)',
        "overflow",
        2,
    ),
    # quantities
    (
        "the least integer subtracted leaves a negative sum",
        'sign(quantity("80Gi").sub(-9223372036854775808)) == -1',
        True,
        4,
    ),
    (
        "great powers of ten are products of two",
        'quantity("8.4e100").asApproximateFloat() == 8.400000000000001e100',
        True,
        3,
    ),
    (
        "amounts beyond all doubles are infinite",
        'quantity("12345678901234567890e500").asApproximateFloat() > 1e308',
        True,
        5,
    ),
    # formats
    ("bytes that are no text cannot be printed", '"%s".format([b"\\xff"]) == ""', "format", 1),
    # patterns
    ("a large pattern is compiled", '"Ä".matches("\\\\p{^Lu}{100}|Ä")', True, 4),
    ("a bad pattern of a call with computed parts fails at run time", '"a".find("[" + "") == ""', "regex", 2),
]


def test_an_optional_answer_counts_as_what_it_holds() -> None:
    assert outcome("dyn(optional.of(device.driver != ''))")[0] is True
    assert outcome("dyn(optional.none())")[0] == "not-bool"


def outcome(expression: str) -> tuple[bool | str, int | None]:
    """The answer or the kind of the error, and the cost."""
    try:
        selector = Selector(expression, ENVIRONMENT)
    except CompileError as error:
        return error.kind, None
    verdict, cost = selector.explain(DEVICE)
    precise: bool | str = verdict.kind if isinstance(verdict, EvaluationError) else verdict
    try:
        quick: bool | str = selector.matches(DEVICE)
    except CelError as error:
        quick = error.kind
    assert quick == precise
    return precise, cost


@pytest.mark.parametrize(
    ("expression", "answer", "cost"),
    [detail[1:] for detail in DETAILS],
    ids=[detail[0] for detail in DETAILS],
)
def test_agrees_in_detail(expression: str, answer: bool | str, cost: int | None) -> None:
    assert outcome(expression) == (answer, cost)


MAXIMA = [
    (
        "quoting a text of unknown size is taken to give an empty text",
        'strings.quote(string(1.5)) >= "a"',
        1844674407370955265,
    ),
    ("the device has no size", "dyn(string(1)) == device", 3),
    ("comparing URLs is estimated by the size of the right one", 'url("a:b") == url("https://example.com/a?b=c")', 7),
    ("sizes are rounded to doubles on the way", "1 in [].slice(100, 9223372036854775807)", 2**64 - 1),
]


@pytest.mark.parametrize(("expression", "most"), [row[1:] for row in MAXIMA], ids=[row[0] for row in MAXIMA])
def test_estimates_as_the_reference_does(expression: str, most: int) -> None:
    assert Selector(expression, ENVIRONMENT).max_cost == most


NESTED = [
    ("operators of one chain nest in one way", "1" + "+1" * 249 + " == 1", True),
    ("one more is too deep", "1" + "+1" * 250 + " == 1", False),
    ("operators of two kinds add up", "1" + "+1*1" * 248 + " == 1", True),
    ("right operands in parentheses nest twice", "1+(" * 124 + "1" + ")" * 124 + " == 1", True),
    ("they are too deep much earlier", "1+(" * 125 + "1" + ")" * 125 + " == 1", False),
    ("bindings nest once", "cel.bind(x, 1, " * 249 + "true" + ")" * 249, True),
    ("250 bindings are too deep", "cel.bind(x, 1, " * 250 + "true" + ")" * 250, False),
    ("selections under has()", "has(dyn({})" + ".a" * 250 + ")", True),
    ("251 selections are too deep", "has(dyn({})" + ".a" * 251 + ")", False),
    ("indexes count with what is around them", "dyn([])" + "[0]" * 249 + " == 1", True),
    ("one index more is too deep", "dyn([])" + "[0]" * 250 + " == 1", False),
]


@pytest.mark.parametrize(("expression", "fine"), [row[1:] for row in NESTED], ids=[row[0] for row in NESTED])
def test_nesting_is_limited_in_two_ways(expression: str, fine: bool) -> None:
    assert (outcome(expression)[0] != "syntax") is fine


COMPLAINTS = {
    "a label with dots": ("dns1123Label", "a.b", ["must not contain dots"]),
    "a URL that is not absolute": ("uri", "a", ['parse "a": invalid URI for request']),
    "a key without its parts": (
        "qualifiedName",
        "/",
        [
            "prefix part must be non-empty",
            "name part must be non-empty",
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
            "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        ],
    ),
}


@pytest.mark.parametrize(("name", "text", "complaints"), COMPLAINTS.values(), ids=COMPLAINTS.keys())
def test_complaints_about_formats_are_values_of_expressions(name: str, text: str, complaints: list[str]) -> None:
    listed = ", ".join('"' + complaint.replace('"', '\\"') + '"' for complaint in complaints)
    assert outcome(f'format.{name}().validate("{text}").value() == [{listed}]')[0] is True


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("http://h:80:90/", False),
        ("ftp://h:80:90/", True),
        ("http://[::1]:80/", True),
        ("http://[1.2.3.4]/", False),
        ("http://a[::1]/", False),
        ("http://[::1/", False),
        ("http://[[::1]]/", False),
        ("http://[::1]]:80/", False),
        ("http://[fe80::1%25eth0]/", True),
        ("http://[fe80::1%25a%2Fb]/", False),
    ],
)
def test_hosts_of_urls_are_checked(url: str, good: bool) -> None:
    assert outcome(f'isURL("{url}")')[0] is good


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("timestamp('2021-01-01T00:00:00Z').getHours('+25:00')", "1"),
        ("timestamp('0001-01-01T00:00:00Z').getFullYear('-10:00')", "0"),
        ("timestamp('9999-12-31T23:59:59Z').getFullYear('+10:00')", "10000"),
        ("timestamp('9999-06-30T23:59:59Z').getHours('America/New_York')", "19"),
        ("timestamp('1600-12-31T00:00:00Z').getDayOfWeek()", "0"),
        ("'%.300f'.format([0.1])", "'0.1000000000000000055511151231257827021181583404541015625'"),
        ("'%.256f'.format([1.5])", "'1.5'"),
        ("'%.20e'.format([5.0])", "'       5.000000×10⁰⁰'"),
        ("'%.99999999f'.format([5.0])", "'%!(NOVERB)'"),
    ],
)
def test_calendars_and_formats_at_their_limits(expression: str, text: str) -> None:
    assert outcome(f"{expression} == {text}")[0] is True
