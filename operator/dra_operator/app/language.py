"""What device selectors are written in: CEL, as Kubernetes speaks it."""

from __future__ import annotations

from dra_operator.allocator.selectors import Language


def selector_language() -> Language:
    """The language for the allocator's inventory."""
    from dra_cel import DeviceSelectorLanguage

    return DeviceSelectorLanguage()
