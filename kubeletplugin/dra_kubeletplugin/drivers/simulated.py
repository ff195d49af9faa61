"""A driver without hardware: a container sees its devices as environment variables.

Configuration of a claim or of its class, ``{"key": "value"}``, becomes ``user_key`` or ``admin_key``; a marker names
claim and request. So a look into a container shows what was allocated and configured.
Spec: plugin-helper.md section 7.2, TD-01 to TD-03.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from dra_api.references import base_request, configs_for_result
from dra_api.resource import DeviceRequestAllocationResult, ResourceClaim

from dra_kubeletplugin import (
    CdiFolder,
    ClaimError,
    ClaimRef,
    ContainerEdits,
    Driver,
    PreparedDevice,
    PrepareResults,
    UnprepareResults,
    each_claim,
    results_for,
)

_PREFIXES = {"FromClass": "admin_", "FromClaim": "user_"}
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9]")


class SimulatedDriver(Driver):
    """Prepares claims of the driver ``name`` by writing CDI files into ``cdi``."""

    def __init__(self, name: str, cdi: CdiFolder) -> None:
        self._name = name
        self._cdi = cdi
        self._prepared: dict[tuple[str, str], tuple[PreparedDevice, ...]] = {}

    @property
    def prepared_claims(self) -> list[tuple[str, str]]:
        """Name and uid of the claims that are prepared."""
        return sorted(self._prepared)

    async def prepare(self, claims: Sequence[ResourceClaim]) -> PrepareResults:
        """Write a CDI file per request of each claim. A prepared claim gets the same devices again."""
        return await each_claim(claims, self._prepare)

    async def unprepare(self, claims: Sequence[ClaimRef]) -> UnprepareResults:
        """Remove the CDI files, also those of an earlier process."""
        return await each_claim(claims, self._unprepare)

    async def _prepare(self, claim: ResourceClaim) -> tuple[PreparedDevice, ...]:
        key = (claim.metadata.name, claim.metadata.uid)
        if key in self._prepared:
            return self._prepared[key]
        results = results_for(self._name, claim)
        environment: dict[str, dict[str, str]] = {}
        for result in results:
            variables = environment.setdefault(base_request(result.request), {})
            variables |= self._environment(claim, result)
        ids: dict[str, str] = {}
        for request, variables in environment.items():
            edits = ContainerEdits(env=tuple(sorted(f"{name}={value}" for name, value in variables.items())))
            ids[request] = self._cdi.write(claim.metadata.uid, request, edits)
        self._prepared[key] = tuple(PreparedDevice.of(result, ids[base_request(result.request)]) for result in results)
        return self._prepared[key]

    async def _unprepare(self, claim: ClaimRef) -> None:
        self._cdi.remove(claim.uid)
        self._prepared.pop((claim.name, claim.uid), None)

    def _environment(self, claim: ResourceClaim, result: DeviceRequestAllocationResult) -> dict[str, str]:
        configs = claim.status.allocation.devices.config if claim.status.allocation else None
        marker = _NOT_IN_NAMES.sub("_", f"claim_{claim.metadata.name}_{base_request(result.request)}")
        variables = {marker: "true"}
        for config in configs_for_result(configs, result.request):
            if config.opaque and config.opaque.driver == self._name:
                prefix = _PREFIXES.get(config.source, "user_")
                for key, value in _parameters(claim, bytes(config.opaque.parameters)).items():
                    variables[prefix + key] = value
        return variables


def _parameters(claim: ResourceClaim, raw: bytes) -> dict[str, str]:
    try:
        parameters = msgspec.json.decode(raw, type=dict[str, str])
    except (msgspec.DecodeError, ValueError) as error:
        raise ClaimError(
            f"claim {claim.key}: the parameters {raw.decode(errors='replace')!r} are invalid: {error}; "
            'use an object of strings, such as {"color": "red"}'
        ) from error
    for key in parameters:
        if "=" in key or "\0" in key + parameters[key]:
            raise ClaimError(f"claim {claim.key}: the parameter {key!r} cannot be the name of an environment variable")
    return parameters
