"""The parts of a Pod that concern claims. Spec: api.md section 10.

All else about pods is not validated here.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from dra_api.core import (
    MIRROR_ANNOTATION,
    Container,
    ContainerClaim,
    Pod,
    PodExtendedResourceClaimStatus,
    PodResourceClaim,
    PodResourceClaimStatus,
    PodSpec,
)
from dra_api.validation.errors import Errors, FieldError, duplicate, forbidden, immutable, invalid, not_found, required
from dra_api.validation.formats import checked, dns_label, dns_subdomain
from dra_api.validation.lists import each
from dra_api.values.equality import same


def validate_pod_claims(new: Pod, old: Pod | None = None) -> list[FieldError]:
    """What is wrong with the claims of a new pod, or with an update, which must not change them."""
    claims = new.spec.resource_claims or ()
    if old is not None:
        unchanged = same(new.spec.resource_claims, old.spec.resource_claims)
        return [] if unchanged else [immutable("spec.resourceClaims", list(claims))]
    errors: list[FieldError] = []
    if claims and MIRROR_ANNOTATION in (new.metadata.annotations or {}):
        errors.append(forbidden("spec.resourceClaims", "static pods do not support resourceClaims"))
    names: set[str] = set()
    for index, claim in enumerate(claims):
        errors += claim_entry(claim, f"spec.resourceClaims[{index}]", names)
        names.add(claim.name)
    for container, path in _containers(new.spec):
        errors += _container_claims(container.resources.claims or (), f"{path}.resources.claims", names)
    return errors


def validate_pod_claim_status(new: Pod) -> list[FieldError]:
    """What is wrong with the claims that a pod's status records."""
    names = {claim.name for claim in new.spec.resource_claims or ()}
    errors = list(claim_statuses(new.status.resource_claim_statuses or (), "status.resourceClaimStatuses", names))
    if new.status.extended_resource_claim_status is not None:
        path = "status.extendedResourceClaimStatus"
        errors += _extended(new.status.extended_resource_claim_status, new.spec, path)
    return errors


def _containers(spec: PodSpec) -> Iterator[tuple[Container, str]]:
    for index, container in enumerate(spec.init_containers or ()):
        yield container, f"spec.initContainers[{index}]"
    for index, container in enumerate(spec.containers or ()):
        yield container, f"spec.containers[{index}]"


def claim_entry(claim: PodResourceClaim, path: str, names: Set[str]) -> Errors:
    """What is wrong with an entry of a pod or of a PodGroup, beside those with these names."""
    if not claim.name:
        yield required(f"{path}.name")
    elif claim.name in names:
        yield duplicate(f"{path}.name", claim.name)
    else:
        yield from checked(dns_label, claim.name, f"{path}.name")
    if claim.resource_claim_name is not None and claim.resource_claim_template_name is not None:
        detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
        yield invalid(path, claim, detail)
    if claim.resource_claim_name is None and claim.resource_claim_template_name is None:
        yield invalid(path, claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
    for name, value in (
        ("resourceClaimName", claim.resource_claim_name),
        ("resourceClaimTemplateName", claim.resource_claim_template_name),
    ):
        if value is not None:
            yield from checked(dns_subdomain, value, f"{path}.{name}")


def _container_claims(claims: tuple[ContainerClaim, ...], path: str, names: Set[str]) -> Errors:
    """Each entry means a whole claim or one of its requests; no entry stands twice."""
    whole = {claim.name for claim in claims if not claim.request}
    seen = set()

    def one(claim: ContainerClaim, path: str) -> Errors:
        if not claim.name:
            yield required(path)
            return
        if claim.request:
            yield from checked(dns_label, claim.request, f"{path}.request")
        twice = (claim.name, claim.request) in seen or (claim.request and claim.name in whole)
        seen.add((claim.name, claim.request))
        if twice:
            yield duplicate(path, f"{claim.name}/{claim.request}" if claim.request else claim.name)
        if claim.name not in names:
            known = ": " + ", ".join(sorted(names)) if names else " which is empty"
            yield not_found(path, claim.name, f"must be one of the names in pod.spec.resourceClaims{known}")

    yield from each(claims, path, one)


def claim_statuses(statuses: tuple[PodResourceClaimStatus, ...], path: str, names: Set[str]) -> Errors:
    """What is wrong with the names of claims that a status records for entries of these names."""
    seen = set()
    for index, status in enumerate(statuses):
        item_path = f"{path}[{index}]"
        if status.name not in names:
            detail = "must match the name of an entry in `spec.resourceClaims`"
            yield invalid(f"{item_path}.name", status.name, detail)
        if status.name in seen:
            yield duplicate(f"{item_path}.name", status.name)
        seen.add(status.name)
        if status.resource_claim_name is not None:
            yield from checked(dns_subdomain, status.resource_claim_name, f"{item_path}.resourceClaimName")


def _extended(status: PodExtendedResourceClaimStatus, spec: PodSpec, path: str) -> Errors:
    if status.resource_claim_name:
        yield from checked(dns_subdomain, status.resource_claim_name, f"{path}.resourceClaimName")
    else:
        yield required(f"{path}.resourceClaimName")
    if not status.request_mappings:
        yield required(f"{path}.requestMappings", "at least one request mapping is required")
    containers = {container.name: container for container, _ in _containers(spec)}
    seen = set()
    for index, mapping in enumerate(status.request_mappings or ()):
        item_path = f"{path}.requestMappings[{index}]"
        container = containers.get(mapping.container_name)
        if container is None:
            detail = "must match the name of an entry in `spec.initContainers` or `spec.containers`"
            yield invalid(f"{item_path}.containerName", mapping.container_name, detail)
        elif mapping.resource_name not in (container.resources.requests or {}):
            detail = "must be one of the resources that the container requests"
            yield invalid(f"{item_path}.resourceName", mapping.resource_name, detail)
        yield from checked(dns_label, mapping.request_name, f"{item_path}.requestName")
        if mapping in seen:
            names = (mapping.container_name, mapping.resource_name, mapping.request_name)
            yield duplicate(item_path, "/".join(names))
        seen.add(mapping)
