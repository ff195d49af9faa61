"""The one error of the package."""

from __future__ import annotations


class CdiError(ValueError):
    """A CDI file, or a value in it, cannot be used. The message names file, device, field and remedy, where known."""
