"""``kubectl dra lint``: faults of manifests before they are applied, for people and for CI.

The checks here are of mistakes that the API server admits: drivers, entries and rules that lead nowhere. The driver of
a class or rule should publish devices, and the configuration of a claim should be for a driver that its class allows. A
class should serve each extended resource, and a single node should be able to serve all claims of a pod. Each is a
warning: another cluster, or tomorrow's, may make sense of it.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from typing import Final, TypeVar

from dra_api.core import Container, Node, Pod
from dra_api.gates import FeatureGates
from dra_api.meta import Object, ObjectMeta
from dra_api.resource import (
    EXTENDED_RESOURCE_PREFIX,
    DeviceClass,
    DeviceSelector,
    DeviceTaint,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceSlice,
)
from dra_api.validation.formats import is_extended_resource
from dra_cel import Reference
from dra_ledger.entries import taint_text
from dra_ledger.taints import tolerates

from dra_operator.gates import OPERATOR
from dra_operator.kubectl.answer import Answer, ExitCode, Problem
from dra_operator.kubectl.facts import value_text
from dra_operator.kubectl.lint.checks import (
    CLAIMS,
    CLASSES,
    TEMPLATES,
    Supply,
    dead_references,
    drivers_in,
    faulty_selectors,
    invalid_fields,
    lacking_devices,
    meant,
    unusable_pools,
)
from dra_operator.kubectl.lint.manifest import Finding, Manifest, Manifests, Severity, Surroundings, claims_in, not_read
from dra_operator.kubectl.observed import Observed, notes_on
from dra_operator.kubectl.pipeline import TookTooLong, pipeline
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.why.published import Published
from dra_operator.kubectl.why.request_changes import every_request
from dra_operator.wording import counted, listed

T = TypeVar("T", bound=Object)
_PARENTS: Final = ("parent", "parentuuid", "parentdevice")


def doubtful(manifests: Sequence[Manifest], around: Surroundings, published: Published) -> Iterator[Finding]:
    for manifest in manifests:
        match manifest.obj:
            case DeviceClass():
                yield from _of_class(manifest, manifest.obj, published)
            case DeviceTaintRule():
                yield from _of_rule(manifest, manifest.obj, published, around)
            case ResourceSlice():
                yield from _of_slice(manifest, manifest.obj)
            case Pod():
                yield from _of_pod(manifest, manifest.obj, around)
    for manifest, claim, spec in claims_in(manifests):
        yield from _of_configuration(manifest, claim, spec, around)
        yield from _of_constraints(manifest, claim, spec, published)
        yield from _of_tolerations(manifest, claim, spec, around.evicting)
        for name, wanted in every_request(claim):
            yield from _absent_drivers(manifest, f"{spec}.devices.requests[{name}]", wanted.selectors, published)
    yield from _served_twice(manifests, around)


def apart(manifests: Sequence[Manifest], around: Surroundings, supply: Supply) -> Iterator[Finding]:
    """Yield an error for pods whose claims can be served, but not all of them by one node."""
    for manifest in manifests:
        pod = manifest.obj
        if not isinstance(pod, Pod) or len(pod.spec.resource_claims or ()) < 2:
            continue
        claims = []
        for entry in pod.spec.resource_claims or ():
            devices = meant(pod.metadata.namespace, entry, around)[1]
            if devices is not None:
                meta = ObjectMeta(name=entry.name, namespace=pod.metadata.namespace, uid=entry.name)
                claims.append(ResourceClaim(metadata=meta, spec=ResourceClaimSpec(devices=devices)))
        if len(claims) < 2 or any(supply.refusal([claim]) is not None for claim in claims):
            continue
        if (refusal := supply.refusal(claims)) is not None:
            severity, why = refusal
            names = listed(claim.metadata.name for claim in claims)
            text = f"no single node could serve {names} together, even with all devices free: {why}"
            yield manifest.finding(severity, "spec.resourceClaims", text)


def _of_class(manifest: Manifest, class_: DeviceClass, published: Published) -> Iterator[Finding]:
    drivers = drivers_in(class_.spec.selectors)
    yield from _absent_drivers(manifest, "spec", class_.spec.selectors, published)
    for place, config in enumerate(class_.spec.config or ()):
        driver = config.opaque.driver if config.opaque is not None else ""
        if driver and drivers and driver not in drivers:
            text = f"configuration for driver {driver}, and the class allows devices of {listed(sorted(drivers))} alone"
            yield manifest.warning(f"spec.config[{place}].opaque.driver", text)


def _absent_drivers(
    manifest: Manifest, path: str, selectors: Sequence[DeviceSelector] | None, published: Published
) -> Iterator[Finding]:
    """Yield drivers that selectors name, and that publish nothing while others do."""
    for place, selector in enumerate(selectors or ()):
        for driver in sorted(drivers_in([selector])):
            if published.drivers and driver not in published.drivers:
                text = f"no device is published by driver {driver}{_similar(driver, published.drivers)}"
                yield manifest.warning(f"{path}.selectors[{place}]", text)


def _of_configuration(manifest: Manifest, claim: ResourceClaim, spec: str, around: Surroundings) -> Iterator[Finding]:
    allowed: dict[str, set[str]] = defaultdict(set)
    for name, wanted in every_request(claim):
        class_ = around.made.cluster.classes.get(wanted.device_class_name)
        drivers = drivers_in(class_.spec.selectors) if class_ is not None else set()
        drivers |= drivers_in(wanted.selectors)
        allowed[name] = drivers
        allowed[name.partition("/")[0]] |= drivers
    for place, config in enumerate(claim.spec.devices.config or ()):
        driver = config.opaque.driver if config.opaque is not None else ""
        concerned = [allowed.get(name, set()) for name in config.requests or list(allowed)]
        if driver and concerned and all(concerned) and not any(driver in drivers for drivers in concerned):
            others = listed(sorted(set().union(*concerned)))
            text = f"configuration for driver {driver}, and its requests get devices of {others} alone"
            yield manifest.warning(f"{spec}.devices.config[{place}].opaque.driver", text)


def _of_constraints(manifest: Manifest, claim: ResourceClaim, spec: str, published: Published) -> Iterator[Finding]:
    for place, constraint in enumerate(claim.spec.devices.constraints or ()):
        if constraint.match_attribute and constraint.distinct_attribute:
            text = "is ignored beside matchAttribute: write two constraints"
            yield manifest.warning(f"{spec}.devices.constraints[{place}].distinctAttribute", text)
        for field, name in (
            ("matchAttribute", constraint.match_attribute),
            ("distinctAttribute", constraint.distinct_attribute),
        ):
            domain, slash, id_ = (name or "").rpartition("/")
            if slash and published.drivers and not published.values(Reference("attributes", domain, id_)):
                known = [f"{its}/{id_}" for its in published.domains_of("attributes", id_)]
                known += [f"{domain}/{one}" for one in published.names_of("attributes", domain)]
                text = f"no device publishes attribute {name}{_similar(str(name), known)}"
                yield manifest.warning(f"{spec}.devices.constraints[{place}].{field}", text)


def _of_tolerations(
    manifest: Manifest, claim: ResourceClaim, spec: str, evicting: Sequence[DeviceTaint]
) -> Iterator[Finding]:
    """Yield tolerations that do not what they say, or let a claim have devices from which its pods are then evicted.

    The last is a warning if there is such a taint, and a note if there may be one.
    """
    for name, wanted in every_request(claim):
        every = wanted.tolerations or ()
        holding = [it for it in every if it.effect == "NoExecute"]
        for place, one in enumerate(every):
            path = f"{spec}.devices.requests[{name}].tolerations[{place}]"
            if one.toleration_seconds is not None and one.effect != "NoExecute":
                text = "is ignored for other effects than NoExecute: write effect: NoExecute, or leave it out"
                yield manifest.warning(f"{path}.tolerationSeconds", text)
            if not one.key and one.operator != "Exists":
                text = (
                    "without a key the operator must be Exists, which tolerates every taint: write the key of the taint"
                )
                yield manifest.warning(f"{path}.key", text)
            if one.effect or any(it.key in (one.key, None, "") for it in holding):
                continue
            taints = [it for it in evicting if tolerates(one, it) and not any(tolerates(two, it) for two in holding)]
            which = f"the taint {taint_text(taints[0])}" if taints else "a NoExecute taint"
            text = (
                f"without an effect, a device with {which} is allocated, and the pod is evicted from it at once: write "
                "effect: NoExecute, or NoSchedule if such devices are not wanted"
            )
            yield manifest.finding(Severity.WARNING if taints else Severity.NOTE, path, text)


def _of_rule(
    manifest: Manifest, rule: DeviceTaintRule, published: Published, around: Surroundings
) -> Iterator[Finding]:
    selector, effect = rule.spec.device_selector, rule.spec.taint.effect
    path = "spec.deviceSelector"
    if selector is not None and not (selector.driver or selector.pool or selector.device):
        what = "evicts every pod that has a device" if effect == "NoExecute" else "keeps every device from pods"
        yield manifest.warning(path, f"selects all devices of the cluster, and so {what}")
    if selector is None:
        yield manifest.warning(path, "is not given, so that the rule selects no device")
    if selector is None or not published.drivers:
        return
    slices = [it for it in around.made.seen.every(ResourceSlice) if selector.driver in (None, it.spec.driver)]
    of_pool = [it for it in slices if selector.pool in (None, it.spec.pool.name)]
    for field, name, known in (
        ("driver", selector.driver, set(published.drivers)),
        ("pool", selector.pool, {it.spec.pool.name for it in slices}),
        ("device", selector.device, {device.name for it in of_pool for device in it.spec.devices or ()}),
    ):
        if name and name not in known:
            what = "no device is published by driver" if field == "driver" else f"there is no {field}"
            yield manifest.warning(f"{path}.{field}", f"{what} {name}{_similar(name, known)}")
            return  # nothing is there of what is not


def _of_slice(manifest: Manifest, slice_: ResourceSlice) -> Iterator[Finding]:
    """One attribute under two names, of which CEL takes one and constraints may take the other; partitions alone."""
    driver, devices = slice_.spec.driver, slice_.spec.devices or ()
    own = {
        device.name: {name.rpartition("/")[2].lower(): value_text(it) for name, it in (device.attributes or {}).items()}
        for device in devices
    }
    named = {name: name for name in own} | {uuid: name for name, its in own.items() if (uuid := its.get("uuid"))}
    consumed = {device.name: {it.counter_set for it in device.consumes_counters or ()} for device in devices}
    for device in devices:
        attributes, its = device.attributes or {}, own[device.name]
        for name in attributes:
            if f"{driver}/{name}" in attributes:
                text = f"publishes {name} and {driver}/{name}, which is the same name: leave one out"
                yield manifest.warning(f"spec.devices[{device.name}].attributes", text)
        parent = next((named[its[name]] for name in _PARENTS if its.get(name) in named), None)
        if parent and parent != device.name and not consumed[parent] & consumed[device.name]:
            text = f"{device.name} is a part of {parent}, and both may be given away: let them consume common counters"
            yield manifest.warning(f"spec.devices[{device.name}].consumesCounters", text)


def _of_pod(manifest: Manifest, pod: Pod, around: Surroundings) -> Iterator[Finding]:
    containers = [*(pod.spec.init_containers or ()), *(pod.spec.containers or ())]
    used = {use.name for container in containers for use in container.resources.claims or ()}
    for place, entry in enumerate(pod.spec.resource_claims or ()):
        if entry.name not in used:
            text = f"no container uses {entry.name}: its devices are allocated, and no container gets them"
            yield manifest.warning(f"spec.resourceClaims[{place}]", text)
    made = [entry.name for entry in pod.spec.resource_claims or () if entry.resource_claim_template_name]
    if pod.spec.node_name and made:
        text = (
            f"no scheduler looks at the pod, so that {listed(made)} gets no devices and the pod does not start: write "
            f'nodeSelector: {{kubernetes.io/hostname: "{pod.spec.node_name}"}} instead'
        )
        yield manifest.warning("spec.nodeName", text)
    yield from _amounts(manifest, containers)
    of_pod = pod.spec.resources
    for name in {**(of_pod.requests or {}), **(of_pod.limits or {})} if of_pod is not None else ():
        if name not in ("cpu", "memory") and not name.startswith("hugepages-"):
            text = f"the API server takes cpu, memory and hugepages here, not {name}: ask for it in a container"
            yield manifest.error("spec.resources", text)
    if not (around.would_have(CLASSES) and around.would_have("nodes")):
        return
    served = {
        name
        for class_ in around.made.cluster.classes
        for name in (class_.spec.extended_resource_name, f"{EXTENDED_RESOURCE_PREFIX}{class_.metadata.name}")
        if name
    }
    for node in around.made.seen.every(Node):
        served |= set(node.status.allocatable or {})
    for container in containers:
        asked = {**(container.resources.limits or {}), **(container.resources.requests or {})}
        for name in asked:
            if _is_extended(name) and name not in served:
                text = f"no device class and no node offers {name}{_similar(name, served)}"
                yield manifest.warning(f"spec.containers[{container.name}].resources", text)


def _is_extended(resource: str) -> bool:
    return resource.startswith(EXTENDED_RESOURCE_PREFIX) or is_extended_resource(resource)


def _amounts(manifest: Manifest, containers: Sequence[Container]) -> Iterator[Finding]:
    """Yield amounts that the API server refuses. Of extended resources they are whole, and not overcommitted."""
    for container in containers:
        requests, limits = container.resources.requests or {}, container.resources.limits or {}
        path = f"spec.containers[{container.name}].resources"
        for name in filter(_is_extended, dict.fromkeys((*requests, *limits))):
            limit, request = limits.get(name), requests.get(name, limits.get(name))
            if limit is None or limit != request:
                text = f"the API server refuses a request of {name} without a limit of the same amount"
                yield manifest.error(path, text)
            elif limit.nanos < 0:
                yield manifest.error(path, f"{name} must not be negative, as {limit} is")
            elif limit.nanos % 10**9:
                yield manifest.error(path, f"{name} must be a whole number, not {limit}")
        for name in dict.fromkeys((*requests, *limits)):
            limit, request = limits.get(name), requests.get(name)
            if _is_extended(name):
                continue
            for what, amount in (("request", request), ("limit", limit)):
                if amount is not None and amount.nanos < 0:
                    yield manifest.error(path, f"the {what} of {name} must not be negative, as {amount} is")
            if limit is not None and request is not None and request.nanos > limit.nanos:
                yield manifest.error(path, f"the request of {name}, {request}, is more than its limit, {limit}")


def _served_twice(manifests: Sequence[Manifest], around: Surroundings) -> Iterator[Finding]:
    """Yield classes that serve the same extended resource: the newest one counts, or the first of equally old ones."""
    for manifest in manifests:
        if isinstance(manifest.obj, DeviceClass) and (name := manifest.obj.spec.extended_resource_name):
            others = sorted(set(around.classes_serving[name]) - {manifest.obj.metadata.name})
            if others:
                text = f"class {listed(others)} serves {name} as well: one of them alone counts"
                yield manifest.warning("spec.extendedResourceName", text)


def _similar(word: str, known: Iterable[str]) -> str:
    names: Sequence[str] = sorted(known)
    found = get_close_matches(word, names, 1, 0.7)
    return f"; did you mean {found[0]}?" if found else ""


def findings(
    seen: Observed, manifests: Manifests, settings: Settings, *, has_cluster: bool, seconds: float = 0
) -> Iterator[Finding]:
    """Yield what is wrong with the manifests in this cluster, and what each request would find there.

    Of large objects one at a time is whole in memory. ``seconds`` is the time limit (0: none); beyond it TookTooLong is
    raised, and ``manifests.checked`` counts the objects that were checked.
    """

    def reread(objects: Sequence[T]) -> Sequence[T]:
        found: list[T] = []
        for obj in objects:
            written = manifests.whole(obj)
            found += [written] if isinstance(written, type(obj)) else seen.whole([obj])
        return found

    own = manifests.own
    objects = [*(obj for obj in seen.objects if (type(obj), obj.key) not in own), *own.values()]
    again = seen.reread if not manifests.has_brief else reread
    made = pipeline(replace(seen, objects=objects, reread=again), settings)
    gates = FeatureGates.of(made.settings.changed_gates(seen), made.settings.release or seen.release, OPERATOR)
    around, slices = Surroundings(made, has_cluster), made.seen.every(ResourceSlice)
    published, supply = Published(slices), Supply(made) if slices else None
    with made.pausing.within(seconds):
        for several, faults in manifests.each():
            yield from faults
            made.pausing()
            found = [
                *invalid_fields(several, gates),
                *faulty_selectors(several, around, published),
                *dead_references(several, around),
                *doubtful(several, around, published),
            ]
            yield from found
            if supply is None:
                continue
            if not any(one.severity is Severity.ERROR for one in found):  # else more would follow from that error
                yield from lacking_devices(several, around, supply)
                yield from unusable_pools(several, around)
            yield from apart(several, around, supply)


OUT_OF_TIME: Final = "the time limit was reached; kubectl dra lint --time-limit gives more"


DEPENDS: Final = (CLASSES, TEMPLATES, CLAIMS, "resourceslices.resource.k8s.io", "nodes")
MOST_FINDINGS: Final = 100
"""Findings of one kind that lines tell. A dump of a cluster has as many as a tenant likes."""
_MESSAGE_LETTERS: Final = 2000
"""Length to which lines cut a message."""
_INDEX: Final = re.compile(r"\[[^\]]*\]")


class _Kept:
    """The findings for programs; for people the first ``most`` of each kind, and the number of the others.

    ``is_cut``: the time limit came first.
    """

    def __init__(self, found: Iterable[Finding], most: float) -> None:
        self.found: list[Finding] = []
        self.is_cut = True
        self.counts: Counter[Severity] = Counter()
        self.objects: dict[str, None] = {}
        self._kinds: Counter[tuple[Severity, str, str]] = Counter()
        with suppress(TookTooLong):
            for one in found:
                self._take(one, most)
            self.is_cut = False
        self.found.sort(key=_place)

    def _take(self, one: Finding, most: float) -> None:
        self.counts[one.severity] += 1
        if one.severity is not Severity.NOTE:
            self.objects[one.object] = None
        kind = one.severity, one.object.partition(" ")[0], _INDEX.sub("[]", one.field)
        self._kinds[kind] += 1
        if self._kinds[kind] <= most:
            self.found.append(one)

    def lines(self) -> Iterator[str]:
        """The findings of an object below its title, and how many others there are."""
        yield from _lines(self.found)
        for (severity, kind, field), number in self._kinds.items():
            if number > MOST_FINDINGS:
                where = f"{kind}, {field}" if field else kind
                yield f"{counted(number - MOST_FINDINGS, f'more {severity}')} of {where}: -o json has all"


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    if not options.file:
        raise Problem("name the manifests by -f FILE, a directory, or - for standard input", ExitCode.USAGE)
    has_cluster, settings = options.live or options.source is not None, Settings.of(options)
    release = settings.release or (seen.release if has_cluster and seen.is_whole else None)
    manifests = Manifests(seen.namespace, release).read(options.file)
    most = MOST_FINDINGS if options.output in (None, "wide", "name") else math.inf
    kept = _Kept(findings(seen, manifests, settings, has_cluster=has_cluster, seconds=options.time_limit), most)
    errors, warnings = kept.counts[Severity.ERROR], kept.counts[Severity.WARNING]
    notes = [
        *not_read(manifests.others),
        *_unchecked(seen, manifests, has_cluster=has_cluster),
        *(notes_on(seen, DEPENDS) if has_cluster else ()),
    ]
    total = f"{counted(len(manifests.titles), 'object')}, {counted(errors, 'error')}, {counted(warnings, 'warning')}"
    unchecked = len(manifests.written) - manifests.checked
    if kept.is_cut:
        total += f"; not checked to the end: {counted(unchecked, 'object')}: {OUT_OF_TIME}"
    return Answer(
        lines=[*kept.lines(), total],
        value={"findings": kept.found, "errors": errors, "warnings": warnings, "unchecked": unchecked},
        names=list(kept.objects),
        notes=notes,
        code=ExitCode.IN_THE_WAY if errors or kept.is_cut else ExitCode.CLEAR,
    )


def _place(one: Finding) -> tuple[str, list[int], str]:
    file, _, inside = one.where.partition(": document ")
    return file, [int(number) for number in re.findall(r"\d+", inside)], one.object


def _lines(found: list[Finding]) -> Iterator[str]:
    """The findings of an object below its title."""
    title = None
    for one in found:
        if title != (one.where, one.object):
            title = (one.where, one.object)
            yield f"{one.where}: {one.object}"
        place = f"{one.field}: " if one.field else ""
        message = one.message if len(one.message) <= _MESSAGE_LETTERS else f"{one.message[:_MESSAGE_LETTERS]}…"
        yield f"  {one.severity}: {place}{message}"


def _unchecked(seen: Observed, manifests: Manifests, *, has_cluster: bool) -> Iterator[str]:
    """A check that was not made looks like one that found nothing."""
    if not has_cluster:
        has_devices = any(issubclass(kind, ResourceSlice) for kind, _ in manifests.own)
        of_devices = "" if has_devices else "which devices match, attributes that no device publishes, "
        yield (
            "not checked, for want of a cluster (--live) or a snapshot of one (--from FILE): "
            f"{of_devices}classes, claims and templates that do not exist"
        )
        if has_devices:
            yield "devices are those of the ResourceSlices in the files, and no others"
    elif not seen.every(ResourceSlice):
        yield "not checked: which devices match, since no ResourceSlice is published, or none may be read"
    elif not seen.every(DeviceClass) and CLASSES not in seen.unseen:
        yield "the cluster has no DeviceClass"
