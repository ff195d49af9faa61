"""Events of both APIs: what each refuses, and by which fields each selects; the same on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bare_client import EVENTS, PATCH, Client, Json, causes
from rbac_cases import SERVERS, rbac_server

NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
TIME = "2026-01-01T00:00:00.000000Z"
ABOUT = {"kind": "Pod", "name": "p", "namespace": "default"}
REPORT = {"reason": "R", "type": "Normal", "action": "A", "eventTime": TIME, "reportingInstance": "i"}
NEW = {"metadata": {"name": "e"}, "regarding": ABOUT, "note": "text", "reportingController": "example.com/c", **REPORT}
INVALID, REQUIRED = "FieldValueInvalid", "FieldValueRequired"


@pytest.fixture(params=SERVERS)
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    async with rbac_server(request.param, tmp_path) as client:
        yield client


async def _faults(client: Client, path: str, event: Json) -> list[tuple[str, str]]:
    answer = await client.call("POST", path, {key: value for key, value in event.items() if value}, dryRun="All")
    return causes(answer.json) if answer.code == 422 else []


async def test_each_api_refuses_what_its_events_must_not_be(both: Client) -> None:
    cases: list[tuple[Json, list[tuple[str, str]]]] = [
        ({}, []),
        ({"series": {"count": 2, "lastObservedTime": TIME}}, []),
        ({"eventTime": ""}, [("eventTime", REQUIRED)]),
        ({"action": "", "reason": ""}, [("action", REQUIRED), ("reason", REQUIRED)]),
        ({"reportingController": "a b"}, [("reportingController", INVALID)]),
        ({"reportingInstance": "i" * 129}, [("reportingInstance", INVALID)]),
        ({"note": "n" * 1025}, [("message", INVALID)]),
        ({"type": "Bad"}, [("type", INVALID)]),
        ({"deprecatedCount": 2}, [("count", INVALID)]),
        ({"deprecatedSource": {"component": "c"}}, [("source", INVALID)]),
        ({"series": {"count": 1}}, [("series.count", INVALID), ("series.lastObservedTime", REQUIRED)]),
    ]
    assert [await _faults(both, NEW_EVENTS, {**NEW, **change}) for change, _ in cases] == [found for _, found in cases]
    old = {"metadata": {"name": "e"}, "involvedObject": ABOUT, "reportingComponent": "c", **REPORT}
    cases = [
        ({}, []),
        ({"eventTime": "", "action": "", "type": "Bad"}, []),
        ({"action": "", "reportingInstance": ""}, [("reportingInstance", REQUIRED), ("action", REQUIRED)]),
        ({"reportingComponent": ""}, [("reportingComponent", REQUIRED), ("reportingComponent", INVALID)]),
        ({"eventTime": "", "involvedObject": {"namespace": "kube-public"}}, [("involvedObject.namespace", INVALID)]),
    ]
    assert [await _faults(both, EVENTS, {**old, **change}) for change, _ in cases] == [found for _, found in cases]


async def test_an_event_about_no_namespace_stands_in_one_of_two(both: Client) -> None:
    event = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Node", "name": "n"}, "reportingComponent": "c"}
    for namespace, faults in (
        ("default", []),
        ("kube-system", []),
        ("kube-public", [("involvedObject.namespace", INVALID)]),
    ):
        assert await _faults(both, EVENTS.replace("default", namespace), {**event, **REPORT}) == faults


async def test_the_newer_api_lets_only_the_series_change(both: Client) -> None:
    await both.post(NEW_EVENTS, NEW)
    await both.patch(f"{NEW_EVENTS}/e", {"series": {"count": 2, "lastObservedTime": TIME}})
    answer = await both.call("PATCH", f"{NEW_EVENTS}/e", {"note": "other"}, kind=PATCH["merge"])
    assert (answer.code, causes(answer.json)) == (422, [("message", INVALID)])
    await both.patch(f"{EVENTS}/e", {"message": "other"})


async def test_each_api_selects_by_the_names_of_its_own_fields(both: Client) -> None:
    await both.post(NEW_EVENTS, NEW)
    for path, known, unknown in [
        (EVENTS, "involvedObject.name=p,reportingComponent=example.com/c", "regarding.name=p"),
        (NEW_EVENTS, "regarding.name=p,reportingController=example.com/c", "involvedObject.name=p"),
    ]:
        assert len((await both.get(path, fieldSelector=known))["items"]) == 1
        answer = await both.call("GET", path, fieldSelector=unknown)
        assert (answer.code, answer.message) == (400, f"field label not supported: {unknown.removesuffix('=p')}")
