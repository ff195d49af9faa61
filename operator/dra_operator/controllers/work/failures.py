"""Counts and logs a key whose handling failed, and retries it after its back-off.

A server that asks for a pause (Retry-After) gets it, and so does an attempt that gave claims up once more.

A failure is a warning if its words are new for the key. The same words again, and what passes by itself, are shown with
``-v`` only. So are writes that are held back because another process may lead: the leader election logs that once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

from dra_kube import (
    ApiError,
    Conflict,
    KubeError,
    NotLeading,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from prometheus_client import CollectorRegistry, Counter

from dra_operator.cache import Key
from dra_operator.controllers.shared.errors import (
    BindingFailed,
    BindingRefused,
    BoundElsewhere,
    ControllerError,
    PlacementFailed,
    PodVanished,
)
from dra_operator.controllers.shared.logbook import tell

from .backoff import PASSING_SECONDS
from .queue import WorkQueue

logger = logging.getLogger(__name__)

PASSING = (
    *(Unreachable, ServerError, TooManyRequests, Unauthorized, Conflict, NotLeading),
    *(PlacementFailed, BindingFailed),
)
"""Errors after which the same attempt may succeed a moment later."""


class Failures:
    """Reports the end of each piece of work to its queue."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._errors = Counter(
            "dra_operator_reconcile_errors",
            "Pieces of work that failed and are tried again; unexpected ones are bugs and leave a trace in the log",
            ["controller", "kind"],
            registry=registry,
        )
        self._told: dict[Key, str] = {}
        """What the last warning about a key said; until the key is handled."""

    def report(
        self, queue: WorkQueue, key: Key, error: Exception | None, rest: float = 0.0, *, is_over: bool = True
    ) -> None:
        """A piece of work on the key ended. ``rest``: seconds until the key may be looked at again, whatever happens.

        ``is_over``: see ``WorkQueue.done``.
        """
        if error is None:
            if is_over:
                self._told.pop(key, None)
            queue.done(key, rest, is_over=is_over)
            return
        seconds = queue.retry(key, max(rest, pause_asked_for(error)), _longest_wait(error))
        is_expected = isinstance(error, KubeError | ControllerError)
        self._errors.labels(key.controller, "expected" if is_expected else "unexpected").inc()
        fields = {"controller": key.controller, "object": key.object, "again_in": f"{seconds:.3g}s"}
        if not is_expected:
            tell(logger, logging.ERROR, "failed unexpectedly", error=error, **fields)
        else:
            level = logging.WARNING if self._is_news(key, error) else logging.DEBUG
            tell(logger, level, "failed", error=error, **fields)

    def _is_news(self, key: Key, error: Exception) -> bool:
        passes = isinstance(error, Conflict | PlacementFailed | BoundElsewhere | PodVanished)
        if passes or is_held_back(error) or self._told.get(key) == str(error):
            return False
        self._told[key] = str(error)
        return True


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that caused it."""
    while error is not None:
        yield error
        error = error.__cause__


def _longest_wait(error: BaseException) -> float:
    """Return the longest back-off after the error: short, unless the server refuses for good."""
    passes = any(isinstance(one, PASSING) for one in _causes(error)) and not isinstance(error, BindingRefused)
    return PASSING_SECONDS if passes else math.inf


def is_held_back(error: BaseException) -> bool:
    """Return whether a write was held back since another process may lead. Readiness and the leader's log say so."""
    return any(isinstance(one, NotLeading) for one in _causes(error))


def pause_asked_for(error: BaseException) -> float:
    """Return the seconds that the error asks for, or that the server asked for in one that caused it."""
    if isinstance(error, PlacementFailed) and error.pause:
        return error.pause
    pauses = (one.retry_after for one in _causes(error) if isinstance(one, ApiError) and one.retry_after)
    return next(pauses, 0.0)
