"""A pod that lacks devices is told half a second later at most, if claims of pods that are gone end meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_operator.controllers.claims.delayed_deletion import DelayedDeletion
from dra_operator.controllers.queue import WorkQueue
from dra_operator.controllers.scheduling.report import DevicePatience
from objects import Make, Obj


class Moment:
    """``now`` are seconds; one claim can end."""

    def __init__(self, queue: WorkQueue) -> None:
        self.now = 0.0
        self.delayed_deletion = DelayedDeletion(queue, lambda: self.now)
        self.patience = DevicePatience(self.delayed_deletion, lambda: self.now)

    def pod_of_claim_is_gone(self, name: str = "claim", uid: str = "uid-claim") -> None:
        claim = {"metadata": {"name": name, "namespace": "ns", "uid": uid}}
        self.delayed_deletion.has_time(convert(ResourceClaim, claim))

    def seconds_left(self, pod: Obj) -> float:
        pod["metadata"]["uid"] = f"uid-{pod['metadata']['name']}"
        return self.patience.seconds_left(convert(Pod, pod))


@pytest.fixture
async def moment() -> AsyncIterator[Moment]:
    queue = WorkQueue()
    yield Moment(queue)
    queue.close()


async def test_where_nothing_ends_it_is_told_at_once(moment: Moment, make: type[Make]) -> None:
    assert moment.seconds_left(make.pod()) == 0.0


async def test_it_waits_for_half_a_second_from_its_first_attempt(moment: Moment, make: type[Make]) -> None:
    moment.pod_of_claim_is_gone()
    assert moment.seconds_left(make.pod()) == 0.5
    moment.now = 0.4
    assert moment.seconds_left(make.pod()) == pytest.approx(0.1)
    assert moment.seconds_left(make.pod("other")) == 0.5
    moment.now = 0.6
    moment.delayed_deletion.ended("ns/claim")
    moment.pod_of_claim_is_gone()  # another one
    assert moment.seconds_left(make.pod()) == 0.0
    assert moment.seconds_left(make.pod("other")) == pytest.approx(0.3)


async def test_a_claim_that_ended_is_not_waited_for(moment: Moment, make: type[Make]) -> None:
    moment.pod_of_claim_is_gone()
    moment.delayed_deletion.ended("ns/claim")
    assert moment.seconds_left(make.pod()) == 0.0


async def test_a_claim_that_does_not_end_is_not_waited_for(moment: Moment, make: type[Make]) -> None:
    moment.pod_of_claim_is_gone()
    moment.now = 0.6
    assert moment.seconds_left(make.pod()) == 0.0


async def test_a_claim_is_waited_for_although_one_of_its_name_did_not_end(moment: Moment, make: type[Make]) -> None:
    moment.pod_of_claim_is_gone("first", "uid-1")
    moment.pod_of_claim_is_gone("second", "uid-2")
    moment.now = 0.6
    moment.pod_of_claim_is_gone("first", "uid-3")
    assert moment.seconds_left(make.pod()) == 0.5


async def test_a_pod_that_was_told_before_is_told_at_once(moment: Moment, make: type[Make]) -> None:
    moment.pod_of_claim_is_gone()
    pod = make.pod()
    pod["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    assert moment.seconds_left(pod) == 0.0


async def test_a_rest_that_no_clock_tells_apart_is_over(moment: Moment, make: type[Make]) -> None:
    """Its timer would come at the same instant, again and again."""
    moment.pod_of_claim_is_gone()
    moment.seconds_left(make.pod())
    moment.now = 0.5 - 1e-13
    moment.delayed_deletion.ended("ns/claim")
    moment.pod_of_claim_is_gone()
    assert moment.seconds_left(make.pod()) == 0.0
