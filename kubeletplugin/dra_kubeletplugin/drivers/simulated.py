"""A driver without hardware: a container sees its devices as environment variables.

Configuration of a claim or of its class, ``{"key": "value"}``, becomes ``user_key`` or ``admin_key``; a marker names
claim and request. So a look into a container shows what was allocated and configured.
Spec: plugin-helper.md section 7.2, TD-01 to TD-03.
"""

from __future__ import annotations

import re

from dra_api.references import base_request
from dra_api.resource import DeviceRequestAllocationResult, ResourceClaim

from dra_kubeletplugin import ClaimError, ContainerEdits, Driver, Prepared, PreparedDevice, configs_for, results_for

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9]")


class SimulatedDriver(Driver):
    """Prepares claims of the driver ``name``."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        """Give each device the variables of its request."""
        return [self._prepared(claim, result) for result in results_for(self._name, claim)]

    def _prepared(self, claim: ResourceClaim, result: DeviceRequestAllocationResult) -> PreparedDevice:
        marker = _NOT_IN_NAMES.sub("_", f"claim_{claim.metadata.name}_{base_request(result.request)}")
        variables = {marker: "true"}
        for config in configs_for(self._name, claim, result, dict[str, str]):
            for key, value in config.parameters.items():
                if "=" in key or "\0" in key + value:
                    raise ClaimError(
                        f"claim {claim.key}: the parameter {key!r} cannot be the name of an environment variable"
                    )
                variables[("admin_" if config.from_class else "user_") + key] = value
        edits = ContainerEdits(env=tuple(sorted(f"{name}={value}" for name, value in variables.items())))
        told = {"driverName": self._name, "pool": result.pool, "device": result.device}
        return PreparedDevice.of(result, edits=edits, attributes=told)
