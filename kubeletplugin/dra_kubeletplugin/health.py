"""The health of devices, as the driver reports it to the kubelet.

The library iterates over ``Driver.health`` once, and gives each kubelet that watches the latest report: at once, after
each change, and often enough that no device becomes unknown. When ``health`` fails, nothing is reported: the devices
become unknown after their time, and ``health`` is called again.

A kubelet of 1.36 watches every driver, and logs an error every 5 s if the service is missing. So a driver without
``health`` has it too, and it stays silent; one of 1.37 watches only drivers that advertise the service. Spec:
plugin-helper.md section 6, K37-HEALTH-01 to -07.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from functools import partial
from typing import Any

import grpc
from dra_proto.health.v1 import api_pb2 as messages  # v1alpha1 has the same messages

from dra_kubeletplugin.driver import ENDINGS, DeviceHealth, Driver, is_ending, readable, text_of
from dra_kubeletplugin.errors import HealthFailed

log = logging.getLogger(__name__)

HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")

_KUBELET_TIMEOUT_SECONDS = 30
_RETRY_SECONDS = 5.0
_REPORT_PAUSE_SECONDS = 0.01
"""Seconds between two reports that are taken from the driver: one that never pauses would stop the event loop."""
_STATUS = {None: messages.UNKNOWN, True: messages.HEALTHY, False: messages.UNHEALTHY}


class HealthReports:
    """The driver's latest report, and the kubelets that wait for it. There is no service unless it is ``served``."""

    def __init__(self, driver: Driver, node_name: str, *, served: bool) -> None:
        self._driver = driver
        self._served = served
        self._node_name = node_name
        self._report: tuple[DeviceHealth, ...] | None = None
        self._number = 0
        self._seen = 0.0
        self._changed = asyncio.Condition()

    @property
    def services(self) -> tuple[str, ...]:
        """What to advertise: nothing if the driver has no health to report."""
        return HEALTH_SERVICES if self._reports else ()

    @property
    def _reports(self) -> bool:
        return self._served and type(self._driver).health is not Driver.health

    async def follow(self) -> None:
        """Ask the driver until this is cancelled."""
        while self._reports:
            try:
                reports = self._driver.health()
                if not isinstance(reports, AsyncIterable):
                    raise TypeError(f"health returned {reports!r}: write 'async def health', and 'yield' each report")
                async for report in reports:
                    await self._set(_checked(report))
                    await asyncio.sleep(_REPORT_PAUSE_SECONDS)
                return  # the last report stays
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) or (isinstance(error, ENDINGS) and is_ending()):
                    raise
                await self._set(None)
                log.error("the driver's health failed", exc_info=error)
                failed = HealthFailed(f"the driver's health failed and is called again: {text_of(error)}")
                self._tell(failed)
            await asyncio.sleep(_RETRY_SECONDS)

    def _tell(self, failed: HealthFailed) -> None:
        """Give the error to the driver's handler, which may fail: the driver is asked again all the same."""
        try:
            self._driver.handle_error(failed, "cannot report the health of devices")
        except (Exception, *ENDINGS):  # nothing is awaited here, so an ending is the handler's own
            log.exception("the driver's handle_error failed; its health is called again")

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve it in all versions, if it is to be served."""
        if not self._served:
            return
        watch = grpc.unary_stream_rpc_method_handler(
            self._watch,
            request_deserializer=messages.NodeWatchResourcesRequest.FromString,
            response_serializer=messages.NodeWatchResourcesResponse.SerializeToString,
        )
        for service in HEALTH_SERVICES:
            handler = grpc.method_handlers_generic_handler(service, {"NodeWatchResources": watch})
            server.add_generic_rpc_handlers((handler,))

    async def _set(self, report: tuple[DeviceHealth, ...] | None) -> None:
        async with self._changed:
            self._report = report
            self._number += 1
            self._seen = time.time()
            self._changed.notify_all()

    async def _watch(self, _request: Any, _context: Any) -> AsyncIterator[messages.NodeWatchResourcesResponse]:
        sent = 0
        while True:
            async with self._changed:
                try:
                    async with asyncio.timeout(self._patience()):
                        await self._changed.wait_for(partial(self._is_newer, sent))
                except TimeoutError:
                    pass  # the same report once more
                sent, report, seen = self._number, self._report, self._seen
            if report is not None:
                yield messages.NodeWatchResourcesResponse(devices=[self._message(device, seen) for device in report])

    def _is_newer(self, number: int) -> bool:
        return self._number > number

    def _message(self, device: DeviceHealth, seen: float) -> messages.DeviceHealth:
        return messages.DeviceHealth(
            device=messages.DeviceIdentifier(pool_name=device.pool or self._node_name, device_name=device.device),
            health=_STATUS[device.healthy],
            last_updated_time=int(seen),
            health_check_timeout_seconds=device.timeout_seconds,
            message=readable(device.message),
        )

    def _patience(self) -> float | None:
        """Seconds until a report must be repeated; None if there is nothing to repeat."""
        if self._report is None:
            return None
        return min([_KUBELET_TIMEOUT_SECONDS, *(d.timeout_seconds for d in self._report if d.timeout_seconds)]) / 3


def _checked(report: Any) -> tuple[DeviceHealth, ...]:
    if not isinstance(report, Sequence) or not all(isinstance(item, DeviceHealth) for item in report):
        raise TypeError(f"health yielded {report!r}: yield a list of DeviceHealth with all devices")
    for item in report:
        given = {"device": item.device, "pool": item.pool, "message": item.message}
        for name, value in given.items():
            if not isinstance(value, str):
                raise TypeError(f"health of device {item.device}: {name} is {value!r}: give a string")
        if item.healthy not in _STATUS:
            raise TypeError(f"health of device {item.device}: healthy is {item.healthy!r}: give True, False or None")
        if not isinstance(item.timeout_seconds, int) or item.timeout_seconds < 0:
            raise ValueError(
                f"health of device {item.device}: timeout_seconds {item.timeout_seconds!r} is not a whole "
                "number from 1 (or 0, for the kubelet's default of 30)"
            )
    return tuple(report)
