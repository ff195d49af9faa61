"""How much of a device a request is for, and an allocation gives: a share counts as a part of its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dra_api.core import Pod
from dra_api.resource import (
    DeviceRequest,
    DeviceRequestAllocationResult,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dra_api.values.quantity import Quantity

from dra_operator.allocator import DeviceId

THOUSANDTHS_OF_DEVICE: Final = 1000


class DeviceShares:
    """By the capacities that slices publish."""

    def __init__(self, slices: Sequence[ResourceSlice]) -> None:
        self.all = THOUSANDTHS_OF_DEVICE * sum(len(it.spec.devices or ()) for it in slices)
        """Thousandths of devices that are published."""
        self._capacity: dict[DeviceId, Mapping[str, int]] = {}
        self._largest: dict[str, int] = {}
        for slice_ in slices:
            for device in slice_.spec.devices or ():
                capacity = {name: it.value.nanos for name, it in (device.capacity or {}).items()}
                self._capacity[DeviceId(slice_.spec.driver, slice_.spec.pool.name, device.name)] = capacity
                for name, nanos in capacity.items():
                    self._largest[name] = max(nanos, self._largest.get(name, 0))

    def given(self, result: DeviceRequestAllocationResult) -> int:
        """Thousandths of a device that were allocated."""
        return _part(result.consumed_capacity or {}, self._capacity.get(DeviceId.of(result), {}))

    def asked(self, spec: ResourceClaimSpec) -> int:
        """Thousandths of devices that a claim is for; shares are parts of the largest device."""
        return sum(map(self._asked, spec.devices.requests or ()))

    def asked_by(self, pod: Pod, templates: Mapping[str, ResourceClaimTemplate]) -> int:
        """What the pod's claims from templates ask for; something in any case."""
        names = [f"{pod.metadata.namespace}/{it.resource_claim_template_name}" for it in pod.spec.resource_claims or ()]
        return max(1, sum(self.asked(templates[it].spec.spec) for it in names if it in templates))

    def _asked(self, request: DeviceRequest) -> int:
        wanted = request.exactly
        if wanted is None:
            return THOUSANDTHS_OF_DEVICE
        requested = (wanted.capacity.requests if wanted.capacity is not None else None) or {}
        return max(1, wanted.count) * max(1, _part(requested, self._largest))


def _part(amounts: Mapping[str, Quantity], capacity: Mapping[str, int]) -> int:
    parts = [
        amount.nanos * THOUSANDTHS_OF_DEVICE // capacity[name] for name, amount in amounts.items() if capacity.get(name)
    ]
    return min(THOUSANDTHS_OF_DEVICE, max(parts, default=THOUSANDTHS_OF_DEVICE))
