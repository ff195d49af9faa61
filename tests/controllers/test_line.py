"""In which order keys are worked on: namespaces share the time first, then priority and age decide."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dra_operator.cache import Key
from dra_operator.controllers.fairness import (
    LARGE_KEY_TURNS,
    MOST_DECISION_SECONDS,
    PAID_BACK_SHARE,
    SPARE_ENTRIES,
    USE_STEP_SECONDS,
    Fairness,
    may_have_another,
)
from hypothesis import given
from hypothesis import strategies as st
from remembered import sizes


class Clock:
    """Time in hand, in which no round begins."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        raise NotImplementedError


def begin(keys: Sequence[Key]) -> Sequence[Key]:
    return keys


def key(name: str) -> Key:
    return Key("placement", name)


def drained(line: Fairness) -> list[str]:
    return [line.pop().object for _ in range(line.ready)]


def test_while_nobody_is_in_debt_rank_alone_decides() -> None:
    line = Fairness(Clock(), begin)
    for rank, name in enumerate(["b/2", "a/1", "b/1", "a/2"]):
        line.push(key(name), 0, (rank % 2,))
    assert drained(line) == ["b/2", "b/1", "a/1", "a/2"]


def test_a_namespace_in_debt_comes_after_those_without_and_keeps_its_own_order() -> None:
    line = Fairness(Clock(), begin)
    for name in ("a/1", "a/2", "b/1", "c/1"):
        line.push(key(name), 0, ())
    line.push(key("a/0"), 1, ())
    line.charge(key("a/x"), 0.02)
    line.charge(key("b/x"), 0.01)
    assert drained(line) == ["c/1", "b/1", "a/1", "a/2", "a/0"]


def test_debts_are_paid_back_by_time() -> None:
    clock = Clock()
    line = Fairness(clock, begin)
    line.charge(key("a/x"), 1.0)
    for clock.now, order in ((0.99 / PAID_BACK_SHARE, ["b/1", "a/1"]), (1.0 / PAID_BACK_SHARE, ["a/1", "b/1"])):
        line.push(key("a/1"), 0, ())
        line.push(key("b/1"), 0, ())
        assert drained(line) == order


def test_no_namespace_owes_more_than_three_seconds() -> None:
    clock = Clock()
    line = Fairness(clock, begin)
    for _ in range(1000):
        line.charge(key("a/x"), 1.0)
    clock.now = MOST_DECISION_SECONDS / PAID_BACK_SHARE
    line.push(key("a/1"), 0, ())
    line.push(key("b/1"), 0, ())
    assert drained(line) == ["a/1", "b/1"]


def test_ten_namespaces_of_cheap_pods_do_not_have_another_one_wait() -> None:
    """None of them owes anything: what each takes is paid back before its next turn."""
    line = Fairness(Clock(), begin)
    for number in range(10_000):
        line.push(key(f"hoarder-{number % 10}/{number}"), 0, (0, "2026-01-01"))
    for second in range(10):
        line.push(key(f"neighbour/{second}"), 0, (0, "2026-11-29"))
        line.push(key(f"neighbour/urgent-{second}"), 0, (-1, "2026-11-29"))
        assert line.pop() == key(f"neighbour/urgent-{second}")
        for before in range(1, 1000):  # noqa: B007
            popped = line.pop()
            line.looked_at(popped, 0.0, 0.003)
            if popped.namespace == "neighbour":
                break
        assert before * 0.003 < 10 * (USE_STEP_SECONDS + 0.003), second


def test_use_of_namespaces_that_want_nothing_more_is_forgotten() -> None:
    line = Fairness(Clock(), begin)
    line.push(key("last/1"), 0, (1,))  # so that something is in line all the time
    for number in range(10_000):
        line.push(key(f"a-{number}/1"), 0, (0,))
        popped = line.pop()
        line.looked_at(popped, 0.0, 0.01)
        line.leave(popped)
    assert max(sizes(line).values()) < 100, sizes(line)


def test_namespaces_are_equal_again_when_nothing_is_in_line() -> None:
    line = Fairness(Clock(), begin)
    line.looked_at(key("a/1"), 0.0, 1.0)
    for name in ("a/2", "b/1"):
        line.push(key(name), 0, ())
    assert drained(line) == ["a/2", "b/1"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("charge"), st.sampled_from("abc"), st.integers(1, 9), st.just(0), st.just(False)),
        st.tuples(st.just("use"), st.sampled_from("abc"), st.integers(1, 9), st.just(0), st.just(False)),
        st.tuples(st.just("wait"), st.just(""), st.integers(0, 40), st.just(0), st.just(False)),
        st.tuples(st.sampled_from(["pop", "leave"]), st.just(""), st.just(0), st.just(0), st.just(False)),
    )
)
_Step = tuple[str, str, int, int, bool]


