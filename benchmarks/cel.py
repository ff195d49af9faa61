"""How fast device selectors are: one evaluation on a prepared device, preparing a device, compiling an expression.

    python benchmarks/cel.py [--json] [--quick]

Times are the best of several runs, in microseconds. ``compiled`` is the bare Python expression that a selector becomes,
``matches`` the whole call as the operator makes it, ``precise`` the evaluation that counts costs and names errors.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from dra_api.codec import convert
from dra_api.resource import Device
from dra_cel import CelError, Selector, device_selectors, prepare

DRIVER = "gpu.example.com"
RAW = {
    "attributes": {
        "architecture": {"string": "Ampere"},
        "cudaVersion": {"version": "12.4.0"},
        "healthy": {"bool": True},
        "index": {"int": 2},
        "model": {"string": "A100"},
        "uuid": {"string": "GPU-9f3c2a10-77aa-4d0c-8a7b-1c2d3e4f5a6b"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    },
    "capacity": {"memory": {"value": "80Gi"}, "cores": {"value": "108"}},
}
ATTRIBUTES = f'device.attributes["{DRIVER}"]'
CAPACITY = f'device.capacity["{DRIVER}"]'
EXPRESSIONS = {
    "driver": f'device.driver == "{DRIVER}"',
    "model and memory": f'{ATTRIBUTES}.model == "A100" && {CAPACITY}.memory.compareTo(quantity("40Gi")) >= 0',
    "optional in list": f"{ATTRIBUTES}.?index.orValue(0) in [0, 1, 2, 3]",
    "version": f'{ATTRIBUTES}.cudaVersion.isGreaterThan(semver("12.0.0"))',
    "presence, then value": f'"index" in {ATTRIBUTES} && {ATTRIBUTES}.index > 1',
    "pattern": f'{ATTRIBUTES}.model.matches("^A[0-9]+$")',
    "loop over attributes": f'{ATTRIBUTES}.exists(name, name.startsWith("cuda"))',
    "missing attribute": f"{ATTRIBUTES}.nosuch == 1",
}
REFERENCE = {"driver": 7.0, "model and memory": 8.9, "optional in list": 7.4}
"""Microseconds of the reference's whole match call (Go)."""


@dataclass(frozen=True)
class Row:
    """One expression. ``compiled`` is None where the machine always decides."""

    name: str
    compiled: float | None
    matches: float
    precise: float
    compile: float
    reference: float | None


def best(call: Callable[[], Any], seconds: float) -> float:
    """Microseconds of the quickest of many short runs."""
    fastest = float("inf")
    end = time.perf_counter() + seconds
    count = 200
    while time.perf_counter() < end:
        started = time.perf_counter()
        for _ in range(count):
            call()
        elapsed = time.perf_counter() - started
        fastest = min(fastest, elapsed / count)
        count = max(1, min(200, int(0.002 / fastest)))
    return fastest * 1e6


def rows(seconds: float) -> list[Row]:
    """Measure every expression."""
    device = prepare(DRIVER, convert(Device, RAW))
    environment = device_selectors()
    found = []
    for name, expression in EXPRESSIONS.items():
        selector = Selector(expression, environment)
        compiled = selector._fast

        def matches(selector: Selector = selector) -> None:
            try:
                selector.matches(device)
            except CelError:
                return

        raises = name == "missing attribute"
        found.append(
            Row(
                name,
                None if compiled is None or raises else best(partial(compiled, device), seconds),
                best(matches, seconds),
                best(partial(selector.explain, device), seconds),
                best(partial(Selector, expression, environment), seconds),
                REFERENCE.get(name),
            )
        )
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="short runs, to see that it works")
    options = parser.parse_args()
    seconds = 0.02 if options.quick else 0.5
    measured = rows(seconds)
    raw = convert(Device, RAW)
    preparing = best(lambda: prepare(DRIVER, raw), seconds)
    if options.json:
        print(json.dumps({"selectors": [asdict(row) for row in measured], "prepare": preparing}, indent=2))
        return
    print(f"Python {platform.python_version()}; microseconds, best of many runs; preparing a device: {preparing:.1f}")
    print(f"{'selector':22} {'compiled':>9} {'matches':>9} {'precise':>9} {'compiling':>10} {'reference':>10}")
    for row in measured:
        compiled = "-" if row.compiled is None else f"{row.compiled:.2f}"
        reference = "" if row.reference is None else f"{row.reference:.1f}"
        print(f"{row.name:22} {compiled:>9} {row.matches:9.2f} {row.precise:9.1f} {row.compile:10.0f} {reference:>10}")


if __name__ == "__main__":
    main()
