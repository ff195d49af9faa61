"""A selector that takes long is evaluated in pieces, and what it said of a device is not asked again."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from allocator_lab import Json, Lab, claim, device, first_available, lab, make_node, pool, request, sub
from dra_api.resource import Device
from dra_ledger.cel_language import CelSelectors
from dra_ledger.errors import NotEvaluated
from dra_ledger.predicates import Weighed
from dra_operator.allocator import Allocated, Failed, Features

NUMBERS = "[" + ",".join("1" * 40) + "]"
LOOPS = f"{NUMBERS}.all(a, {NUMBERS}.all(b, {NUMBERS}.all(c, a + b + c >= 0)))"
"""Half a second for each device."""


class Counting:
    """A language of costly selectors that takes three pauses for each device and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def compile(self, expression: str) -> Weighed:
        def test(driver: str, device: Device) -> bool:
            raise AssertionError(f"{expression} was evaluated in one go on {device.name}")

        def in_parts(driver: str, device: Device) -> Generator[None, None, bool]:
            for _ in range(3):
                yield
            self.asked.append((expression, device.name))
            if expression == "fails":
                raise ValueError(f"no such thing on {device.name}")
            return expression != "none"

        return Weighed(test, 100_000, in_parts)


def counting(*selectors: str, devices: int = 5) -> tuple[Lab, Counting]:
    """One pool, and one claim with these selectors."""
    language = Counting()
    slices = pool(*(device(f"d{number}") for number in range(devices)), nodeName="n1")
    made = lab(slices, [claim(request("r", *selectors))], language=language)
    made.allocator.inventory.compiled.patient = False
    return made, language


def test_a_costly_selector_is_evaluated_in_pieces_that_name_it() -> None:
    made, language = counting("costly")
    assert list(made.allocator.catch_up(made.claims, made.usage)) == ["costly"] * 20
    assert isinstance(made.decide(), Allocated)
    assert language.asked == [("costly", f"d{number}") for number in range(5)]


def test_an_attempt_goes_on_with_the_device_at_which_another_was_dropped() -> None:
    made, language = counting("costly")
    pieces = made.allocator.catch_up(made.claims, made.usage)
    for _ in range(8):
        next(pieces)
    del pieces
    assert len(list(made.allocator.catch_up(made.claims, made.usage))) == 12
    assert [name for _, name in language.asked] == ["d0", "d1", "d2", "d3", "d4"]


def test_two_attempts_may_evaluate_the_same_in_turns() -> None:
    made, language = counting("costly")
    one = made.allocator.catch_up(made.claims, made.usage)
    other = made.allocator.catch_up(made.claims, made.usage)
    for pieces in (one, other, one, one, other, other, other):
        next(pieces)
    list(one)
    list(other)
    assert [name for _, name in language.asked] == ["d0", "d1", "d2", "d3", "d4"], "they share the work"
    assert isinstance(made.decide(), Allocated)


def test_what_one_selector_excludes_costs_the_next_one_nothing() -> None:
    made, language = counting("none", "costly")
    list(made.allocator.catch_up(made.claims, made.usage))
    assert {expression for expression, _ in language.asked} == {"none"}


def test_the_failure_of_a_costly_selector_is_remembered() -> None:
    made, language = counting("fails")
    list(made.allocator.catch_up(made.claims, made.usage))
    outcome = made.decide()
    assert isinstance(outcome, Failed)
    assert "no such thing on d0" in str(outcome.error)
    assert len(language.asked) == 5


def test_what_was_never_evaluated_is_not_evaluated_in_one_go() -> None:
    made, _ = counting("costly")
    outcome = made.decide()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, NotEvaluated)
    assert "100000 units" in str(outcome.error)
    assert "costly" in str(outcome.error)


def test_the_selector_that_stopped_a_cluster_takes_pieces_of_milliseconds() -> None:
    """Each piece is some thousand steps of half a million: so many pauses let other work run."""
    slices = pool(*(device(f"d{number}") for number in range(2)), nodeName="n1")
    made = lab(slices, [claim(request("r", LOOPS))], language=CelSelectors(Features()))
    made.allocator.inventory.compiled.patient = False
    assert len(list(made.allocator.catch_up(made.claims, made.usage))) > 150
    assert isinstance(made.decide(), Allocated)


@pytest.mark.parametrize("selector", [LOOPS, f"{LOOPS} && device.driver == 'x'", f"!({LOOPS})", f"{LOOPS} && 1/0 == 1"])
def test_pieces_give_the_same_answer_as_one_go(selector: str) -> None:
    slices = pool(device("d"), nodeName="n1")
    whole = lab(slices, [claim(request("r", selector))])
    pieces = lab(slices, [claim(request("r", selector))], language=CelSelectors(Features()))
    pieces.allocator.inventory.compiled.patient = False
    list(pieces.allocator.catch_up(pieces.claims, pieces.usage))
    assert pieces.devices() == whole.devices()


def test_cheap_selectors_pause_as_well_if_they_are_many() -> None:
    """31 x 8 x 32 selectors of 50 characters: each costs little."""

    def alternative(first: int) -> Json:
        return sub(f"a{first}", *(f"device.driver != 'd{first + number}'" for number in range(32)))

    requests = [
        first_available(f"r{number}", *(alternative((number * 8 + entry) * 32) for entry in range(8)))
        for number in range(31)
    ]
    slices = pool(*(device(f"d{number}") for number in range(32)), nodeName="n1")
    made = lab(slices, [claim(*requests)], language=CelSelectors(Features()))
    first = sum(1 for piece in made.allocator.catch_up(made.claims, made.usage) if piece)
    assert first > 50
    made.allocator.inventory.compiled.spend(0)
    assert list(made.allocator.catch_up(made.claims, made.usage)) == [], "the next attempt begins afresh"


def test_nothing_is_evaluated_for_slices_that_changed_meanwhile_in_one_go() -> None:
    made, _ = counting("costly")
    inventory = made.allocator.inventory
    pieces = made.allocator.catch_up(made.claims, made.usage)
    next(pieces)

    (pool_,) = (inventory.pool(id_) for id_ in inventory.pools())
    assert pool_ is not None
    replaced = inventory.slice(next(iter(pool_.slices)).name)
    assert replaced is not None
    inventory.put_slice(replaced)
    assert set(pieces) == {"costly"}
    assert made.allocator.candidates(made.claims, made.usage) is not None
    assert isinstance(made.decide(make_node("n1")), Allocated)
