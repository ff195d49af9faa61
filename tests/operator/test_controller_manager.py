"""What is whose, from what the Lease of kube-controller-manager shows over time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, cast

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_kube import Api, Forbidden, NotFound, Resource, Unreachable
from dra_operator.app.control_plane import AGREED_SECONDS, GONE_SECONDS, CommonRelease, ControllerManager, Heartbeat
from dra_operator.controllers import OwnControllers
from dra_operator.controllers.claims.generate import generated_name

Lease = dict[str, Any]


def lease(renewed: str, holder: str = "cp-1", seconds: int = 15) -> Lease:
    return {"spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": renewed}}


ABSENT = NotFound(404, "NotFound", "no lease")
DENIED = Forbidden(403, "Forbidden", 'leases "kube-controller-manager" is forbidden')
AWAY = Unreachable("connection refused")
LONG, FOR_EVER = lease("1", seconds=60), lease("1", seconds=2**31 - 1)
RELEASED = lease("2", holder="", seconds=1)
"""As client-go leaves it when its process ends."""
Seen = tuple[float, Lease | Exception]
YESTERDAY, TOMORROW = "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"


def version(minor: str, major: str = "1") -> Lease:
    return {"major": major, "minor": minor, "gitVersion": f"v{major}.{minor}.0"}


class Scene:
    """A Lease that shows what each test says, at times that each test says."""

    def __init__(self) -> None:
        self.time = 0.0
        self.shown: Lease | Exception = ABSENT
        self.calls = 0
        self.controllers = OwnControllers()
        api = cast(Api, self)
        self.version: Lease | Exception = version("36")
        common = CommonRelease(lambda: self.time).heard
        self.recorded_here: set[str] = set()
        self.controller = ControllerManager(
            api, self.controllers, self.became_ours, common, self.records_here, lambda: self.time
        )

    def records_here(self, pod: Pod, claim: str) -> bool:
        return f"{pod.key} {claim}" in self.recorded_here

    async def get(self, resource: Resource, name: str, namespace: str) -> Lease:
        assert (resource.plural, namespace, name) == ("leases", "kube-system", "kube-controller-manager")
        if isinstance(self.shown, Exception):
            raise self.shown
        return self.shown

    async def raw_get(self, path: str) -> Lease:
        assert path == "/version"
        if isinstance(self.version, Exception):
            raise self.version
        return self.version

    async def became_ours(self) -> None:
        self.calls += 1

    async def look(self, seconds: float, shown: Lease | Exception) -> bool:
        """Whether claims are ours after another look."""
        self.time += seconds
        self.shown = shown
        await self.controller.look()
        assert self.controllers.templates == self.controllers.release == self.controllers.eviction
        assert self.controllers.placement
        return self.controllers.templates


@pytest.mark.parametrize(
    ("seen", "ours"),
    [
        ([(0, ABSENT)], [True]),
        ([(0, lease("1")), (10, lease("2")), (10, lease("3"))], [False] * 3),
        ([(0, lease("1")), (10, lease("1")), (19, lease("1")), (1, lease("1"))], [False, False, False, True]),
        ([(0, lease("1")), (29, lease("2")), (29, lease("2")), (1, lease("2"))], [False, False, False, True]),
        ([(0, ABSENT), (2, lease("1")), (2, lease("2"))], [True, False, False]),
        ([(0, lease("1")), (10, ABSENT)], [False, True]),
        ([(0, lease("1", holder=""))], [True]),
        ([(0, lease("1")), (10, RELEASED), (2, lease("3", holder="cp-2"))], [False] * 3),
        ([(0, lease("1")), (10, RELEASED), (29, RELEASED), (1, RELEASED)], [False, False, False, True]),
        ([(0, lease("1")), (31, lease("1")), (2, lease("2"))], [False, True, False]),
        ([(0, lease(YESTERDAY)), (10, lease(TOMORROW)), (10, lease(YESTERDAY))], [False] * 3),
        ([(0, LONG), (100, LONG), (20, LONG)], [False, False, True]),
        ([(0, FOR_EVER), (7199, FOR_EVER), (1, FOR_EVER)], [False, False, True]),
        ([(0, DENIED), (100, DENIED)], [False, False]),
        ([(0, AWAY), (10, ABSENT)], [False, True]),
        ([(0, ABSENT), (10, AWAY)], [True, True]),
        ([(0, lease("1")), (10, AWAY), (10, lease("2"))], [False] * 3),
        ([(0, lease("1")), (10, AWAY), (30, AWAY), (10, lease("1")), (2, lease("2"))], [False] * 5),
        ([(0, lease("1")), (40, AWAY), (10, lease("1")), (19, lease("1")), (1, lease("1"))], [False] * 4 + [True]),
        ([(0, lease("1")), (31, lease("1")), (10, AWAY), (2, lease("1"))], [False, True, True, True]),
    ],
    ids=[
        "no lease",
        "renewed",
        "no more renewed",
        "the last renewal counts",
        "it comes",
        "it goes with its lease",
        "released",
        "given up for the next one",
        "given up for good",
        "it comes back",
        "its clock is wrong and steps",
        "a longer lease is waited for longer",
        "a lease of 68 years is not",
        "not allowed to see it",
        "server away at first",
        "server away when ours",
        "server away when theirs",
        "server away for too long to renew it",
        "gone while the server was away",
        "gone before the server was away",
    ],
)  # fmt: skip
async def test_whose_the_work_is(seen: Sequence[Seen], ours: Sequence[bool]) -> None:
    scene = Scene()
    assert [await scene.look(seconds, shown) for seconds, shown in seen] == ours


@pytest.mark.parametrize(
    ("shown", "ours"),
    [
        (version("36"), False),
        (version("36+"), False),
        (version("40"), False),
        (version("0", major="2"), False),
        (version("35"), True),
        (version("32+"), True),
        ({}, False),
        ({"major": "one", "minor": None}, False),
        (AWAY, False),
    ],
    ids=str,
)
async def test_a_controller_manager_evicts_from_the_version_on_in_which_that_is_on_by_default(
    shown: Lease | Exception, ours: bool
) -> None:
    scene = Scene()
    scene.shown, scene.version = lease("1"), shown
    await scene.controller.look()
    assert scene.controllers == OwnControllers(templates=False, release=False, eviction=ours)


@pytest.mark.parametrize("spec", ["x", 3, [1], {"leaseDurationSeconds": "15", "holderIdentity": "a"}])
def test_a_lease_that_is_none_shows_nobody_or_counts_for_the_usual_time(spec: object) -> None:
    now = 0.0
    heartbeat = Heartbeat(lambda: now)
    assert heartbeat.saw({"spec": spec}) == isinstance(spec, dict)
    now = GONE_SECONDS + 1.0
    assert not heartbeat.saw({"spec": spec})


async def test_an_upgrade_of_the_control_plane_is_noticed() -> None:
    scene = Scene()
    answers: list[bool] = []
    upgrades: list[Lease | Exception] = [version("35"), version("36"), AWAY, version("36"), version("35")]
    for renewed, shown in enumerate(upgrades):
        scene.time += AGREED_SECONDS
        scene.shown, scene.version = lease(str(renewed)), shown
        await scene.controller.look()
        answers.append(scene.controllers.eviction)
    assert answers == [True, False, False, False, True]
    assert scene.calls == 1


async def test_while_api_servers_of_two_releases_answer_nothing_goes_to_and_fro() -> None:
    """A controller manager is no newer than the oldest API server. The old one counts until it has been silent long."""
    scene = Scene()
    answers: list[bool] = []
    for renewed, minor in enumerate(["35", "36", "35", "36", "36"]):
        scene.time += 10
        scene.shown, scene.version = lease(str(renewed)), version(minor)
        await scene.controller.look()
        answers.append(scene.controllers.eviction)
    assert answers == [True] * 5
    scene.time += AGREED_SECONDS
    scene.shown = lease("last")
    await scene.controller.look()
    assert not scene.controllers.eviction


async def test_without_a_controller_manager_the_version_is_not_asked_for() -> None:
    scene = Scene()
    scene.version = AssertionError()
    assert await scene.look(0, ABSENT)


async def test_a_machine_that_slept_says_nothing_about_a_controller_manager_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a cluster on a laptop: the operator may be awake first, and must not count the night."""
    scene = Scene()
    common = CommonRelease().heard
    controller = ControllerManager(cast(Api, scene), scene.controllers, scene.became_ours, common, scene.records_here)
    scene.shown = lease("1")
    for seconds in (1000.0, 30000.0):
        monkeypatch.setattr(time, "clock_gettime", lambda _, now=seconds: now)
        await controller.look()
    assert not scene.controllers.templates
    assert scene.calls == 0


