"""Requests to the API server: counted under the names that client-go gives such metrics, and logged.

A line is written at the second verbosity. It has method, path, status and time, and no query, header or body, because
these may hold tokens and secrets.
"""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Counter, Histogram

from dra_operator.controllers import tell

logger = logging.getLogger(__name__)

_BUCKET_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)  # those of client-go


class Requests:
    """Counts and logs each request that it is called with."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._count = Counter(
            "rest_client_requests",
            "Requests to the API server by method and status, <error> without an answer",
            ["code", "method"],
            registry=registry,
        )
        self._seconds = Histogram(
            "rest_client_request_duration_seconds",
            "Seconds from sending a request to the API server to the beginning of its answer",
            ["verb"],
            buckets=_BUCKET_SECONDS,
            registry=registry,
        )
        self._known: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def __call__(self, method: str, path: str, status: int, seconds: float) -> None:
        """A request was answered; status 0: it was not."""
        known = self._known.get((method, status))
        if known is None:
            code = str(status) if status else "<error>"
            known = self._known[method, status] = self._count.labels(code, method), self._seconds.labels(method)
        known[0].inc()
        known[1].observe(seconds)
        if logger.isEnabledFor(logging.DEBUG):
            tell(logger, logging.DEBUG, "request", method=method, path=path, status=status, ms=round(seconds * 1000, 1))
