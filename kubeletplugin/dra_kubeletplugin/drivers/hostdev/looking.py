"""Looks at the host once a second for little: thoroughly only when something may have changed.

What the patterns of the file match is cheap to see, and a device that is plugged in again is another file of the same
name. All that sysfs and udev say costs a millisecond per device, with a hundred PCI devices a tenth of a processor. So
a thorough look follows each change for some seconds, until drivers are bound and udev is done, and otherwise comes
every ten seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .config import HostdevConfig
from .device import Found
from .scan import scan
from .tree import HostTree

_SETTLE_SECONDS = 5.0
_THOROUGH_LOOK_SECONDS = 10.0
_LOOKS_WHILE_NODES_CHANGE = 5

Seen = tuple[tuple[str, tuple[int, ...]], ...]


class Looking:
    """Call it once a second; ``clock`` gives seconds."""

    def __init__(self, config: HostdevConfig, tree: HostTree, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._tree, self._clock = config, tree, clock
        self._seen: Seen | None = None
        self._found = Found()
        self._scanning = threading.Lock()
        self._changed_at = self._looked_at = clock()

    def __call__(self) -> Found:
        """The devices that are there now, as they were at the last thorough look."""
        now, seen = self._clock(), self._glance()
        if seen != self._seen:
            self._changed_at = now
        if (
            seen != self._seen
            or now - self._changed_at < _SETTLE_SECONDS
            or now - self._looked_at >= _THOROUGH_LOOK_SECONDS
        ):
            self.thoroughly()
            self._looked_at = now
        self._seen = seen
        return self._found

    def thoroughly(self) -> Found:
        """The devices that are there now; may be called from several threads.

        What is pulled during a look leaves half of itself in it: a number without its node, a node without its serial.
        So such a look is thrown away and begun again, a few times at most: of nodes that come and go all the time, what
        is found last counts, until the next look.
        """
        with self._scanning:
            seen = self._glance()
            for _ in range(_LOOKS_WHILE_NODES_CHANGE):
                found = scan(self._config, self._tree, self._found)
                before, seen = seen, self._glance()
                if seen == before:
                    break
            self._found = found
            return found

    def _glance(self) -> Seen:
        patterns = (pattern for entry in self._config.devices for pattern in (*entry.paths, *entry.sysfs))
        paths = dict.fromkeys(path for pattern in patterns for path in self._tree.glob(pattern))
        return tuple((path, self._tree.identity(path)) for path in paths)