async def test_all_is_looked_at_again_when_work_becomes_ours_later_and_not_at_the_start() -> None:
    scene = Scene()
    await scene.look(0, ABSENT)
    assert scene.calls == 0
    await scene.look(2, lease("1"))
    await scene.look(31, lease("1"))
    assert scene.calls == 1


async def test_each_change_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    with caplog.at_level(logging.INFO, "dra_operator.app.control_plane"):
        for shown in (lease("1"), lease("2"), ABSENT, ABSENT):
            await scene.look(1, shown)
    assert [record.message for record in caplog.records] == [
        "left to kube-controller-manager: templates, release, eviction; controllers run here: placement, allocation",
        "no kube-controller-manager is running in this cluster; controllers run here: templates, release, placement, "
        "eviction, allocation",
    ]


async def test_a_denial_is_reported_once_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    caplog.set_level(logging.INFO, "dra_operator.app.control_plane")
    for _ in range(3):
        await scene.look(10, DENIED)
    assert "works in this cluster" not in caplog.text, "nothing is known about that"
    (warning,) = (record.message for record in caplog.records if record.levelno == logging.WARNING)
    assert "Role dra-operator-leader-election" in warning
    assert "--controllers" in warning


def pod(claim: str | None, node: str = "", uid: str = "u1", group: str = "") -> Pod:
    """A pod with one entry, for which it records the claim."""
    statuses = [{"name": "gpu", "resourceClaimName": claim}] if claim else []
    entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
    return convert(
        Pod,
        {
            "metadata": {"name": "train", "namespace": "default", "uid": uid},
            "spec": {
                "resourceClaims": [entry],
                "nodeName": node,
                "containers": [],
                **({"schedulingGroup": {"podGroupName": group}} if group else {}),
            },
            "status": {"resourceClaimStatuses": statuses},
        },
    )


