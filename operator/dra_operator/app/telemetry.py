"""The logs and metrics of the process, and those about its requests to the API server.

Log lines go to stderr, for people or as JSON objects, one each; how much is logged depends on the verbosity.
Controllers have metrics of their own. Requests are counted under the names that client-go gives such metrics; at the
second verbosity each has a line with method, path, status and time. It has no query, header or body, because these may
hold tokens and secrets.
"""

from __future__ import annotations

import logging
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from dra_api import VERSION
from dra_api.cache import Cache
from dra_api.console import printable
from dra_kube import Resource
from msgspec import json
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_operator.app.leader import Leader
from dra_operator.controllers import LogLine, tell
from dra_operator.sources.watches import Watches

requests = logging.getLogger(__name__)

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
        if requests.isEnabledFor(logging.DEBUG):
            tell(
                requests, logging.DEBUG, "request", method=method, path=path, status=status, ms=round(seconds * 1000, 1)
            )


class AppMetrics:
    """Failures of watches, malformed objects, and how long each kind's stream has been silent."""

    def __init__(self, registry: CollectorRegistry, watches: Watches) -> None:
        self._failures = Counter(
            "dra_operator_watch_failures",
            "Lists and watches of a kind that failed; each is tried again",
            ["resource"],
            registry=registry,
        )
        self._malformed = Counter(
            "dra_operator_malformed_objects",
            "Versions of objects that could not be read and were left out",
            ["resource"],
            registry=registry,
        )
        registry.register(_StreamAges(watches))
        build = Gauge(
            "dra_operator_build_info", "1; the labels say what runs", ["version", "python", "kopf"], registry=registry
        )
        build.labels(VERSION, platform.python_version(), version("kopf")).set(1)
        ProcessCollector(registry=registry)

    def watch_failed(self, resource: Resource) -> None:
        """Count a list or watch of the kind that failed."""
        self._failures.labels(str(resource)).inc()

    def malformed(self, resource: Resource) -> None:
        """A version of an object could not be read."""
        self._malformed.labels(str(resource)).inc()


class LeaderGauge(Collector):
    """Whether this process leads."""

    def __init__(self, leader: Leader, name: str) -> None:
        self._leader, self._name = leader, name

    def collect(self) -> Iterator[Metric]:
        """One sample, for the Lease."""
        gauge = GaugeMetricFamily("leader_election_master_status", "1 while this process leads", labels=["name"])
        gauge.add_metric([self._name], int(self._leader.leads))
        yield gauge


class _StreamAges(Collector):
    def __init__(self, watches: Watches) -> None:
        self._watches = watches

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily(
            "dra_operator_stream_age_seconds",
            "Time since the last sign of life of a kind's watch: an event, a bookmark, a new connection",
            labels=["resource"],
        )
        for resource, age in self._watches.ages():
            gauge.add_metric([resource], age)
        yield gauge


RESERVED = frozenset({"time", "level", "logger", "message", "exception"})
"""Keys of every JSON object; a field of such a name gets an underscore behind it."""


class _Seconds:
    """The time of a record to the second, in words that are made once per second."""

    def __init__(self, form: str, parts: Callable[[float], time.struct_time]) -> None:
        self._form, self._parts = form, parts
        self._known, self._text = -1, ""

    def of(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._known:
            self._known, self._text = second, time.strftime(self._form, self._parts(second))
        return self._text


class TextLines(logging.Formatter):
    """A record as people read it: time, level, where, what."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = _Seconds("%Y-%m-%d %H:%M:%S", time.localtime)

    def format(self, record: logging.LogRecord) -> str:
        """More than one line only where there is a traceback."""
        time_ = f"{self._seconds.of(record)},{int(record.msecs):03d}"
        text = f"{time_} {record.levelname:<7} {record.name}: {printable(record.getMessage())}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonLines(logging.Formatter):
    """A record as a JSON object; the fields of a line are keys of it."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = _Seconds("%Y-%m-%dT%H:%M:%S", time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """Never more than one line."""
        line = record.msg if isinstance(record.msg, LogLine) else None
        content: dict[str, object] = {
            "time": f"{self._seconds.of(record)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage() if line is None else line.what,
        }
        for name, value in (line.fields() if line is not None else {}).items():
            content[name if name not in RESERVED else f"{name}_"] = value
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        try:
            return json.encode(content, enc_hook=str).decode()
        except UnicodeEncodeError:  # half of a surrogate pair
            texts = {key: str(value).encode(errors="backslashreplace").decode() for key, value in content.items()}
            return json.encode(texts).decode()


BURST_LINES = 300
"""Of a namespace at once: the fate of 75 pods."""
LINES_A_MINUTE = 25
"""Of a namespace for long: 10 kB, as the longest reasons of refusals have 400 bytes."""
KEPT_ACCOUNT_BYTES = 1 << 20
"""Of the namespaces whose lines are counted: about two thousand, the latest ones."""
_NO_NAMESPACE: Final = "(none)"
"""The account of all objects that belong to no namespace. There may be thousands of DeviceTaintRules as well."""


@dataclass(slots=True)
class _Account:
    """``lines`` that a namespace may still have at a ``time``, and how many it had to leave out since its last one."""

    lines: float
    time: float
    left_out: int = 0


class NamespaceLines(logging.Filter):
    """Leaves out lines about a namespace whose pods and claims come and go faster than anybody reads.

    Errors are always logged. The first line that is left out is replaced by one that says so, and the next one that is
    not has the number: ``left_out``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._accounts: Cache[str, _Account] = Cache(KEPT_ACCOUNT_BYTES, lambda name, _: 200 + len(name))

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged. It tells the number of lines that were left out before it."""
        line = record.msg
        if not isinstance(line, LogLine) or record.levelno >= logging.ERROR or not line.about:
            return True
        name = line.namespace or _NO_NAMESPACE
        account = self._accounts.get(name) or self._accounts.put(name, _Account(BURST_LINES, record.created))
        self._refill(account, record.created)
        if account.lines < 1:
            account.left_out += 1
            if account.left_out == 1:
                record.msg = LogLine("lines left out", {"namespace": name, "remedy": "verbosity 1 shows all"})
            return account.left_out == 1
        account.lines -= 1
        if account.left_out:
            record.msg = line.with_(left_out=account.left_out)
            account.left_out = 0
        return True

    def _refill(self, account: _Account, now: float) -> None:
        gained = max(0.0, now - account.time) * LINES_A_MINUTE / 60
        # After lines were left out, the next ones come together, with one number for all.
        if account.left_out and gained < LINES_A_MINUTE:
            return
        account.lines, account.time = min(BURST_LINES, account.lines + gained), now


def configure_logs(verbosity: int, log_format: str) -> None:
    """Log by verbosity: 0 for warnings and the fate of pods and claims, 1 for the reasons, 2 for requests."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # asked for per record, never shown
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, force=True)
    logging.getLogger().handlers[0].setFormatter(JsonLines() if log_format == "json" else TextLines())
    if verbosity == 0:
        logging.getLogger().handlers[0].addFilter(NamespaceLines())
    logging.getLogger("dra_operator").setLevel(logging.DEBUG if verbosity > 0 else logging.INFO)
    requests.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
