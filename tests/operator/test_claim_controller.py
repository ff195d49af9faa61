"""Whose the claims are, from what the Lease of kube-controller-manager shows over time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import pytest
from dra_kube import Api, Forbidden, NotFound, Resource, Unreachable
from dra_operator.app.claim_controller import ClaimController
from dra_operator.reconcile import Concerns

Lease = dict[str, Any]


def lease(renewed: str, holder: str = "cp-1", seconds: int = 15) -> Lease:
    return {"spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": renewed}}


ABSENT = NotFound(404, "NotFound", "no lease")
DENIED = Forbidden(403, "Forbidden", 'leases "kube-controller-manager" is forbidden')
AWAY = Unreachable("connection refused")
LONG = lease("1", seconds=60)
Seen = tuple[float, Lease | Exception]
YESTERDAY, TOMORROW = "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"


class Scene:
    """A Lease that shows what each test says, at times that each test says."""

    def __init__(self) -> None:
        self.time = 0.0
        self.shown: Lease | Exception = ABSENT
        self.calls = 0
        self.concerns = Concerns()
        api = cast(Api, self)
        self.controller = ClaimController(api, self.concerns, self.became_ours, clock=lambda: self.time)

    async def get(self, resource: Resource, name: str, namespace: str) -> Lease:
        assert (resource.plural, namespace, name) == ("leases", "kube-system", "kube-controller-manager")
        if isinstance(self.shown, Exception):
            raise self.shown
        return self.shown

    def became_ours(self) -> None:
        self.calls += 1

    async def look(self, seconds: float, shown: Lease | Exception) -> bool:
        """Whether claims are ours after another look."""
        self.time += seconds
        self.shown = shown
        await self.controller.look()
        assert self.concerns.templates == self.concerns.release
        assert self.concerns.placement
        return self.concerns.templates


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
        ([(0, lease("1")), (31, lease("1")), (2, lease("2"))], [False, True, False]),
        ([(0, lease(YESTERDAY)), (10, lease(TOMORROW)), (10, lease(YESTERDAY))], [False] * 3),
        ([(0, LONG), (100, LONG), (20, LONG)], [False, False, True]),
        ([(0, DENIED), (100, DENIED)], [False, False]),
        ([(0, AWAY), (10, ABSENT)], [False, True]),
        ([(0, ABSENT), (10, AWAY)], [True, True]),
        ([(0, lease("1")), (10, AWAY), (10, lease("2"))], [False] * 3),
    ],
    ids=[
        "no lease",
        "renewed",
        "no more renewed",
        "the last renewal counts",
        "it comes",
        "it goes with its lease",
        "released",
        "it comes back",
        "its clock is wrong and steps",
        "a longer lease is waited for longer",
        "not allowed to see it",
        "server away at first",
        "server away when ours",
        "server away when theirs",
    ],
)  # fmt: skip
async def test_whose_the_claims_are(seen: Sequence[Seen], ours: Sequence[bool]) -> None:
    scene = Scene()
    assert [await scene.look(seconds, shown) for seconds, shown in seen] == ours


async def test_all_is_looked_at_again_when_claims_become_ours_later_and_not_at_the_start() -> None:
    scene = Scene()
    await scene.look(0, ABSENT)
    assert scene.calls == 0
    await scene.look(2, lease("1"))
    await scene.look(31, lease("1"))
    assert scene.calls == 1


async def test_each_change_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    with caplog.at_level(logging.INFO, "dra_operator.app.claim_controller"):
        for shown in (lease("1"), lease("2"), ABSENT, ABSENT):
            await scene.look(1, shown)
    assert [record.message for record in caplog.records] == [
        "kube-controller-manager makes and releases claims in this cluster; ours: placement",
        "no kube-controller-manager makes and releases claims; ours: templates, release, placement",
    ]


async def test_a_denial_is_told_once_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    for _ in range(3):
        await scene.look(10, DENIED)
    (warning,) = (record.message for record in caplog.records if record.levelno == logging.WARNING)
    assert "Role dra-operator-leader-election" in warning
    assert "--concerns" in warning
