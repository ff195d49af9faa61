"""A driver without hardware: a container sees its devices as environment variables.

Configuration of a claim or of its class, ``{"key": "value"}``, becomes ``user_key`` or ``admin_key``; a marker names
claim and request, and further variables say which and how many devices there are::

    claim_train_gpus=true
    devices_train_gpus=2
    device_train_gpus_0=worker-1/gpu-3
    device_train_gpus_1=worker-1/gpu-4
    user_color=red

Spec: plugin-helper.md section 7.2, TD-01 to TD-03.
"""

from __future__ import annotations

import re
from collections import Counter

from dra_api.relations.references import base_request
from dra_api.resource import DeviceRequestAllocationResult, ResourceClaim

from dra_kubeletplugin import ClaimError, ContainerEdits, Driver, Prepared, PreparedDevice, configs_for, results_for

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9]")


class SimulatedDriver(Driver):
    """Prepares claims of the driver ``name``."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        """Give each device the variables of its request."""
        results = results_for(self._name, claim)
        counts = Counter(base_request(result.request) for result in results)
        seen: Counter[str] = Counter()
        prepared = []
        for result in results:
            request = base_request(result.request)
            name = _NOT_IN_NAMES.sub("_", f"{claim.metadata.name}_{request}")
            variables = {
                f"claim_{name}": "true",
                f"devices_{name}": str(counts[request]),
                f"device_{name}_{seen[request]}": f"{result.pool}/{result.device}",
            }
            seen[request] += 1
            prepared.append(self._prepared(claim, result, variables))
        return prepared

    def _prepared(
        self, claim: ResourceClaim, result: DeviceRequestAllocationResult, variables: dict[str, str]
    ) -> PreparedDevice:
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
