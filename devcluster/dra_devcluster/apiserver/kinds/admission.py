"""Admission policies and their bindings: what is filled in, and which expressions are acceptable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import MappingProxyType

from dra_api.validation import formats as faults
from dra_api.validation.formats import FieldError

from dra_devcluster.apiserver.admission import Policy
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.kinds.core import Generational

from .base import Write


class PolicyKind(Generational):
    """ValidatingAdmissionPolicies."""

    defaults = MappingProxyType({"spec.failurePolicy": "Fail"})

    def default(self, obj: Json, write: Write) -> None:
        super().default(obj, write)
        _default_match(obj["spec"].get("matchConstraints"))

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterator[FieldError]:
        spec = obj["spec"]
        if not spec.get("matchConstraints"):
            yield faults.required("spec.matchConstraints")
        elif not spec["matchConstraints"].get("resourceRules"):
            yield faults.required("spec.matchConstraints.resourceRules")
        if not spec.get("validations") and not spec.get("auditAnnotations"):
            for part in ("validations", "auditAnnotations"):
                why = "validations or auditAnnotations must contain at least one item"
                yield faults.required(f"spec.{part}", why)
        missing = [f"spec.{part}[{index}].{field}" for part, index, field in _missing(spec)]
        yield from map(faults.required, missing)
        if not missing and (
            old is None or old["spec"] != spec
        ):  # what is stored stays, even if it would be refused today
            for field, expression, why in Policy(obj).misfits():
                yield faults.invalid(field, expression, why)


class PolicyBindingKind(Generational):
    """ValidatingAdmissionPolicyBindings."""

    def default(self, obj: Json, write: Write) -> None:
        _default_match(obj["spec"].get("matchResources"))

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        spec = obj["spec"]
        if not spec.get("policyName"):
            yield faults.required("spec.policyName")
        actions = spec.get("validationActions") or []
        if not actions:
            yield faults.required("spec.validationActions", "at least one validation action is required")
        if "Deny" in actions and "Warn" in actions:
            why = "must not contain both Deny and Warn (repeating the same validation failure information in the API "
            yield faults.invalid("spec.validationActions", actions, f"{why}response and headers serves no purpose)")
        if (wanted := spec.get("paramRef")) is not None:
            if wanted.get("name") and wanted.get("selector") is not None:
                yield faults.forbidden("spec.paramRef.name", "name and selector are mutually exclusive")
            if not wanted.get("name") and wanted.get("selector") is None:
                yield faults.required("spec.paramRef", "one of name or selector must be specified")
            if not wanted.get("parameterNotFoundAction"):
                yield faults.required("spec.paramRef.parameterNotFoundAction")


_NEEDED = {
    "variables": ("name", "expression"),
    "matchConditions": ("name", "expression"),
    "validations": ("expression",),
}


def _missing(spec: Json) -> Iterator[tuple[str, int, str]]:
    """The fields that entries of lists lack."""
    for part, fields in _NEEDED.items():
        for index, entry in enumerate(spec.get(part) or ()):
            for field in fields:
                if not (entry or {}).get(field):
                    yield part, index, field


def _default_match(wanted: Json | None) -> None:
    if wanted is None:
        return
    wanted.setdefault("matchPolicy", "Equivalent")
    wanted.setdefault("namespaceSelector", {})
    wanted.setdefault("objectSelector", {})
    for part in ("resourceRules", "excludeResourceRules"):
        for rule in wanted.get(part) or ():
            rule.setdefault("scope", "*")
