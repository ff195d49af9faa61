"""Semantic versions are read strictly and ordered as semver.org has it."""

from __future__ import annotations

import itertools

import pytest
from dra_api.values import (
    Version,
    VersionError,
    is_version,
)
from hypothesis import given
from hypothesis import strategies as st

ASCENDING = [
    "0.0.1",
    "0.1.0",
    "1.0.0-1",
    "1.0.0-2",
    "1.0.0-10",
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc.1",
    "1.0.0",
    "1.0.1",
    "1.2.0",
    "1.10.0",
    "10.0.0",
]


@pytest.mark.parametrize(("lower", "higher"), list(itertools.pairwise(ASCENDING)))
def test_precedence(lower: str, higher: str) -> None:
    assert Version(lower) < Version(higher)
    assert Version(higher) > Version(lower)
    assert Version(lower) != Version(higher)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.0",
        "1.0.0.0",
        "01.0.0",
        "1.00.0",
        "1.0.0-01",
        "1.0.0-",
        "1.0.0+",
        "1.0.0-a..b",
        "v1.0.0",
        "1.0.0 ",
        "-1.0.0",
        "1.0.0-ä",
        "١.0.0",
    ],
)
def test_what_is_no_version(text: str) -> None:
    assert not is_version(text)
    with pytest.raises(VersionError, match="is not a semantic version"):
        Version(text)


@pytest.mark.parametrize("text", ["1.0.0-0a", "1.0.0-0-0", "1.0.0--", "1.0.0+001", "1.0.0-x-y-z.4+exp.sha.5114f85"])
def test_unusual_versions(text: str) -> None:
    assert str(Version(text)) == text


def test_build_metadata_does_not_count() -> None:
    assert Version("1.0.0+a") == Version("1.0.0+b") == Version("1.0.0")
    assert len({Version("1.0.0+a"), Version("1.0.0")}) == 1


@pytest.mark.parametrize(
    "text", [f"1.0.{2**64}", f"1.0.0-{2**64}", f"{'9' * 10_000}.0.0"], ids=("patch", "pre", "long")
)
def test_numbers_beyond_64_bits_have_the_form_but_cannot_be_compared(text: str) -> None:
    assert is_version(text)
    with pytest.raises(VersionError, match="64 bits"):
        Version(text)


PARTS = st.integers(0, 3)
VERSIONS = st.builds(
    "{}.{}.{}{}".format,
    PARTS,
    PARTS,
    PARTS,
    st.one_of(
        st.just(""),
        st.lists(st.sampled_from(["0", "1", "a", "b-", "0a"]), min_size=1, max_size=3).map(
            lambda parts: "-" + ".".join(parts)
        ),
    ),
)


@given(VERSIONS, VERSIONS, VERSIONS)
def test_the_order_is_total(one: str, other: str, third: str) -> None:
    low, middle, high = sorted(map(Version, (one, other, third)))
    assert low <= middle <= high
    assert low <= high
    assert (low == high) is (low.precedence == high.precedence)
