"""Device selectors that the API server admits, and that cost as much as their estimate lets them.

Each stays below the limits of validation: 10 KiB of text, and an estimated cost of 1,000,000. Each is true for any
device, or false for all of them, so that what it costs is the only thing that it does. ``number`` makes it differ from
all others of its kind, so that no result of one serves another.
"""

from __future__ import annotations

from collections.abc import Callable

CLASS_SIZE = 300
"""Repetitions of a Unicode class for which RE2 takes 9 MB and a second."""

Selector = Callable[[int], str]


def _numbers(count: int) -> str:
    """A list of so many numbers."""
    return "[" + ",".join(str(number % 10) for number in range(count)) + "]"


def _nested(depth: int, width: int, body: str) -> str:
    """``body`` for each combination of elements of so many lists."""
    for level in range(depth):
        body = f"{_numbers(width)}.all(v{level}, {body})"
    return body


def three_loops(number: int) -> str:
    """Estimated at almost 600,000."""
    return _nested(3, 40, f"v0 + v1 + v2 >= -{number}")


def loops_of_index_of(number: int) -> str:
    """Each turn searches a string that nearly matches at every position."""
    return _nested(3, 25, f"'{'a' * 500}'.indexOf('{'a' * 60}b{number}') < 0")


def loops_of_matches(number: int) -> str:
    """Each turn runs a pattern over a text that nearly matches."""
    return _nested(3, 18, f"!'{'a' * 400}'.matches('(?:a|aa)+b{number:02}$')")


def loops_of_split(number: int) -> str:
    """Each turn makes a list of strings."""
    return _nested(2, 80, f"'{'a,' * 200}{number}'.split(',').size() > 0")


def loops_of_sort(number: int) -> str:
    """Each turn sorts a list."""
    return _nested(2, 10, f"{_numbers(60)}.sort().size() == 60 && {number} >= 0")


def loops_of_quantities(number: int) -> str:
    """Each turn reads a quantity."""
    return _nested(3, 40, f"quantity('12345678{number}Ki').isGreaterThan(quantity('1'))")


def loops_of_versions(number: int) -> str:
    """Each turn reads a version."""
    return _nested(2, 200, f"semver('1.2.3-alpha.beta.{number}+build').major() == 1")


def doubled_strings(number: int) -> str:
    """A string that doubles with every binding."""
    body = "s9.size() > 0"
    for level in reversed(range(10)):
        source = f"s{level - 1} + s{level - 1}" if level else f"'{'x' * 100}{number}'"
        body = f"cel.bind(s{level}, {source}, {body})"
    return body


def unicode_classes(number: int, patterns: int = 150) -> str:
    """Patterns of Unicode classes, each another one."""
    tests = (
        f"device.driver.matches('(?:\\\\pL\\\\pL\\\\pL){{{CLASS_SIZE}}}N{number}x{index}')" for index in range(patterns)
    )
    return "!(" + " || ".join(tests) + ")"


def attributes_of_many(number: int) -> str:
    """It asks for hundreds of attributes of every device."""
    test = "!('absent{}' in device.attributes['tenant.example.com'])"
    return " && ".join(test.format(number * 1000 + index) for index in range(150))


def wide(number: int, size: int = 8_800) -> str:
    """So many characters that no other one equals."""
    head, entry = f"{number} >= 0", " && device.driver != 'd{:06}'"
    room = (size - len(head)) // len(entry.format(0))
    return head + "".join(entry.format(number * 1000 + index) for index in range(room))


def small(number: int) -> str:
    """A short one."""
    return f"device.attributes['gpu.example.com'].index != {1_000_000 + number}"


def failing(number: int) -> str:
    """It asks each device for what no device has."""
    return f"device.attributes['tenant.example.com'].absent{number} == 'x'"


COSTLY: dict[str, Selector] = {
    "three loops": three_loops,
    "loops of indexOf": loops_of_index_of,
    "loops of matches": loops_of_matches,
    "loops of split": loops_of_split,
    "loops of sort": loops_of_sort,
    "loops of quantities": loops_of_quantities,
    "loops of versions": loops_of_versions,
    "doubled strings": doubled_strings,
    "Unicode classes": unicode_classes,
    "attributes of many": attributes_of_many,
}

REFUSED_BY_US = (unicode_classes,)
"""The development server takes no pattern that RE2 takes a second to compile; the real one does."""
