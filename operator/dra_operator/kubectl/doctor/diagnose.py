"""All checks, in the order in which people should look at what they find."""

from __future__ import annotations

from dra_operator.kubectl.observed.observed import Observed

from .allocations import allocation_troubles
from .claims import claim_troubles
from .devices import device_troubles
from .schedulers import scheduler_troubles
from .slices import slice_troubles
from .trouble import Diagnosis


def diagnose(seen: Observed) -> list[Diagnosis]:
    """What is wrong."""
    checks = (scheduler_troubles, allocation_troubles, claim_troubles, device_troubles, slice_troubles)
    return [one for check in checks for one in check(seen)]
