"""ResourceQuotas: how many objects, and how many devices of a class, a namespace may have.

``count/<resource>.<group>`` counts objects of any kind; what a claim is charged with besides is in
``dra_api.quota``. Nothing else is measured: cpu, memory and storage in a quota have no effect here (api.md
section 11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from dra_api.codec import convert
from dra_api.quantity import QuantityError, parse_quantity
from dra_api.quota import DEVICES_OF_CLASS, charges, whole
from dra_api.resource import ResourceClaim

from dra_devcluster.apiserver.errors import Json, StatusError, forbidden
from dra_devcluster.apiserver.metadata import dig
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.structure import Resource

_DRA = "resource.k8s.io"
_OLD_NAMES = frozenset(
    ("configmaps", "persistentvolumeclaims", "pods", "replicationcontrollers", "resourcequotas", "secrets", "services")
)

Usage = Counter[str]


def usage_of(registry: Registry, resource: Resource, obj: Json) -> Usage:
    """What one object is charged with."""
    if (resource.group, resource.plural) == (_DRA, "resourceclaims"):
        return charges(convert(ResourceClaim, obj), lambda name: _extended_resource(registry, name))
    usage = Usage({f"count/{resource.group_resource}": 1})
    if not resource.group and resource.plural in _OLD_NAMES:
        usage[resource.plural] = 1
    return usage


def _extended_resource(registry: Registry, device_class: str) -> str:
    stored = registry.store.collection(_DRA, "deviceclasses").get("", device_class)
    return str(dig(stored.decode(), "spec.extendedResourceName") or "") if stored else ""


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
        over = [name for name in more if have[name] + more[name] > hard[name]]
        if over:
            raise _exceeded(resource, obj, stored.name, over, more, have, hard)


def hard_of(quota: Json) -> dict[str, int]:
    """The limits, rounded up to whole numbers; those that are no quantities are left out."""
    found = {}
    for name, text in (dig(quota, "spec.hard") or {}).items():
        try:
            found[name] = whole(parse_quantity(str(text)))
        except QuantityError:
            continue
    return found


def _exceeded(
    resource: Resource, obj: Json, quota: str, over: list[str], asked: dict[str, int], have: Usage, hard: dict[str, int]
) -> StatusError:
    said = (",".join(f"{name}={amounts[name]}" for name in sorted(over)) for amounts in (asked, have, hard))
    requested, in_use, limited = said
    why = f"exceeded quota: {quota}, requested: {requested}, used: {in_use}, limited: {limited}"
    return forbidden(resource.group, resource.plural, obj["metadata"].get("name", ""), why)
