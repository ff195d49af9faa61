"""How the driver gets known to the kubelet."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path

from dra_devcluster.agent.plugins.plugin import HEALTH_SERVICES, open_channel
from dra_proto.registration.v1 import api_pb2 as registration_pb2

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding
from dra_driver_test.harness.bench import Bench
from dra_driver_test.harness.kubelet import V1, V1BETA1
from dra_driver_test.harness.waiting import attempts, eventually

KNOWN = (V1, V1BETA1, *HEALTH_SERVICES)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


async def _info(bench: Bench) -> tuple[Path, registration_pb2.PluginInfo]:
    """The driver's registration socket, once there is one, and what it says."""
    socket = await eventually(
        f"a socket of the driver in the registration folder {bench.place.registry}",
        bench.socket,
        bench.limits.registered,
        bench.limits,
    )
    return socket, await bench.kubelet.info(socket)


@check("KM-04", "PH-04", registered=False)
async def is_a_dra_plugin(bench: Bench) -> None:
    """GetInfo says the type DRAPlugin.

    A kubelet has a handler per type, and refuses a plugin of a type that it does not know.
    """
    _, info = await _info(bench)
    if info.type != "DRAPlugin":
        raise Finding(f"GetInfo says the type {info.type!r} instead of 'DRAPlugin'")


@check("PH-04", "plugin-helper.md 4.7", registered=False)
async def has_a_valid_name(bench: Bench) -> None:
    """The driver's name is a DNS subdomain in lower case of at most 63 characters.

    The API server refuses slices and classes with another name.
    """
    _, info = await _info(bench)
    if len(info.name) > 63 or not _NAME.fullmatch(info.name):
        raise Finding(f"GetInfo says the name {info.name!r}: use a DNS subdomain in lower case, at most 63 characters")


@check("KM-06", "PH-03", registered=False)
async def offers_a_known_service(bench: Bench) -> None:
    """The supported versions name a service that kubelets speak: v1.DRAPlugin or v1beta1.DRAPlugin.

    Version numbers such as 1.0.0, which old plugins sent, are refused since Kubernetes 1.36.
    """
    _, info = await _info(bench)
    offered = list(info.supported_versions)
    if V1 not in offered and V1BETA1 not in offered:
        raise Finding(f"the supported versions are {offered}, and none of them is {V1} or {V1BETA1}")


@check("PH-03", level=Level.SHOULD, registered=False)
async def offers_the_newest_service_first(bench: Bench) -> None:
    """Of several versions of the service, the newest comes first.

    A kubelet takes the first that it knows, so a driver with v1beta1 first loses what only v1 has, such as shares.
    """
    _, info = await _info(bench)
    offered = [version for version in info.supported_versions if version in (V1, V1BETA1)]
    if offered == [V1BETA1, V1]:
        raise Finding(f"the supported versions are {offered}: put {V1} first")


@check("KM-06", level=Level.SHOULD, registered=False)
async def offers_nothing_unknown(bench: Bench) -> None:
    """The supported versions name nothing that no kubelet knows.

    An unknown entry is skipped; it is usually a misspelt one, which then is missing.
    """
    _, info = await _info(bench)
    if unknown := [version for version in info.supported_versions if version not in KNOWN]:
        raise Finding(f"the supported versions name {unknown}; kubelets know {', '.join(KNOWN)}")


@check("KM-07", "PH-01", registered=False)
async def names_an_endpoint_that_answers(bench: Bench) -> None:
    """The endpoint of GetInfo is the absolute path of a socket that accepts connections.

    The kubelet opens it as it stands; an empty endpoint means the registration socket itself.
    """
    socket, info = await _info(bench)
    endpoint = info.endpoint or str(socket)
    if not endpoint.startswith("/"):
        raise Finding(f"the endpoint {endpoint!r} is not an absolute path")
    if not await _accepts(endpoint, bench.limits.answer):
        raise Finding(f"the endpoint {endpoint} accepts no connections")


@check("PH-01", level=Level.SHOULD, registered=False, restarts=True)
async def serves_before_it_registers(bench: Bench) -> None:
    """When the registration socket answers first, the endpoint that it names answers already.

    Otherwise a kubelet that registers quickly sends calls to a socket that is not there, and pods wait for a retry.
    """
    await bench.driver.end()
    for socket in bench.kubelet.sockets():
        socket.unlink()
    await bench.driver.start()
    socket, info = await _first_info(bench)
    if not await _is_listened_on(info.endpoint or str(socket)):
        raise Finding(f"GetInfo answers, but the endpoint {info.endpoint} does not: serve first, then register")


