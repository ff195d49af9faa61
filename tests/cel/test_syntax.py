"""Grammar and types: what parses, what is refused, where the complaint points."""

from __future__ import annotations

import pytest
from dra_api.resource import Device
from dra_cel import CompileError, Selector, device_selectors, prepare

DEVICE = prepare("gpu.example.com", Device())
ENVIRONMENT = device_selectors()


@pytest.mark.parametrize(
    ("why", "expression"),
    [
        ("multiplication binds tighter than addition", "1 + 2 * 3 == 7"),
        ("subtraction groups from the left", "10 - 3 - 2 == 5"),
        ("and binds tighter than or", "true || false && false"),
        ("comparison groups from the left", "1 < 2 == true"),
        ("the ternary nests on its right", "false ? false : false ? false : true"),
        ("pairs of negations cancel out", "!!true && --1 == 1"),
        ("a minus belongs to the literal", "-9223372036854775808 < 0"),
        ("hexadecimal and unsigned", "0x10 == 16 && 10u == 0xAu"),
        ("doubles with exponent", "1.5e3 == 1500.0 && .5 == 0.5"),
        ("escapes", r""" "\x41\u00e9\U0001F600\101\n" == 'Aé😀A' + '\n' """),
        ("raw text keeps backslashes", r""" r"\d" == "\\d" """),
        ("triple quotes hold line ends", '"""a\n"b" """ == \'a\\n"b" \''),
        ("bytes count bytes", 'b"é".size() == 2 && "é".size() == 1'),
        ("comments and blank lines", "true // yes\n && // and\n true"),
        ("trailing commas", "[1, 2,].size() == 2 && {'a': 1,}.size() == 1"),
        ("reserved words may be field names", "{'if': true}.if"),
        ("a leading dot means the outermost scope", ".device.driver == 'gpu.example.com'"),
        ("optional entries of literals", "[?optional.none(), 1] == [1] && {?'a': optional.none()}.size() == 0"),
        ("names bound by cel.bind", "cel.bind(x, 2, cel.bind(y, x + 1, x * y == 6))"),
        ("types that fit no operand are forgotten again", "true || timestamp(1) in {}.b.sortBy(e, 'a')"),
        ("an entry of unknown type fits every other one", "!sets.intersects([dyn(1)], [].filter(e, e))"),
        ("an inner variable hides the outer one", "[1].all(x, [2].all(x, x == 2))"),
        ("a long chain of conjunctions", " && ".join(["true"] * 12_000)),
        ("249 levels of parentheses", "(" * 249 + "true" + ")" * 249),
        ("240 nested lists", "[" * 240 + "]" * 240 + ".size() == 1"),
        ("200 nested calls", "dyn(" * 200 + "1" + ")" * 200 + " == 1"),
        ("200 nested conditions", "false ? true : " * 200 + "true"),
    ],
    ids=lambda value: value if " " in str(value) and len(str(value)) < 50 else "",
)
def test_means_what_cel_means(why: str, expression: str) -> None:
    selector = Selector(expression, ENVIRONMENT)
    assert selector.matches(DEVICE) is True, why
    assert selector.explain(DEVICE)[0] is True, why


