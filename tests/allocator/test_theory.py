"""The example in ``dra_operator.allocator.pruning``, as it stands there."""

from __future__ import annotations

import dra_operator.allocator.search as search_module
import pytest
from allocator_lab import Lab, claim, device, lab, pool, request
from dra_ledger.basics import each
from dra_operator.allocator import Allocated, Failed, Refused
from dra_operator.allocator.pruning.pruner import Pruner
from dra_operator.allocator.search import BranchState

DEVICES = (
    device("d0", model="A", numa=0),
    device("d1", model="A", numa=1, k=1),
    device("d2", model="A", numa=1, k=1),
    device("d3", model="B", numa=1, k=1),
)
MODEL_A, MODEL_B = (f'device.attributes["drv"].model == "{model}"' for model in "AB")

RAISES_ON_D0 = f'device.attributes["drv"].k == 1 ? {MODEL_B} : false'


def example(selector: str = MODEL_B, count: int = 1) -> Lab:
    wanted = [request("a", MODEL_A), request("b", MODEL_A), request("c", selector, count=count)]
    return lab(pool(*DEVICES), [claim(*wanted, constraints=[{"matchAttribute": "drv/numa"}])])


def names(devices: int) -> str:
    return " ".join(f"d{number}" for number in each(devices))


def test_propagation_leaves_what_agrees_with_all() -> None:
    stated = example().problem()
    assert [names(domain.usable) for (domain,) in stated.domains] == ["d0 d1 d2", "d0 d1 d2", "d3"]
    remaining = Pruner(stated).start()
    assert remaining is not None
    assert [names(remaining[number]) for number in range(3)] == ["d1 d2", "d1 d2", "d3"]


def test_devices_that_nothing_tells_apart_are_interchangeable() -> None:
    stated = example().problem()
    pruner = Pruner(stated)
    state = BranchState(stated)
    assert names(pruner.interchangeable_with(state, 1)) == "d1 d2"
    assert names(pruner.interchangeable_with(state, 3)) == ""


@pytest.mark.parametrize("failures", [-1, 10**9], ids=["with a pruner", "without"])
def test_the_answers_are_those_of_the_text(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    monkeypatch.setattr(search_module, "FAILURES_BEFORE_PRUNING", failures)
    first = example().decide()
    assert isinstance(first, Allocated)
    assert [given.device for given in first.results[0].results] == ["d1", "d2", "d3"]
    assert isinstance(example(count=2).decide(), Refused)
    raising = example(RAISES_ON_D0, count=2).decide()
    assert isinstance(raising, Failed)
    assert "device drv/p/d0 publishes" in str(raising.error)


def test_nothing_is_concluded_from_a_fallible_step() -> None:
    pruner = Pruner(example(RAISES_ON_D0, count=2).problem())
    remaining = pruner.start()
    assert remaining is not None
    assert [names(remaining[number]) for number in range(2)] == ["d1 d2", "d1 d2"]
    assert Pruner(example(count=2).problem()).start() is None
