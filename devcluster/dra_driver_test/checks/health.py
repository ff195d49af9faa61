"""The health of devices: the stream that a kubelet shows in the status of pods.

The service has two versions with the same messages: kubelets of 1.36 know v1alpha1, later ones prefer v1. A check of
the stream's content looks at each version that the driver offers. From 1.37 on a driver may offer the service and serve
none: kubelets do not ask again then (K37-HEALTH-03, K37-HEALTH-09).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
from dra_api.releases import Release
from dra_devcluster.agent.plugins.plugin import HEALTH_SERVICES, describe

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding, Skipped
from dra_driver_test.harness.bench import Bench

MESSAGE_BYTES = 1024  # bytes that a kubelet shows
ABANDONED_STREAMS = 12  # that were given up; some libraries serve no more calls than they have threads
DAY_SECONDS = 86400


async def _offered(bench: Bench) -> list[str]:
    """The versions of the service that the driver offers, the newest first."""
    versions = (await bench.kubelet.info(bench.registration.socket)).supported_versions
    return [service for service in HEALTH_SERVICES if service in versions]


async def _needed(bench: Bench) -> list[str]:
    """The same. Raises Skipped for a driver that reports no health."""
    services = await _offered(bench)
    if not services:
        raise Skipped(f"the driver offers neither {' nor '.join(HEALTH_SERVICES)}")
    return services


async def _next(bench: Bench, stream: AsyncIterator[Any], seconds: float, what: str) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await anext(stream)
    except TimeoutError:
        raise Finding(f"{what}: not within {seconds:g} s") from None
    except StopAsyncIteration:
        raise Finding(f"{what}: the driver ended the stream") from None
    except grpc.aio.AioRpcError as error:
        if bench.release >= Release.V1_37 and error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise Skipped("the driver offers the health service, and answers that it has none") from error
        raise Finding(f"{what}: {describe(error)}") from error


async def _first(bench: Bench, service: str) -> list[Any]:
    """The devices of the first message."""
    async with bench.kubelet.health(bench.registration, service) as stream:
        return list((await _next(bench, stream, bench.limits.answer, f"{service}: a first message")).devices)


async def _reports(bench: Bench) -> dict[str, list[Any]]:
    """The devices of the first message of each version."""
    return {service: await _first(bench, service) for service in await _needed(bench)}


async def _each(bench: Bench) -> list[tuple[str, Any]]:
    """Each device of these messages, with the version."""
    return [(service, one) for service, devices in (await _reports(bench)).items() for one in devices]


def _key(device: Any) -> tuple[str, str]:
    return device.device.pool_name, device.device.device_name


async def _published(bench: Bench) -> set[tuple[str, str]]:
    return {(device.pool, device.name) for device in await bench.published()}


# --- the versions of the service ---


@check("KM-22", "PH-03", level=Level.SHOULD)
async def is_offered_if_it_is_served(bench: Bench) -> None:
    """A driver that serves a version of the health service names it among its supported versions, and serves those it
    names; from 1.37 on it may serve none.

    Kubelets may ask only drivers that offer it. Those of 1.36 ask again every 5 s, those of 1.37 by v1 only, and once.
    """
    offered = await _offered(bench)
    found = [_is_served(bench, service, quiet=service in offered) for service in HEALTH_SERVICES]
    served = dict(zip(HEALTH_SERVICES, await asyncio.gather(*found), strict=True))
    if bench.release >= Release.V1_37 and not any(served.values()):
        return
    for service, is_served in served.items():
        if is_served != (service in offered):
            raise Finding(f"{service} is {'not ' * is_served}offered, and {'' if is_served else 'not '}served")


async def _is_served(bench: Bench, service: str, *, quiet: bool) -> bool:
    """Whether there is such a service; ``quiet`` if it says nothing, as a driver that reports no health may do."""
    async with bench.kubelet.health(bench.registration, service) as stream:
        try:
            async with asyncio.timeout(bench.limits.answer):
                return bool(await anext(stream))
        except (TimeoutError, StopAsyncIteration):
            return quiet
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.UNIMPLEMENTED


@check("KM-22", level=Level.SHOULD)
async def is_offered_to_old_kubelets(bench: Bench) -> None:
    """A driver that reports health offers v1alpha1 as well: kubelets up to 1.36 know no other version."""
    if HEALTH_SERVICES[-1] not in await _needed(bench):
        raise Finding(f"the driver offers {HEALTH_SERVICES[0]} only, and kubelets up to 1.36 ask for v1alpha1")


@check("KM-22", level=Level.SHOULD)
async def is_offered_to_new_kubelets(bench: Bench) -> None:
    """A driver that reports health offers v1 as well: kubelets prefer it from 1.37, and the alpha version will go."""
    if bench.release < Release.V1_37:
        raise Skipped(f"kubelets of {bench.release} do not know v1 of the health service")
    if HEALTH_SERVICES[0] not in await _needed(bench):
        raise Finding(f"the driver offers {HEALTH_SERVICES[-1]} only, and kubelets prefer v1 from 1.37")


@check("KM-22", "KM-23")
async def is_the_same_in_each_version(bench: Bench) -> None:
    """All versions tell of the same devices, with the same health: an update of the kubelet changes nothing."""
    reports = await _reports(bench)
    if len(reports) < 2:
        raise Skipped("the driver offers one version of the health service")
    said = [{_key(one): one.health for one in devices} for devices in reports.values()]
    if different := sorted(f"{pool}/{name}" for (pool, name), _ in said[0].items() ^ said[1].items()):
        raise Finding(f"{' and '.join(reports)} differ in {different}")


# --- what a message says ---


@check("KM-22", "plugin-helper.md 6")
async def comes_at_once(bench: Bench) -> None:
    """The stream begins with a message; until then the devices count as Unknown."""
    await _reports(bench)


@check("KM-23", "plugin-helper.md 6")
async def names_published_devices(bench: Bench) -> None:
    """Each device of a message is a published one, by pool and name."""
    published = await _published(bench)
    for service, devices in (await _reports(bench)).items():
        if unknown := set(map(_key, devices)) - published:
            raise Finding(f"{service} names devices that are not published: {sorted(unknown)}")


@check("KM-23", "plugin-helper.md 6")
async def covers_all_devices(bench: Bench) -> None:
    """Each message has all devices; one that is missing becomes Unknown."""
    published = await _published(bench)
    for service, devices in (await _reports(bench)).items():
        if missing := published - set(map(_key, devices)):
            raise Finding(f"{service} does not name {sorted(missing)}")


@check("KM-23", "plugin-helper.md 6", waits=True)
async def covers_all_devices_again(bench: Bench) -> None:
    """Later messages have all devices as well, and not only those that changed.

    A device that is left out becomes Unknown when its time is over, even if nothing happened to it.
    """
    for service in await _needed(bench):
        async with bench.kubelet.health(bench.registration, service) as stream:
            first = await _next(bench, stream, bench.limits.answer, f"{service}: a first message")
            second = await _next(bench, stream, _expires(bench, first), f"{service}: a second message")
        if missing := set(map(_key, first.devices)) - set(map(_key, second.devices)):
            raise Finding(f"{service}: the second message does not name {sorted(missing)}")


@check("KM-23")
async def names_each_device_once(bench: Bench) -> None:
    """A device occurs once in a message."""
    for service, devices in (await _reports(bench)).items():
        named = list(map(_key, devices))
        if len(set(named)) < len(named):
            raise Finding(f"{service} names devices twice: {sorted(named)}")


@check("KM-23", level=Level.SHOULD)
async def has_known_values(bench: Bench) -> None:
    """Health is Unknown (0), Healthy (1) or Unhealthy (2); kubelets take other values for Unknown."""
    for service, one in await _each(bench):
        if one.health not in (0, 1, 2):
            raise Finding(f"{service}: device {one.device.device_name} has the health {one.health}")


@check("KM-23", level=Level.SHOULD)
async def has_short_messages(bench: Bench) -> None:
    """A message about a device has at most 1024 bytes; kubelets cut the rest."""
    for service, one in await _each(bench):
        if (size := len(one.message.encode())) > MESSAGE_BYTES:
            raise Finding(f"{service}: the message of device {one.device.device_name} has {size} bytes")


@check("KM-23", level=Level.SHOULD)
async def has_no_negative_timeouts(bench: Bench) -> None:
    """The time-out of a device is not negative; kubelets use 30 s instead."""
    for service, one in await _each(bench):
        if one.health_check_timeout_seconds < 0:
            raise Finding(
                f"{service}: device {one.device.device_name} has the time-out {one.health_check_timeout_seconds}"
            )


@check("KM-23", "plugin-helper.md 6", level=Level.SHOULD)
async def has_times_in_seconds(bench: Bench) -> None:
    """The time of a report is in seconds since 1970, or 0; kubelets go by the time of receipt, other readers do not.

    In a smaller unit it lies far in the future. It may be long ago: the driver has seen no change since.
    """
    now = time.time()
    for service, one in await _each(bench):
        if one.last_updated_time > now + DAY_SECONDS:
            raise Finding(
                f"{service}: device {one.device.device_name} was last updated at {one.last_updated_time}, which is "
                "more than a day in the future"
            )


# --- streams ---


@check("KM-24", "plugin-helper.md 6", waits=True)
async def is_repeated_in_time(bench: Bench) -> None:
    """The stream repeats the health before it expires: 30 s, or the time-out that the driver gave.

    A healthy device that is not mentioned for so long becomes Unknown.
    """
    for service in await _needed(bench):
        async with bench.kubelet.health(bench.registration, service) as stream:
            first = await _next(bench, stream, bench.limits.answer, f"{service}: a first message")
            await _next(
                bench, stream, _expires(bench, first), f"{service} repeats the health of devices before it expires"
            )


def _expires(bench: Bench, message: Any) -> float:
    """The seconds after which the first device of a message is Unknown."""
    timeouts = [one.health_check_timeout_seconds or bench.limits.health for one in message.devices]
    return min((timeout for timeout in timeouts if timeout > 0), default=bench.limits.health)


@check("NOD-052", "KM-22")
async def is_told_to_each_stream(bench: Bench) -> None:
    """A second stream has its own first message; kubelets connect again every 5 s after a stream ended."""
    for service in await _needed(bench):
        await _first(bench, service)
        await _first(bench, service)


@check("KM-22", "KM-26")
async def is_told_to_streams_at_once(bench: Bench) -> None:
    """Several streams, of each version, are served beside each other.

    A kubelet that starts again may connect before the driver has noticed the end of the old stream.
    """
    services = await _needed(bench)
    async with AsyncExitStack() as stack:
        for service in (*services, *services):
            stream = await stack.enter_async_context(bench.kubelet.health(bench.registration, service))
            await _next(bench, stream, bench.limits.answer, f"{service}: a first message beside other streams")


@check("NOD-052", "KM-22")
async def survives_streams_that_were_given_up(bench: Bench) -> None:
    """After many streams that the kubelet cancelled, the next one is served, and so are claims.

    A driver that keeps a thread or a queue per stream for ever runs out of them.
    """
    for service in await _needed(bench):
        for _ in range(ABANDONED_STREAMS):
            await _first(bench, service)
    claim = await bench.held()
    await bench.unprepare(claim)


@check("NOD-052", "KM-26", restarts=True)
async def comes_back_after_a_restart(bench: Bench) -> None:
    """A driver that was killed and started again tells the health of the same devices.

    The kubelet has forgotten what the old process said.
    """
    before = await _reports(bench)
    await bench.restart(kill=True)
    after = await _reports(bench)
    for service, devices in before.items():
        if missing := set(map(_key, devices)) - set(map(_key, after.get(service, ()))):
            raise Finding(f"{service} does not name {sorted(missing)} after SIGKILL and a new start")


@check("NOD-051", "NOD-054")
async def leaves_calls_alone(bench: Bench) -> None:
    """Claims are prepared and unprepared while a stream is open."""
    service, *_ = await _needed(bench)
    claim = await bench.claim()
    async with bench.kubelet.health(bench.registration, service) as stream:
        await _next(bench, stream, bench.limits.answer, f"{service}: a first message")
        await bench.prepare(claim)
        await bench.unprepare(claim)
