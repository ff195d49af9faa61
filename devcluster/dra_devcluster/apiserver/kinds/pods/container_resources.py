"""Checks what a container asks for: which names resources may have, and which amounts.

A name without a slash is one of Kubernetes, and few of these are for containers. Any other name is that of an extended
resource, unless its prefix belongs to Kubernetes. Extended resources and huge pages are counted and cannot be
promised twice, so request and limit have to be equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dra_api.values.quantity import Quantity, QuantityError, parse_quantity

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.storage import metadata
from dra_devcluster.apiserver.structure import Fault

_FOR_CONTAINERS = {"cpu", "memory", "ephemeral-storage"}
_PER_CONTAINER_AND_QUOTA = {f"{kind}.{name}" for kind in ("requests", "limits") for name in _FOR_CONTAINERS}
_STANDARD = _FOR_CONTAINERS | _PER_CONTAINER_AND_QUOTA | {
    "configmaps", "persistentvolumeclaims", "pods", "replicationcontrollers", "requests.storage", "resourcequotas",
    "secrets", "services", "services.loadbalancers", "services.nodeports", "storage",
}  # fmt: skip
_WHOLE_BILLIONTHS = 10**9


def validate_resources(resources: Json, path: str) -> Iterator[Fault]:
    """Faults of the resources of one container."""
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
    try:
        return None if value is None else parse_quantity(str(value))
    except QuantityError:
        return None


def _name(name: str, field: str) -> Iterator[Fault]:
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


def validate_amount(name: str, text: Any, field: str) -> Iterator[Fault]:
    """Faults of an amount of a resource, of a container or a node."""
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
