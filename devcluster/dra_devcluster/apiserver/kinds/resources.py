"""Amounts: requests and limits of containers and of a pod as a whole (``spec.resources``), and ResourceQuotas.

A name without a slash is one of Kubernetes, and few of these are for containers. Any other name is that of an extended
resource, unless its prefix belongs to Kubernetes. Extended resources and huge pages are counted and cannot be
promised twice, so request and limit have to be equal.

The processor and memory in a pod's spec decide its quality. The amounts that its devices bring, or cost, are recorded
in its status and do not count (K37-NA-22).

A quota says how many objects, and how many devices of a class, a namespace may have. ``count/<resource>.<group>``
counts objects of any kind; ``dra_api.quota`` has what a claim is charged with besides. Nothing else is measured: cpu,
memory and storage in a quota have no effect here (api.md section 11).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dra_api.codec import convert
from dra_api.quota import DEVICES_OF_CLASS, charges, whole
from dra_api.releases import Release
from dra_api.resource import ResourceClaim
from dra_api.validation import formats as faults
from dra_api.validation.formats import Errors
from dra_api.values import Quantity, parse_quantity

from dra_devcluster.apiserver import metadata
from dra_devcluster.apiserver.errors import Json, forbidden
from dra_devcluster.apiserver.metadata import dig, entries
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.structure import Resource

_FOR_CONTAINERS = {"cpu", "memory", "ephemeral-storage"}
_PER_CONTAINER_AND_QUOTA = {f"{kind}.{name}" for kind in ("requests", "limits") for name in _FOR_CONTAINERS}
_STANDARD = _FOR_CONTAINERS | _PER_CONTAINER_AND_QUOTA | {
    "configmaps", "persistentvolumeclaims", "pods", "replicationcontrollers", "requests.storage", "resourcequotas",
    "secrets", "services", "services.loadbalancers", "services.nodeports", "storage",
}  # fmt: skip
_WHOLE_BILLIONTHS = 10**9
_CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")


def containers_of(spec: Json) -> Iterator[tuple[str, Json]]:
    """All containers with their field paths below ``spec``."""
    for key in _CONTAINER_LISTS:
        yield from entries(spec, key, "spec")


def validate_resources(resources: Json, path: str) -> Errors:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            yield from _name(name, f"{path}.{kind}[{name}]")
            yield from validate_amount(name, text, f"{path}.{kind}[{name}]")
    for name, text in requests.items():
        wanted, most = quantity(text), quantity(limits.get(name))
        if wanted is None or most is None:
            continue
        if _is_counted(name) and wanted != most:
            yield faults.invalid(f"{path}.requests", str(text), f"must be equal to {name} limit of {limits[name]}")
        elif wanted > most:
            detail = f"must be less than or equal to {name} limit of {limits[name]}"
            yield faults.invalid(f"{path}.requests", str(text), detail)
    if any(_is_counted(name) and name not in limits for name in requests):
        yield faults.required(f"{path}.limits", "Limit must be set for non overcommitable resources")
    names = {*limits, *requests}
    if any(name.startswith("hugepages-") for name in names) and not names & {"cpu", "memory"}:
        yield faults.forbidden(path, "HugePages require cpu or memory")


def quantity(value: Any) -> Quantity | None:
    """None for an absent amount; the decoder has refused those that cannot be read."""
    return None if value is None else parse_quantity(str(value))


def _name(name: str, field: str) -> Errors:
    why = metadata.qualified_name(name)
    if why is not None:
        yield faults.invalid(field, name, why)
    is_huge = name.startswith("hugepages-")
    if "/" not in name:
        if why is None and name not in _STANDARD and not is_huge:
            yield faults.invalid(field, name, "must be a standard resource type or fully qualified")
        if name not in _FOR_CONTAINERS and not is_huge:
            yield faults.invalid(field, name, "must be a standard resource for containers")
    elif not _is_native(name) and not _is_extended(name):
        yield faults.invalid(field, name, "doesn't follow extended resource name standard")


def validate_amount(name: str, text: Any, field: str) -> Errors:
    amount = quantity(text)
    if amount is None:
        return
    if amount.nanos < 0:
        yield faults.invalid(field, text, "must be greater than or equal to 0")
    if _is_extended(name) and amount.nanos % _WHOLE_BILLIONTHS:
        yield faults.invalid(field, str(text), "must be an integer")


def _is_native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def _is_extended(name: str) -> bool:
    is_ours = _is_native(name) or name.startswith("requests.")
    return not is_ours and metadata.qualified_name(f"requests.{name}") is None


def _is_counted(name: str) -> bool:
    """Whether no more can be promised than there is."""
    return not _is_native(name) or name.startswith("hugepages-")


POD_LEVEL_SINCE: Final = Release.V1_34
"""PodLevelResources is on by default; earlier releases drop ``spec.resources``."""
_QUALITY: Final = ("cpu", "memory")
Amounts = dict[str, Quantity]


def default_pod_requests(spec: Json) -> None:
    """The pod requests what its containers request together; its own limit, if none of them requests any."""
    resources = spec.get("resources")
    if not resources:
        return
    requests = dict(resources.get("requests") or {})
    for name, amount in _of_containers(spec).items():
        if name in _QUALITY or name.startswith("hugepages-"):
            requests.setdefault(name, str(amount))
    for name, text in (resources.get("limits") or {}).items():
        requests.setdefault(name, text)
    if requests:
        resources["requests"] = requests


def quality_of_service(spec: Json) -> str:
    """Guaranteed, Burstable or BestEffort. What the pod as a whole asks for counts instead of its containers."""
    asks, equal = False, True
    for resources in [spec["resources"]] if spec.get("resources") else map(_resources, _that_ask(spec)):
        limits, requests = _amounts(resources, "limits"), _amounts(resources, "requests")
        for name in _QUALITY:
            asks |= name in limits or name in requests
            equal &= name in limits and limits[name] == requests.get(name)
    if not asks:
        return "BestEffort"
    return "Guaranteed" if equal else "Burstable"


def _that_ask(spec: Json) -> list[Json]:
    """All containers that may ask for resources: ephemeral ones may not."""
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _of_containers(spec: Json) -> Amounts:
    """What the containers request at most at the same time: init containers run alone, beside earlier sidecars."""
    running: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        together = _sum(running, _amounts(_resources(container), "requests"))
        peak = _larger(peak, together)
        if container.get("restartPolicy") == "Always":
            running = together
    for container in spec.get("containers") or ():
        running = _sum(running, _amounts(_resources(container), "requests"))
    return _larger(peak, running)


def _resources(container: Json) -> Json:
    resources: Json = container.get("resources") or {}
    return resources


def _amounts(resources: Json, kind: str) -> Amounts:
    read = {name: quantity(text) for name, text in (resources.get(kind) or {}).items()}
    return {name: amount for name, amount in read.items() if amount is not None and amount.nanos > 0}


def _sum(one: Mapping[str, Quantity], other: Mapping[str, Quantity]) -> Amounts:
    return {**one, **{name: one[name] + amount if name in one else amount for name, amount in other.items()}}


def _larger(one: Mapping[str, Quantity], other: Mapping[str, Quantity]) -> Amounts:
    return {**one, **{name: max(one.get(name, amount), amount) for name, amount in other.items()}}


_DRA = "resource.k8s.io"
_OLD_NAMES = frozenset(
    ("configmaps", "persistentvolumeclaims", "pods", "replicationcontrollers", "resourcequotas", "secrets", "services")
)

Usage = Counter[str]


def usage_of(registry: Registry, resource: Resource, obj: Json) -> Usage:
    def extended_resource(device_class: str) -> str:
        stored = registry.store.collection(_DRA, "deviceclasses").get("", device_class)
        return str(dig(stored.decode(), "spec.extendedResourceName") or "") if stored else ""

    if (resource.group, resource.plural) == (_DRA, "resourceclaims"):
        return charges(convert(ResourceClaim, obj), extended_resource)
    usage = Usage({f"count/{resource.group_resource}": 1})
    if not resource.group and resource.plural in _OLD_NAMES:
        usage[resource.plural] = 1
    return usage


def used(registry: Registry, namespace: str, names: Iterable[str]) -> Usage:
    """What the namespace uses of the names that can be measured; zero for what it does not use."""
    wanted = set(names)
    total: Usage = Counter()
    for resource in _measured(registry, wanted):
        for stored in registry.collection(resource).all(namespace):
            total.update(usage_of(registry, resource, stored.decode()))
    known = {name for resource in _measured(registry, wanted) for name in wanted if _is_charged(name, resource)}
    return Counter({name: total[name] for name in sorted(known)})


def _measured(registry: Registry, wanted: set[str]) -> Iterator[Resource]:
    """The resources, each in one version, whose objects are charged under one of the names."""
    seen = set()
    for resource in registry.structure.resources():
        place = (resource.group, resource.plural)
        if place not in seen and any(_is_charged(name, resource) for name in wanted):
            seen.add(place)
            yield registry.of_collection(registry.collection(resource)) or resource


def _is_charged(name: str, resource: Resource) -> bool:
    if "list" not in resource.verbs or not resource.namespaced:
        return False
    if name == f"count/{resource.group_resource}" or (name in _OLD_NAMES and name == resource.plural):
        return True
    is_device = name.endswith(DEVICES_OF_CLASS) or (name.startswith("requests.") and "/" in name)
    return is_device and (resource.group, resource.plural) == (_DRA, "resourceclaims")


def check_quotas(registry: Registry, resource: Resource, namespace: str, obj: Json, old: Json | None) -> None:
    """Raises a 403 when the object, new or changed, takes more than a quota of its namespace leaves."""
    quotas = list(registry.store.collection("", "resourcequotas").all(namespace)) if namespace else []
    if not quotas:
        return
    asked = usage_of(registry, resource, obj)
    if old is not None:
        asked -= usage_of(registry, resource, old)
    for stored in quotas:
        hard = hard_of(stored.decode())
        more = {name: amount for name, amount in asked.items() if amount > 0 and name in hard}
        have = used(registry, namespace, more)
        over = sorted(name for name in more if have[name] + more[name] > hard[name])
        if over:
            requested, in_use, limited = (
                ",".join(f"{name}={amounts[name]}" for name in over) for amounts in (more, have, hard)
            )
            why = f"exceeded quota: {stored.name}, requested: {requested}, used: {in_use}, limited: {limited}"
            raise forbidden(resource.group, resource.plural, obj["metadata"].get("name", ""), why)


def hard_of(quota: Json) -> dict[str, int]:
    """The limits, rounded up to whole numbers."""
    return {name: whole(parse_quantity(str(text))) for name, text in (dig(quota, "spec.hard") or {}).items()}
