"""What a driver answered to ``prepare``, checked against the claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dra_api.references import base_request
from dra_api.resource import ResourceClaim

from dra_kubeletplugin.driver import Driver, PreparedDevice, answer_of, results_for
from dra_kubeletplugin.errors import ClaimError


async def prepared_by(driver: Driver, name: str, claim: ResourceClaim) -> tuple[PreparedDevice, ...]:
    """What the driver ``name`` prepares. Raises what it raises, and ClaimError for an answer that cannot be."""
    return _checked(await answer_of(driver.prepare(claim)), claim, name)


async def all_prepared_by(
    driver: Driver, name: str, claims: Sequence[ResourceClaim]
) -> dict[str, tuple[PreparedDevice, ...] | Exception]:
    """What the driver ``name`` prepares for the claims of a call, or the error of each, by uid."""
    try:
        answers: Any = await answer_of(driver.prepare_all(claims))
        if not isinstance(answers, Mapping):
            raise ClaimError(
                f"the driver's prepare_all returned {answers!r}: return a dict of the devices of each claim by its uid"
            )
    except Exception as error:
        return {claim.metadata.uid: error for claim in claims}
    return {claim.metadata.uid: _one_of(answers, claim, name) for claim in claims}


def _one_of(answers: Mapping[str, Any], claim: ResourceClaim, driver: str) -> tuple[PreparedDevice, ...] | Exception:
    try:
        answer = answers[claim.metadata.uid]
        return answer if isinstance(answer, Exception) else _checked(answer, claim, driver)
    except KeyError:
        return ClaimError(f"the driver's prepare_all returned nothing for claim {claim.key}, uid {claim.metadata.uid}")
    except ClaimError as error:
        return error


def _checked(devices: Any, claim: ResourceClaim, driver: str) -> tuple[PreparedDevice, ...]:
    """What the driver returned. Raises ClaimError, which names the device and what would be right."""
    if not isinstance(devices, Iterable) or isinstance(devices, str | Mapping):
        raise ClaimError(f"the driver's prepare returned {devices!r}: return a list of PreparedDevice")
    allocated: dict[tuple[str, str], set[str]] = {}
    for result in results_for(driver, claim):
        allocated.setdefault((result.pool, result.device), set()).add(base_request(result.request))
    found = tuple(devices)
    for device in found:
        if not isinstance(device, PreparedDevice):
            raise ClaimError(f"the driver's prepare returned {device!r} as a device: use PreparedDevice.of(result)")
        requests = allocated.get((device.pool, device.device))
        if requests is None:
            raise ClaimError(
                f"the driver's prepare returned the device {device.device} of pool {device.pool}, which is not "
                "allocated to the claim: return those of results_for(...)"
            )
        if unknown := {base_request(name) for name in device.requests} - requests:
            raise ClaimError(
                f"the driver's prepare returned the device {device.device} for the request {min(unknown)}, which it "
                "was not allocated for: use PreparedDevice.of(result)"
            )
    return found
