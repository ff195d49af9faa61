"""A violated invariant is logged and counted once, not after every step for as long as it lasts."""

from __future__ import annotations

import logging

import pytest
from dra_operator.controllers.work.violation_log import ViolationLog
from prometheus_client import CollectorRegistry


def test_each_violation_is_reported_when_it_appears(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    log = ViolationLog(registry)
    steps: list[tuple[list[str], list[str]]] = [
        (["a", "b", "a"], ["a", "b"]),
        (["b", "a"], []),
        (["a", "c"], ["c"]),
        ([], []),
        (["a"], ["a"]),
    ]
    counted = 0
    for found, expected in steps:
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            log.report(iter(found))
        assert [record.getMessage() for record in caplog.records] == [f"invariant violated: {one}" for one in expected]
        counted += len(expected)
        assert registry.get_sample_value("dra_operator_invariant_violations_total") == counted
