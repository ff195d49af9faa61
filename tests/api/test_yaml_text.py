"""YAML within limits: a short text neither ends the process nor fills its memory, and every fault is a YAMLError."""

from __future__ import annotations

import pytest
import yaml
from dra_api.yaml_text import YAML_LEVELS, loader


def laughs(levels: int, times: int = 10) -> str:
    """Each level repeats the one before."""
    lines = ["a0: &a0 [x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * times)}]" for n in range(1, levels)]
    return "\n".join(lines)


def merges(levels: int) -> str:
    lines = ["a0: &a0 {k: v}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, levels)]
    return "\n".join(lines)


TAKEN = {
    "aliases": ("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}", {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}),
    "a timestamp is text": ("a: 2001-12-14", {"a": "2001-12-14"}),
    "a number of base 60 is text": ("a: 1:30\nb: 190:20:30.5\nc: -1:1", {"a": "1:30", "b": "190:20:30.5", "c": "-1:1"}),
    "a long number of base 60 is text": ("a: 1" + ":1" * 20_000, {"a": "1" + ":1" * 20_000}),
    "other numbers": (
        "[0x1F, 017, 0b11, 1_000, -5, 1.5, 1e3, 1.0e+3, .inf]",
        [31, 15, 3, 1000, -5, 1.5, "1e3", 1000.0, float("inf")],
    ),
    "a star that is no alias": ("a: '*'\nb: [1]", {"a": "*", "b": [1]}),
    "as deep as allowed": ("[" * YAML_LEVELS + "]" * YAML_LEVELS, eval("[" * YAML_LEVELS + "]" * YAML_LEVELS)),
    "few repetitions": (laughs(3, 2), {"a0": ["x"], "a1": [["x"]] * 2, "a2": [[["x"]] * 2] * 2}),
}
REFUSED = {
    "a billion laughs": (laughs(10), "aliases make it more than 100000 values"),
    "a billion merged laughs": (merges(10), "aliases make it more than 100000 values"),
    "a value that contains itself": ("&a [*a]", "contains itself"),
    "deep by aliases": (
        "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 200))]),
        "levels deep",
    ),
    "deep": ("[" * 100_000, "nested more than 100 levels deep|exceeded maximum nesting depth"),
    "a number that is none": ("a: !!int 0b", "cannot be read"),
    "a number of thousands of digits": ("a: " + "1" * 5000, "cannot be read"),
    "an integer of base 60 by its tag": ("a: !!int 1" + ":1" * 20_000, "cannot be read"),
    "a fraction of base 60 by its tag": ("a: !!float 1:30.5", "cannot be read"),
    "a number without digits": ("a: !!int ''", "cannot be read"),
    "a truth that is none": ("a: !!bool x", "cannot be read"),
    "a tag of another type": ("a: !!int x", "cannot be read"),
    "a tag that makes objects": ("!!python/object/apply:os.system [echo]", "could not determine a constructor"),
    "a key that is a list": ("? [a]\n: b", "unhashable key"),
    "half of a surrogate pair": ("a: \ud800", "surrogates|special characters"),
    "no text": ("a: \x01", "control characters|special characters"),
}


@pytest.mark.parametrize("base", [yaml.SafeLoader, yaml.CSafeLoader], ids=["in Python", "in C"])
@pytest.mark.parametrize(("text", "value"), TAKEN.values(), ids=TAKEN)
def test_yaml_that_is_read(base: type, text: str, value: object) -> None:
    assert yaml.load(text, loader(base)) == value


@pytest.mark.parametrize("base", [yaml.SafeLoader, yaml.CSafeLoader], ids=["in Python", "in C"])
@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_yaml_that_is_refused(base: type, text: str, said: str) -> None:
    with pytest.raises(yaml.YAMLError, match=said):
        yaml.load(text, loader(base))
