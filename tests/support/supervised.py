"""The whole operator inside the test's process: as ``dra-operator run`` runs it, behind a proxy that makes faults; and
under Kopf, with ``kopf run`` in a thread.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import kopf
from dra_kube import connection
from dra_operator.app.operator import Operator
from dra_operator.app.probes import obstacles
from dra_operator.app.run import Supervisor
from dra_operator.app.settings.settings import OperatorSettings
from dra_operator.sources.watches import Limits
from faults import FaultProxy
from kopf.testing import KopfRunner
from waiting import until

QUICK = Limits(silence=90.0, gap=0.5)
"""For tests that wait until something counts as lost."""


@dataclass
class Site:
    """A running operator, which goes to the API server as client ``own`` of the proxy."""

    proxy: FaultProxy
    supervisor: Supervisor

    @property
    def operator(self) -> Operator:
        return self.supervisor.operator

    def obstacles(self) -> str:
        """What /readyz says; empty if it is ready."""
        return "\n".join(obstacles(self.supervisor.health.readiness()))

    def deadly(self) -> list[str]:
        """What /livez says; empty if it is live."""
        return obstacles(self.supervisor.health.liveness())

    def is_live(self) -> bool:
        return not self.deadly()

    async def ready(self, seconds: float = 90.0) -> None:
        async def is_ready() -> bool:
            assert not self.obstacles()
            return True

        await until("ready", is_ready, seconds)

    async def unready(self, *words: str) -> None:
        """Wait until it is not ready and says all these words."""

        async def says() -> bool:
            found = self.obstacles()
            assert found, "ready"
            assert all(word in found for word in words), found
            return True

        await until(f"unready, {' '.join(words)}", says)

    def metric(self, name: str, **labels: str) -> float:
        """The value of a sample; 0 if there is none."""
        return self.operator.registry.get_sample_value(name, labels) or 0.0


Supervising = Callable[..., AbstractAsyncContextManager[Site]]
"""Runs the operator for a block; takes its settings, or none for the usual ones."""


@asynccontextmanager
async def supervised(proxy: FaultProxy, folder: Path, settings: OperatorSettings | None = None) -> AsyncIterator[Site]:
    """The operator starts with the block, and is stopped with it as by a signal; it must not end before."""
    own = connection(proxy.write_kubeconfig(folder / "own", client="own"))
    operator = Operator(settings or OperatorSettings(check_invariants=True), limits=QUICK)
    supervisor = Supervisor(operator, own)
    task = asyncio.create_task(supervisor.run())
    try:
        yield Site(proxy, supervisor)
        assert not task.done(), "the operator ended by itself"
    finally:
        supervisor.stop()
        await task


def gates_text(gates: Mapping[str, bool]) -> str:
    """Return feature gates as a setting has them."""
    return ",".join(f"{name}={str(is_on).lower()}" for name, is_on in gates.items())


MAIN = Path(__file__).resolve().parents[2] / "operator" / "main.py"
WITHOUT_RULES = Path(__file__).with_name("without_rules.py")
Operating = Callable[[], AbstractAsyncContextManager[KopfRunner]]
"""Runs the operator under Kopf for a block; the runner has output and exit code after it."""


@contextmanager
def kopf_run(kubeconfig: Path, timeout: float = 60, main: Path = MAIN) -> Iterator[KopfRunner]:
    """``kopf run --all-namespaces operator/main.py``; after the block the runner has output and exit code."""
    runner = KopfRunner(
        ["run", "--all-namespaces", str(main)],
        registry=kopf.OperatorRegistry(),
        env={"KUBECONFIG": str(kubeconfig)},
        timeout=timeout,
    )
    try:
        with runner:
            yield runner
    finally:
        collect_leftovers_of_kopf()


def collect_leftovers_of_kopf() -> None:
    """A Kopf that is stopped leaves connections of its own open now and then.

    They are collected here, where they belong, and not in whatever test runs when Python's collector does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
