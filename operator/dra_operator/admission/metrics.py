"""Figures of the controller ``admission``."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from .workloads import CheckState


class AdmissionMetrics:
    """Counters of decisions, and gauges of the last round."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._decisions = Counter(
            "dra_operator_admission_decisions", "Decisions about Workloads of Kueue", ["state"], registry=registry
        )
        self.requeued = Counter(
            "dra_operator_admission_requeues", "Back-offs of Workloads that freed devices ended", registry=registry
        )
        self.broken = Counter(
            "dra_operator_admission_broken_promises",
            "Workloads that were promised a place, lost it and had not started",
            registry=registry,
        )
        self.errors = Counter("dra_operator_admission_errors", "Decisions that could not be written", registry=registry)
        self.promises = Gauge(
            "dra_operator_admission_promises", "Workloads that are ready and have not started", registry=registry
        )
        self.waiting = Gauge(
            "dra_operator_admission_waiting", "Workloads that wait for a decision, or back off", registry=registry
        )
        self.round_seconds = Histogram(
            "dra_operator_admission_round_duration_seconds",
            "Seconds of one look at all Workloads that wait",
            buckets=[0.01 * 2**power for power in range(12)],
            registry=registry,
        )
        for state in (CheckState.READY, CheckState.RETRY, CheckState.REJECTED):
            self._decisions.labels(state.lower())

    def decided(self, state: CheckState) -> None:
        """Count a decision that was written."""
        self._decisions.labels(state.lower()).inc()
