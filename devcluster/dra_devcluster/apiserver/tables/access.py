"""The lines of role bindings, admission policies, priorities and leases."""

from datetime import datetime
from typing import Any

from .parts import Json, created, joined, name, spec_of


def role_binding_cells(obj: Json, now: datetime) -> list[Any]:
    role, subjects = obj.get("roleRef") or {}, obj.get("subjects") or []
    names = [
        joined(
            f"{s.get('namespace', '')}/{s.get('name', '')}" if kind == "ServiceAccount" else s.get("name", "")
            for s in subjects
            if s.get("kind") == kind
        )
        for kind in ("User", "Group", "ServiceAccount")
    ]
    return [name(obj), f"{role.get('kind', '')}/{role.get('name', '')}", created(obj, now), *names]


def policy_cells(obj: Json, now: datetime) -> list[Any]:
    kind = spec_of(obj).get("paramKind")
    text = f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else "<unset>"
    return [name(obj), len(spec_of(obj).get("validations") or []), text, created(obj, now)]


def policy_binding_cells(obj: Json, now: datetime) -> list[Any]:
    ref = spec_of(obj).get("paramRef")
    text = f"{ref['namespace']}/{ref.get('name', '')}" if ref and ref.get("namespace") else (ref or {}).get("name")
    return [name(obj), spec_of(obj).get("policyName", ""), text or "<unset>", created(obj, now)]


def priority_class_cells(obj: Json, now: datetime) -> list[Any]:
    default, preemption = bool(obj.get("globalDefault")), obj.get("preemptionPolicy", "")
    return [name(obj), obj.get("value", 0), str(default).lower(), created(obj, now), preemption]


def lease_cells(obj: Json, now: datetime) -> list[Any]:
    return [name(obj), spec_of(obj).get("holderIdentity", ""), created(obj, now)]
