"""Sets up a bench and takes it down again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dra_api.releases.release import NEWEST, Release
from dra_kube import Api, KubeError, connection

from dra_driver_test.errors import BenchError

from .bench import USER_AGENT, Bench, Parameters, Watches
from .driver import DriverSeat, Launcher
from .kubelet import KubeletSeat
from .limits import Limits
from .place import Place
from .server import ServerSeat


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
            server = ServerSeat(api, place.node)
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
