"""Benches with the bad driver on one API server."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from bad_driver import BadLauncher
from dra_api.releases.release import NEWEST, Release
from dra_devcluster.apiserver import DevApiServer
from dra_driver_test.kit import Bench, CommandLauncher, Launcher, Limits, Parameters, Place, open_bench

PATIENT = Limits(
    info=10,
    notify=10,
    registered=20,
    published=20,
    restored=20,
    stopped=20,
    answer=10,
    quiet=0.5,
    idle=12,
    gone=20,
    settle=0.8,
    tick=0.02,
)
"""For what is expected to come, on a machine that has much else to do."""
LIMITS = replace(
    PATIENT, info=0.5, notify=0.5, call=1.5, registered=1.5, published=1.5, restored=1.5, answer=1, gone=1.5
)
"""For what is expected not to come."""
PARAMETERS = Parameters(good={"color": "red"}, bad={"volume": "11"})
OpenBench = Callable[..., AbstractAsyncContextManager[Bench]]
"""``async with open_bench("prepare fails") as bench``: a bench with the bad driver and these faults."""
PROCESS = (sys.executable, str(Path(__file__).with_name("bad_driver.py")), "{kubelet}")
_numbers = itertools.count(1)


def benches_on(server: DevApiServer) -> OpenBench:
    """Each bench has a node, a driver's name and a token of its own."""

    @asynccontextmanager
    async def open_one(
        *faults: str, limits: Limits = PATIENT, is_a_process: bool = False, release: Release = NEWEST
    ) -> AsyncIterator[Bench]:
        number = next(_numbers)
        with tempfile.TemporaryDirectory(prefix="dt-") as folder:
            kubeconfig = server.write_kubeconfig(Path(folder) / "kubeconfig", server.administrator_token())
            place = Place.below(Path(folder) / "n", f"node-{number}", kubeconfig)
            launcher: Launcher = BadLauncher(f"bad-{number}.example.com", *faults)
            if is_a_process:
                launcher = CommandLauncher([*PROCESS, *faults], Path(folder) / "driver.log", limits)
            async with open_bench(place, launcher, limits, PARAMETERS, server, release) as bench:
                yield bench

    return open_one
