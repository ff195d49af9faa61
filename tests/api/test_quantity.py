"""Quantities mean and print what they do in the reference (apimachinery ``resource.Quantity``)."""

from __future__ import annotations

import contextlib
import copy
from fractions import Fraction

import pytest
from dra_api.values import NANO, Format, Quantity, QuantityError, parse_quantity
from hypothesis import given
from hypothesis import strategies as st

GIGA = 2**30


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("0", 0),
        ("1", NANO),
        ("+1", NANO),
        ("-1", -NANO),
        ("1.", NANO),
        (".5", NANO // 2),
        ("007", 7 * NANO),
        ("100m", NANO // 10),
        ("1u", 1000),
        ("1n", 1),
        ("1k", 1000 * NANO),
        ("1E", 10**18 * NANO),
        ("1E3", 1000 * NANO),
        ("1e3", 1000 * NANO),
        ("1e+3", 1000 * NANO),
        ("1E-3", NANO // 1000),
        ("1Ki", 1024 * NANO),
        ("1.5Gi", 3 * GIGA // 2 * NANO),
        ("0.5Ki", 512 * NANO),
        pytest.param("0.1n", 1, id="less than a billionth is rounded up"),
        pytest.param("-0.1n", -1, id="and away from zero"),
        pytest.param("1.0000000001", NANO + 1, id="ten decimals are rounded up"),
        pytest.param("1e-2000", 1, id="an exponent however small leaves a billionth"),
        pytest.param("Gi", 0, id="digits may be missing"),
        pytest.param("m", 0, id="digits may be missing before a decimal suffix"),
        pytest.param("E", 0, id="E alone is a suffix"),
        pytest.param(".", 0, id="a point alone is zero"),
        pytest.param("+", 0, id="a sign alone is zero"),
        pytest.param("-", 0, id="a minus alone is zero"),
        pytest.param("0Ei", 0, id="zero exbi"),
        pytest.param("8Ei", (2**63 - 1) * NANO, id="binary amounts are capped"),
        pytest.param("-9000Pi", -(2**63 - 1) * NANO, id="binary amounts are capped below zero"),
        pytest.param("1000E", 10**21 * NANO, id="decimal amounts are not capped"),
        pytest.param("1e30", 10**39, id="amounts with exponent are not capped"),
        pytest.param("9223372036854775808", 2**63 * NANO, id="plain numbers are not capped"),
    ],
)
def test_value(text: str, nanos: int) -> None:
    assert Quantity(text).nanos == nanos
    assert str(Quantity(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 ",
        " 1",
        "1e",
        "1e+",
        "1Zi",
        "1K",
        "1ki",
        "1gi",
        "1.2.3",
        "--1",
        "1_000",
        "0x1",
        "٣",
        "1Ee3",
        "EA",
        "nan",
        "1e1001",
        "9" * 10_000,
    ],
)
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(QuantityError, match="is not a quantity"):
        Quantity(text)


@pytest.mark.parametrize("text", ["Pi", "Ei", "e-10", "-Pi"])
def test_missing_digits_that_the_reference_does_not_forgive(text: str) -> None:
    with pytest.raises(QuantityError, match="no digits"):
        Quantity(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("0.5", "500m"),
        ("1024", "1024"),
        ("1000", "1k"),
        ("1024Ki", "1Mi"),
        ("1025Ki", "1025Ki"),
        ("1.5Gi", "1536Mi"),
        ("1023Ki", "1023Ki"),
        pytest.param("0.5Ki", "512", id="below 1024 there is nothing binary to write"),
        pytest.param("1000Ki", "1000Ki", id="binary stays binary"),
        pytest.param("1.00000000001Gi", "1073741824010737419n", id="a fraction cannot be written in binary"),
        pytest.param("12e6", "12e6", id="exponents stay exponents"),
        pytest.param("1e2", "100", id="exponents are multiples of three"),
        pytest.param("1e-1", "100e-3", id="negative exponents too"),
        pytest.param("0e5", "0", id="zero is zero"),
        pytest.param("1000E", "1e21", id="beyond the largest suffix"),
        pytest.param("-1024Mi", "-1Gi", id="below zero"),
        pytest.param("0.0001Gi", "107374182400u", id="a broken binary amount"),
    ],
)
def test_canonical_form(text: str, canonical: str) -> None:
    assert Quantity(text).canonical() == canonical
    assert Quantity(canonical) == Quantity(text)


@pytest.mark.parametrize(
    ("text", "whole"), [("1", 1), ("1n", 1), ("1001m", 2), ("-1001m", -2), ("0", 0), ("1.5Ki", 1536), ("-1n", -1)]
)
def test_whole_numbers_are_rounded_away_from_zero(text: str, whole: int) -> None:
    assert Quantity(text).rounded_up() == whole


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("1", "DecimalSI"),
        ("1Ki", "BinarySI"),
        ("1e3", "DecimalExponent"),
        ("0.0001Ki", "DecimalSI"),
        ("1E", "DecimalSI"),
    ],
)
def test_family_of_suffixes(text: str, written: str) -> None:
    assert Quantity(text).format == Format(written)


