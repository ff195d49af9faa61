"""The health of devices: the stream that a kubelet shows in the status of pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from dra_devcluster.agent.plugin import describe

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding, Skipped
from dra_driver_test.harness.bench import Bench
from dra_driver_test.harness.kubelet import HEALTH_SERVICE

MESSAGE = 1024  # bytes that a kubelet shows


async def _offered(bench: Bench) -> bool:
    return HEALTH_SERVICE in (await bench.kubelet.info(bench.registration.socket)).supported_versions


async def _needed(bench: Bench) -> None:
    if not await _offered(bench):
        raise Skipped(f"the driver does not offer {HEALTH_SERVICE}")


async def _next(stream: AsyncIterator[Any], seconds: float, what: str) -> Any:
    try:
        return await asyncio.wait_for(anext(stream), seconds)
    except TimeoutError:
        raise Finding(f"{what}: not within {seconds:g} s") from None
    except StopAsyncIteration:
        raise Finding(f"{what}: the driver ended the stream") from None
    except grpc.aio.AioRpcError as error:
        raise Finding(f"{what}: {describe(error)}") from error


async def _first(bench: Bench) -> list[Any]:
    """The devices of the first message."""
    await _needed(bench)
    async with bench.kubelet.health(bench.registration) as stream:
        return list((await _next(stream, bench.limits.answer, "a first message with the health of devices")).devices)


@check("KM-22", "plugin-helper.md 6")
async def comes_at_once(bench: Bench) -> None:
    """The stream begins with a message; until then the devices count as Unknown."""
    await _first(bench)


@check("KM-22", "PH-03", level=Level.SHOULD)
async def is_offered_if_it_is_served(bench: Bench) -> None:
    """A driver that serves the health service names it among its supported versions, and serves it if it does.

    Kubelets may ask only those that offer it.
    """
    offered = await _offered(bench)
    async with bench.kubelet.health(bench.registration) as stream:
        try:
            served = bool(await asyncio.wait_for(anext(stream), bench.limits.answer))
        except (TimeoutError, StopAsyncIteration):
            served = offered
        except grpc.aio.AioRpcError as error:
            served = error.code() is not grpc.StatusCode.UNIMPLEMENTED
    if served != offered:
        raise Finding(
            f"{HEALTH_SERVICE} is {'offered' if offered else 'not offered'}, and {'' if served else 'not '}served"
        )


@check("KM-23", "plugin-helper.md 6")
async def names_published_devices(bench: Bench) -> None:
    """Each device of a message is a published one, by pool and name."""
    published = {(device.pool, device.name) for device in await bench.published()}
    named = {(one.device.pool_name, one.device.device_name) for one in await _first(bench)}
    if unknown := named - published:
        raise Finding(f"the health stream names devices that are not published: {sorted(unknown)}")


@check("KM-23", "plugin-helper.md 6")
async def covers_all_devices(bench: Bench) -> None:
    """Each message has all devices; one that is missing becomes Unknown."""
    published = {(device.pool, device.name) for device in await bench.published()}
    named = {(one.device.pool_name, one.device.device_name) for one in await _first(bench)}
    if missing := published - named:
        raise Finding(f"the health stream does not name {sorted(missing)}")


@check("KM-23")
async def names_each_device_once(bench: Bench) -> None:
    """A device occurs once in a message."""
    named = [(one.device.pool_name, one.device.device_name) for one in await _first(bench)]
    if len(set(named)) < len(named):
        raise Finding(f"the health stream names devices twice: {sorted(named)}")


@check("KM-23", level=Level.SHOULD)
async def has_known_values(bench: Bench) -> None:
    """Health is Unknown (0), Healthy (1) or Unhealthy (2); kubelets take other values for Unknown."""
    for one in await _first(bench):
        if one.health not in (0, 1, 2):
            raise Finding(f"device {one.device.device_name} has the health {one.health}")


@check("KM-23", level=Level.SHOULD)
async def has_short_messages(bench: Bench) -> None:
    """A message about a device has at most 1024 bytes; kubelets cut the rest."""
    for one in await _first(bench):
        if len(one.message.encode()) > MESSAGE:
            raise Finding(f"the message of device {one.device.device_name} has {len(one.message.encode())} bytes")


@check("KM-23", level=Level.SHOULD)
async def has_no_negative_timeouts(bench: Bench) -> None:
    """The time-out of a device is not negative; kubelets use 30 s instead."""
    for one in await _first(bench):
        if one.health_check_timeout_seconds < 0:
            raise Finding(f"device {one.device.device_name} has the time-out {one.health_check_timeout_seconds}")


@check("KM-24", "plugin-helper.md 6")
async def is_repeated_in_time(bench: Bench) -> None:
    """The stream repeats the health before it expires: 30 s, or the time-out that the driver gave.

    A healthy device that is not mentioned for so long becomes Unknown.
    """
    await _needed(bench)
    async with bench.kubelet.health(bench.registration) as stream:
        first = await _next(stream, bench.limits.answer, "a first message")
        timeouts = [one.health_check_timeout_seconds or bench.limits.health for one in first.devices]
        soonest = min((timeout for timeout in timeouts if timeout > 0), default=bench.limits.health)
        await _next(stream, soonest, "the health of devices is repeated before it expires")


@check("NOD-052", "KM-22")
async def is_told_to_each_stream(bench: Bench) -> None:
    """A second stream has its own first message; kubelets connect again every 5 s after a stream ended."""
    await _first(bench)
    await _first(bench)


@check("NOD-051", "NOD-054")
async def leaves_calls_alone(bench: Bench) -> None:
    """Claims are prepared and unprepared while a stream is open."""
    await _needed(bench)
    claim = await bench.claim(await bench.device())
    async with bench.kubelet.health(bench.registration) as stream:
        await _next(stream, bench.limits.answer, "a first message")
        await bench.prepare(claim)
        await bench.unprepare(claim)
