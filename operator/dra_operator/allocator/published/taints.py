"""Which taints keep a request away from a device (allocator.md section 11, AL-12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dra_api.core import Taint, Toleration
from dra_api.resource import SCHEDULER_KEY, DeviceTaint, DeviceToleration

LEFT: Final = DeviceTaint(key=SCHEDULER_KEY, value="another one", effect="NoSchedule")
"""On devices that settings leave to other schedulers. No API server admits such a value, and nothing tolerates it."""
_BLOCKING = ("NoSchedule", "NoExecute")


def tolerates(toleration: DeviceToleration | Toleration, taint: DeviceTaint | Taint) -> bool:
    """Empty effect and key match all; the operator is Exists, or Equal (also when empty) with equal values.

    Taints of nodes follow the same rule, except for an empty key (``scheduling.state.taints``).
    """
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def blocking(
    taints: Sequence[DeviceTaint] | None, tolerations: Sequence[DeviceToleration] | None
) -> DeviceTaint | None:
    """The first taint that matters for scheduling and is not tolerated."""
    for taint in taints or ():
        if taint.effect not in _BLOCKING:
            continue
        if taint == LEFT or not any(tolerates(toleration, taint) for toleration in tolerations or ()):
            return taint
    return None