@given(STEPS, st.integers(1, 12))
def test_the_line_is_in_the_order_that_its_page_describes(steps: list[_Step], workers: int) -> None:
    clock = Clock()
    line, paid_at = Fairness(clock, begin, workers), dict.fromkeys("abc", 0.0)
    waiting: list[tuple[str, int, int, int, bool]] = []
    working: list[tuple[str, bool, Key]] = []
    aside: set[str] = set()
    use, served = dict.fromkeys("abc", 0), 0
    """In fifths of a step."""

    def has_its_share(namespace: str) -> bool:
        held = sum(it[:2] == (namespace, False) for it in working)
        return not may_have_another(held, workers - len(working))

    def is_in_line(namespace: str, is_large: bool) -> bool:
        if not is_large:
            return namespace not in aside
        free = max(1, min(LARGE_KEY_TURNS, workers // 2)) - sum(it[1] for it in working)
        return free > 1 if (namespace, True) in [it[:2] for it in working] else free > 0

    for number, (what, namespace, first, second, is_large) in enumerate(steps):
        if what == "push":
            if not waiting:
                use, served = dict.fromkeys("abc", 0), 0
            if not any(it[0] == namespace for it in waiting):
                use[namespace] = max(use[namespace], served)
            line.push(key(f"{namespace}/{number}"), first, (second // 2, second % 2), is_large=is_large)
            waiting.append((namespace, first, second, number, is_large))
        elif what == "charge":
            line.charge(key(f"{namespace}/x"), first / 10)
            due = max(clock.now, paid_at[namespace]) + first / 10 / PAID_BACK_SHARE
            paid_at[namespace] = min(due, clock.now + MOST_DECISION_SECONDS / PAID_BACK_SHARE)
        elif what == "use":
            line.looked_at(key(f"{namespace}/x"), 0.0, (first + 0.01) * USE_STEP_SECONDS / 5)
            use[namespace] += first
        elif what == "wait":
            clock.now += first / 10
        elif what == "leave":
            if working:
                line.leave(working.pop(0)[2])
                aside = set(filter(has_its_share, aside))
        elif len(working) < workers and (in_line := [it for it in waiting if is_in_line(it[0], it[4])]):
            debts = {it: due if due > clock.now else 0.0 for it, due in paid_at.items()}
            places = {(debts[it[0]], it[1], it[2] // 2, use[it[0]] // 5, it[2] % 2, it[3]): it for it in in_line}
            next_ = places[min(places)]
            served = use[next_[0]]
            waiting.remove(next_)
            popped = line.pop()
            assert popped.object == f"{next_[0]}/{next_[3]}"
            working.append((next_[0], next_[4], popped))
            aside |= set(() if next_[4] else filter(has_its_share, [next_[0]]))
        assert line.ready == sum(is_in_line(namespace, is_large) for namespace, *_, is_large in waiting)


def test_keys_of_large_claims_leave_workers_to_others_and_nothing_of_them_is_kept() -> None:
    """They wait for their turns, and one tenant's must not wait with all the workers, in however many namespaces."""
    line = Fairness(Clock(), begin, 50)
    for number in range(1000):
        line.push(key(f"hoarder-{number % 20}/{number}"), 0, (0,), is_large=True)
    line.push(key("neighbour/large"), 0, (1,), is_large=True)
    line.push(key("neighbour/small"), 0, (2,))
    first = [line.pop() for _ in range(LARGE_KEY_TURNS)]
    assert {it.namespace for it in first} == {f"hoarder-{number}" for number in range(LARGE_KEY_TURNS)}
    assert line.pop() == key("neighbour/small")
    assert not line.ready
    for number in range(997):
        line.leave(first.pop(0))
        first.append(line.pop())
        assert not line.ready, number
    for each in (*first, key("neighbour/small")):
        line.leave(each)
    assert max(sizes(line).values()) <= 2 * SPARE_ENTRIES


def test_what_was_charged_long_ago_is_forgotten_although_others_always_go_first() -> None:
    clock = Clock()
    line = Fairness(clock, begin)
    line.push(key("a/1"), 0, ())
    for number in range(10_000):
        line.push(key("b/1"), 0, ())
        line.charge(key("a/x"), 0.01)
        clock.now += 0.01
        assert line.pop() == key("b/1"), number
    held = sizes(line)
    assert max(held.values()) < 100, held