async def _first_info(bench: Bench) -> tuple[Path, registration_pb2.PluginInfo]:
    while True:
        try:
            return await _info(bench)
        except Finding:
            await asyncio.sleep(bench.limits.tick / 5)


async def _is_listened_on(endpoint: str) -> bool:
    """Whether a connection is accepted, which the kernel says at once."""
    try:
        _, writer = await asyncio.open_unix_connection(endpoint)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def _accepts(endpoint: str, seconds: float) -> bool:
    channel = open_channel(endpoint)
    try:
        async with asyncio.timeout(seconds):
            await channel.channel_ready()
    except TimeoutError:
        return False
    finally:
        await channel.close(None)
    return True


@check("KM-04", "kubelet-manager.md 2", registered=False)
async def answers_in_time(bench: Bench) -> None:
    """GetInfo is answered within 1 s, the time that a kubelet gives it.

    One of three attempts has to be, since the machine may be busy with something else.
    """
    socket, _ = await _info(bench)
    await attempts(lambda: bench.kubelet.info(socket, bench.limits.info))


@check("KM-04", "PH-04", registered=False)
async def accepts_success(bench: Bench) -> None:
    """NotifyRegistrationStatus with success is answered without error.

    A kubelet that gets an error takes the registration back.
    """
    socket, _ = await _info(bench)
    await bench.kubelet.notify(socket)


@check("NOD-003", "NOD-004", "PH-04", registered=False)
async def survives_a_refusal(bench: Bench) -> None:
    """After NotifyRegistrationStatus with a failure the driver still answers, and can be registered.

    Kubelets repeat a failed registration; the first may fail because the kubelet itself is starting.
    """
    socket, _ = await _info(bench)
    with suppress(Finding):  # an error is what the reference's library answers
        await bench.kubelet.notify(socket, "RegisterPlugin error -- plugin registration failed with err: a test")
    await asyncio.sleep(bench.limits.settle)
    await bench.kubelet.info(socket)
    await bench.kubelet.notify(socket)


@check("NOD-001", "KM-04")
async def can_be_repeated(bench: Bench) -> None:
    """GetInfo says the same each time, on any connection, also when it is registered already.

    A kubelet that restarts registers every plugin anew.
    """
    socket = bench.registration.socket
    first, *others = [await bench.kubelet.info(socket) for _ in range(3)]
    if any(other != first for other in others):
        raise Finding(f"GetInfo answers differently from call to call: {first} and {others}")
    await bench.kubelet.notify(socket)
    if [known for known in bench.kubelet.registrations() if known.socket == socket] != [bench.registration]:
        raise Finding("the driver's registration ended when it was notified again")


@check("PH-02", level=Level.SHOULD, restarts=True)
async def ends_with_the_driver(bench: Bench) -> None:
    """A driver that is stopped removes its registration socket.

    That tells the kubelet that the plugin is gone; otherwise it waits for a lost connection.
    """
    _is_gone(await _stopped(bench, bench.registration.socket))


@check("PH-02", level=Level.SHOULD, restarts=True, waits=True)
async def leaves_no_service_socket(bench: Bench) -> None:
    """A driver that is stopped removes the socket of its service as well."""
    _is_gone(await _stopped(bench, Path(bench.registration.endpoint)))


async def _stopped(bench: Bench, socket: Path) -> Path:
    await bench.quiet()  # a driver that just began may not know yet what to do about signals
    await bench.driver.stop()
    return socket


def _is_gone(socket: Path) -> None:
    if socket.exists():
        raise Finding(f"the socket {socket} is still there after SIGTERM")


@check("PH-02", "NOD-002", restarts=True)
async def replaces_stale_sockets(bench: Bench) -> None:
    """A driver that was killed comes back, although its sockets are still in their folders.

    Nothing removes the sockets of a process that was killed, so the next one has to.
    """
    await bench.restart(kill=True)
    await bench.kubelet.info(bench.registration.socket)


@check("NOD-002", "KM-02", restarts=True, waits=True)
async def follows_each_start(bench: Bench) -> None:
    """A driver that was stopped and started again is registered again, under the same name."""
    name = bench.name
    await bench.restart()
    if bench.name != name:
        raise Finding(f"the driver registered as {name}, and after a restart as {bench.name}")


@check("docs/threat-model.md", level=Level.SHOULD)
async def is_not_open_to_all(bench: Bench) -> None:
    """The sockets are not writable for every user of the node.

    A user who can write to a socket can prepare and unprepare claims.
    """
    for path in (bench.registration.socket, Path(bench.registration.endpoint)):
        if path.stat().st_mode & 0o002:
            raise Finding(
                f"{path} has mode {path.stat().st_mode & 0o777:o}: every user of the node can call the driver"
            )
