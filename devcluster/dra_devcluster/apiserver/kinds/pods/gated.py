"""Pods that scheduling gates hold back: gates may only go, and where the pod may run may only be narrowed.

The owner of a gate may choose the pod's node before it removes the gate: it may add labels to ``spec.nodeSelector``,
and append requirements to the terms of the required node affinity. A pod without such terms may get any. After the last
gate is gone none of this may change.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.storage import metadata
from dra_devcluster.apiserver.structure import Fault

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMS = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"


def validate_gates(spec: Json) -> Iterator[Fault]:
    """Faults of the names of a pod's gates."""
    seen: set[str] = set()
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        name, path = gate.get("name", ""), f"spec.schedulingGates[{index}]"
        if why := metadata.qualified_name(name):
            yield faults.invalid(path, name, why)
        if name in seen:
            yield faults.duplicate(path, name)
        seen.add(name)


def validate_gates_update(spec: Json, old: Json) -> Iterator[Fault]:
    """Faults of what an update does to gates, and to the choice of nodes of a pod that has some."""
    gates = {gate.get("name") for gate in old.get("schedulingGates") or ()}
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        if gate.get("name") not in gates:
            text = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            yield faults.forbidden(f"spec.schedulingGates[{index}].name", text)
    if gates:
        yield from _node_selector(spec.get("nodeSelector") or {}, old.get("nodeSelector") or {})
        yield from _node_affinity(_terms(spec), _terms(old))


def without_choice_of_nodes(spec: Json) -> Json:
    """The spec of a gated pod without the fields that may change while it is gated."""
    rest = {field: value for field, value in spec.items() if field not in ("nodeSelector", "affinity")}
    others = {field: value for field, value in (spec.get("affinity") or {}).items() if field != "nodeAffinity"}
    return {**rest, "affinity": others} if others else rest


def _terms(spec: Json) -> list[Json]:
    required = metadata.dig(spec, f"affinity.nodeAffinity.{_REQUIRED}") or {}
    return required.get("nodeSelectorTerms") or []


def _node_selector(new: Json, old: Json) -> Iterator[Fault]:
    if any(new.get(label) != value for label, value in old.items()):
        why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        yield faults.invalid("spec.nodeSelector", new, why)


def _node_affinity(new: list[Json], old: list[Json]) -> Iterator[Fault]:
    if old and len(new) != len(old):
        yield faults.invalid(_TERMS, new, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
        return
    for index, (term, former) in enumerate(zip(new, old, strict=False)):
        if not _has_only_additions(term, former):
            why = "only additions are allowed (no mutations or deletions)"
            yield faults.invalid(f"{_TERMS}[{index}]", term, why)


def _has_only_additions(new: Json, old: Json) -> bool:
    """A term without requirements selects no node, and must stay so."""
    fields = ("matchExpressions", "matchFields")
    if not any(old.get(field) for field in fields):
        return not any(new.get(field) for field in fields)
    return all((new.get(field) or [])[: len(before)] == before for field in fields if (before := old.get(field)))
