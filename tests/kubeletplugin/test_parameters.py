"""Parameters of devices are decoded into a driver's own type, and a field that it does not have is an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pytest
from dra_kubeletplugin import ClaimError, configs_for, results_for
from dra_kubeletplugin.parameters import decode_parameters
from hypothesis import given
from hypothesis import strategies as st
from node_world import DRIVER, allocated


@dataclass
class Tone:
    hue: int = 0


@dataclass
class Paint:
    color: str = "red"
    tones: list[Tone] = field(default_factory=list)
    named: dict[str, Tone] = field(default_factory=dict)
    pair: tuple[Tone, int] | None = None
    free: dict[str, Any] = field(default_factory=dict)


class Plain(TypedDict):
    color: NotRequired[str]
    tone: NotRequired[Tone]


class Renamed(msgspec.Struct, rename="camel"):
    main_color: str = "red"


class Oil(msgspec.Struct, tag="oil", tag_field="kind"):
    color: str = "red"


class Water(msgspec.Struct, tag="water", tag_field="kind"):
    wet: bool = True


class Drawn(msgspec.Struct):
    next: Drawn | None = None
    last: Tone | list[Tone] | None = None


class Row(NamedTuple):
    tone: Tone
    amount: int


UNKNOWN: list[tuple[str, Any, dict[str, Any] | list[Any], str]] = [
    ("a dataclass", Paint, {"colour": "green"}, r"unknown field `colour` - at `\$`, did you mean `color`\?; the fields "
     "there are color, tones, named, pair, free"),
    ("one in a list", Paint, {"tones": [{"hue": 1}, {"hu": 2}]}, r"`hu` - at `\$\.tones\[1\]`"),
    ("one in a dict", Paint, {"named": {"a": {"shade": 2}}}, r"`shade` - at `\$\.named\.a`; the fields there are hue"),
    ("one in a tuple", Paint, {"pair": [{"x": 1}, 2]}, r"`x` - at `\$\.pair\[0\]`"),
    ("a typed dict", Plain, {"colour": "green"}, "`colour`"),
    ("a dataclass in a typed dict", Plain, {"tone": {"x": 1}}, r"`x` - at `\$\.tone`"),
    ("a struct", Renamed, {"main_color": "green"}, "`main_color` .*did you mean `mainColor`"),
    ("a union of structs", Oil | Water, {"kind": "water", "color": "red"}, "`color` .*the fields there are wet"),
    ("a type within itself", Drawn, {"next": {"next": {"nxt": None}}}, r"`nxt` - at `\$\.next\.next`"),
    ("a union with a list", Drawn, {"last": [{"x": 1}]}, r"`x` - at `\$\.last\[0\]`"),
    ("a union with an object", Drawn, {"last": {"x": 1}}, r"`x` - at `\$\.last`"),
    ("a list", list[Tone], [{"x": 1}], r"`x` - at `\$\[0\]`"),
    ("a named tuple", Row, [{"x": 1}, 2], r"`x` - at `\$\[0\]`"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "given", "expected"), [c[1:] for c in UNKNOWN], ids=[c[0] for c in UNKNOWN])
def test_an_unknown_field_is_an_error_whatever_the_type(kind: Any, given: Any, expected: str) -> None:
    raw = msgspec.json.encode(given)
    with pytest.raises(ValueError, match=expected):
        decode_parameters(raw, kind)
    decode_parameters(raw, kind, allow_unknown=True)


def test_the_error_is_that_of_the_claim_and_can_be_turned_off() -> None:
    claim = allocated("painted", "p/gpu-0", config={"colour": "green"})
    (result,) = results_for(DRIVER, claim)
    with pytest.raises(ClaimError, match=r"claim default/painted: the parameters of the claim are .*field `colour`"):
        configs_for(DRIVER, claim, result, Paint)
    assert [it.parameters for it in configs_for(DRIVER, claim, result, Paint, allow_unknown=True)] == [Paint()]
    assert [it.parameters for it in configs_for(DRIVER, claim, result)] == [{"colour": "green"}], (
        "a dict has all fields"
    )


VALUES = st.builds(
    Paint,
    color=st.text(),
    tones=st.lists(st.builds(Tone, hue=st.integers(0, 360)), max_size=2),
    named=st.dictionaries(st.text(), st.builds(Tone), max_size=2),
    pair=st.none() | st.tuples(st.builds(Tone), st.integers(0, 9)),
    free=st.dictionaries(st.text(), st.integers(0, 9), max_size=2),
)


@given(VALUES)
def test_what_a_type_can_hold_is_decoded(value: Paint) -> None:
    assert decode_parameters(msgspec.json.encode(value), Paint) == value


@given(st.recursive(st.builds(Drawn, last=st.none() | st.builds(Tone)), lambda inner: st.builds(Drawn, next=inner)))
def test_so_is_a_type_within_itself(value: Drawn) -> None:
    assert decode_parameters(msgspec.json.encode(value), Drawn) == value


class Colour(Enum):
    RED, GREEN = "red", "green"


@dataclass
class Choices:
    mode: Literal["fast", "slow"] | None = None
    colours: list[Colour] = field(default_factory=list)
    by_port: dict[str, Colour] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"mode": "slwo"}, r"\.mode`; use one of fast, slow$"),
        ({"colours": ["red", "pink"]}, r"\.colours\[1\]`; use one of red, green$"),
        ({"by_port": {"p": "pink"}}, r"\.by_port\[...\]`; use one of red, green$"),
        ({"mode": 3}, r"got `int` - at `\$\.mode`; use one of fast, slow$"),
    ],
)
def test_a_value_that_is_none_of_a_few_is_told_which_there_are(parameters: dict[str, Any], text: str) -> None:
    claim = allocated("a", "p/gpu-0", config=parameters)
    with pytest.raises(ClaimError, match=text):
        configs_for(DRIVER, claim, results_for(DRIVER, claim)[0], Choices)


class Undecoded:
    """A class that nothing decodes."""


@dataclass
class Odd:
    phase: complex = 0j


@pytest.mark.parametrize("kind", [Undecoded, Odd, Choices(), "Choices", Callable[[], None]], ids=repr)
@pytest.mark.parametrize("parameters", [None, {"color": "red"}])
def test_a_type_that_nothing_is_decoded_into_is_the_drivers_mistake(
    kind: Any, parameters: dict[str, Any] | None
) -> None:
    """It was told to the author of each claim, and only of those with parameters."""
    claim = allocated("a", "p/gpu-0", config=parameters)
    with pytest.raises(TypeError, match=r"the driver's parameters cannot be decoded into .*: use a dataclass"):
        configs_for(DRIVER, claim, results_for(DRIVER, claim)[0], kind)
