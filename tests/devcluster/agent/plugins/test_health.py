"""The health of devices, as drivers report it: what counts, and for how long (KM-23, KM-24, KM-26)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from dra_devcluster.agent.plugins.health import (
    FILE_NAME,
    UNKNOWN,
    DeviceHealth,
    HealthCache,
    HealthFile,
    Status,
    shortened,
)
from hypothesis import given
from hypothesis import strategies as st

DRIVER, A, B = "gpu.example.com", ("pool", "a"), ("pool", "b")


def report(status: Status = "Healthy", at: float = 0.0, message: str = "", timeout: float = 30.0) -> DeviceHealth:
    return DeviceHealth(status, message, timeout, at)


CHANGES = {
    "a new device": (None, report(), True),
    "another status": (report(), report("Unhealthy"), True),
    "another message": (report(), report(message="hot"), True),
    "another timeout": (report(), report(timeout=10.0), True),
    "a later time": (report(), report(at=1.0), False),
}


@pytest.mark.rule("KM-23")
@pytest.mark.parametrize("case", CHANGES)
def test_a_change_is_a_new_device_status_message_or_timeout(case: str) -> None:
    before, after, changed = CHANGES[case]
    cache = HealthCache({})
    if before is not None:
        cache.update(DRIVER, "one", {A: before}, 0.0)
    assert cache.update(DRIVER, "one", {A: after}, 1.0) == ({A} if changed else set())
    assert cache.get(DRIVER, A, 1.0) == after


@pytest.mark.rule("K37-HEALTH-10", "KM-24")
def test_a_report_that_is_older_than_its_timeout_counts_no_more() -> None:
    cache = HealthCache({})
    cache.update(DRIVER, "one", {A: report(timeout=5.0), B: report()}, 0.0)
    assert cache.get(DRIVER, A, 5.0).status == "Healthy"
    assert cache.get(DRIVER, A, 5.1) == UNKNOWN
    assert cache.next_expiry() == 5.0
    assert cache.expire(5.0) == {}
    assert cache.expire(5.1) == {DRIVER: {A}}
    assert cache.next_expiry() == 30.0


@pytest.mark.rule("KM-23")
def test_a_device_that_is_missing_from_a_list_keeps_its_report_until_its_timeout() -> None:
    cache = HealthCache({})
    cache.update(DRIVER, "one", {A: report(timeout=5.0)}, 0.0)
    assert cache.update(DRIVER, "one", {B: report(at=4.0)}, 4.0) == {B}
    assert cache.get(DRIVER, A, 4.0).status == "Healthy"
    assert cache.expire(6.0) == {DRIVER: {A}}


@pytest.mark.rule("KM-26")
def test_the_end_of_an_old_instance_takes_nothing_from_the_new_one() -> None:
    cache = HealthCache({})
    cache.update(DRIVER, "old", {A: report(), B: report()}, 0.0)
    cache.update(DRIVER, "new", {A: report(at=1.0)}, 1.0)
    assert cache.forget(DRIVER, "old", 2.0) == {B}
    assert (cache.get(DRIVER, A, 2.0).status, cache.get(DRIVER, B, 2.0)) == ("Healthy", UNKNOWN)
    assert cache.forget(DRIVER, "new", 2.0) == {A}


def test_the_latest_report_of_two_instances_counts() -> None:
    cache = HealthCache({})
    cache.update(DRIVER, "new", {A: report("Unhealthy", at=1.0)}, 1.0)
    assert cache.update(DRIVER, "old", {A: report("Healthy", at=0.5)}, 1.0) == set()
    assert cache.get(DRIVER, A, 1.0).status == "Unhealthy"


def test_restored_reports_count_until_the_first_instance_that_reports_takes_them_over() -> None:
    cache = HealthCache({DRIVER: {A: report(), B: report("Unhealthy")}})
    assert cache.get(DRIVER, A, 1.0).status == "Healthy"
    assert cache.update(DRIVER, "one", {A: report(at=2.0)}, 2.0) == set()
    assert cache.forget(DRIVER, "one", 3.0) == {A, B}


@pytest.mark.rule("KM-23")
@given(st.text(max_size=6))
def test_a_message_has_at_most_1024_bytes_and_says_when_it_was_cut(text: str) -> None:
    message = shortened(text * 400)
    assert len(message.encode()) <= 1024
    assert message == text * 400 or (message.endswith("...") and (text * 400).startswith(message[:-3]))


@pytest.mark.rule("K37-HEALTH-01")
def test_a_long_message_keeps_its_first_1021_bytes() -> None:
    assert shortened("x" * 1024) == "x" * 1024
    assert shortened("x" * 1025) == "x" * 1021 + "..."


# --- the file ---


@pytest.mark.rule("KM-23")
def test_the_file_has_the_kubelets_format_and_is_read_back(tmp_path: Path) -> None:
    file = HealthFile(tmp_path / FILE_NAME)
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    reports = {DRIVER: {A: report("Unhealthy", at, "hot", 1.5)}}
    file.store(reports)
    device = {
        "PoolName": "pool",
        "DeviceName": "a",
        "Health": "Unhealthy",
        "LastUpdated": "2026-01-02T03:04:05Z",
        "HealthCheckTimeout": 1_500_000_000,
        "Message": "hot",
    }
    assert msgspec.json.decode((tmp_path / FILE_NAME).read_bytes()) == {DRIVER: {"Devices": {"pool/a": device}}}
    assert file.load() == reports


@pytest.mark.rule("KM-23")
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"d":{"Devices":{"p/a":{"Health":"Fine"}}}}'])
def test_a_file_that_cannot_be_read_counts_as_empty(content: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert HealthFile(tmp_path / FILE_NAME).load() == {}


def test_a_file_that_cannot_be_written_harms_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).mkdir()
    HealthFile(tmp_path / FILE_NAME).store({DRIVER: {A: report()}})
    assert "cannot be written" in caplog.text
