"""Roles and bindings: who may hand on which permissions, and what a rule and a subject must have.

Only what a user may do itself can be put into a role or be bound, unless the user may ``escalate`` the role or ``bind``
it. Members of ``system:masters`` and the server itself may do both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dra_api.validation import formats as faults
from dra_api.validation.formats import FieldError

from dra_devcluster.apiserver import metadata
from dra_devcluster.apiserver.authorization import Attributes, Rule
from dra_devcluster.apiserver.errors import Json, forbidden, not_found

from .base import Kind, Write

_GROUP = "rbac.authorization.k8s.io"
_ALL = ("*",)


class RoleKind(Kind):
    """Roles and ClusterRoles."""

    name_rule = staticmethod(metadata.path_segment)
    created_by_update = True

    def prepare_create(self, obj: Json, write: Write) -> None:
        self._check_escalation(obj, None, write)

    def prepare_update(self, obj: Json, old: Json, write: Write) -> None:
        if _is_changed(obj, old):
            self._check_escalation(obj, old, write)

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        for index, rule in enumerate(obj.get("rules") or ()):
            yield from _rule_faults(rule, f"rules[{index}]", namespaced=write.resource.namespaced)
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
    """RoleBindings and ClusterRoleBindings."""

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
        if role.get("apiGroup") != _GROUP:
            yield faults.not_supported("roleRef.apiGroup", role.get("apiGroup", ""), [_GROUP])
        if role.get("kind") not in kinds:
            yield faults.not_supported("roleRef.kind", role.get("kind", ""), kinds)
        if not role.get("name"):
            yield faults.required("roleRef.name")
        elif why := metadata.path_segment(role["name"]):
            yield faults.invalid("roleRef.name", role["name"], why)
        for index, subject in enumerate(obj.get("subjects") or ()):
            yield from _subject_faults(subject, f"subjects[{index}]", namespaced=write.resource.namespaced)
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


def _rule_faults(rule: Json, path: str, *, namespaced: bool) -> Iterator[FieldError]:
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


def _subject_faults(subject: Json, path: str, *, namespaced: bool) -> Iterator[FieldError]:
    kind, group = subject.get("kind", ""), subject.get("apiGroup", "")
    if not subject.get("name"):
        yield faults.required(f"{path}.name")
    if kind == "ServiceAccount":
        if subject.get("name") and (why := metadata.subdomain(subject["name"])):
            yield faults.invalid(f"{path}.name", subject["name"], why)
        if group:
            yield faults.not_supported(f"{path}.apiGroup", group, [""])
        if not namespaced and not subject.get("namespace"):
            yield faults.required(f"{path}.namespace")
    elif kind not in ("User", "Group"):
        yield faults.not_supported(f"{path}.kind", kind, ["ServiceAccount", "User", "Group"])
    elif group != _GROUP:
        yield faults.not_supported(f"{path}.apiGroup", group, [_GROUP])
