"""All checks, in the order in which people should look at what they find."""

from __future__ import annotations

from dra_operator.kubectl.observed.observed import Observed

from .claims import claim_troubles
from .devices import device_troubles
from .slices import slice_troubles
from .trouble import Diagnosis


def diagnose(seen: Observed) -> list[Diagnosis]:
    """What is wrong."""
    return [*claim_troubles(seen), *device_troubles(seen), *slice_troubles(seen)]
