"""What a pod may say about the pods around it: affinity, anti-affinity, topology spread."""

from __future__ import annotations

from collections.abc import Iterator

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.storage import metadata
from dra_devcluster.apiserver.structure import Fault

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_ACTIONS = ("DoNotSchedule", "ScheduleAnyway")
_POLICIES = ("Honor", "Ignore")
_EMPTY = "can not be empty"
_POSITIVE = "must be greater than zero"


def validate(spec: Json) -> Iterator[Fault]:
    """Faults of a pod's spec."""
    for kind in ("podAffinity", "podAntiAffinity"):
        affinity = metadata.dig(spec, f"affinity.{kind}") or {}
        path = f"spec.affinity.{kind}"
        for number, term in enumerate(affinity.get(_REQUIRED) or ()):
            yield from _term(term, f"{path}.{_REQUIRED}[{number}]")
        for number, weighted in enumerate(affinity.get(_PREFERRED) or ()):
            here = f"{path}.{_PREFERRED}[{number}]"
            if not 0 < weighted.get("weight", 0) <= 100:
                yield faults.invalid(f"{here}.weight", weighted.get("weight", 0), "must be in the range 1-100")
            yield from _term(weighted.get("podAffinityTerm") or {}, f"{here}.podAffinityTerm")
    seen: set[tuple[str, str]] = set()
    for number, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        yield from _constraint(constraint, f"spec.topologySpreadConstraints[{number}]", seen)


def _term(term: Json, path: str) -> Iterator[Fault]:
    yield from _selector(term.get("labelSelector"), f"{path}.labelSelector")
    yield from _selector(term.get("namespaceSelector"), f"{path}.namespaceSelector")
    if not term.get("topologyKey"):
        yield faults.required(f"{path}.topologyKey", _EMPTY)
    elif why := metadata.qualified_name(term["topologyKey"]):
        yield faults.invalid(f"{path}.topologyKey", term["topologyKey"], why)


def _constraint(constraint: Json, path: str, seen: set[tuple[str, str]]) -> Iterator[Fault]:
    key, action = constraint.get("topologyKey", ""), constraint.get("whenUnsatisfiable", "")
    if constraint.get("maxSkew", 0) < 1:
        yield faults.invalid(f"{path}.maxSkew", constraint.get("maxSkew", 0), _POSITIVE)
    if not key:
        yield faults.required(f"{path}.topologyKey", _EMPTY)
    if action not in _ACTIONS:
        yield faults.unsupported(f"{path}.whenUnsatisfiable", action, _ACTIONS)
    if (key, action) in seen:
        yield faults.duplicate(f"{path}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {action}}}")
    seen.add((key, action))
    if (domains := constraint.get("minDomains")) is not None:
        if domains < 1:
            yield faults.invalid(f"{path}.minDomains", domains, _POSITIVE)
        if action != "DoNotSchedule":
            why = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
            yield faults.invalid(f"{path}.minDomains", domains, why)
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if constraint.get(field) not in (None, *_POLICIES):
            yield faults.unsupported(f"{path}.{field}", constraint[field], _POLICIES)
    yield from _selector(constraint.get("labelSelector"), f"{path}.labelSelector")


def _selector(selector: Json | None, path: str) -> Iterator[Fault]:
    for number, wish in enumerate((selector or {}).get("matchExpressions") or ()):
        here, operator, values = f"{path}.matchExpressions[{number}]", wish.get("operator", ""), wish.get("values")
        if operator in ("In", "NotIn"):
            if not values:
                yield faults.required(f"{here}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                yield faults.forbidden(f"{here}.values", text)
        else:
            yield faults.invalid(f"{here}.operator", operator, "not a valid selector operator")
        if why := metadata.qualified_name(wish.get("key", "")):
            yield faults.invalid(f"{here}.key", wish.get("key", ""), why)
