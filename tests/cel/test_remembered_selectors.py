"""Remembered selectors are bounded by bytes, and so are those that do not compile."""

from __future__ import annotations

import subprocess
import sys

import pytest
from dra_api.resource import Device
from dra_cel import CompileError, Selector, compile, device_selectors, prepare
from dra_cel import selector as module
from rounds import LONG

DEVICE = prepare("gpu.example.com", Device())
SHAPES = [
    'device.driver == "gpu{0}.example.com"',
    " || ".join(['device.driver == "{0}"'] * 100),
    "{0} == {0} && " + " && ".join(["1 < 2"] * 400),
    "{0} == 1 && " + "[1].all(x, " * 200 + "true" + ")" * 200,
    "{0} == {0} && " + " || ".join(["[0].map(a, a) == []"] * 120),
    "{0} == {0} && " + " || ".join(['[device.driver][0].matches("x")'] * 80),
    "{0} == {0} && " + " || ".join(["cel.bind(a, 1, a == a)"] * 120),
]


WEIGHED = """
import gc
import sys
import tracemalloc
from dra_api.resource import Device
from dra_cel import Selector, device_selectors, prepare

device = prepare("gpu.example.com", Device())
for shape in sys.argv[1:]:
    Selector(shape.format(0), device_selectors()).explain(device)
    gc.collect()
    tracemalloc.start()
    used = [Selector(shape.format(number), device_selectors()) for number in (1, 2)]
    for selector in used:
        selector.explain(device)
        assert not selector.references
        assert selector.max_cost >= 0
    gc.collect()
    print(tracemalloc.get_traced_memory()[0], sum(selector.memory for selector in used))
    tracemalloc.stop()
"""


def test_a_selector_weighs_at_least_what_it_takes() -> None:
    """In a process of its own: what other tests leave behind changes what an object takes."""
    command = [sys.executable, "-c", WEIGHED, *SHAPES]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    for shape, line in zip(SHAPES, answer.stdout.splitlines(), strict=True):
        taken, said = map(int, line.split())
        assert taken <= 1.15 * said, shape[-24:]


def test_an_expression_is_compiled_once_whether_or_not_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Counted(Selector):
        def __init__(self, expression: str, environment: object) -> None:
            made.append(expression)
            super().__init__(expression, device_selectors())

    monkeypatch.setattr(module, "Selector", Counted)
    good, bad = 'device.driver != "once"', 'device.driver != "once" &&'
    assert compile(good) is compile(good)
    messages = set()
    for _ in range(3):
        with pytest.raises(CompileError) as caught:
            compile(bad)
        messages.add((caught.value.message, caught.value.excerpt()))
    assert made == [good, bad]
    assert len(messages) == 1


ATTACK = """
from dra_api.resource import Device
from dra_operator.allocator import Features
from dra_ledger.predicates import Compiled
from dra_ledger.cel_language import CelSelectors

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20

compiled = Compiled(CelSelectors(Features()), minds_other_drivers=False)
device = Device(name="gpu-0")
before = resident()
for number in range(24):
    text = f"{number} < 0 || " + " || ".join(["[0].map(a, a) == []"] * 440)
    assert compiled.predicate(text)("gpu.example.com", device) is False
print(resident() - before)
"""


@LONG
def test_dozens_of_large_selectors_take_little_memory() -> None:
    """By number alone, 24 selectors of 8.8 kB take 40 MB, and 4,096 of them were kept."""
    answer = subprocess.run([sys.executable, "-c", ATTACK], capture_output=True, text=True, timeout=300, check=True)
    assert int(answer.stdout) < 30
