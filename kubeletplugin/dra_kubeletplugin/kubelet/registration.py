"""The registration service: the kubelet finds its socket, asks which plugin it is, and says whether it is registered.

Spec: plugin-helper.md section 2.3, PH-03 and PH-04.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dra_proto.registration.v1 import api_pb2, api_pb2_grpc

from dra_kubeletplugin.errors import RegistrationRefused

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegistrationStatus:
    """The kubelet's last word; ``error`` is its reason if the plugin is not ``registered``."""

    registered: bool
    error: str = ""


class RegistrationService(api_pb2_grpc.RegistrationServicer):
    """Answers the kubelet and remembers what it said; calls ``on_registered`` each time that it registers us."""

    def __init__(
        self, driver_name: str, endpoint: str, services: Sequence[str], on_registered: Callable[[], None]
    ) -> None:
        self._on_registered = on_registered
        self._info = api_pb2.PluginInfo(
            type="DRAPlugin", name=driver_name, endpoint=endpoint, supported_versions=services
        )
        self._changed = asyncio.Condition()
        self.status: RegistrationStatus | None = None

    async def registered(self) -> None:
        """Wait until the kubelet has registered the plugin."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.status is not None and self.status.registered)

    async def GetInfo(self, request: api_pb2.InfoRequest, context: Any) -> api_pb2.PluginInfo:  # noqa: N802  # grpc
        """Name, socket and versions of this plugin."""
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802  # grpc's name
        self, request: api_pb2.RegistrationStatus, context: Any
    ) -> api_pb2.RegistrationStatusResponse:
        """Remember the kubelet's word; a refusal is answered with an error, so that both sides log it."""
        async with self._changed:
            self.status = RegistrationStatus(request.plugin_registered, request.error)
            self._changed.notify_all()
        if request.plugin_registered:
            log.info("the kubelet registered the plugin")
            self._on_registered()
        else:
            raise RegistrationRefused(f"the kubelet did not register the plugin: {request.error}")
        return api_pb2.RegistrationStatusResponse()
