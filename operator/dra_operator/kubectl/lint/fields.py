"""Faults of single fields of manifests: values that the API server refuses, names that lead nowhere, selectors.

Selectors are compiled, their cost is estimated as the API server does, and the names that they read are looked up among
published names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final

from dra_api.core import Pod, PodResourceClaim
from dra_api.meta import Object
from dra_api.releases import FeatureGates
from dra_api.resource import (
    ADMIN_ACCESS_LABEL,
    DeviceClaim,
    DeviceClass,
    DeviceSelector,
    DeviceTaintRule,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dra_api.validation import (
    FieldError,
    validate_device_class,
    validate_device_taint_rule,
    validate_pod_claims,
    validate_resource_claim,
    validate_resource_claim_template,
    validate_resource_slice,
)
from dra_api.validation.requests import COST_LIMIT
from dra_cel import CompileError, Environment, Reference, compile, device_selectors

from dra_operator.allocator import Features
from dra_operator.kubectl.lint.manifest import Finding, Manifest, Severity, Surroundings, claims_in
from dra_operator.kubectl.why.published import Published
from dra_operator.kubectl.why.request_changes import every_request
from dra_operator.wording import counted, listed


def invalid_fields(manifests: Iterable[Manifest], gates: FeatureGates) -> Iterator[Finding]:
    """An error for each."""
    for manifest in manifests:
        for error in _errors(manifest.obj, gates):
            yield manifest.finding(Severity.ERROR, error.field, error.body)


def _errors(obj: Object, gates: FeatureGates) -> list[FieldError]:
    match obj:
        case ResourceClaim():
            return validate_resource_claim(obj, gates=gates)
        case ResourceClaimTemplate():
            return validate_resource_claim_template(obj, gates=gates)
        case DeviceClass():
            return validate_device_class(obj)
        case DeviceTaintRule():
            return validate_device_taint_rule(obj)
        case ResourceSlice():
            return validate_resource_slice(obj)
        case Pod():
            return validate_pod_claims(obj)
        case _:
            return []


CLASSES: Final = "deviceclasses.resource.k8s.io"
CLAIMS: Final = "resourceclaims.resource.k8s.io"
TEMPLATES: Final = "resourceclaimtemplates.resource.k8s.io"


def dead_references(around: Surroundings) -> Iterator[Finding]:
    """Yield an error for each name of an object that would be seen if it existed."""
    for manifest, claim, spec in claims_in(around.manifests):
        namespace = around.made.cluster.namespaces.get(claim.metadata.namespace)
        for name, wanted in every_request(claim):
            path = f"{spec}.devices.requests[{name}]"
            class_ = wanted.device_class_name
            if around.would_have(CLASSES) and around.device_class(class_) is None:
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
        what, devices = meant(pod.metadata.namespace, entry, around)
        if devices is not None:
            named[entry.name] = [request.name for request in devices.requests or ()]
        elif what and around.would_have(CLAIMS if entry.resource_claim_name else TEMPLATES, pod.metadata.namespace):
            text = f"{what} does not exist{_elsewhere(pod.metadata.namespace, entry, around)}"
            yield manifest.finding(Severity.ERROR, f"spec.resourceClaims[{place}]", text)
    containers = (("initContainers", pod.spec.init_containers or ()), ("containers", pod.spec.containers or ()))
    for kind, several in containers:
        for container in several:
            for place, use in enumerate(container.resources.claims or ()):
                if use.request and use.name in named and use.request.partition("/")[0] not in named[use.name]:
                    path = f"spec.{kind}[{container.name}].resources.claims[{place}].request"
                    text = f"claim {use.name} has no request {use.request}; it has {', '.join(named[use.name])}"
                    yield manifest.finding(Severity.ERROR, path, text)


def _elsewhere(namespace: str, entry: PodResourceClaim, around: Surroundings) -> str:
    """The same name in another namespace, or a similar one in this namespace."""
    name = entry.resource_claim_name or entry.resource_claim_template_name or ""
    cluster, is_claim = around.made.cluster, entry.resource_claim_name is not None
    if f"{namespace}/{name}" in (cluster.templates if is_claim else cluster.claims):
        other = "Template" if is_claim else ""
        return f"; there is a ResourceClaim{other} of that name: write resourceClaim{other}Name"
    objects = list(cluster.claims if is_claim else cluster.templates)
    if others := sorted(it.metadata.namespace for it in objects if it.metadata.name == name):
        return f"; there is one in namespace {others[0]}"
    here = [it.metadata.name for it in objects if it.metadata.namespace == namespace]
    similar = get_close_matches(name, here, 1)
    return f"; did you mean {similar[0]}?" if similar else ""


def meant(namespace: str, entry: PodResourceClaim, around: Surroundings) -> tuple[str, DeviceClaim | None]:
    if entry.resource_claim_name is not None:
        claim = around.claim(f"{namespace}/{entry.resource_claim_name}")
        found = claim.spec.devices if claim is not None else None
        return f"ResourceClaim {namespace}/{entry.resource_claim_name}", found
    if entry.resource_claim_template_name is not None:
        template = around.template(f"{namespace}/{entry.resource_claim_template_name}")
        found = template.typed().spec.devices if template is not None else None
        return f"ResourceClaimTemplate {namespace}/{entry.resource_claim_template_name}", found
    return "", None


SIMILAR_NAMES: Final = 3
"""Published names that are told in the place of an unknown one."""


def faulty_selectors(around: Surroundings, published: Published) -> Iterator[Finding]:
    """In claims, templates and classes."""
    environment = _environment(around.made.allocator.inventory.features)
    for manifest, path, selector in _selectors(around):
        if selector.cel is not None:
            yield from _of_selector(manifest, path, selector.cel.expression, environment, published)


def _environment(features: Features) -> Environment:
    return device_selectors(
        new=True, consumable_capacity=features.consumable_capacity, list_attributes=features.list_attributes
    )


def _selectors(around: Surroundings) -> Iterator[tuple[Manifest, str, DeviceSelector]]:
    for manifest in around.manifests:
        if isinstance(manifest.obj, DeviceClass):
            for place, selector in enumerate(manifest.obj.spec.selectors or ()):
                yield manifest, f"spec.selectors[{place}]", selector
    for manifest, claim, spec in claims_in(around.manifests):
        for name, wanted in every_request(claim):
            for place, selector in enumerate(wanted.selectors or ()):
                yield manifest, f"{spec}.devices.requests[{name}].selectors[{place}]", selector


def _of_selector(
    manifest: Manifest, path: str, expression: str, environment: Environment, published: Published
) -> Iterator[Finding]:
    try:
        selector = compile(expression, environment)
    except CompileError as error:
        for issue in error.issues:
            text = f"line {issue.line}, column {issue.column}: {issue.message}"
            yield manifest.finding(Severity.ERROR, path, text)
        return
    if selector.max_cost > COST_LIMIT:
        text = f"too complex: it may cost {selector.max_cost} units, and the API server takes {COST_LIMIT}"
        yield manifest.finding(Severity.ERROR, path, f"{text}; use fewer or shorter loops and texts")
    elif selector.worst > environment.cost_limit:
        text = f"on some devices it may cost more than the {environment.cost_limit} units at which it is stopped"
        yield manifest.finding(Severity.WARNING, path, f"{text}, and then no pod of the claim gets a node")
    if published.drivers:
        for name in sorted(selector.references):
            if not published.values(name):
                yield manifest.finding(Severity.WARNING, path, _unknown(name, published))


def _unknown(name: Reference, published: Published) -> str:
    what = f"no device publishes {'attribute' if name.kind == 'attributes' else 'capacity'} {name}"
    if domains := published.domains_of(name.kind, name.id):
        others = listed((f"{domain}/{name.id}" for domain in domains), SIMILAR_NAMES)
        return f"{what}; {counted(len(domains), 'driver publishes', 'others publish')} {others}"
    known = published.names_of(name.kind, name.domain)
    if similar := get_close_matches(name.id, known, SIMILAR_NAMES):
        return f"{what}; similar: {listed(f'{name.domain}/{one}' for one in similar)}"
    return f"{what}; in {name.domain} they publish {listed(known)}" if known else f"{what}, nor any of {name.domain}"
