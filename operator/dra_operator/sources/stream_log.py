"""Logs when changes of kinds go unseen, with the reason, and when they are seen again.

These lines say what ``/readyz`` says. There is one for each kind and reason, and kinds with the same reason share it. A
watch that is made again within ``Limits.gap`` is not worth a line.
"""

from __future__ import annotations

import logging
from collections import defaultdict

from dra_kube import Resource

from .streams import Streams

logger = logging.getLogger(__name__)


class StreamLog:
    """``look`` is to be called regularly."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._told: dict[Resource, set[str]] = {}
        """The reasons that were logged since the changes of the kind were seen."""

    def look(self) -> None:
        """Log what is new since the last look."""
        unseen = self._streams.unseen()
        news = defaultdict[str, list[Resource]](list)
        for resource, (reason, _) in unseen.items():
            told = self._told.setdefault(resource, set())
            if reason not in told:
                told.add(reason)
                news[reason].append(resource)
        for kinds in news.values():
            logger.warning("%s: %s; retrying until it works", self._names(kinds), unseen[kinds[0]][1])
        seen = [kind for kind, problem in self._streams.states() if problem is None and kind in self._told]
        for resource in seen:
            del self._told[resource]
        if seen:
            logger.info("%s: watched again", self._names(seen))

    def _names(self, kinds: list[Resource]) -> str:
        return "all kinds" if len(kinds) == len(self._streams.states()) else ", ".join(sorted(map(str, kinds)))