@pytest.mark.parametrize(
    ("one", "other", "total"),
    [
        ("1Gi", "512Mi", "1536Mi"),
        ("1Gi", "1", "1073741825"),
        ("0", "1Gi", "1Gi"),
        ("1500m", "500m", "2"),
        ("1k", "1Ki", "2024"),
    ],
)
def test_sums_are_written_like_their_first_part(one: str, other: str, total: str) -> None:
    assert str(Quantity(one) + Quantity(other)) == total


def test_equality_order_and_hash_are_numeric() -> None:
    assert Quantity("1") == Quantity("1000m") == Quantity("1e0")
    assert len({Quantity("1"), Quantity("1000m"), Quantity("1Ki")}) == 2
    assert sorted([Quantity("1Ki"), Quantity("1k"), Quantity("-1")]) == [
        Quantity("-1"),
        Quantity("1k"),
        Quantity("1024"),
    ]
    assert Quantity("1") != "1"


def test_quantities_are_values() -> None:
    quantity = Quantity("1Gi")
    with pytest.raises(AttributeError, match="immutable"):
        quantity.nanos = 3
    assert copy.deepcopy(quantity) == quantity
    assert parse_quantity("1Gi") is parse_quantity("1Gi")
    assert repr(quantity) == "Quantity('1Gi')"


SUFFIXES = {
    **{
        name: Fraction(2) ** power
        for name, power in zip(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), range(10, 61, 10), strict=True)
    },
    **{name: Fraction(10) ** power for name, power in zip("num", range(-9, 0, 3), strict=True)},
    **{name: Fraction(10) ** power for name, power in zip(("", *"kMGTPE"), range(0, 19, 3), strict=True)},
    **{f"{sign}{power}": Fraction(10) ** power for sign in "eE" for power in range(-20, 21)},
}
NUMBERS = st.from_regex(r"[+-]?([0-9]{1,25}(\.[0-9]{0,25})?|\.[0-9]{1,25})", fullmatch=True).filter(str.isascii)


@given(number=NUMBERS, suffix=st.sampled_from(sorted(SUFFIXES)))
def test_every_written_number_has_its_exact_value(number: str, suffix: str) -> None:
    exact = abs(Fraction(number.rstrip("."))) * SUFFIXES[suffix] * NANO
    nanos = -(-exact.numerator // exact.denominator)
    if suffix.endswith("i"):
        nanos = min(nanos, (2**63 - 1) * NANO)
    quantity = Quantity(number + suffix)
    assert quantity.nanos == (-nanos if number.startswith("-") else nanos)


@given(number=NUMBERS, suffix=st.sampled_from(sorted(SUFFIXES)))
def test_the_canonical_form_keeps_the_value_and_is_final(number: str, suffix: str) -> None:
    quantity = Quantity(number + suffix)
    canonical = Quantity(quantity.canonical())
    assert canonical == quantity
    assert canonical.canonical() == str(canonical)


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62), st.booleans())
def test_sums_and_differences_are_exact_inverses(one: int, other: int, binary: bool) -> None:
    total = Quantity.of(one, binary=binary) + Quantity.of(other)
    assert total - Quantity.of(other) == Quantity.of(one)
    assert total.rounded_up() == one + other


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_gets_the_one_error(text: str) -> None:
    with contextlib.suppress(QuantityError):
        assert Quantity(text).text == text
