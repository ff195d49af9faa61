"""The checks of lint: faults of single fields, and the supply of published devices.

Values that the API server refuses and names that lead nowhere are faults. Selectors are compiled, their cost is
estimated as the API server does, and the names that they read are looked up among published names.

The supply is how many devices match each request, and whether a node could serve the claim at all. Devices in use count
as free here: a device that is taken today may be free tomorrow, but a device that is not there never matches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Final, NamedTuple

from dra_api.core import Pod, PodResourceClaim
from dra_api.gates import FeatureGates
from dra_api.meta import Object
from dra_api.references import every_toleration
from dra_api.resource import (
    ADMIN_ACCESS_LABEL,
    SCHEDULER_KEY,
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
from dra_ledger.pools import Status

from dra_operator.allocator import (
    Allocated,
    AllocationError,
    Failed,
    GaveUp,
    PoolError,
    PoolId,
    Refusal,
    Rule,
    Usage,
    enters,
    schedulers_of,
)
from dra_operator.kubectl.facts import marks_of
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.kubectl.why.published import Accessor, Published, accessors, nodes_of_one_pool
from dra_operator.kubectl.why.request_changes import Wanted, every_request
from dra_operator.wording import counted, listed

from .manifest import Finding, Manifest, Severity, Surroundings, claims_in


def invalid_fields(manifests: Iterable[Manifest], gates: FeatureGates) -> Iterator[Finding]:
    for manifest in manifests:
        for error in _errors(manifest.obj, gates):
            yield manifest.error(error.field, error.body)


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


def dead_references(manifests: Sequence[Manifest], around: Surroundings) -> Iterator[Finding]:
    """Yield an error for each name of an object that would be seen if it existed."""
    for manifest, claim, spec in claims_in(manifests):
        namespace = around.made.cluster.namespaces.get(claim.metadata.namespace)
        for name, wanted in every_request(claim):
            path = f"{spec}.devices.requests[{name}]"
            class_ = wanted.device_class_name
            if around.would_have(CLASSES) and around.made.cluster.classes.get(class_) is None:
                text = f"device class {class_} does not exist{_similar(class_, around)}"
                yield manifest.error(f"{path}.deviceClassName", text)
            is_admin = isinstance(wanted, ExactDeviceRequest) and wanted.admin_access
            if (
                is_admin
                and namespace is not None
                and (namespace.metadata.labels or {}).get(ADMIN_ACCESS_LABEL) != "true"
            ):
                text = f"namespace {claim.metadata.namespace} lacks the label {ADMIN_ACCESS_LABEL}: true"
                yield manifest.error(f"{path}.adminAccess", text)
    for manifest in manifests:
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
            yield manifest.error(f"spec.resourceClaims[{place}]", text)
    containers = (("initContainers", pod.spec.init_containers or ()), ("containers", pod.spec.containers or ()))
    for kind, several in containers:
        for container in several:
            for place, use in enumerate(container.resources.claims or ()):
                if use.request and use.name in named and use.request.partition("/")[0] not in named[use.name]:
                    path = f"spec.{kind}[{container.name}].resources.claims[{place}].request"
                    text = f"claim {use.name} has no request {use.request}; it has {', '.join(named[use.name])}"
                    yield manifest.error(path, text)


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
    similar = get_close_matches(name, here, 1) if next(around.guesses, None) is not None else ()
    return f"; did you mean {similar[0]}?" if similar else ""


def meant(namespace: str, entry: PodResourceClaim, around: Surroundings) -> tuple[str, DeviceClaim | None]:
    if entry.resource_claim_name is not None:
        claim = around.made.claim(f"{namespace}/{entry.resource_claim_name}")
        found = claim.spec.devices if claim is not None else None
        return f"ResourceClaim {namespace}/{entry.resource_claim_name}", found
    if entry.resource_claim_template_name is not None:
        template = around.made.template(f"{namespace}/{entry.resource_claim_template_name}")
        found = template.typed().spec.devices if template is not None else None
        return f"ResourceClaimTemplate {namespace}/{entry.resource_claim_template_name}", found
    return "", None


SIMILAR_NAMES: Final = 3
"""Published names that are told in the place of an unknown one."""


def faulty_selectors(manifests: Sequence[Manifest], around: Surroundings, published: Published) -> Iterator[Finding]:
    """In claims, templates and classes."""
    features = around.made.allocator.inventory.features
    environment = device_selectors(
        new=True, consumable_capacity=features.consumable_capacity, list_attributes=features.list_attributes
    )
    for manifest, path, selector in _selectors(manifests):
        if selector.cel is not None:
            yield from _of_selector(manifest, path, selector.cel.expression, environment, published)


def _selectors(manifests: Sequence[Manifest]) -> Iterator[tuple[Manifest, str, DeviceSelector]]:
    for manifest in manifests:
        if isinstance(manifest.obj, DeviceClass):
            for place, selector in enumerate(manifest.obj.spec.selectors or ()):
                yield manifest, f"spec.selectors[{place}]", selector
    for manifest, claim, spec in claims_in(manifests):
        for name, wanted in every_request(claim):
            for place, selector in enumerate(wanted.selectors or ()):
                yield manifest, f"{spec}.devices.requests[{name}].selectors[{place}]", selector


def _of_selector(
    manifest: Manifest, path: str, expression: str, environment: Environment, published: Published
) -> Iterator[Finding]:
    try:
        selector = compile(expression, environment)
    except CompileError as error:
        spelled = _spelled(expression, published)
        for issue in error.issues:
            is_about_fields = "undefined field" in issue.message or "did you mean" in spelled
            hint = spelled if is_about_fields else ""
            yield manifest.error(path, f"line {issue.line}, column {issue.column}: {issue.message}{hint}")
        return
    if selector.max_cost > COST_LIMIT:
        text = f"too complex: it may cost {selector.max_cost} units, and the API server takes {COST_LIMIT}"
        yield manifest.error(path, f"{text}; use fewer or shorter loops and texts")
    elif selector.worst > environment.cost_limit:
        text = f"on some devices it may cost more than the {environment.cost_limit} units at which it is stopped"
        yield manifest.warning(path, f"{text}, and then no pod of the claim gets a node")
    if published.drivers:
        for name in sorted(selector.references):
            if not published.values(name):
                text = _unknown(name, published)
                if "did you mean" not in text:
                    text += _spelled(expression, published)
                yield manifest.warning(path, text)


def _spelled(expression: str, published: Published) -> str:
    """How to read what an expression means, if no device has it as it is written; empty if that is not known."""
    found = [one for wrong in accessors(expression) for one in published.spellings(wrong)]
    if found:
        return f"; did you mean {listed(dict.fromkeys(found), SIMILAR_NAMES)}?"
    fields = [name for name in re.findall(r"\bdevice\.(\w+)", expression) if name not in DEVICE_FIELDS]
    return f"; a device has {listed(DEVICE_FIELDS, len(DEVICE_FIELDS))}, and nothing else" if fields else ""


DEVICE_FIELDS: Final = ("driver", "attributes", "capacity", "allowMultipleAllocations")
"""What a selector may read."""


def _unknown(name: Reference, published: Published) -> str:
    what = f"no device publishes {'attribute' if name.kind == 'attributes' else 'capacity'} {name}"
    if domains := published.domains_of(name.kind, name.id):
        others = listed((f"{domain}/{name.id}" for domain in domains), SIMILAR_NAMES)
        return f"{what}; {counted(len(domains), 'driver publishes', 'others publish')} {others}"
    if spelled := published.spellings(Accessor(0, 0, name.kind, (name.domain, name.id))):
        return f"{what}; did you mean {listed(spelled, SIMILAR_NAMES)}?"
    known = published.names_of(name.kind, name.domain)
    if similar := get_close_matches(name.id, known, SIMILAR_NAMES):
        return f"{what}; similar: {listed(f'{name.domain}/{one}' for one in similar)}"
    return f"{what}; in {name.domain} they publish {listed(known)}" if known else f"{what}, nor any of {name.domain}"


_EQUALS: Final = re.compile(r"device\.driver\s*==\s*(['\"])([^'\"]+)\1|(['\"])([^'\"]+)\3\s*==\s*device\.driver")
_ONE_OF: Final = re.compile(r"device\.driver\s+in\s+\[([^\]]*)\]")


def drivers_in(selectors: Iterable[DeviceSelector] | None) -> set[str]:
    """Return the drivers that the selectors allow by name; empty if they do not compare the driver."""
    found: set[str] = set()
    for selector in selectors or ():
        text = selector.cel.expression if selector.cel is not None else ""
        found |= {one[1] or one[3] for one in (match.groups() for match in _EQUALS.finditer(text))}
        for one in _ONE_OF.finditer(text):
            found |= set(re.findall(r"['\"]([^'\"]+)['\"]", one[1]))
    return found


class Matching(NamedTuple):
    """The devices that match a request."""

    by_node: Counter[str]
    free: int = 0
    unusable: int = 0
    """In pools of which slices are missing."""
    fault: str = ""
    """The first error that a selector raised."""


class Supply:
    """All devices that are published, to try requests on."""

    def __init__(self, made: Pipeline) -> None:
        self._made = made
        self._devices = made.ledger().devices()
        marks = marks_of(made.seen)
        self.published = Published(made.seen.every(ResourceSlice))
        self.schedulers = sorted({name for taints in marks.values() for name in schedulers_of(taints)})
        """Those to which devices belong."""

    def matching(self, selectors: Sequence[DeviceSelector]) -> Matching:
        """The published devices that all selectors match."""
        compiled, by_node, states = self._made.allocator.inventory.compiled, Counter[str](), Counter[str]()
        tests = [compiled.predicate(one.cel.expression) for one in selectors if one.cel is not None]
        for entry in self._devices:
            self._made.pausing()
            try:
                if entry.published is None or not all(test(entry.driver, entry.published) for test in tests):
                    continue
            except Exception as error:  # the evaluator has an error of its own for each way to fail
                return Matching(by_node, fault=f"fails on device {entry.id}: {error}")
            by_node[entry.node] += 1
            states[entry.state] += 1
        return Matching(by_node, states["free"], states["unusable"])

    def refusal(self, claims: Sequence[ResourceClaim]) -> tuple[Severity, str] | None:
        """Why no node could serve the claims with all devices free; None if one could, or if that is not known.

        A warning if it is no fault of the claim, and may pass: a taint, or a pool that is being published or invalid.
        A request for all devices of a node waits for its pools of the drivers that it may mean (allocator.md
        section 7).
        """
        refusals: list[Refusal] = []
        errors: list[AllocationError] = []
        for state in self._made.cluster.loaded_nodes():
            self._made.pausing()
            outcome = self._made.allocator.allocate(state.node, claims, Usage())
            if isinstance(outcome, Allocated | GaveUp):
                return None
            if not isinstance(outcome, Failed):
                refusals.append(outcome.refusal)
            elif outcome.is_of_node:
                errors.append(outcome.error)
            else:
                return Severity.ERROR, str(outcome.error)
        if errors:
            lasting = [error for error in errors if not isinstance(error, PoolError)]
            first = min(map(str, lasting or errors))
            return Severity.WARNING if len(lasting) < len(errors) else Severity.ERROR, first
        if not refusals:
            return None
        best = max(refusals, key=lambda one: one.closeness)
        may_pass = any(one.pools or any(lost.rule is Rule.TAINTS for lost in one.lost) for one in refusals)
        severity = Severity.WARNING if may_pass else Severity.ERROR
        return severity, f"{best.line()} (best node: {best.node})"


def lacking_devices(manifests: Sequence[Manifest], around: Surroundings, supply: Supply) -> Iterator[Finding]:
    """A note on each request, or an error if it can never be served; then one on the claim, if no request is short.

    A class that matches nothing is a warning: its devices may have yet to be published.
    """
    for manifest in manifests:
        if isinstance(manifest.obj, DeviceClass):
            yield from _of_class(manifest, manifest.obj, supply)
    for manifest, claim, spec in claims_in(manifests):
        found = [
            _of_request(manifest, f"{spec}.devices.requests[{name}]", wanted, around, supply)
            for name, wanted in every_request(claim)
        ]
        yield from found
        yield from _entering(manifest, claim, spec, supply)
        has_choice = any(request.first_available for request in claim.spec.devices.requests or ())
        is_open = has_choice or all(one.severity is Severity.NOTE for one in found)
        refusal = supply.refusal([claim]) if is_open else None
        if refusal is not None:
            severity, why = refusal
            text = f"no node could serve it, even with all devices free: {why}"
            yield manifest.finding(severity, f"{spec}.devices", text)


def unusable_pools(manifests: Sequence[Manifest], around: Surroundings) -> Iterator[Finding]:
    """Yield an error for slices of invalid pools, of which no device is allocated, or a warning for incomplete ones."""
    for manifest in manifests:
        if not isinstance(manifest.obj, ResourceSlice):
            continue
        its = around.pools.get(PoolId.of(manifest.obj), ())
        if shared := nodes_of_one_pool(its) if its else ():
            text = f"nodes {listed(shared)} publish the same pool: name it after the node, as in spec.nodeName"
            yield manifest.warning("spec.pool.name", f"{text}; else a device in use on one node is in use on all")
            continue
        pool = around.made.allocator.inventory.pool(PoolId.of(manifest.obj))
        view = pool.own_view() if pool is not None else None
        if view is not None and view.status is not Status.USABLE:
            severity = Severity.ERROR if view.status is Status.INVALID else Severity.WARNING
            yield manifest.finding(severity, "spec.pool", f"no device of the pool is allocated: {view.complaint}")


def _of_class(manifest: Manifest, class_: DeviceClass, supply: Supply) -> Iterator[Finding]:
    selectors = class_.spec.selectors or ()
    found = supply.matching(selectors)
    if found.fault:
        yield manifest.error("spec.selectors", f"{found.fault}; {_advice(found.fault, selectors, supply)}")
    elif not found.by_node.total() and drivers_in(selectors) <= set(supply.published.drivers):
        yield manifest.warning("spec.selectors", f"no device matches{_values(selectors, supply)}")


def _entering(manifest: Manifest, claim: ResourceClaim, spec: str, supply: Supply) -> Iterator[Finding]:
    """Whether it tolerates the taints by which devices belong to schedulers: then two may take one device."""
    entered = [scheduler for scheduler in supply.schedulers if enters(every_toleration(claim), scheduler)]
    if entered:
        text = (
            f"tolerates the taint {SCHEDULER_KEY}, by which devices belong to {listed(entered)}: another scheduler may "
            "give it a device that goes to another claim at the same moment; name the keys that it has to tolerate"
        )
        yield manifest.warning(f"{spec}.devices", text)


def _advice(fault: str, selectors: Sequence[DeviceSelector], supply: Supply) -> str:
    """What mends the error that a selector raised on a device."""
    if found := re.search(r"no such key: (\S+)", fault):
        read = [name for name in _read_by(selectors) if name.id == found[1]]
        if any(supply.published.values(name) for name in read):
            return 'allow for devices without the name, as in "NAME" in device.attributes["DOMAIN"] && ...'
        return "correct the name: no device publishes it" if read else "correct the expression"
    if "unsupported attribute value" in fault:
        return "the ResourceSlice is at fault: have its driver publish one value of the attribute"
    if "overload" in fault:
        return 'compare values of one type: versions by semver("1.2.3"), capacities by quantity("40Gi")'
    return "correct the expression"


def _read_by(selectors: Sequence[DeviceSelector]) -> list[Reference]:
    """The names that selectors read, in order."""
    found: dict[Reference, None] = {}
    for selector in selectors:
        with suppress(CompileError):
            if selector.cel is not None:
                found |= dict.fromkeys(sorted(compile(selector.cel.expression, device_selectors(new=True)).references))
    return list(found)


def _values(selectors: Sequence[DeviceSelector], supply: Supply) -> str:
    """What devices publish under the names that the selectors read."""
    said = [f"{name} is {listed(values)}" for name in _read_by(selectors) if (values := supply.published.values(name))]
    return f"; among the devices {', '.join(dict.fromkeys(said))}" if said else ""


def _of_request(manifest: Manifest, path: str, wanted: Wanted, around: Surroundings, supply: Supply) -> Finding:
    class_ = around.made.cluster.classes.get(wanted.device_class_name)
    if class_ is None:
        text = f"which devices match is not known without class {wanted.device_class_name}"
        return manifest.finding(Severity.NOTE, path, text)
    selectors = (*(class_.spec.selectors or ()), *(wanted.selectors or ()))
    found = supply.matching(selectors)
    if found.fault:
        remedy = "a node where it meets such a device first takes no pod of the claim"
        return manifest.error(path, f"{found.fault}; {remedy}; {_advice(found.fault, selectors, supply)}")
    number, most = found.by_node.total(), max(found.by_node.values(), default=0)
    needs = 1 if wanted.allocation_mode == "All" else wanted.count or 1
    # One of several alternatives may be beyond this cluster: then the next is taken.
    severity = Severity.ERROR if hasattr(wanted, "admin_access") else Severity.WARNING
    if not number:
        text = f"no device of the cluster matches class {wanted.device_class_name}"
        text += " and the selectors" if wanted.selectors else ""
        return manifest.finding(severity, path, text + _values(wanted.selectors or (), supply))
    if needs > number:
        has = counted(number, "device of the cluster matches", "devices of the cluster match")
        if found.unusable:
            text = f"asks for {needs}, but {has}, {found.unusable} of them in pools that lack slices"
            return manifest.warning(path, text)
        return manifest.finding(severity, path, f"asks for {needs}, but {has}")
    text = f"{counted(number, 'device matches', 'devices match')}, at most {most} on one node; {found.free} free now"
    return manifest.finding(Severity.NOTE, path, text)
