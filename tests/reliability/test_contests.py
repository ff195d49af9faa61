"""Two schedulers give away the devices of one driver: no device twice, and none lost to the other's record.

``KOPF_DRA_ROUNDS=30 pytest tests/reliability/test_contests.py -k leaders`` tries it with thirty new leaders, and
``KOPF_DRA_ROUNDS=200 ... -k restarts`` with two hundred contests; see ``tests/support/contests.py``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from contest_model import OLD, Rules, explore
from contests import Outcome, play_contests, play_leaders
from envtest import needs_stock_control_plane
from rounds import rounds

RULES = Rules()


@pytest.mark.parametrize(
    ("ours", "theirs", "devices"),
    [(1, 2, 1), (1, 3, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1), (2, 3, 1), (2, 2, 2), (1, 3, 2)],
)
@pytest.mark.parametrize("restarts", [0, 1])
def test_no_order_of_events_gives_a_device_twice(ours: int, theirs: int, devices: int, restarts: int) -> None:
    found = explore(RULES, ours=ours, theirs=theirs, devices=devices, restarts=restarts)
    assert found.fault == "", found.story
    assert found.states > 50


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        pytest.param(OLD, "is twice", id="the former rules"),
        pytest.param(replace(RULES, looks_again=False), "ours 0 and theirs 0", id="no look again"),
        pytest.param(replace(RULES, remembers=False), "ours 0 and theirs 1", id="the former holder is forgotten"),
        pytest.param(replace(RULES, parks=False), "theirs 0 and theirs 1", id="ours gives way"),
        pytest.param(replace(RULES, waits_for_quiet=False), "theirs 1 and theirs 2", id="gives back while others wait"),
        pytest.param(replace(RULES, takes_again=False), "theirs 1 and theirs 2", id="does not take again"),
        pytest.param(replace(RULES, sees_first=False), "ours 0 and theirs 0", id="a new leader that sees nothing"),
        pytest.param(replace(RULES, notes_in_flight=False), "ours 0 and theirs 1", id="forgets while it writes"),
    ],
)
def test_each_rule_is_needed(rules: Rules, what: str) -> None:
    found = explore(rules, ours=1, theirs=3, devices=1, restarts=1)
    assert "is twice" in found.fault
    assert what in found.fault


def test_two_pods_in_the_moment_in_which_a_contest_ends_are_too_many() -> None:
    """What no rule prevents, as the page says: each assumption is needed, too."""
    found = explore(RULES, ours=1, theirs=3, devices=1, at_once=2)
    assert "theirs 1 and theirs 2" in found.fault


def test_watches_that_hide_a_pod_of_theirs_for_longer_than_the_wait_are_too_late() -> None:
    """What no rule prevents either: a look in all namespaces would find a claim that has the device, not one that had
    it. To wait until the watches have brought all that was written before the look would be enough."""
    hides_holder = explore(RULES, ours=1, theirs=1, devices=1, late=True)
    assert "ours 0 and theirs 0" in hides_holder.fault
    hides_former = explore(replace(RULES, looks_everywhere=True), ours=1, theirs=2, devices=1, late=True)
    assert "ours 0 and theirs 1" in hides_former.fault
    for restarts in (0, 1):
        awaits = replace(RULES, looks_everywhere=True, awaits_watches=True)
        found = explore(awaits, ours=1, theirs=2, devices=1, restarts=restarts, late=True)
        assert found.fault == "", found.story


@needs_stock_control_plane
@pytest.mark.timeout(3600)
async def test_new_leaders_beside_kube_scheduler(tmp_path: Path) -> None:
    """One starts, one takes over after a kill, and one follows in an upgrade."""
    _nothing_wrong(await play_leaders(tmp_path, len(rounds(3))))


@needs_stock_control_plane
@pytest.mark.timeout(7200)
async def test_contests_with_restarts_of_both(tmp_path: Path) -> None:
    """The operator is killed in every third one, and kube-scheduler started again in every fourth."""
    _nothing_wrong(await play_contests(tmp_path, len(rounds(4))))


def _nothing_wrong(outcome: Outcome) -> None:
    print(outcome)
    assert not outcome.twice, outcome
    assert not outcome.lost, outcome
