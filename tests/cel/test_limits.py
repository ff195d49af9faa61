"""No input hangs, crashes or eats the memory: nesting, growth, shared structures, hostile literals, mutated texts."""

from __future__ import annotations

import random
import time
from contextlib import suppress

import pytest
from dra_api.resource import Device
from dra_cel import CelError, CompileError, CostLimitExceeded, EvaluationError, Selector, device_selectors, prepare

DEVICE = prepare("gpu.example.com", Device(), list_attributes=True)
ENVIRONMENT = device_selectors(list_attributes=True)


def doubled(start: str, grow: str, finish: str, times: int) -> str:
    """``v1 = grow(v0)``, ``v2 = grow(v1)``, ..., ``finish(vn)``."""
    binds = "".join(f"cel.bind(v{n + 1}, {grow.replace('$', f'v{n}')}, " for n in range(times))
    return f"cel.bind(v0, {start}, {binds}{finish.replace('$', f'v{times}')}{')' * (times + 1)}"


BOMBS = {
    "text that doubles": doubled('"aaaaaaaa"', "$ + $", "$.size() > 1", 60),
    "text that is replaced by longer text": doubled('"a"', '$.replace("a", "aaaaaaaaaaaaaaaa")', "$.size() > 1", 20),
    "a list that doubles": doubled("[1, 2]", "$ + $", "$.size() > 1", 60),
    "comparing lists that share their parts": doubled("[1]", "[$, $]", "$ == $", 60),
    "comparing lists that share their parts, inverted": doubled("[1]", "[$, $]", "$ != $", 60),
    "looking for such a list": doubled("[1]", "[$, $]", "$ in [$]", 60),
    "printing such a list": doubled("[1]", "[$, $]", '"%s".format([$]) == ""', 60),
    "asking whether it includes itself": doubled("[1]", "[$, $]", "dyn([$]).includes($)", 60),
    "searching such a list for itself": doubled("[1]", "[$, $]", "[$].indexOf($) == 0", 60),
    "JSON that is nested too deeply": doubled(
        "[1]", "[" * 100 + "$" + "]" * 100, "google.protobuf.Value{list_value: $} == null", 40
    ),
    "flattening such a list": doubled("[1]", "[$, $]", "dyn($).flatten(100).size() == 1", 60),
    "comparing maps that share their parts": doubled('{"a": dyn(1)}', '{"a": dyn($), "b": dyn($)}', "$ == $", 60),
    "a range of a trillion": "lists.range(1000000000000).size() > 1",
    "sorting a long list": "lists.range(100000).sort().size() > 1",
    "sets of long lists": "sets.contains(lists.range(100000), lists.range(100000))",
    "decimals of a wide format": 'lists.range(1000).all(x, "%.65000e".format([0.1]).size() > 1)',
    "nested loops": "lists.range(900).all(x, lists.range(900).all(y, lists.range(900).all(z, true)))",
    "joining long texts": f"lists.range(60000).map(x, '{'a' * 500}').join().size() > 1",
    "replacing nothing": f"'{'a' * 50000}'.replace('', '{'b' * 500}').size() > 1",
}


@pytest.mark.parametrize("expression", BOMBS.values(), ids=BOMBS.keys())
def test_growth_is_cut_off(expression: str) -> None:
    started = time.process_time()
    with pytest.raises(CostLimitExceeded):
        Selector(expression, ENVIRONMENT).matches(DEVICE)
    assert time.process_time() - started < 20


def long(finish: str) -> str:
    """``$`` is a text of 1,500,000 characters."""
    return f"cel.bind(a, lists.range(30).map(x, '{'a' * 50_000}').join(), {finish.replace('$', 'a')})"


LARGER = {
    "lists.range(1001).distinct() == []": "1002001",
    "lists.range(1001).sort() == []": "1002001",
    "sets.contains(lists.range(1001), lists.range(1001))": "1002001",
    "sets.equivalent(lists.range(1001), lists.range(1001))": "1002001",
    "sets.intersects(lists.range(1001), lists.range(1001))": "1002001",
    "lists.range(1000001) == []": "1000001",
    doubled("[1]", "$ + $", "$ == []", 20): "1048576",
    f"lists.range(60).map(x, '{'a' * 50_000}').join() == ''": "3000000",
    long("$ + $ == ''"): "3000000",
    long("cel.bind(b, bytes($), b + b) == b''"): "3000000",
    long("$.split('') == []"): "1500000",
    long("$.split('a') == []"): "1500001",
    long("$.replace('a', 'aa') == ''"): "3000000",
    long("'%s%s'.format([$, $]) == ''"): "3000000",
    long("'%s'.format([[$, $]]) == ''"): "3000007",
}
"""Expressions with the size of what each would build, or of the pairs that it would compare."""


