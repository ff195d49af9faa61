"""The status of a pod from what is known of its containers; no I/O."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.codec import convert
from dra_devcluster.agent.containers.runtime import ContainerRecord, ContainerState, Waiting
from dra_devcluster.agent.pod_status import Ending, PodView, changes, status_of
from dra_devcluster.agent.spec import RunPod

Json = dict[str, Any]
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def pod_of(*containers: str, init: tuple[str, ...] = (), sidecars: tuple[str, ...] = (), phase: str = "") -> RunPod:
    inits = [{"name": name} for name in init] + [{"name": name, "restartPolicy": "Always"} for name in sidecars]
    spec = {"containers": [{"name": name} for name in containers], "initContainers": inits}
    return convert(RunPod, {"metadata": {"name": "p", "namespace": "n"}, "spec": spec, "status": {"phase": phase}})


def ran(code: int | None, attempt: int = 0, previous: int | None = None) -> ContainerState:
    """A container that ended with the code, or runs if None."""

    def record(number: int, result: int | None) -> ContainerRecord:
        return ContainerRecord(f"id{number}", number, 1, 1, NOW, None if result is None else LATER, result)

    return ContainerState(record(attempt, code), None if previous is None else record(attempt - 1, previous))


def view(pod: RunPod, states: dict[str, ContainerState] | None = None, **more: Any) -> PodView:
    return PodView(pod=pod, states=states or {}, waiting=more.pop("waiting", {}), **more)


def summary(one: PodView) -> tuple[str, dict[str, str]]:
    """The phase, and each condition as status and reason."""
    status = status_of(one, "127.0.0.1", NOW)
    return status["phase"], {
        condition["type"]: f"{condition['status']} {condition.get('reason', '')}".strip()
        for condition in status["conditions"]
    }


CASES: dict[str, tuple[PodView, str, dict[str, str]]] = {
    "nothing has started": (
        view(pod_of("a")),
        "Pending",
        {"PodReadyToStartContainers": "False", "Initialized": "True", "Ready": "False ContainersNotReady"},
    ),
    "init containers are to come": (
        view(pod_of("a", init=("i",))),
        "Pending",
        {"Initialized": "False ContainersNotInitialized", "ContainersReady": "False ContainersNotReady"},
    ),
    "all run": (
        view(pod_of("a", "b"), {"a": ran(None), "b": ran(None)}, has_sandbox=True),
        "Running",
        {"PodReadyToStartContainers": "True", "Ready": "True", "ContainersReady": "True", "PodScheduled": "True"},
    ),
    "one has ended": (
        view(pod_of("a", "b"), {"a": ran(None), "b": ran(0)}, has_sandbox=True),
        "Running",
        {"Ready": "False ContainersNotReady"},
    ),
    "a sidecar that is down makes the pod unready": (
        view(pod_of("a", sidecars=("s",)), {"a": ran(None), "s": ran(1)}, has_sandbox=True),
        "Running",
        {"Ready": "False ContainersNotReady", "Initialized": "False ContainersNotInitialized"},
    ),
    "all have ended, claims not given back yet": (
        view(pod_of("a"), {"a": ran(0)}, has_sandbox=True),
        "Running",
        {"Ready": "False ContainersNotReady"},
    ),
    "over, all well": (
        view(pod_of("a"), {"a": ran(0)}, over=True),
        "Succeeded",
        {"Ready": "False PodCompleted", "Initialized": "True PodCompleted", "PodReadyToStartContainers": "False"},
    ),
    "over, one failed": (
        view(pod_of("a", "b"), {"a": ran(0), "b": ran(2)}, over=True),
        "Failed",
        {"Ready": "False PodFailed"},
    ),
    "over before it ran": (view(pod_of("a"), over=True), "Failed", {"Ready": "False PodFailed"}),
    "over for another reason": (
        view(pod_of("a"), {"a": ran(0)}, over=True, ending=Ending("DeadlineExceeded", "late")),
        "Failed",
        {"Ready": "False PodFailed"},
    ),
    "a phase does not go back": (view(pod_of("a", phase="Running")), "Running", {}),
    "a terminal phase that another writer set stays": (
        view(pod_of("a", phase="Failed"), {"a": ran(0)}, over=True),
        "Failed",
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_phase_and_conditions(case: str) -> None:
    one, phase, expected = CASES[case]
    found_phase, conditions = summary(one)
    assert found_phase == phase
    assert {name: conditions[name] for name in expected} == expected
    assert len(conditions) == 5


def container_of(one: PodView) -> Json:
    found: Json = status_of(one, "127.0.0.1", NOW)["containerStatuses"][0]
    return found


CONTAINERS: dict[str, tuple[PodView, Json, Json]] = {
    "not started": (view(pod_of("a")), {"waiting": {"reason": "ContainerCreating"}}, {}),
    "behind init containers": (view(pod_of("a", init=("i",))), {"waiting": {"reason": "PodInitializing"}}, {}),
    "running": (view(pod_of("a"), {"a": ran(None)}), {"running": {"startedAt": NOW}}, {}),
    "waiting for its restart": (
        view(pod_of("a"), {"a": ran(1)}, waiting={"a": Waiting("CrashLoopBackOff", "soon")}),
        {"waiting": {"reason": "CrashLoopBackOff", "message": "soon"}},
        {"exitCode": 1, "reason": "Error"},
    ),
    "restarted": (
        view(pod_of("a"), {"a": ran(None, 1, previous=3)}),
        {"running": {"startedAt": NOW}},
        {"exitCode": 3, "reason": "Error"},
    ),
}


@pytest.mark.parametrize("case", CONTAINERS)
def test_the_state_of_a_container(case: str) -> None:
    one, state, last = CONTAINERS[case]
    status = container_of(one)
    assert status["state"] == state
    terminated = status["lastState"].get("terminated", {})
    assert {key: terminated[key] for key in last} == last
    assert bool(last) == bool(terminated)


def test_only_what_differs_is_written() -> None:
    wanted = status_of(view(pod_of("a"), {"a": ran(None)}, has_sandbox=True), "127.0.0.1", NOW)
    first = changes(wanted, {"phase": "Pending", "startTime": NOW}, NOW)
    assert first["phase"] == "Running"
    assert "startTime" not in first
    stored = {"phase": "Pending"} | wanted | {"conditions": first["conditions"]}
    assert changes(wanted, stored, LATER) == {}


def test_a_condition_keeps_its_time_while_its_status_stays_and_loses_a_reason_it_no_longer_has() -> None:
    stored = {
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "Old", "lastTransitionTime": NOW},
            {"type": "Initialized", "status": "False", "reason": "ContainersNotInitialized", "lastTransitionTime": NOW},
        ]
    }
    wanted = {
        "conditions": [{"type": "Ready", "status": "False", "reason": "New"}, {"type": "Initialized", "status": "True"}]
    }
    assert changes(wanted, stored, LATER)["conditions"] == [
        {"type": "Ready", "status": "False", "reason": "New", "lastTransitionTime": NOW},
        {"type": "Initialized", "status": "True", "reason": None, "lastTransitionTime": LATER},
    ]
