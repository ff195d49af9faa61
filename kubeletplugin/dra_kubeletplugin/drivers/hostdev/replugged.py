"""Keeps what prepared claims give to containers in line with the host.

The kernel gives the lowest free number to what is plugged in, so a device that is plugged in again may have the node
that another one had. After each thorough look the claims whose devices have other nodes now, or are gone, are prepared
again: their CDI files are rewritten, or withdrawn. A network interface that is in its pod counts as unchanged.

In a rolling update the newest instance alone does so. The other one may have another configuration: devices that it
does not know would be gone for it, and it would withdraw their claims.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dra_kubeletplugin import KubeletPlugin

from .device import Found
from .hotplug import Hotplug

log = logging.getLogger(__name__)


@asynccontextmanager
async def replugged(hotplug: Hotplug, plugin: KubeletPlugin) -> AsyncIterator[None]:
    """Prepare claims again while the plugin runs."""
    hotplug.in_pods.claims = lambda: plugin.prepared_claims
    task = asyncio.create_task(_follow(hotplug, plugin), name="prepare claims of replugged devices again")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _follow(hotplug: Hotplug, plugin: KubeletPlugin) -> None:
    async for found in hotplug.looks():
        if not plugin.is_newest:
            continue
        try:
            held = {device.device for _, device in hotplug.in_pods.devices()}
            await plugin.prepare_again(_moved(plugin, found) - held)
        except Exception:
            log.exception("cannot prepare the claims of replugged devices again; retrying soon")


def _moved(plugin: KubeletPlugin, found: Found) -> set[str]:
    """The devices of prepared claims that have other nodes now, or are gone."""
    return {
        device.device
        for claim in plugin.prepared_claims
        for device in claim.devices
        if found.owned.get(device.device) != device.owns
    }
