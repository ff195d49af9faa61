"""The downward API: fields of a pod and amounts of its containers as text, for variables and files. No I/O here."""

from __future__ import annotations

import json
import os
import re
from decimal import ROUND_CEILING, Decimal

from dra_api.values.quantity import Quantity, parse_quantity

from .pod import RunContainer, RunPod
from .pod_objects import config_error
from .volumes import ResourceFieldRef

_KEYED_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_ONE = parse_quantity("1")


def pod_field(pod: RunPod, path: str, address: str) -> str:
    """A field of the pod. Raises ContainerError for fields that are not offered."""
    meta = pod.metadata
    keyed = _KEYED_FIELD.fullmatch(path)
    if keyed:
        return ((meta.labels if keyed[1] == "labels" else meta.annotations) or {}).get(keyed[2], "")
    fields = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "metadata.labels": _lines(meta.labels),
        "metadata.annotations": _lines(meta.annotations),
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        **dict.fromkeys(("status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs"), address),
    }
    if path not in fields:
        raise config_error(f"field {path!r} of the pod is not available here")
    return fields[path]


def resource_field(pod: RunPod, container: RunContainer | None, reference: ResourceFieldRef) -> str:
    """An amount of a container (the named one, else the given one) in units of the divisor, rounded up.

    A limit that is not set is what the machine has. Raises ContainerError for an unknown container or amount.
    """
    named = {one.name: one for one in pod.all_containers}
    owner = named.get(reference.container_name) if reference.container_name else container
    kind, _, name = reference.resource.partition(".")
    if owner is None or kind not in ("limits", "requests") or not name:
        raise config_error(f"{reference.resource!r} of container {reference.container_name!r} is not available here")
    amounts = (owner.resources.limits if kind == "limits" else owner.resources.requests) or {}
    amount = amounts.get(name) or (_machine(name) if kind == "limits" else None)
    divisor = reference.divisor if reference.divisor is not None and reference.divisor.nanos else _ONE
    if amount is None:
        return "0"
    return str((Decimal(amount.nanos) / divisor.nanos).to_integral_value(ROUND_CEILING))


def _machine(name: str) -> Quantity | None:
    if name == "cpu":
        return parse_quantity(str(os.cpu_count() or 1))
    if name == "memory":
        return parse_quantity(str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    return None


def _lines(values: dict[str, str] | None) -> str:
    return "\n".join(f"{key}={json.dumps(value)}" for key, value in sorted((values or {}).items()))