@pytest.mark.parametrize("expression", LARGER, ids=lambda text: ascii(text[-40:]))
def test_nothing_is_begun_that_is_larger_than_an_expression_may_build(expression: str) -> None:
    with pytest.raises(CostLimitExceeded, match=f"a value of size {LARGER[expression]}"):
        Selector(expression, ENVIRONMENT).matches(DEVICE)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 40_000,
        "[" * 40_000 + "]" * 40_000,
        "{1:" * 20_000,
        "f(" * 30_000,
        "device" + ".a" * 30_000,
        "-" * 90_000,
        "!" * 90_000,
        '"' * 90_001,
        "'''" * 30_001,
        "//" * 40_000,
        "1+" * 40_000 + "1",
        "a<" * 30_000 + "a",
        "a?b:" * 20_000 + "c",
        "[[1]]" + "[0]" * 20_000,
        "\\" * 1000,
        "\x00",
        '"\ud800" == "a"',
        "a" * 200_000,
        "9" * 50_000,
        "0x" + "f" * 50_000,
        "1e999999999 > 1.0",
        '"%.999999999f".format([1.0]) == ""',
        'duration("' + "1h" * 30_000 + '") > duration("1s")',
        'int("' + "9" * 50_000 + '") == 1',
        'quantity("1e99999999999") == quantity("1")',
        'semver("' + "9" * 50_000 + '.0.0") == semver("1.0.0")',
        '"a".matches("((a{100}){100}){100}")',
        '"a".matches("' + "(a|b)*" * 5000 + '")',
        "optional.of(1)" + ".optMap(x, x)" * 40,
        "".join(f"[1].all(x{n}, " for n in range(240)) + "true" + ")" * 240,
        'timestamp("0000-01-01T00:00:00Z") == timestamp(0)',
        'timestamp("2021-01-01T00:00:00Z").getHours("../../etc/passwd") == 1',
        'url("' + "%" * 50_000 + '").getHost() == ""',
        'timestamp("0001-01-01T00:00:00Z").getHours("-23:00") == 1',
        "x.all(y, y)" * 5000,
        "{" * 300,
        "`" * 3,
        "$",
    ],
    ids=lambda text: ascii(text[:30]),
)
def test_hostile_texts_are_answered(expression: str) -> None:
    started = time.process_time()
    with suppress(CelError):
        Selector(expression, ENVIRONMENT).matches(DEVICE)
    assert time.process_time() - started < 20


def test_a_deep_stack_of_the_caller_does_not_matter() -> None:
    nested = "!" + "(!" * 200 + "true" + ")" * 200
    deep = "dyn(" * 200 + "[1]" + ")" * 200 + ".size() == 1"

    def below(levels: int) -> bool:
        if levels:
            return below(levels - 1)
        return Selector(deep, ENVIRONMENT).explain(DEVICE)[0] is True and isinstance(
            Selector(nested, ENVIRONMENT).matches(DEVICE), bool
        )

    assert below(600)


SEEDS = [
    'device.attributes["a.example.com"].model == "A100" && device.capacity["a.example.com"].memory >= quantity("1Gi")',
    '[1, 2].map(x, x > 1, x * 2).exists_one(y, y == 4) ? "é".size() == 1 : {?"a": optional.of(b"\\x01")}.?a.hasValue()',
    "cel.bind(x, device.?driver, x.optMap(v, v.split('.')).orValue([])[0].matches(r'^[a-z]+$'))",
    "'%s %.2f %x'.format([timestamp('2021-01-01T00:00:00Z'), 1.5e3, 0xFFu]).lowerAscii().startsWith(\"2\")",
]


def test_mutated_texts_raise_nothing_but_our_errors() -> None:
    source = random.Random(20)
    pieces = [
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "?",
        ".",
        ",",
        '"',
        "'",
        "\\",
        "&&",
        "!",
        "-",
        "1",
        "x",
        "in",
        "\n",
        "é",
        "%",
    ]
    for _ in range(1500):
        text = source.choice(SEEDS)
        for _ in range(source.randint(1, 6)):
            at = source.randrange(len(text) + 1)
            text = text[:at] + source.choice([*pieces, ""]) + text[at + source.randint(0, 3) :]
        try:
            Selector(text, ENVIRONMENT).matches(DEVICE)
        except CompileError as error:
            error.excerpt()
        except EvaluationError:
            continue


@pytest.mark.parametrize(
    ("why", "pattern"),
    [
        ("more characters than a selector may have", '"a".charAt(0) + lists.range(11000).map(x, "a").join()'),
        ("a pattern that takes memory when it is compiled", 'lists.range(400).map(x, "\\\\pL{1000}").join()'),
        ("classes that take memory to parse", 'lists.range(501).map(x, "\\\\pL").join()'),
    ],
)
def test_patterns_that_expressions_build_are_limited(why: str, pattern: str) -> None:
    with pytest.raises(EvaluationError) as raised:
        Selector(f'"a".matches({pattern})', ENVIRONMENT).matches(DEVICE)
    assert raised.value.kind == "regex"


@pytest.mark.parametrize(
    ("expression", "levels"),
    [
        ("{}true{}", ("(", ")", 249)),
        ("{}1{} != []", ("[", "]", 249)),
        ("{}1{} == 1", ("", " + 0", 249)),
        ("{}device.driver{} == ''", ("", ".lowerAscii()", 248)),
    ],
)
def test_expressions_are_nested_250_levels_deep_at_most(expression: str, levels: tuple[str, str, int]) -> None:
    before, after, most = levels
    Selector(expression.format(before * most, after * most), ENVIRONMENT)
    with pytest.raises(CompileError, match="nested more than 250 levels deep"):
        Selector(expression.format(before * (most + 1), after * (most + 1)), ENVIRONMENT)