@pytest.mark.parametrize(
    ("expression", "kind", "position"),
    [
        ("", "syntax", (1, 1)),
        ("true &&", "syntax", (1, 8)),
        ("true\n  && )", "syntax", (2, 6)),
        ("a = b", "syntax", (1, 3)),
        ('"open', "syntax", (1, 1)),
        ("while == 1", "syntax", (1, 1)),
        ("18446744073709551616u > 0u", "syntax", (1, 1)),
        ("device.nosuch == 1", "undefined-field", (1, 7)),
        ("device.driver.x", "undefined-field", (1, 14)),
        ("nosuch", "undeclared-reference", (1, 1)),
        ("nosuch(1) == 1", "undeclared-reference", (1, 7)),
        ("1 == 'a'", "no-matching-overload", (1, 3)),
        ("[1, 'a'].size() == 2", "type-mismatch", (1, 5)),
        ("[1].all(x.y, true)", "macro", (1, 10)),
        ("has(device)", "macro", (1, 5)),
        ("'a'.all(x, true)", "not-iterable", (1, 1)),
        ("1 + 1", "wrong-result-type", (1, 1)),
        ("int('x') == 1", "program", (1, 4)),
        ("'a'.find('[') == ''", "program", (1, 9)),
        ("'a'.matches('(')", "validator", (1, 13)),
        ("duration('x') == duration('1s')", "validator", (1, 10)),
        ("'%d'.format(['x']) == ''", "validator", (1, 14)),
        ("'%s'.format([1, 2]) == ''", "validator", (1, 12)),
        ("(" * 250 + "true" + ")" * 250, "syntax", (1, 251)),
        ("has(1", "macro", (1, 5)),
        ('has(1) && "', "macro", (1, 5)),
        ("[1].all(1, true", "macro", (1, 9)),
        ("[1].all(x, x, true)", "macro", (1, 12)),
        ("1.optMap(1, 1)", "macro", (1, 10)),
        ("1.sortBy(x, x) == []", "macro", (1, 1)),
        ("f(1 2)", "syntax", (1, 5)),
        ("1) + $", "syntax", (1, 2)),
        ("has(device$.driver)", "syntax", (1, 11)),
        ("true $", "syntax", (1, 6)),
        ("{1: 2 3}", "syntax", (1, 7)),
        ("google.protobuf.Int64Value{value: 1 2} == 1", "syntax", (1, 37)),
        ("99999999999999999999 == 1", "syntax", (1, 1)),
        (r'"\ud800" == ""', "syntax", (1, 1)),
        ("[?dyn(1)].size() == 1", "type-mismatch", (1, 6)),
        ("{?'a': dyn(1)}.size() == 1", "type-mismatch", (1, 11)),
        ("google.protobuf.Int64Value{nosuch: 1} == 1", "undefined-field", (1, 28)),
        ("google.protobuf.Int64Value{value: 'a'} == 1", "type-mismatch", (1, 35)),
        ("nosuch.Type{a: 1} == 1", "undeclared-reference", (1, 12)),
        ("{b'a': 1}.size() == 1", "program", (1, 1)),
        ("int(9.3e18) == 1", "program", (1, 4)),
        ("double('0x1p99999') == 1.0", "program", (1, 7)),
        ("timestamp('2021-02-30T00:00:00Z') == timestamp(0)", "validator", (1, 11)),
        ("timestamp('2021-02-20T00:00:00+25:00') == timestamp(0)", "validator", (1, 11)),
        ("sets.intersects([1], [].filter(e, e))", "no-matching-overload", (1, 16)),
        ("[].all(x, x == [x])", "no-matching-overload", (1, 13)),
        ("[].map(x, [x] + x) == []", "no-matching-overload", (1, 15)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refuses_with_kind_and_position(expression: str, kind: str, position: tuple[int, int]) -> None:
    with pytest.raises(CompileError) as caught:
        Selector(expression, ENVIRONMENT)
    assert (caught.value.kind, caught.value.position) == (kind, position)


def test_all_complaints_about_types_come_at_once() -> None:
    with pytest.raises(CompileError) as caught:
        Selector("a == 1 &&\n b == 2", ENVIRONMENT)
    assert [(issue.line, issue.column) for issue in caught.value.issues] == [(1, 1), (2, 2)]


def test_the_excerpt_points_at_the_complaint() -> None:
    with pytest.raises(CompileError) as caught:
        Selector("true &&\n  nosuch", ENVIRONMENT)
    assert caught.value.excerpt().splitlines() == [
        "undeclared reference to 'nosuch'", " |   nosuch", " |   ^",
    ]  # fmt: skip
