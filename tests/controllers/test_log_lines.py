"""What is logged of a pod and its claims: one line for each thing that happened, the reasons only on request."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from controllers_world import World
from dra_kube import (
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Conflict,
    Forbidden,
    NotLeading,
    ServerError,
    Unreachable,
)
from dra_operator.cache import Key
from dra_operator.controllers import LogLine, WorkQueue
from dra_operator.controllers.errors import BindingFailed, BindingRefused
from dra_operator.controllers.workers import Failures
from fake_api import Call
from objects import Make
from prometheus_client import CollectorRegistry


@pytest.fixture
def furnished(world: World) -> World:
    """One node with one device, and a template."""
    world.furnish(("node",))
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    return world


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[tuple[str, dict[str, object]]]:
    """What was logged, with the fields that are not the attempt's id."""
    found = [record.msg for record in caplog.records if isinstance(record.msg, LogLine) and record.levelno >= level]
    return [(line.what, {name: of for name, of in line.fields().items() if name != "attempt"}) for line in found]


def attempts(caplog: pytest.LogCaptureFixture, *whats: str) -> list[object]:
    """The ids of the attempts that logged these lines."""
    found = [record.msg for record in caplog.records if isinstance(record.msg, LogLine)]
    return [line.fields()["attempt"] for line in found if line.what in whats]


