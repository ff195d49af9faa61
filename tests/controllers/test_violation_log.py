"""A violated invariant is logged and counted once, when it has lasted, not after every step."""

from __future__ import annotations

import logging

import pytest
from dra_operator.controllers.metrics import ViolationLog
from dra_operator.controllers.settings import ROUNDING_SECONDS
from prometheus_client import CollectorRegistry


def test_each_violation_is_reported_once_when_it_has_lasted(caplog: pytest.LogCaptureFixture) -> None:
    registry, now = CollectorRegistry(), 0.0
    log = ViolationLog(registry, lambda: now)
    steps: list[tuple[float, list[str], list[str], float | None]] = [
        (0.0, ["a", "b", "a"], [], 1.0),
        (0.5, ["a", "b"], [], 0.5),
        (1.0, ["b", "a"], ["b", "a"], None),
        (1.5, ["a", "c"], [], 1.0),
        (2.0, ["a"], [], None),
        (2.5, ["a", "c"], [], 1.0),
        (3.5, ["a", "c"], ["c"], None),
        (4.0, [], [], None),
        (5.0, ["a"], [], 1.0),
        (6.0, ["a"], ["a"], None),
    ]
    counted = 0
    for moment, found, expected, again in steps:
        now = moment
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            assert log.report(iter(found)) == (again and again + ROUNDING_SECONDS)
        assert [record.getMessage() for record in caplog.records] == [f"invariant violated: {one}" for one in expected]
        counted += len(expected)
        assert registry.get_sample_value("dra_operator_invariant_violations_total") == counted
