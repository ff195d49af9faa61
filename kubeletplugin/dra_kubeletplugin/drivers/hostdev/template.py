"""Texts with facts in braces: ``/dev/vfio/{iommuGroup}``, ``{sysfs.speed}``, ``{udev.ID_MODEL}``.

Names are checked when the configuration is read, so that a typing error is no attribute that is always missing. A fact
that a device does not have leaves the whole text out. Two braces stand for one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from .facts import FACTS, Facts

_FIELD = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]")
_OF_HARDWARE = frozenset({"vendor", "product", "serial"})
_FREE = re.compile(r"udev\.[A-Z][A-Z0-9_]*|sysfs\.[A-Za-z0-9_]+", re.ASCII)


def check_name(name: str) -> None:
    """Raise ValueError, with the names that exist, for a fact that does not."""
    if name not in FACTS and not _FREE.fullmatch(name):
        raise ValueError(
            f"there is no fact {name!r}: use {', '.join(FACTS)}, sysfs.FILE (such as sysfs.speed), or udev.PROPERTY "
            "(such as udev.ID_MODEL)"
        )


def check(text: str) -> None:
    """Raise ValueError for a lonely brace or a fact that does not exist."""
    for name in names(text):
        check_name(name)


def names(text: str) -> Iterator[str]:
    """The facts that a text asks for. Raises ValueError for a lonely brace."""
    for match in _FIELD.finditer(text):
        if match[0] in "{}":
            raise ValueError(f"{text!r} has a brace without its other half: write two for a brace itself")
        if match["name"] is not None:
            yield match["name"]


def filled(text: str, facts: Facts) -> str | None:
    """The text for one device; None if the device lacks a fact."""
    values = {name: facts.text(name) for name in names(text)}
    if None in values.values():
        return None
    return _FIELD.sub(_replacement(values), text)


def filled_as_path(text: str, facts: Facts) -> str | None:
    """As ``filled``, for a path or an argument of a program.

    Raises ValueError if what a device says of itself would lead elsewhere: it is a text of the hardware.
    """
    for name in names(text):
        value = facts.text(name) or ""
        if _is_of_hardware(name) and ("/" in value or value.startswith(("..", "-")) or not value.isprintable()):
            raise ValueError(f"{text!r}: the device says {value!r} for {name}, which must not be part of a path")
    return filled(text, facts)


def _is_of_hardware(name: str) -> bool:
    return name in _OF_HARDWARE or name.startswith(("sysfs.", "udev."))


def _replacement(values: dict[str, str | None]) -> Callable[[re.Match[str]], str]:
    return lambda match: match[0][0] if match["name"] is None else values[match["name"]] or ""
