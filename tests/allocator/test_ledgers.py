"""Any ledger gives the same answers with pruning and without, also one that knows nothing of pruning.

A feature of single devices is one ledger, made in one place (``problem.wanted_ledgers``). Those written here say
nothing but what may be taken: whatever the pruning takes for granted has to come from safe defaults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from random import Random

import dra_operator.allocator.search as search_module
import pytest
from allocator_lab import Lab, claim, device, lab, make_node, outcome_kind, pool, request
from allocator_problems import CrowdedMaker, Maker, comparable, laboratory, make_case
from dra_api.codec import convert
from dra_api.core import Node
from dra_ledger.basics import each
from dra_operator.allocator import Allocated, GaveUp, Outcome, Refused
from dra_operator.allocator.problem import problem
from dra_operator.allocator.problem.ledgers import Ledger, Request
from dra_operator.allocator.problem.node_state import Domain, NodeState, Wanted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounds import fewer

relaxed = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
BUDGET = 40_000
"""Steps after which a search gives up; without pruning, some do."""
Colour = int


class Naive(Ledger):
    """Remembers what was taken by whom, and decides device by device. ``colours`` is an attribute of the devices."""

    def __init__(self, node: NodeState) -> None:
        self.colours = [_colour(node, number) for number in range(len(node.view.devices))]
        self.taken: list[tuple[int, int]] = []

    def admit(self, devices: int, request: Request) -> int:
        return sum(1 << number for number in each(devices) if self.may(number, request))

    def take(self, device: int, request: Request) -> None:
        self.taken.append((device, request.number))

    def give_back(self, device: int, request: Request) -> None:
        assert self.taken.pop() == (device, request.number)

    def may(self, device: int, request: Request) -> bool:
        raise NotImplementedError


class AtMostTwoOfAColour(Naive):
    def may(self, device: int, request: Request) -> bool:
        return sum(self.colours[other] == self.colours[device] for other, _ in self.taken) < 2


class NeverTheColourBefore(Naive):
    """Depends on the order, and opens what was closed."""

    def may(self, device: int, request: Request) -> bool:
        return not self.taken or self.colours[self.taken[-1][0]] != self.colours[device]


class OnlyBehindItsElder(Naive):
    """A device with an odd number needs one of its colour to be taken before: it opens late."""

    def may(self, device: int, request: Request) -> bool:
        return device % 2 == 0 or any(self.colours[other] == self.colours[device] for other, _ in self.taken)


class EachRequestItsOwnTaste(Naive):
    """Tells requests apart that ask for the same."""

    def may(self, device: int, request: Request) -> bool:
        return (self.colours[device] + request.number) % 3 != 0 or len(self.taken) % 2 == 1


class EndsWithAnError(AtMostTwoOfAColour):
    """A request for all devices that it refuses one of is fatal."""

    ends_attempt = True

    def __str__(self) -> str:
        return "at most two of a colour"


class SaysWhatItKnows(AtMostTwoOfAColour):
    """Claims all that is true of it, so that the pruning uses it."""

    lasting = True

    def state(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted(Counter(self.colours[device] for device, _ in self.taken).items()))

    def tells_apart(self, devices: int, requests: object) -> Iterable[int]:
        colours: dict[Colour, int] = {}
        for number in each(devices):
            colours[self.colours[number]] = colours.get(self.colours[number], 0) | 1 << number
        return colours.values()

    def alike_now(self, device: int, others: int) -> int:
        return others

    def treats(self, request: Request) -> None:
        return None


LEDGERS = (
    AtMostTwoOfAColour,
    NeverTheColourBefore,
    OnlyBehindItsElder,
    EachRequestItsOwnTaste,
    EndsWithAnError,
    SaysWhatItKnows,
)


def _colour(node: NodeState, number: int) -> Colour:
    """Three colours: as the device says, or else such as no selector, constraint or counter can tell."""
    colour = (node.view.devices[number].attributes or {}).get("colour")
    return ord(colour.string or "") % 3 if colour is not None else (number * number + number // 2) % 3


def with_one_more(kind: Callable[[NodeState], Ledger]) -> Callable[[NodeState, Domain], tuple[Wanted, ...]]:
    """Gives each problem one more ledger of the kind, which all requests fall under."""
    usual = problem.wanted_ledgers
    return lambda node, domain: (*usual(node, domain), (kind, partial(kind, node)))


def decide(made: Lab, node: Node, kind: Callable[[NodeState], Ledger] | None, *, pruning: bool) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "FAILURES_BEFORE_PRUNING", -1 if pruning else 10**9)
        if kind is not None:
            patch.setattr(problem, "wanted_ledgers", with_one_more(kind))
        return made.decide(node, budget=BUDGET)


def said(outcome: Outcome) -> tuple[str, object]:
    """The kind of the outcome, with its results or error."""
    results = comparable(outcome.results) if isinstance(outcome, Allocated) else None
    return outcome_kind(outcome), results or str(getattr(outcome, "error", ""))


@pytest.mark.parametrize("kind", LEDGERS)
@pytest.mark.parametrize("problems", [Maker, CrowdedMaker])
@settings(relaxed, max_examples=fewer(25))
@given(source=st.randoms(use_true_random=False))
def test_pruning_changes_no_answer_under_any_ledger(kind: type[Naive], problems: type[Maker], source: Random) -> None:
    case = make_case(source, problems)
    made = laboratory(case)
    for node in (convert(Node, node) for node in case["nodes"]):
        plain = decide(made, node, kind, pruning=False)
        pruned = decide(made, node, kind, pruning=True)
        if not isinstance(plain, GaveUp) and not isinstance(pruned, GaveUp):
            assert said(pruned) == said(plain)


def colourful(*colours: str, requests: int, **fields: object) -> Lab:
    members = [device(f"d{number}", colour=colour) for number, colour in enumerate(colours)]
    names = [request(f"r{number}", **fields) for number in range(requests)]  # type: ignore[arg-type]
    return lab(pool(*members), [claim(*names)])


@pytest.mark.parametrize(
    ("kind", "made", "expected"),
    [
        pytest.param(AtMostTwoOfAColour, colourful(*"aaab", requests=3), ["d0", "d1", "d3"], id="two of a colour"),
        pytest.param(NeverTheColourBefore, colourful(*"aaba", requests=3), ["d0", "d2", "d1"], id="colours in turn"),
        pytest.param(OnlyBehindItsElder, colourful(*"baba", requests=2), ["d0", "d2"], id="opened late"),
        pytest.param(AtMostTwoOfAColour, colourful(*"aaa", requests=3), "none", id="no room"),
        pytest.param(EndsWithAnError, colourful(*"aaa", requests=1, allocationMode="All"), "nodeError", id="ends"),
    ],
)
@pytest.mark.parametrize("pruning", [False, True])
def test_a_naive_ledger_decides(kind: type[Naive], made: Lab, expected: object, pruning: bool) -> None:
    outcome = decide(made, make_node("n1"), kind, pruning=pruning)
    if isinstance(outcome, Allocated):
        assert [given.device for given in outcome.results[0].results] == expected
    else:
        assert outcome_kind(outcome) == expected


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        pytest.param(AtMostTwoOfAColour, "AtMostTwoOfAColour", id="by its class"),
        pytest.param(EndsWithAnError, "at most two of a colour", id="by its own words"),
    ],
)
def test_a_refusal_names_a_ledger_that_has_no_hint_of_its_own(kind: type[Naive], named: str) -> None:
    outcome = decide(colourful(*"aaaa", requests=1, count=3), make_node("n1"), kind, pruning=False)
    assert isinstance(outcome, Refused)
    assert outcome.refusal.line().endswith(f"(needs 3 devices; 4 of 4 match; no choice of devices keeps to: {named})")


def test_the_comparison_finds_a_ledger_that_claims_too_much() -> None:
    """What opens late does not last; one that says so loses its solution."""

    class Lies(OnlyBehindItsElder):
        lasting = True

    members = (device(f"d{number}", colour=colour, u=number) for number, colour in enumerate("baa"))
    names = [request(f"r{u}", f'device.attributes["drv"].u == {u}') for u in (0, 2, 1)]
    slices = pool(*members)

    def kind_of_answer(kind: type[Naive], *, pruning: bool) -> str:
        return said(decide(lab(slices, [claim(*names)]), make_node("n1"), kind, pruning=pruning))[0]

    assert kind_of_answer(OnlyBehindItsElder, pruning=True) == "allocated"
    assert kind_of_answer(Lies, pruning=False) == "allocated"
    assert kind_of_answer(Lies, pruning=True) == "none"