OWN = generated_name("train-gpu-", "u1", "gpu", 0)


async def test_a_claim_that_somebody_else_recorded_shows_a_controller_manager_without_a_lease() -> None:
    scene = Scene()
    answers = [await scene.look(0, ABSENT)]
    scene.controller.saw(pod(None), pod("train-gpu-x7k2p"))
    for seconds in (0, 599, 1):
        answers.append(await scene.look(seconds, ABSENT))
    assert answers == [True, False, False, True]
    scene.controller.saw(pod(None), pod("train-gpu-x7k2p"))
    await scene.look(599, ABSENT)
    scene.controller.saw(pod(None, uid="u2"), pod("train-gpu-b4444", uid="u2"))
    assert not await scene.look(599, ABSENT), "each such claim counts, also while claims are left to it"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (pod(None), pod(OWN)),
        (pod(None), pod(generated_name("train-gpu-", "u1", "gpu", 4))),
        (pod(None), pod("train-gpu")),
        (pod("train-gpu-x7k2p"), pod("train-gpu-x7k2p")),
        (pod("train-gpu-x7k2p"), pod(None)),
        (pod(None), pod("train-gpu-x7k2p", node="node-1")),
        (None, pod("train-gpu-x7k2p")),
        (pod(None, uid="u0"), pod("train-gpu-x7k2p")),
        (pod(None, group="team"), pod("team-gpu-x7k2p", group="team")),
    ],
    ids=[
        "ours",
        "ours, when names were taken",
        "of Kubernetes up to 1.27",
        "known before",
        "withdrawn",
        "written by a node",
        "a list brought it",
        "of its predecessor",
        "perhaps of its group, whose names follow from the group",
    ],
)
async def test_what_may_be_from_elsewhere_shows_no_controller_manager(before: Pod | None, now: Pod) -> None:
    scene = Scene()
    await scene.look(0, ABSENT)
    scene.controller.saw(before, now)
    assert await scene.look(0, ABSENT)


async def test_a_claim_that_was_recorded_here_shows_no_controller_manager() -> None:
    """A user may make a claim for a pod of his own, which is recorded, and the watch may be faster than the answer."""
    scene = Scene()
    await scene.look(0, ABSENT)
    before, now = pod(None), pod("train-gpu-x7k2p")
    scene.recorded_here.add(f"{now.key} train-gpu-x7k2p")
    scene.controller.saw(before, now)
    assert await scene.look(0, ABSENT)


async def test_while_it_renews_its_lease_its_claims_show_nothing_for_later() -> None:
    scene = Scene()
    await scene.look(0, lease("1"))
    scene.controller.saw(pod(None), pod("train-gpu-x7k2p"))
    assert await scene.look(31, lease("1")), "it is gone as soon as its Lease is over"


@pytest.mark.parametrize("later", range(5))
async def test_it_ends_when_it_is_told_to_while_a_claim_shows_something(later: int) -> None:
    """``asyncio.wait_for`` lost the cancellation: an operator that had to end then did not."""
    scene = Scene()
    await scene.look(0, ABSENT)
    task = asyncio.create_task(scene.controller.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    scene.controller.saw(pod(None), pod("train-gpu-x7k2p"))
    for _ in range(later):
        await asyncio.sleep(0)
    task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert task.done()
