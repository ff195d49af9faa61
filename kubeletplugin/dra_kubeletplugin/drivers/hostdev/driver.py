"""What a container gets of a host device: its nodes, and what the entry of the configuration adds.

The host is looked at again for each claim, so that a device that was plugged in again is given with its present number.
A claim may say where the node is to be, with the configuration ``{"containerPath": "/dev/modem"}``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import msgspec
from dra_api.resource import DeviceRequestAllocationResult, ResourceClaim

from dra_kubeletplugin import (
    CdiError,
    ClaimError,
    ContainerEdits,
    DeviceHealth,
    Driver,
    Prepared,
    PreparedDevice,
    configs_for,
    results_for,
)

from .device import Found
from .edits import edits_of, network_of
from .facts import HostTree
from .interfaces import InPods


class Parameters(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The configuration that a claim or a class may have for a device."""

    container_path: str = ""


class HostdevDriver(Driver):
    """Prepares the devices that ``look`` finds, which blocks; ``health`` tells which are there."""

    def __init__(
        self,
        name: str,
        look: Callable[[], Found],
        health: Callable[[], AsyncIterator[Sequence[DeviceHealth]]],
        in_pods: InPods | None = None,
    ) -> None:
        self._name = name
        self._in_pods = in_pods or InPods(HostTree())
        self._look = look
        self._health = health

    def health(self) -> AsyncIterator[Sequence[DeviceHealth]]:
        """A device that is gone is unhealthy."""
        return self._health()

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        """Give the nodes of each device. Raises ClaimError for a device that is gone."""
        results = results_for(self._name, claim)
        found = await asyncio.to_thread(self._look)
        return _numbered([self._prepared(claim, result, found) for result in results])

    def _prepared(self, claim: ResourceClaim, result: DeviceRequestAllocationResult, found: Found) -> PreparedDevice:
        made = found.devices.get(result.device)
        if made is None:
            for uid, device in self._in_pods.devices():
                if uid == claim.metadata.uid and (device.device, device.requests) == (result.device, (result.request,)):
                    return device  # the claim's own pod has the interface
            why = "; ".join(problem for problem in found.problems) or "plug it in again, or delete the pod"
            raise ClaimError(f"device {result.device} is gone: {why}")
        path = ""
        for config in configs_for(self._name, claim, result, Parameters):
            path = config.parameters.container_path or path
        try:
            return PreparedDevice.of(
                result,
                edits=edits_of(made, path),
                attributes=made.published.attributes,
                network=network_of(made),
                owns=found.owned[made.name],
            )
        except (CdiError, ValueError) as error:
            raise ClaimError(f"device {result.device}: {error}") from error


def _numbered(prepared: list[PreparedDevice]) -> list[PreparedDevice]:
    """With a number for each device in the names of variables that several of them have: ``PORT_0`` beside ``PORT``.

    A container that gets them all sees of ``PORT`` the last one only.
    """
    edits = [device.edits or ContainerEdits() for device in prepared]
    counts = Counter(name for each in edits for name in each.environment())
    seen: Counter[str] = Counter()
    numbered = []
    for device, each in zip(prepared, edits, strict=True):
        more = []
        for name, value in each.environment().items():
            if counts[name] > 1:
                more.append(f"{name}_{seen[name]}={value}")
                seen[name] += 1
        numbered.append(replace(device, edits=each + ContainerEdits(env=tuple(more))) if more else device)
    return numbered
