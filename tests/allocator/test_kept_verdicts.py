"""What is forgotten when tenants have too many selectors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from allocator_lab import claim, device, lab, pool, request
from dra_ledger import basics
from dra_ledger.basics import CLASSES, KeptVerdicts
from dra_operator.allocator import Usage


class Slice:
    """It holds what it was given."""

    def __init__(self) -> None:
        self.held: set[tuple[str, ...]] = set()

    def drop(self, expressions: tuple[str, ...]) -> None:
        self.held.discard(expressions)


def keep(kept: KeptVerdicts, tenant: str, text: str, *slices: Slice) -> None:
    kept.used_by(tenant, (text,))
    for one in slices:
        one.held.add((text,))
        kept.added((text,), one)


def test_the_tenant_with_the_most_gives_up_what_it_has_not_used_for_longest() -> None:
    kept, one = KeptVerdicts(limit=10), Slice()
    keep(kept, "modest", "m", one)
    for number in range(30):
        keep(kept, "greedy", f"g{number}", one)
    assert kept.total == 10
    assert ("m",) in one.held
    assert {text for (text,) in one.held} == {"m", *(f"g{number}" for number in range(21, 30))}


def test_what_is_used_again_stays() -> None:
    kept, one = KeptVerdicts(limit=3), Slice()
    for text in "abc":
        keep(kept, "t", text, one)
    kept.used_by("t", ("a",))
    keep(kept, "t", "d", one)
    assert one.held == {("a",), ("c",), ("d",)}


def test_selectors_of_classes_are_not_pushed_out_by_tenants() -> None:
    kept, one = KeptVerdicts(limit=2), Slice()
    for number in range(5):
        keep(kept, CLASSES, f"class {number}", one)
    for number in range(5):
        keep(kept, "t", f"t{number}", one)
    assert sum(text.startswith("class") for (text,) in one.held) == 5
    assert len(one.held) == 7


def test_the_selectors_of_classes_have_a_limit_as_well() -> None:
    kept, one = KeptVerdicts(limit=2), Slice()
    for number in range(30):
        keep(kept, CLASSES, f"class {number}", one)
    assert len(one.held) == 10


def test_a_single_request_on_more_slices_than_there_is_room_for_loses_some() -> None:
    kept, slices = KeptVerdicts(limit=4), [Slice() for _ in range(20)]
    keep(kept, "t", "a", *slices)
    assert kept.total <= 4
    assert sum(("a",) in one.held for one in slices) == kept.total


def test_slices_that_went_are_not_counted_for_ever() -> None:
    kept = KeptVerdicts(limit=1000)
    for _ in range(10_000):
        keep(kept, "t", "a", Slice())
    gc.collect()
    keep(kept, "t", "a", *(Slice() for _ in range(40)))
    assert kept.total < 200


def test_to_look_for_slices_that_went_costs_little_for_each_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def reference(holder: Slice) -> Callable[[], Slice]:
        def look() -> Slice:
            nonlocal looks
            looks += 1
            return holder

        return look

    monkeypatch.setattr(basics, "weakref", SimpleNamespace(ref=reference))
    keep(KeptVerdicts(limit=10_000), "t", "a", *(Slice() for _ in range(2000)))
    assert looks < 2 * 2000


def test_slices_that_went_make_room_though_many_others_live() -> None:
    """More live than there are places before the first look for those that went."""
    kept, living = KeptVerdicts(limit=1000), [Slice() for _ in range(100)]
    keep(kept, "t", "a", *living)
    for _ in range(5000):
        keep(kept, "t", "a", Slice())
    assert kept.total < 1000
    assert all(("a",) in one.held for one in living), "none of them had to go"


def test_a_tenant_whose_last_selectors_had_to_go_is_forgotten() -> None:
    """Or each namespace that ever was would leave something behind."""
    kept, slices = KeptVerdicts(limit=4), [Slice() for _ in range(4)]
    keep(kept, "gone", "a", *slices)
    keep(kept, "other", "b", slices[0])
    assert [one.held for one in slices] == [{("b",)}, set(), set(), set()]
    assert (kept.total, list(kept._by_tenant), list(kept._held)) == (1, ["other"], ["other"])


def test_slices_drop_what_there_is_no_more_room_for_and_find_it_again() -> None:
    models = [f'device.attributes["drv"].model == "{model}"' for model in "AB"]
    wanted = [claim(request("r", it), name=name) for it, name in zip(models, "ab", strict=True)]
    made = lab(pool(device("a", model="A"), nodeName="n1"), wanted)
    inventory = made.allocator.inventory
    inventory.compiled.kept._limit = 1
    (slice_,) = (slice_ for id_ in inventory.pools() if (found := inventory.pool(id_)) for slice_ in found.slices)
    for _ in range(2):
        for one, nodes in zip(made.claims, (["n1"], []), strict=True):
            assert list(made.allocator.candidates([one], Usage())) == nodes
            assert list(slice_._evaluated.verdicts) == [
                made.allocator.compile([one]).stages[0].alternatives[0].expressions
            ]
