"""How long the bench waits for a driver, in seconds, and waiting: with a finding when nothing comes.

The defaults are a kubelet's, where it has one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from dra_driver_test.errors import Finding


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
    # Slices that others deleted or changed. The Go library waits up to 60 s before it watches again (30 s, which jitter
    # doubles) if several watches have failed within two minutes, 30 s after it saw the deletion, and up to 60 s more
    # until its cache of own writes forgets the slice: 150 s on an idle machine; more than 180 s were seen.
    restored: float = 300.0
    stopped: float = 30.0  # the grace period of a pod
    answer: float = 5.0  # what should come at once
    quiet: float = 3.0  # so long nothing may happen
    idle: float = 35.0  # a measurement of each half minute is seen in this time
    gone: float = 30.0  # a deleted claim from which a driver removes its status
    settle: float = 0.5  # so long the late effects of a cancelled call may take
    tick: float = 0.05  # between two looks


QUICK = Limits(quiet=1.0, answer=2.0)
"""Limits of a quick run: it waits less long for events that should not happen."""


T = TypeVar("T")
ATTEMPTS = 3


async def eventually(what: str, look: Callable[[], Awaitable[T | None]], seconds: float, limits: Limits) -> T:
    """The first answer that is neither None nor False. Raises Finding after so many seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        seen = await look()
        if seen is not None and seen is not False:
            return seen
        if loop.time() > deadline:
            raise Finding(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(limits.tick)


async def attempts(work: Callable[[], Awaitable[object]]) -> None:
    """Do the work again when it found something, as a busy machine may be the reason. Raises the last Finding."""
    for number in range(ATTEMPTS):
        try:
            await work()
        except Finding:
            if number == ATTEMPTS - 1:
                raise
        else:
            return
