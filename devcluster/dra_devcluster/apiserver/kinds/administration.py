"""Kinds by which administrators shape the server: roles and bindings, admission policies, custom resources.

A user can put only its own rights into a role or bind them, unless it may ``escalate`` the role or ``bind`` it. Members
of ``system:masters`` and the server itself may do both.

The schema of a definition says everything about its custom resources. A valid definition is accepted at once, because
its names cannot conflict here. Of policies and their bindings this module fills in defaults and checks the expressions.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

from dra_api.validation import formats as faults
from dra_api.validation.formats import Errors, FieldError
from dra_api.values import now

from dra_devcluster.apiserver import metadata
from dra_devcluster.apiserver.admission import Policy
from dra_devcluster.apiserver.errors import Json, forbidden, not_found
from dra_devcluster.apiserver.kinds.core import Generational
from dra_devcluster.apiserver.metadata import entries, has_form, needs, one_of, unchanged
from dra_devcluster.apiserver.rbac import Attributes, Rule
from dra_devcluster.apiserver.structure import Resource, Structure, set_defaults, validate

from .base import Kind, Write


class CustomKind(Kind):
    """One instance per definition: it knows which fields the definition makes selectable."""

    has_generation = True
    unconditional_update = False

    def __init__(self, resource: Resource) -> None:
        entries = (resource.definition or {}).get("selectableFields") or ()
        paths = [entry["jsonPath"].removeprefix(".") for entry in entries]
        self.selectable = {path: path for path in paths}

    def default(self, obj: Json, write: Write) -> None:
        set_defaults(write.resource.schema, obj)

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        return validate(write.resource.schema, obj)

    def generation_of(self, obj: Json) -> Any:
        return {key: value for key, value in obj.items() if key not in ("metadata", "status", "apiVersion", "kind")}


CLEANUP = "customresourcecleanup.apiextensions.k8s.io"


class DefinitionKind(Kind):
    has_generation = True
    unconditional_update = False

    def default(self, obj: Json, write: Write) -> None:
        spec = obj.setdefault("spec", {})
        names = spec.setdefault("names", {})
        kind = names.get("kind", "")
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
        spec.setdefault("conversion", {"strategy": "None"})

    def prepare_create(self, obj: Json, write: Write) -> None:
        obj["status"] = {
            "conditions": [
                _condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                _condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            ]
        }
        _accept(obj, {})

    def prepare_update(self, obj: Json, old: Json, write: Write) -> None:
        super().prepare_update(obj, old, write)
        if not write.subresource:
            _accept(obj, old)

    def prepare_delete(self, obj: Json, write: Write) -> None:
        if "deletionTimestamp" not in obj["metadata"]:
            obj["metadata"].setdefault("finalizers", []).append(CLEANUP)

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        spec = obj["spec"]
        found = [*_names(obj["metadata"].get("name", ""), spec), *_versions(spec)]
        if old is not None:
            found += unchanged(spec, old["spec"], "spec", "scope")
        if found:
            return found
        try:
            # The code that serves the schemas checks whether it can.
            Structure([]).add_definition(obj)
        except ValueError as error:
            return [faults.invalid("spec.versions", None, str(error))]
        return []


def _condition(kind: str, reason: str, message: str) -> Json:
    return {"type": kind, "status": "True", "lastTransitionTime": now(), "reason": reason, "message": message}


def _accept(obj: Json, old: Json) -> None:
    stored = list((old.get("status") or {}).get("storedVersions") or ())
    storage = [version.get("name") for version in obj["spec"].get("versions") or () if version.get("storage")]
    obj["status"] = {
        **obj["status"],
        "acceptedNames": obj["spec"]["names"],
        "storedVersions": stored + [name for name in storage if name not in stored],
    }


def _names(name: str, spec: Json) -> Errors:
    names, group = spec["names"], spec.get("group", "")
    yield from needs(spec, "spec", "group")
    yield from needs(names, "spec.names", "plural", "kind")
    if group and names.get("plural") and name != f"{names['plural']}.{group}":
        yield faults.invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    yield from one_of(spec.get("scope"), "spec.scope", ("Cluster", "Namespaced"))


def _versions(spec: Json) -> Errors:
    versions = spec.get("versions") or []
    if sum(bool(each.get("storage")) for each in versions) != 1:
        yield faults.invalid("spec.versions", [], "must have exactly one version marked as storage version")
    if len({each.get("name") for each in versions}) < len(versions):
        yield faults.invalid("spec.versions", [], "must contain unique version names")
    # The server keeps a schema that all versions have in one place, and names that.
    is_one = all((each.get("schema") or {}) == (versions[0].get("schema") or {}) for each in versions)
    for path, version in entries(spec, "versions", "spec"):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if not schema:
            yield faults.required(f"{path}.schema.openAPIV3Schema", "schemas are required")
        elif schema.get("type") != "object" and not (is_one and version is not versions[0]):
            where = f"{'spec.validation' if is_one else f'{path}.schema'}.openAPIV3Schema.type"
            yield faults.invalid(where, schema.get("type", ""), "must be object at the root")


class PolicyKind(Generational):
    defaults = MappingProxyType({"spec.failurePolicy": "Fail"})

    def default(self, obj: Json, write: Write) -> None:
        super().default(obj, write)
        _default_match(obj["spec"].get("matchConstraints"))

    def validate(self, obj: Json, old: Json | None, write: Write) -> Errors:
        spec = obj["spec"]
        yield from needs(spec, "spec", "matchConstraints")
        if wanted := spec.get("matchConstraints"):
            yield from needs(wanted, "spec.matchConstraints", "resourceRules")
        if not spec.get("validations") and not spec.get("auditAnnotations"):
            for part in ("validations", "auditAnnotations"):
                why = "validations or auditAnnotations must contain at least one item"
                yield faults.required(f"spec.{part}", why)
        missing = [
            fault
            for part, fields in _NEEDED.items()
            for path, entry in entries(spec, part, "spec")
            for fault in needs(entry or {}, path, *fields)
        ]
        yield from missing
        is_new = old is None or old["spec"] != spec  # what is stored stays, even if it would be refused today
        if is_new and not missing:
            for field, expression, why in Policy(obj).misfits():
                yield faults.invalid(field, expression, why)


class PolicyBindingKind(Generational):
    def default(self, obj: Json, write: Write) -> None:
        _default_match(obj["spec"].get("matchResources"))

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        spec = obj["spec"]
        yield from needs(spec, "spec", "policyName")
        actions = spec.get("validationActions") or []
        if not actions:
            yield faults.required("spec.validationActions", "at least one validation action is required")
        if "Deny" in actions and "Warn" in actions:
            why = "must not contain both Deny and Warn (repeating the same validation failure information in the API "
            yield faults.invalid("spec.validationActions", actions, f"{why}response and headers serves no purpose)")
        if (wanted := spec.get("paramRef")) is not None:
            if wanted.get("name") and wanted.get("selector") is not None:
                for field in ("name", "selector"):
                    yield faults.forbidden(f"spec.paramRef.{field}", "name and selector are mutually exclusive")
            if not wanted.get("name") and wanted.get("selector") is None:
                yield faults.required("spec.paramRef", "one of name or selector must be specified")
            yield from needs(wanted, "spec.paramRef", "parameterNotFoundAction")


_NEEDED = {
    "variables": ("name", "expression"),
    "matchConditions": ("name", "expression"),
    "validations": ("expression",),
}


def _default_match(wanted: Json | None) -> None:
    if wanted is None:
        return
    wanted.setdefault("matchPolicy", "Equivalent")
    wanted.setdefault("namespaceSelector", {})
    wanted.setdefault("objectSelector", {})
    for part in ("resourceRules", "excludeResourceRules"):
        for rule in wanted.get(part) or ():
            rule.setdefault("scope", "*")


_GROUP = "rbac.authorization.k8s.io"
_ALL = ("*",)


class RoleKind(Kind):
    name_rule = staticmethod(metadata.path_segment)
    created_by_update = True

    def prepare_create(self, obj: Json, write: Write) -> None:
        self._check_escalation(obj, None, write)

    def prepare_update(self, obj: Json, old: Json, write: Write) -> None:
        if _is_changed(obj, old):
            self._check_escalation(obj, old, write)

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        for path, rule in entries(obj, "rules"):
            yield from _rule_faults(rule, path, namespaced=write.resource.namespaced)
        aggregation = obj.get("aggregationRule")
        if aggregation is not None and not aggregation.get("clusterRoleSelectors"):
            yield faults.required(
                "aggregationRule.clusterRoleSelectors",
                "at least one clusterRoleSelector required if aggregationRule is non-nil",
            )

    def _check_escalation(self, obj: Json, old: Json | None, write: Write) -> None:
        """Raises a 403 when the role would allow more than the user may do."""
        if write.user.is_master or _may(write, "escalate", write.resource.plural, obj["metadata"].get("name", "")):
            return
        _check_held(write, obj, [Rule.of(rule) for rule in obj.get("rules") or ()])
        if any(metadata.dig(role, "aggregationRule.clusterRoleSelectors") for role in (obj, old)):
            # Which roles it will choose is open, so only who may do everything may write it.
            why = "must have cluster-admin privileges to use the aggregationRule"
            _check_held(write, obj, [Rule(_ALL, _ALL, _ALL), Rule(_ALL, urls=_ALL)], why)


class BindingKind(Kind):
    name_rule = staticmethod(metadata.path_segment)
    created_by_update = True

    def default(self, obj: Json, write: Write) -> None:
        role = obj.get("roleRef")
        if role is not None and not role.get("apiGroup"):
            role["apiGroup"] = _GROUP
        for subject in obj.get("subjects") or ():
            if not subject.get("apiGroup") and subject.get("kind") in ("User", "Group"):
                subject["apiGroup"] = _GROUP

    def prepare_create(self, obj: Json, write: Write) -> None:
        self._check_escalation(obj, write)

    def prepare_update(self, obj: Json, old: Json, write: Write) -> None:
        if _is_changed(obj, old):
            self._check_escalation(obj, write)

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        role = obj.get("roleRef") or {}
        kinds = ["Role", "ClusterRole"] if write.resource.namespaced else ["ClusterRole"]
        yield from one_of(role.get("apiGroup", ""), "roleRef.apiGroup", [_GROUP])
        yield from one_of(role.get("kind", ""), "roleRef.kind", kinds)
        yield from needs(role, "roleRef", "name")
        yield from has_form(role.get("name", ""), "roleRef.name", metadata.path_segment)
        for path, subject in entries(obj, "subjects"):
            yield from _subject_faults(subject, path, namespaced=write.resource.namespaced)
        if old is not None and old.get("roleRef") != obj.get("roleRef"):
            yield faults.invalid("roleRef", role, "cannot change roleRef")

    def _check_escalation(self, obj: Json, write: Write) -> None:
        """Raises a 403 when the user may neither bind the role nor do all that it allows; a 404 if there is none."""
        role = obj.get("roleRef") or {}
        kind, name = role.get("kind", ""), role.get("name", "")
        plural = {"Role": "roles", "ClusterRole": "clusterroles"}.get(kind)
        if plural is None or write.user.is_master or _may(write, "bind", plural, name):
            return
        rules = write.registry.authorization.rbac.role(kind, name, write.namespace)
        if rules is None:
            raise not_found(_GROUP, write.resource.plural, name)
        _check_held(write, obj, rules)


def _may(write: Write, verb: str, plural: str, name: str) -> bool:
    asked = Attributes(write.user, verb, _GROUP, "*", plural, "", write.namespace, name)
    return write.registry.authorization.allows(asked)


def _is_changed(obj: Json, old: Json) -> bool:
    """Whether more changes than what the garbage collector needs: owners and finalizers."""
    free = ("ownerReferences", "finalizers", "resourceVersion", "managedFields")
    first, second = (
        {**role, "metadata": {key: value for key, value in role["metadata"].items() if key not in free}}
        for role in (obj, old)
    )
    return any(first.get(key) != second.get(key) for key in (first.keys() | second.keys()) - {"apiVersion", "kind"})


def _check_held(write: Write, obj: Json, rules: Iterable[Rule], said: str = "") -> None:
    """Raises a 403 when the rules allow more than the user may do; ``said`` takes the place of what they allow."""
    user = write.user
    lacking = write.registry.authorization.rbac.lacks(user, write.namespace, rules)
    if lacking:
        groups = " ".join(f'"{group}"' for group in user.groups)
        what = "\n".join(sorted(str(rule) for rule in lacking))
        why = f"is attempting to grant RBAC permissions not currently held:\n{what}"
        name = obj["metadata"].get("name", "")
        why = said or f'user "{user.name}" (groups=[{groups}]) {why}'
        raise forbidden(_GROUP, write.resource.plural, name, why)


def _rule_faults(rule: Json, path: str, *, namespaced: bool) -> Errors:
    if not rule.get("verbs"):
        yield faults.required(f"{path}.verbs", "verbs must contain at least one value")
    if urls := rule.get("nonResourceURLs"):
        if namespaced:
            yield faults.invalid(f"{path}.nonResourceURLs", urls, "namespaced rules cannot apply to non-resource URLs")
        if any(rule.get(part) for part in ("apiGroups", "resources", "resourceNames")):
            why = "rules cannot apply to both regular resources and non-resource URLs"
            yield faults.invalid(f"{path}.nonResourceURLs", urls, why)
        return
    for part, what in (("apiGroups", "api group"), ("resources", "resource")):
        if not rule.get(part):
            yield faults.required(f"{path}.{part}", f"resource rules must supply at least one {what}")


def _subject_faults(subject: Json, path: str, *, namespaced: bool) -> Errors:
    kind, group = subject.get("kind", ""), subject.get("apiGroup", "")
    yield from needs(subject, path, "name")
    if kind == "ServiceAccount":
        if subject.get("name"):
            yield from has_form(subject["name"], f"{path}.name", metadata.subdomain)
        yield from one_of(group, f"{path}.apiGroup", [""])
        if not namespaced:
            yield from needs(subject, path, "namespace")
    elif kind in ("User", "Group"):
        yield from one_of(group, f"{path}.apiGroup", [_GROUP])
    else:
        yield from one_of(kind, f"{path}.kind", ["ServiceAccount", "User", "Group"])