async def test_the_life_of_a_pod_is_four_lines(furnished: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dra_operator")
    furnished.api.add(PODS, Make.pod(claims=[Make.FROM_TEMPLATE]))
    furnished.start()
    async with furnished.running():
        await furnished.quiet()
        (claim,) = (f"ns/{claim['metadata']['name']}" for claim in furnished.api.of(RESOURCE_CLAIMS))
        furnished.api.change(PODS, "ns/pod", lambda pod: pod["status"].update(phase="Succeeded"))
        await furnished.quiet()
    device = ["gpu.example.com/node/dev-0"]
    assert lines(caplog) == [
        ("claim generated", {"claim": claim, "pod": "ns/pod", "template": "tmpl"}),
        ("claim allocated", {"claim": claim, "pod": "ns/pod", "node": "node", "devices": device}),
        ("pod bound", {"pod": "ns/pod", "node": "node"}),
        ("claim released", {"claim": claim, "consumers": ["pod"], "freed": device}),
    ]


async def test_the_lines_of_one_attempt_share_an_id_and_those_of_two_do_not(
    furnished: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dra_operator")
    furnished.api.add(NODES, Make.node("other"))
    furnished.api.add(RESOURCE_SLICES, Make.slice("other", 1))
    for name in ("one", "two"):
        furnished.api.add(PODS, Make.pod(name, claims=[Make.FROM_TEMPLATE]))
    await furnished.settle()
    allocated, bound = attempts(caplog, "claim allocated"), attempts(caplog, "pod bound")
    assert sorted(map(str, allocated)) == sorted(map(str, bound))
    assert len(set(allocated)) == 2
    assert not set(attempts(caplog, "claim generated")) & set(bound)


async def test_a_refusal_is_logged_again_only_when_its_reason_changes(
    furnished: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dra_operator")
    furnished.api.add(RESOURCE_CLAIMS, Make.claim("claim", count=2))
    furnished.api.add(PODS, Make.pod(claims=[Make.use("claim")]))
    furnished.start()
    async with furnished.running() as control:
        await furnished.quiet()
        for _ in range(3):
            control.look_again()
            await furnished.quiet()
        assert [what for what, _ in lines(caplog)] == ["pod refused"]
        furnished.api.change(NODES, "node", lambda node: node.update(spec={"unschedulable": True}))
        await furnished.quiet()
    (what, first), (_, second) = lines(caplog)
    assert (what, first["pod"], first["reason"]) == ("pod refused", "ns/pod", "Unschedulable")
    assert "cannot satisfy claim ns/claim" in str(first["why"])
    assert "unschedulable" in str(second["why"])


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
async def test_what_each_node_answered_is_a_reason(
    furnished: World, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    caplog.set_level(level, "dra_operator")
    cordoned = Make.node("cordoned")
    cordoned["spec"] = {"unschedulable": True}
    furnished.api.add(NODES, cordoned)
    furnished.api.add(RESOURCE_CLAIMS, Make.claim("claim", count=2))
    furnished.api.add(PODS, Make.pod(claims=[Make.use("claim")]))
    await furnished.settle()
    answers = {of["node"]: str(of["answer"]) for what, of in lines(caplog, logging.DEBUG) if what == "node asked"}
    if level == logging.INFO:
        assert answers == {}
        return
    assert answers["cordoned"] == "node(s) were unschedulable"
    assert "claim ns/claim" in answers["node"]
    assert len(set(attempts(caplog, "node asked", "pod refused"))) == 1


async def test_devices_that_are_given_back_because_the_binding_failed_are_logged(
    furnished: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dra_operator")
    furnished.api.add(RESOURCE_CLAIMS, Make.claim("claim"))
    furnished.api.add(PODS, Make.pod(claims=[Make.use("claim")]))
    furnished.start()
    forbidden = Forbidden(403, "Forbidden", "no")
    furnished.api.before = lambda call: forbidden if call.sub == "binding" else None
    with pytest.raises(BindingRefused):
        await furnished.attempt("ns/pod")
    assert [what for what, _ in lines(caplog)] == ["claim allocated", "claim released", "pod refused"]


@pytest.mark.parametrize("write", [("update", "pods", "status"), ("patch", "pods", "status")], ids=["names", "reason"])
async def test_a_pod_that_goes_before_its_status_is_written_is_no_warning(
    write: tuple[str, str, str | None], furnished: World, caplog: pytest.LogCaptureFixture
) -> None:
    furnished.api.drop(RESOURCE_SLICES, "node-gpu.example.com")
    furnished.api.add(PODS, Make.pod(claims=[Make.FROM_TEMPLATE]))
    gone: list[Call] = []

    def vanish(call: Call) -> None:
        if call[:3] == write and not gone:
            gone.append(call)
            furnished.api.drop(PODS, "ns/pod")

    furnished.api.before = vanish
    await furnished.settle()
    assert gone
    assert lines(caplog, logging.WARNING) == []


def held_back() -> BindingFailed:
    """What a controller makes of a write of a leader whose lease is overdue."""
    failed = BindingFailed("cannot allocate claim ns/gpu")
    failed.__cause__ = NotLeading("the lease was last renewed 12 s ago, too long ago for a write")
    return failed


async def test_a_failure_is_a_warning_when_its_words_are_new_for_the_object(caplog: pytest.LogCaptureFixture) -> None:
    """The same words again are told with -v, and so is what needs no remedy here."""
    caplog.set_level(logging.DEBUG, "dra_operator")
    queue, failures, key = WorkQueue(), Failures(CollectorRegistry()), Key("release", "ns/gpu")
    steps: list[tuple[Exception | None, list[str]]] = [
        (Unreachable("no connection"), ["WARNING"]),
        (Unreachable("no connection"), ["DEBUG"]),
        (Unreachable("no answer"), ["WARNING"]),
        (Conflict(409, "Conflict", "changed"), ["DEBUG"]),
        (Unreachable("no answer"), ["DEBUG"]),
        (held_back(), ["DEBUG"]),
        (None, []),
        (Unreachable("no answer"), ["WARNING"]),
        (ValueError("a bug"), ["ERROR"]),
        (ValueError("a bug"), ["ERROR"]),
    ]
    levels = []
    for error, _ in steps:
        queue.add(key)
        await queue.get()
        caplog.clear()
        failures.report(queue, key, error)
        levels.append([record.levelname for record in caplog.records])
    queue.close()
    assert levels == [wanted for _, wanted in steps]


@pytest.mark.parametrize("fault", [Unreachable, lambda text: ServerError(500, "", text)])
async def test_a_failing_server_that_names_another_port_each_time_is_one_warning(
    fault: Callable[[str], Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """A quota that counts says something new; a broken connection with another port does not."""
    queue, failures, key = WorkQueue(), Failures(CollectorRegistry()), Key("release", "ns/claim")

    async def warnings(*errors: Exception) -> int:
        caplog.clear()
        for error in errors:
            queue.add(key)
            await queue.get()
            failures.report(queue, key, error)
        return sum(record.levelno == logging.WARNING for record in caplog.records)

    broken = [fault(f"read tcp 10.0.0.1:{port}->10.0.0.2:2379: reset") for port in range(40_000, 40_100)]
    assert await warnings(*broken) == 1
    assert await warnings(*(Forbidden(403, "", f"exceeded quota: used: {used}") for used in range(3))) == 3
    queue.close()
