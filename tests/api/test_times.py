"""Times of the API."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from dra_api.values import format_time, parse_time

MOMENT = datetime(2026, 1, 31, 12, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    ["2026-01-31T12:00:05Z", "2026-01-31T12:00:05.000000Z", "2026-01-31T14:00:05+02:00"],
    ids=["seconds", "microseconds", "another zone"],
)
def test_a_time_with_its_zone_is_understood(text: str) -> None:
    assert parse_time(text) == MOMENT


@pytest.mark.parametrize(
    "text",
    [None, "", "yesterday", "2026-01-31T12:00:05", "2026-02-30T12:00:05Z", "9999-12-31T23:59:59-01:00", 1769860805, {}],
    ids=["missing", "empty", "words", "no zone", "no such day", "no such year in UTC", "a number", "an object"],
)
def test_what_is_no_time_is_none(text: object) -> None:
    assert parse_time(text) is None


def test_a_time_is_written_in_utc_with_whole_seconds() -> None:
    moment = (MOMENT + timedelta(microseconds=999_999)).astimezone(timezone(timedelta(hours=2)))
    assert format_time(moment) == "2026-01-31T12:00:05Z"
    assert parse_time(format_time(moment)) == MOMENT
