"""How long the bench waits for a driver, in seconds. The defaults are those of a kubelet, where it has one."""

from __future__ import annotations

from dataclasses import dataclass

CHECK_SECONDS = 180.0
"""For one check: the slowest waits for slices that others deleted, and the reference's library needs 30 s."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Tests of the kit shorten them."""

    # Those of a kubelet (kubelet-manager.md section 2).
    info: float = 1.0
    notify: float = 5.0
    call: float = 45.0
    health: float = 30.0  # after that, a device without a message counts as Unknown

    registered: float = 60.0  # from the start of the driver
    published: float = 60.0
    restored: float = 90.0  # slices that others deleted or changed; the reference's library waits for 30 s
    stopped: float = 30.0  # the grace period of a pod
    answer: float = 5.0  # what should come at once
    quiet: float = 3.0  # so long nothing may happen
    settle: float = 0.5  # so long the late effects of a cancelled call may take
    tick: float = 0.05  # between two looks
