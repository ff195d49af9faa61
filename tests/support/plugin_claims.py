"""What the fixture ``claim`` of the plugin's tests is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dra_kubeletplugin.testing.api import Json

MakeClaim = Callable[..., Awaitable[Json]]
"""Makes an allocated claim: ``await claim("name", device="gpu-0", config=[...])``."""
