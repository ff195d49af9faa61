"""Benches with the bad driver on one API server."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from bad_driver import BadLauncher
from dra_driver_test.kit import Bench, Limits, Parameters, Place, open_bench

PATIENT = Limits(
    info=10,
    notify=10,
    registered=20,
    published=20,
    restored=20,
    stopped=20,
    answer=10,
    quiet=0.5,
    settle=0.8,
    tick=0.02,
)
"""For what is expected to come, on a machine that has much else to do."""
LIMITS = replace(PATIENT, info=0.5, notify=0.5, call=1.5, registered=1.5, published=1.5, restored=1.5, answer=1)
"""For what is expected not to come."""
PARAMETERS = Parameters(good={"color": "red"}, bad={"volume": "11"})
OpenBench = Callable[..., AbstractAsyncContextManager[Bench]]
"""``async with open_bench("prepare fails") as bench``: a bench with the bad driver and these faults."""
_numbers = itertools.count(1)


def benches_on(kubeconfig: Path) -> OpenBench:
    """Each bench has a node and a driver's name of its own."""

    @asynccontextmanager
    async def open_one(*faults: str, limits: Limits = PATIENT) -> AsyncIterator[Bench]:
        number = next(_numbers)
        with tempfile.TemporaryDirectory(prefix="dt-") as folder:
            place = Place.below(Path(folder), f"node-{number}", kubeconfig)
            launcher = BadLauncher(f"bad-{number}.example.com", *faults)
            async with open_bench(place, launcher, limits, PARAMETERS) as bench:
                yield bench

    return open_one
