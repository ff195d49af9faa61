"""Attempts to make room take a twentieth of the time at most, and no tenant takes the turns of another one."""

from __future__ import annotations

import heapq
from collections import Counter

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_operator.controllers.scheduling.victims import PATIENCE_SECONDS, PreemptionTurns

REST = 10.0


class Cluster:
    """Pods that want a turn, in a time of its own. An attempt takes ``takes`` seconds."""

    def __init__(self, takes: float) -> None:
        self.takes, self.now, self.had = takes, 0.0, Counter[str]()
        self.gone: set[str] = set()
        self.recalled: set[str] = set()
        self._looks: list[tuple[float, str]] = []
        self.looked = 0
        self._pods: dict[str, Pod] = {}
        self.turns = PreemptionTurns(lambda: self.now, REST, self.look_again, lambda key: key not in self.gone)

    def look_again(self, key: str, seconds: float) -> None:
        heapq.heappush(self._looks, (self.now + seconds, key))

    def add(self, namespace: str, name: str) -> None:
        meta = {"namespace": namespace, "name": name, "uid": f"uid-{namespace}-{name}"}
        made = convert(Pod, {"metadata": meta})
        self._pods[made.key] = made
        self.look(made.key)

    def look(self, key: str) -> None:
        self.looked += 1
        if key not in self.gone and self.turns.may_try(self._pods[key], recalls=key in self.recalled):
            self.had[key] += 1
            self.now += self.takes
            self.turns.took(self._pods[key], self.takes)

    def passes(self, seconds: float, *, again: bool = False) -> None:
        """Look at pods when that was asked for; with ``again`` those that had a turn want another one at once."""
        end = self.now + seconds
        while self._looks and self._looks[0][0] <= end:
            due, key = heapq.heappop(self._looks)
            self.now = max(self.now, due)
            before = self.had[key]
            self.look(key)
            if again and self.had[key] > before:
                self.look(key)
        self.now = max(self.now, end)


def test_nobody_has_a_turn_right_after_the_start() -> None:
    cluster = Cluster(0.001)
    cluster.add("a", "pod")
    assert not cluster.had
    cluster.passes(REST - 0.1)
    assert not cluster.had
    assert cluster.looked < 5
    cluster.passes(0.2)
    assert cluster.had == {"a/pod": 1}


def test_pods_that_are_nominated_already_have_a_twentieth_of_the_time_before() -> None:
    cluster = Cluster(0.1)
    cluster.recalled.update(f"a/pod-{number}" for number in range(200))
    cluster.add("b", "pod")
    for number in range(200):
        cluster.add("a", f"pod-{number}")
    cluster.passes(REST - 0.5)
    assert 3 <= cluster.had.total() <= 5  # of 0.1 s each, in ten seconds
    assert "b/pod" not in cluster.had
    cluster.passes(REST)
    assert cluster.had["b/pod"] == 1


def test_a_pod_has_one_attempt_every_ten_seconds() -> None:
    cluster = Cluster(0.001)
    cluster.add("a", "pod")
    cluster.passes(10 * REST + 1, again=True)
    assert cluster.had["a/pod"] in (9, 10)


def test_all_attempts_together_take_a_twentieth_of_the_time() -> None:
    cluster = Cluster(0.1)
    for number in range(200):
        cluster.add(f"ns-{number % 3}", f"pod-{number}")
    cluster.passes(REST + 100, again=True)
    assert 40 <= cluster.had.total() <= 51  # of 0.1 s each, in 100 s


def test_many_tenants_have_their_turns_one_after_the_other() -> None:
    cluster = Cluster(0.1)
    for number in range(40):
        for name in "abcd":
            cluster.add(name, f"pod-{number}")
    cluster.passes(REST + 40)
    had = Counter(key[0] for key in cluster.had)
    assert had.total() > 12
    assert max(had.values()) - min(had[name] for name in "abcd") <= 1


@pytest.mark.parametrize("recalls", [True, False])
def test_while_an_attempt_pauses_no_other_one_begins_and_after_it_nobody_is_waited_for(recalls: bool) -> None:
    cluster = Cluster(0.1)
    cluster.now = 0.0 if recalls else REST
    first, second = (convert(Pod, {"metadata": {"namespace": "ns", "name": it, "uid": it}}) for it in "ab")
    assert cluster.turns.may_try(first, recalls=recalls)
    cluster.now += 0.5
    assert not cluster.turns.may_try(second, recalls=recalls)
    cluster.now += PATIENCE_SECONDS  # it is over, or given up
    assert cluster.turns.may_try(second, recalls=recalls)
    cluster.turns.took(second, 0.01)
    cluster.now += 0.2
    third = convert(Pod, {"metadata": {"namespace": "ns", "name": "c", "uid": "c"}})
    assert cluster.turns.may_try(third, recalls=recalls)


def test_three_thousand_pods_of_one_tenant_put_a_pod_of_another_one_off_by_one_attempt() -> None:
    cluster = Cluster(0.5)
    for number in range(3000):
        cluster.add("hostile", f"pod-{number}")
    cluster.passes(REST + 20)
    cluster.add("other", "pod")
    cluster.passes(2 * 20 * 0.5, again=True)
    assert cluster.had["other/pod"] == 1
    assert cluster.had.total() >= 3


def test_pods_that_come_and_go_do_not_keep_others_from_their_turn() -> None:
    cluster = Cluster(0.01)
    cluster.passes(REST)
    for number in range(50):
        cluster.add("churning", f"pod-{number}")
    cluster.gone.update(f"churning/pod-{number}" for number in range(1, 50))
    cluster.add("other", "pod")
    cluster.passes(PATIENCE_SECONDS + 1)
    assert cluster.had["other/pod"] == 1


def test_a_pod_that_was_called_and_is_gone_is_passed_over() -> None:
    cluster = Cluster(0.1)
    cluster.passes(REST)
    for name in ("first", "called", "third"):
        cluster.add("a", name)
    assert cluster.had == {"a/first": 1}
    cluster.gone.add("a/called")
    cluster.passes(60 + PATIENCE_SECONDS)
    assert cluster.had["a/third"] == 1


def test_the_pods_of_a_gang_have_one_turn_together() -> None:
    cluster, pods = Cluster(0.001), []
    for name in ("a", "b"):
        pods.append(convert(Pod, {"metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}"}}))
    cluster.now = REST
    assert cluster.turns.may_try(pods[0], "gang")
    cluster.turns.took(pods[0], 0.001, "gang")
    cluster.now += REST - 1
    assert not cluster.turns.may_try(pods[1], "gang")
    cluster.now += 2
    assert cluster.turns.may_try(pods[1], "gang")
