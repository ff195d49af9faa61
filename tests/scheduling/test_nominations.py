"""What a pod is to get once others have ended is not free for pods of the same or a lower priority."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dra_api.core import Pod
from dra_api.resource import AllocationResult
from dra_operator.scheduling import NoPlace, Plan, decided, plan
from dra_operator.scheduling.state import NO_NOMINATIONS, Nomination, Nominations, node_requests
from placement_lab import allocator, case, claim, node, pod, wants
from preemption_lab import held, running

COMING = running("coming", "", 5)


def nomination(where: str, device: str = "", cpu: str = "0", it: Pod = COMING) -> Nomination:
    given = held("given", where, [device], "coming").status.allocation if device else None
    allocations: tuple[AllocationResult, ...] = () if given is None else (given,)
    return Nomination(it, where, allocations, node_requests(pod(cpu=cpu), ()))


def placed(it: Pod, nominations: Nominations, *wanted: str) -> str | None:
    """Where the pod goes, with nodes a and b of one device each."""
    nodes, devices = [node("a"), node("b")], allocator(a=["x"], b=["x"])
    claims = [claim(name, wants()) for name in wanted]
    answer = decided(plan(replace(case(it, claims, nodes, devices), nominations=nominations)))
    return answer.node if isinstance(answer, Plan) else None


def test_devices_that_another_pod_is_to_get_are_taken_already() -> None:
    assert placed(pod(), NO_NOMINATIONS, "c") == "a"
    assert placed(pod(), Nominations.of("", [nomination("a", "dev-0")]), "c") == "b"
    both = Nominations.of("", [nomination("a", "dev-0"), nomination("b", "dev-0")])
    assert placed(pod(), both, "c") is None
    assert placed(pod(), both) == "a", "who wants no device is not concerned"


def test_room_that_other_pods_are_to_get_is_taken_already() -> None:
    half = Nominations.of("", [nomination("a", cpu="2")])
    assert [placed(pod(cpu=cpu), half) for cpu in ("2", "3")] == ["a", "b"]
    whole = Nominations.of("", [nomination("a", cpu="2"), nomination("a", cpu="2"), nomination("b", cpu="3")])
    assert [placed(pod(cpu=cpu), whole) for cpu in ("1", "2")] == ["b", None]


def test_a_nominated_pod_goes_to_its_node_although_another_one_fits_as_well() -> None:
    assert placed(pod(), Nominations.of("b", []), "c") == "b"


@pytest.mark.parametrize("where", ["gone", "full"])
def test_a_nominated_pod_goes_elsewhere_if_its_node_does_not_take_it(where: str) -> None:
    nodes = [node("a"), node("full", used={"cpu": "4"})]
    state = replace(case(pod(), [], nodes, allocator()), nominations=Nominations.of(where, []))
    answer = decided(plan(state))
    assert not isinstance(answer, NoPlace)
    assert answer.node == "a"
