"""The trace of a pod: an attempt, with its plan, its cycle, and in that the binding."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from controllers_world import World
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, ServerError
from dra_kube.spans import begin, span
from dra_operator.controllers import LogLine
from monitoring import Recording, recorded
from objects import Make


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    with recorded(monkeypatch) as made:
        yield made


async def test_from_event_to_binding(world: World, recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dra_operator")
    world.furnish(("node",))
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    world.api.add(PODS, Make.pod(claims=[Make.FROM_TEMPLATE]))
    world.start()
    async with world.running():
        await world.quiet()
    (claim,) = (f"ns/{claim['metadata']['name']}" for claim in world.api.of(RESOURCE_CLAIMS))
    assert ("attempt", [("plan", []), ("binding_cycle", [("bind", [])])]) in recording.trees()
    (plan,), (cycle,), (bind,) = map(recording.all, ("plan", "binding_cycle", "bind"))
    assert dict(plan.attributes or {}) == {"pod": "ns/pod", "claims": (claim,)}
    assert dict(cycle.attributes or {}) == {"pod": "ns/pod", "node": "node", "claims": (claim,)}
    assert dict(bind.attributes or {}) == {"pod": "ns/pod", "node": "node"}
    (attempt,) = (it for it in recording.all("attempt") if it.context and it.context.trace_id == bind.context.trace_id)
    lines = [record.msg for record in caplog.records if isinstance(record.msg, LogLine)]
    (logged,) = (line.fields()["attempt"] for line in lines if line.what == "pod bound")
    assert dict(attempt.attributes or {}) == {"pod": "ns/pod", "attempt": logged}


async def test_a_write_that_fails_marks_its_spans(world: World, recording: Recording) -> None:
    world.furnish(("node",))
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    world.api.add(PODS, Make.pod(claims=[Make.FROM_TEMPLATE]))
    faults = [ServerError(500, "InternalError", "the disk is full")]
    world.api.before = lambda call: faults.pop() if call.sub == "binding" and faults else None
    world.start()
    async with world.running():
        await world.quiet()
    failed = [it for name in ("attempt", "binding_cycle", "bind") for it in recording.all(name) if not it.status.is_ok]
    assert {it.name for it in failed} == {"attempt", "binding_cycle", "bind"}
    assert all(it.events and "disk is full" in str(it.events[0].attributes) for it in failed)


def test_without_a_destination_nothing_is_made() -> None:
    made = begin("attempt", claims=lambda: pytest.fail("made for nothing"))
    with made.within(), span("plan", claims=lambda: pytest.fail("made for nothing")):
        pass
    assert span("plan") is span("binding_cycle")
    made.end()
