"""The devices of a container: its CDI devices, and their health in the pod's status.

Which CDI devices a container gets (KM-17). No I/O here.

The health of a container's devices in the pod's status: ``allocatedResourcesStatus`` (KM-27). No I/O here.

One entry per claim reference of the container, with one resource per device. Claims for extended resources and devices
that the node does not hold (any more) are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dra_api.core import Container, ContainerClaim, Pod
from dra_api.references import ClaimReferenceError, claim_name

from dra_devcluster.agent.claims.checkpoint import ClaimCache, ClaimInfo
from dra_devcluster.agent.errors import ClaimError
from dra_devcluster.agent.plugins.health import DeviceHealth
from dra_devcluster.agent.plugins.plugin import PreparedDevice


def cdi_devices(pod: Pod, container: Container, cache: ClaimCache, *, repeat: bool = False) -> list[str]:
    """The CDI ids for a container, in the order of its claim references, each once unless they may ``repeat``.

    Raises ClaimError when a claim of the container is not held by the node.
    """
    ids: list[str] = []
    for name, request in claim_requests(pod, container):
        claim = cache.get(pod.metadata.namespace, name)
        if claim is None:
            raise ClaimError(f"ResourceClaim {name} is not prepared on this node")
        for _, device in matching(claim, request):
            ids += device.cdi_ids
    return ids if repeat else list(dict.fromkeys(ids))


def claim_requests(pod: Pod, container: Container) -> Iterator[tuple[str, str]]:
    """Pairs of claim name and request that the container refers to; an empty request is the whole claim."""
    entries = {entry.name: entry for entry in pod.spec.resource_claims or ()}
    for reference in container.resources.claims or ():
        entry = entries.get(reference.name)
        if entry is None:
            raise ClaimError(f"container {container.name} refers to the unknown claim {reference.name}")
        try:
            name, _ = claim_name(pod, entry)
        except ClaimReferenceError as error:
            raise ClaimError(str(error)) from error
        if name is not None:
            yield name, reference.request
    extended = pod.status.extended_resource_claim_status
    for mapping in extended.request_mappings or () if extended else ():
        amount = (container.resources.requests or {}).get(mapping.resource_name)
        if extended and mapping.container_name == container.name and amount is not None and amount.nanos:
            yield extended.resource_claim_name, mapping.request_name


def matching(claim: ClaimInfo, request: str) -> Iterator[tuple[str, PreparedDevice]]:
    """The devices of a claim that serve a request, each with its driver; an empty request is the whole claim."""
    for driver, devices in claim.drivers.items():
        for device in devices:
            if not request or not device.requests or request in device.requests:
                yield driver, device


Json = dict[str, Any]
HealthOf = Callable[[str, str, str], DeviceHealth]
"""The health of a device by driver, pool and name."""


def resources_status(
    pod: Pod, container: Container, cache: ClaimCache, health_of: HealthOf, *, messages: bool
) -> list[Json]:
    """The entries, sorted by name; ``messages`` says whether they show what the driver adds in words."""
    entries: dict[str, list[Json]] = {}
    for reference in container.resources.claims or ():
        claim = _claim(pod, reference, cache)
        if claim is not None:
            name = f"claim:{reference.name}/{reference.request}" if reference.request else f"claim:{reference.name}"
            entries[name] = _resources(claim, reference.request, health_of, messages)
    return [{"name": name, "resources": resources} for name, resources in sorted(entries.items()) if resources]


def _claim(pod: Pod, reference: ContainerClaim, cache: ClaimCache) -> ClaimInfo | None:
    """The claim if the node holds it for this pod."""
    entry = next((entry for entry in pod.spec.resource_claims or () if entry.name == reference.name), None)
    try:
        name = claim_name(pod, entry).name if entry is not None else None
    except ClaimReferenceError:
        return None
    claim = cache.get(pod.metadata.namespace, name) if name is not None else None
    return claim if claim is not None and pod.metadata.uid in claim.pods else None


def _resources(claim: ClaimInfo, request: str, health_of: HealthOf, messages: bool) -> list[Json]:
    """One resource per device id: of devices with the same id the first counts."""
    resources: dict[str, Json] = {}
    for driver, device in matching(claim, request):
        identity = device.cdi_ids[0] if device.cdi_ids else f"{driver}/{device.pool}/{device.device}"
        health = health_of(driver, device.pool, device.device)
        message = {"message": health.message} if messages and health.message else {}
        resources.setdefault(identity, {"resourceID": identity, "health": health.status} | message)
    return list(resources.values())
