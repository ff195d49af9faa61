"""Names that lead nowhere: classes, claims, templates, requests of a claim that a container wants."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from dra_api.core import Pod, PodResourceClaim
from dra_api.resource import ADMIN_ACCESS_LABEL, DeviceClaim, ExactDeviceRequest

from dra_operator.kubectl.why.fixes.requests import every_request

from .manifest import Finding, Manifest, Severity, Surroundings, claims_in


def dead_references(around: Surroundings) -> Iterator[Finding]:
    """Absent objects count only where there is a cluster, which would have them."""
    for manifest, claim, spec in claims_in(around.manifests):
        namespace = around.made.cluster.namespaces.get(claim.metadata.namespace)
        for name, wanted in every_request(claim):
            path = f"{spec}.devices.requests[{name}]"
            class_ = wanted.device_class_name
            if around.has_cluster and around.device_class(class_) is None:
                text = f"device class {class_} does not exist{_similar(class_, around)}"
                yield manifest.finding(Severity.ERROR, f"{path}.deviceClassName", text)
            is_admin = isinstance(wanted, ExactDeviceRequest) and wanted.admin_access
            if (
                is_admin
                and namespace is not None
                and (namespace.metadata.labels or {}).get(ADMIN_ACCESS_LABEL) != "true"
            ):
                text = f"namespace {claim.metadata.namespace} lacks the label {ADMIN_ACCESS_LABEL}: true"
                yield manifest.finding(Severity.ERROR, f"{path}.adminAccess", text)
    for manifest in around.manifests:
        if isinstance(manifest.obj, Pod):
            yield from _of_pod(manifest, manifest.obj, around)


def _similar(name: str, around: Surroundings) -> str:
    known = sorted(class_.metadata.name for class_ in around.made.cluster.classes)
    similar = get_close_matches(name, known, 1) or known[:3]
    return f"; there is {', '.join(similar)}" if similar else ""


def _of_pod(manifest: Manifest, pod: Pod, around: Surroundings) -> Iterator[Finding]:
    named: dict[str, list[str]] = {}
    for place, entry in enumerate(pod.spec.resource_claims or ()):
        what, devices = _meant(pod.metadata.namespace, entry, around)
        if devices is not None:
            named[entry.name] = [request.name for request in devices.requests or ()]
        elif what and around.has_cluster:
            yield manifest.finding(Severity.ERROR, f"spec.resourceClaims[{place}]", f"{what} does not exist")
    containers = (("initContainers", pod.spec.init_containers or ()), ("containers", pod.spec.containers or ()))
    for kind, several in containers:
        for container in several:
            for place, use in enumerate(container.resources.claims or ()):
                if use.request and use.name in named and use.request.partition("/")[0] not in named[use.name]:
                    path = f"spec.{kind}[{container.name}].resources.claims[{place}].request"
                    text = f"claim {use.name} has no request {use.request}; it has {', '.join(named[use.name])}"
                    yield manifest.finding(Severity.ERROR, path, text)


def _meant(namespace: str, entry: PodResourceClaim, around: Surroundings) -> tuple[str, DeviceClaim | None]:
    if entry.resource_claim_name is not None:
        claim = around.claim(f"{namespace}/{entry.resource_claim_name}")
        found = claim.spec.devices if claim is not None else None
        return f"ResourceClaim {namespace}/{entry.resource_claim_name}", found
    if entry.resource_claim_template_name is not None:
        template = around.template(f"{namespace}/{entry.resource_claim_template_name}")
        found = template.typed().spec.devices if template is not None else None
        return f"ResourceClaimTemplate {namespace}/{entry.resource_claim_template_name}", found
    return "", None
