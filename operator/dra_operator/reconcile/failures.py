"""Counts and logs a key whose handling failed, and retries it after its back-off.

A server that asks for a pause (Retry-After) gets it.
"""

from __future__ import annotations

import logging

from dra_kube import ApiError, Conflict, KubeError
from prometheus_client import CollectorRegistry, Counter

from dra_operator.cluster import Key

from .errors import BoundElsewhere, PlacementFailed, PodVanished, ReconcileError
from .logbook import tell
from .queue import WorkQueue
from .queues import NAMES

logger = logging.getLogger(__name__)


class Failures:
    """Reports the end of each piece of work to its queue."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._errors = Counter(
            "dra_operator_reconcile_errors",
            "Pieces of work that failed and are tried again; unexpected ones are bugs and leave a trace in the log",
            ["concern", "kind"],
            registry=registry,
        )

    def report(
        self, queue: WorkQueue, key: Key, error: Exception | None, rest: float = 0.0, *, is_over: bool = True
    ) -> None:
        """A piece of work on the key ended. ``rest``: seconds until the key may be looked at again, whatever happens.

        ``is_over``: see ``WorkQueue.done``.
        """
        if error is None:
            queue.done(key, rest, is_over=is_over)
            return
        seconds = queue.retry(key, max(rest, _pause_asked_for(error)))
        is_expected = isinstance(error, KubeError | ReconcileError)
        self._errors.labels(NAMES[key.concern], "expected" if is_expected else "unexpected").inc()
        fields = {"concern": NAMES[key.concern], "object": key.object, "again_in": f"{seconds:.3g}s"}
        if not is_expected:
            tell(logger, logging.ERROR, "failed unexpectedly", error=error, **fields)
        else:
            passes = isinstance(error, Conflict | PlacementFailed | BoundElsewhere | PodVanished)
            tell(logger, logging.DEBUG if passes else logging.WARNING, "failed", error=error, **fields)


def _pause_asked_for(error: BaseException | None) -> float:
    """Seconds that the server asked for, in the error or in one that caused it."""
    while error is not None:
        if isinstance(error, ApiError) and error.retry_after:
            return error.retry_after
        error = error.__cause__
    return 0.0
