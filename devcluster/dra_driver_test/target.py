"""The driver under test, as a person names it, and the bench for it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dra_api.releases import NEWEST, Release
from dra_devcluster.apiserver import DevApiServer
from dra_kube import Api, KubeError, connection

from dra_driver_test.errors import BenchError
from dra_driver_test.harness.bench import USER_AGENT, Bench, Parameters, Watches
from dra_driver_test.harness.driver import CommandLauncher, DriverSeat, Launcher, Place
from dra_driver_test.harness.kubelet import KubeletSeat
from dra_driver_test.harness.server import ServerSeat
from dra_driver_test.harness.waiting import Limits


@asynccontextmanager
async def open_bench(
    place: Place,
    launcher: Launcher | None,
    limits: Limits | None = None,
    parameters: Parameters | None = None,
    watches: Watches | None = None,
    release: Release = NEWEST,
    name: str = "",
) -> AsyncIterator[Bench]:
    """A bench on a node of its own; at the end the driver is ended and the bench's objects are deleted.

    Without a launcher the driver runs already, and its registration socket is in ``place.registry``; ``name`` is the
    driver's name, or else the first driver that registers is the one. ``watches`` are
    those of an API server of the bench's own. The driver is judged as by a node of ``release``. Raises BenchError.
    """
    limits = limits or Limits()
    place.create()
    driver = DriverSeat(launcher, place)
    try:
        async with Api(connection(place.kubeconfig), user_agent=USER_AGENT) as api:
            server = ServerSeat(api, place.node, reserves=watches is not None)
            await server.join_node()
            seat = KubeletSeat(place.registry, limits, shares_registry=launcher is None, driver=name)
            async with seat as kubelet:
                try:
                    yield Bench(
                        place, driver, kubelet, server, limits, parameters or Parameters(), watches, release, name
                    )
                finally:
                    await driver.end()
            await server.leave()
    except KubeError as error:
        raise BenchError(f"the API server does not do what the bench needs: {error}") from error


@dataclass(frozen=True, slots=True)
class Target:
    """Either ``command``, which starts the driver, or ``registry`` and ``cdi``, where a running driver has its files.

    Without ``kubeconfig`` the bench has an API server of its own; a driver that runs already knows its own. ``driver``
    names the one to test if several have sockets in ``registry``. The driver is judged as on a node of ``release``,
    which is also that of the bench's own API server.
    """

    command: str | tuple[str, ...] = ""
    registry: Path | None = None
    cdi: Path | None = None
    node: str = "driver-test"
    kubeconfig: Path | None = None
    parameters: Parameters = field(default_factory=Parameters)
    log: Path | None = None
    release: Release = NEWEST
    driver: str = ""

    def check(self) -> None:
        """Raises BenchError for a target that says too little or too much."""
        if bool(self.command) == bool(self.registry):
            raise BenchError(
                "give either the command that starts the driver, or --registry with --cdi-dir for one that runs"
            )
        if self.registry and not (self.cdi and self.kubeconfig):
            raise BenchError("for a driver that runs, --cdi-dir and --kubeconfig have to say what it uses")
        if self.registry and not self.registry.is_dir():
            raise BenchError(f"--registry: {self.registry} is not a folder")
        if self.driver and not self.registry:
            raise BenchError("--driver chooses one of the drivers that run: give --registry with it")


@asynccontextmanager
async def bench_for(target: Target, limits: Limits | None = None) -> AsyncIterator[Bench]:
    """A bench for the target, with an API server if it needs one. Raises BenchError.

    It is an error if several drivers run, and the target does not say which one is meant, or if claims hold devices of
    the one that runs.
    """
    target.check()
    limits = limits or Limits()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dt-")))
        kubeconfig, server = target.kubeconfig, None
        if kubeconfig is None:
            server = await stack.enter_async_context(DevApiServer(release=target.release))
            kubeconfig = server.write_kubeconfig(folder / "kubeconfig")
        place = Place.below(folder / "node", target.node, kubeconfig)
        launcher = None
        name = target.driver
        if target.registry and target.cdi:
            place = Place(target.node, folder / "node", target.registry, target.cdi, kubeconfig)
            name = name or await _only_driver(target.registry, limits)
        else:
            launcher = CommandLauncher(target.command, target.log or folder / "driver.log", limits)
        bench = await stack.enter_async_context(
            open_bench(place, launcher, limits, target.parameters, server, target.release, name)
        )
        if name:
            await bench.check_unused(name)
        yield bench


async def _only_driver(registry: Path, limits: Limits) -> str:
    """The name of the driver that has sockets in the folder; empty if none has. Raises BenchError for several."""
    names = sorted({name for _, name in await KubeletSeat(registry, limits).drivers()})
    if len(names) > 1:
        raise BenchError(
            f"{len(names)} drivers have sockets in {registry}: say which one to test with --driver, one of "
            f"{', '.join(names)}"
        )
    return "".join(names)
