"""Settings of Kopf for ``kopf run``: it writes nothing by itself, keeps nothing, and does not log each event."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator
from typing import Any

import kopf


class Patience:
    """Waits between retries, in seconds: growing, then constant, without end.

    Kopf's own list ends after a minute, and with it the operator: an API server may be away for longer.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.2, 0.5, 1, 2, 3, 5, 8), itertools.repeat(10.0))


class NoProgress(kopf.ProgressStorage):
    """Raw event handlers have no progress; nothing is ever stored on objects."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence


class NoDiffBase(kopf.DiffBaseStorage):
    """No last-seen state: to build one copies every object twice, which costs more than all else together."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


class _UnservedKinds(logging.Filter):
    """Says of kinds that are not served what Kopf means: its advice, to create CRDs, is for kinds of one's own."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Translate the record, if it is that one; keep it in any case."""
        said = record.getMessage()
        if said.startswith("Unresolved resources"):
            kinds = ", ".join(re.findall(r"plural='(\w+)'", said))
            record.msg, record.args = "the API server does not serve %s: they are watched once it does", (kinds,)
        return True


_UNSERVED_KINDS = _UnservedKinds()


def configure(settings: kopf.OperatorSettings) -> None:
    """Set up Kopf as a pure source of events, which writes nothing by itself and does not log each event."""
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.observation").addFilter(_UNSERVED_KINDS)
    settings.process.ultimate_exiting_timeout = None  # or a Kopf that failed kills the process ten minutes later
    settings.networking.connect_timeout = 10.0
    settings.networking.request_timeout = 60.0  # as long as a server takes at most to answer
    settings.persistence.progress_storage = NoProgress()
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.posting.enabled = False
    settings.peering.standalone = True  # two equal replicas would pause each other; leader election is ours
    settings.scanning.disabled = True  # our kinds are built in: the server neither adds nor removes them while it runs
    settings.networking.error_backoffs = Patience()
    settings.queueing.error_delays = Patience()
    settings.queueing.idle_timeout = 0.2  # an idle worker per object, kept for seconds, wastes memory
    settings.queueing.exit_timeout = 0.5
    settings.queueing.worker_limit = None  # a slot is held through the idle time: a limit would stall all kinds
    settings.watching.chunk_size = 500
    settings.watching.reconnect_backoff = 0.1
