"""The releases of Kubernetes that are known here.

Only those in ``BUILT`` can be chosen. Every command reads this for its help, so nothing heavy is imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class Release(IntEnum):
    """A minor release. They compare by age."""

    V1_32 = 32
    V1_33 = 33
    V1_34 = 34
    V1_35 = 35
    V1_36 = 36
    V1_37 = 37

    def __str__(self) -> str:
        return f"1.{self.value}"


NEWEST: Final = Release.V1_37
"""The newest release whose behaviour is built, and the default where no server says which one counts."""
BUILT: Final = {str(release): release for release in Release if release <= NEWEST}
"""The releases that can be chosen, by their names."""
AUTO: Final = "auto"
"""What stands for the release of the API server."""


def chosen(text: str) -> Release | None:
    """The release of this name; None for ``auto``. Raises ValueError, also for a release that is not built."""
    if text == AUTO:
        return None
    if text not in BUILT:
        raise ValueError(f"{text!r} is not among {', '.join(BUILT)}")
    return BUILT[text]


def release_of(version: Mapping[str, object]) -> tuple[Release, str]:
    """The release to go by beside the server that answers so at ``/version``, and what people should know about it.

    That is the release which the server emulates, if it says so. A server that is newer or older than all releases
    that are built gets the nearest one, with a sentence that says so.
    """
    major, minor = numbers_of(version)
    nearest = min(max(minor, min(BUILT.values())), NEWEST) if major == 1 else NEWEST
    release = Release(nearest)
    if (major, minor) == (1, release):
        return release, ""
    if not major:
        return release, f"the API server does not tell its version; it is treated as Kubernetes {release}"
    end = "newest" if release == NEWEST else "oldest"
    return release, f"the API server is Kubernetes {major}.{minor}; it is treated as {release}, the {end} known here"


def numbers_of(version: Mapping[str, object]) -> tuple[int, int]:
    """Major and minor version by an answer of ``/version``, whose minor may be ``36+``; zeros if it has none.

    A newer server says which release it emulates: its own one unless it was told otherwise (K37-GATE-03).
    """
    return _pair(version, "emulationMajor", "emulationMinor") or _pair(version, "major", "minor") or (0, 0)


def min_compatibility_of(version: Mapping[str, object]) -> tuple[int, int]:
    """The oldest release whose components the server has to be compatible with; zeros if it does not say."""
    return _pair(version, "minCompatibilityMajor", "minCompatibilityMinor") or (0, 0)


def _pair(version: Mapping[str, object], *names: str) -> tuple[int, int] | None:
    found = [re.match(r"\d{1,9}", str(version.get(name))) for name in names]
    major, minor = (int(number.group()) if number else 0 for number in found)
    return (major, minor) if all(found) else None
