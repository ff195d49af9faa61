"""The one error of the package.

Names of the interface: a kind is ``vendor/class``, a device id ``vendor/class=name``.

A vendor or a class starts with a letter, a device name with a letter or digit. All end with a letter or digit and have
ASCII letters, digits, ``_``, ``-`` and ``.`` between; a device name may have ``:`` as well.
"""

from __future__ import annotations

import re


class CdiError(ValueError):
    """A CDI file, or a value in it, cannot be used. The message names file, device, field and remedy, where known."""


_PART = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def check_kind(kind: str) -> None:
    """Raises CdiError, unless this is a kind."""
    vendor, _, class_ = kind.partition("/")
    for word, part in (("vendor", vendor), ("class", class_)):
        if not _PART.fullmatch(part):
            raise CdiError(
                f"kind {kind!r} is not of the form vendor/class: the {word} {part!r} has to start with a letter, end "
                "with a letter or digit, and have only letters, digits, '_', '-' and '.', such as example.com/gpu"
            )


def check_device_name(name: str) -> None:
    """Raises CdiError, unless a device may be called this."""
    if not _DEVICE.fullmatch(name):
        raise CdiError(
            f"device name {name!r} is not valid: start and end it with a letter or digit, "
            "and use only letters, digits, '_', '.', ':' and '-'"
        )
