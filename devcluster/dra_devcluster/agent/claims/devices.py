"""Which CDI devices a container gets (KM-17). No I/O here."""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.core import Container, Pod
from dra_api.relations.references import ClaimReferenceError, claim_name

from dra_devcluster.agent.errors import ClaimError
from dra_devcluster.agent.plugins.messages import PreparedDevice

from .claim_info import ClaimCache, ClaimInfo


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
