"""Admission policies at work: which concern a request, and what they say of it.

Which requests a policy or a binding is about: resources, operations, names, and labels of object and namespace.

All policies that are bound: which of them a request has to pass, with which parameters, and what they deny.

A policy without a binding has no effect. Policies are compiled once, and again after a change of one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from dra_api.codec import convert
from dra_api.meta import LabelSelector
from dra_api.selectors import Selector
from dra_cel.libraries.authorization import Authorizer, Decision, resource_check

from dra_devcluster.apiserver.admission.policy import AdmissionRequest, Denial, Policy
from dra_devcluster.apiserver.authorization import Attributes, User
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.served.registry import Registry
from dra_devcluster.apiserver.storage.metadata import to_served
from dra_devcluster.apiserver.storage.store import Change, Collection
from dra_devcluster.apiserver.structure import Resource

_NAME_LABEL = "kubernetes.io/metadata.name"


def matched(wanted: Json, request: AdmissionRequest, registry: Registry) -> Resource | None:
    """The resource, in the version that a rule names, as which the request is judged; None if it is not matched.

    ``wanted`` is a MatchResources. With the policy ``Equivalent`` a rule for one version covers all of them.
    """
    if not _labels_match(wanted, request, registry):
        return None
    equivalent = wanted.get("matchPolicy", "Equivalent") == "Equivalent"
    versions = [request.resource, *(_others(request.resource, registry) if equivalent else ())]
    if _by_rules(wanted.get("excludeResourceRules") or (), request, versions):
        return None
    rules = wanted.get("resourceRules")
    return _by_rules(rules, request, versions) if rules else request.resource


def _others(resource: Resource, registry: Registry) -> Iterable[Resource]:
    place = (resource.group, resource.plural)
    return (
        other
        for other in registry.structure.resources()
        if (other.group, other.plural) == place and other.version != resource.version
    )


def _by_rules(rules: Iterable[Json], request: AdmissionRequest, versions: Iterable[Resource]) -> Resource | None:
    return next((version for version in versions for rule in rules if _is_about(rule, request, version)), None)


def _is_about(rule: Json, request: AdmissionRequest, resource: Resource) -> bool:
    names = rule.get("resourceNames")
    return (
        _has(rule.get("operations"), request.operation)
        and _has(rule.get("apiGroups"), resource.group)
        and _has(rule.get("apiVersions"), resource.version)
        and _in_scope(rule.get("scope", "*"), request)
        and any(_covers(pattern, request) for pattern in rule.get("resources") or ())
        and (not names or request.name in names)
    )


def _covers(pattern: str, request: AdmissionRequest) -> bool:
    plural, _, subresource = pattern.partition("/")
    return plural in ("*", request.resource.plural) and subresource in ("*", request.subresource)


def _in_scope(scope: str, request: AdmissionRequest) -> bool:
    return scope == "*" or (scope == "Namespaced") == request.resource.namespaced


def _has(words: Iterable[str] | None, word: str) -> bool:
    listed = list(words or ())
    return "*" in listed or word in listed


def _labels_match(wanted: Json, request: AdmissionRequest, registry: Registry) -> bool:
    by_object = _selector(wanted.get("objectSelector"))
    objects = [obj for obj in (request.obj, request.old) if obj is not None]
    if by_object and not any(by_object.matches(obj.get("metadata", {}).get("labels") or {}) for obj in objects):
        return False
    by_namespace = _selector(wanted.get("namespaceSelector"))
    if by_namespace is None:
        return True
    if (request.resource.group, request.resource.plural) == ("", "namespaces"):
        return any(by_namespace.matches(obj.get("metadata", {}).get("labels") or {}) for obj in objects[:1])
    if not request.resource.namespaced:
        return True
    stored = registry.store.collection("", "namespaces").get("", request.namespace)
    return by_namespace.matches(stored.labels if stored else {_NAME_LABEL: request.namespace})


def _selector(wanted: Json | None) -> Selector | None:
    """None for a selector that selects everything."""
    return Selector.of(convert(LabelSelector, wanted)) if wanted else None


_GROUP = "admissionregistration.k8s.io"
_POLICIES, _BINDINGS = "validatingadmissionpolicies", "validatingadmissionpolicybindings"
_NAMESPACE_METADATA = (
    "name",
    "generateName",
    "labels",
    "annotations",
    "finalizers",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
)


class _Misconfigured(Exception):
    """A binding cannot be used for a request; the text says why."""


class _Bound(NamedTuple):
    policy: Policy
    binding: Json


class Policies:
    """The policies and bindings of a server."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._bound: list[_Bound] | None = None
        registry.store.listen(self._forget)

    def _forget(self, collection: Collection, change: Change) -> None:
        if collection.group == _GROUP:
            self._bound = None

    def check(self, request: AdmissionRequest) -> list[str]:
        """Raises the refusal that the first policy asks for; gives back the warnings of the others."""
        if request.resource.group == _GROUP:
            return []  # a wrong policy must not keep itself from being corrected
        warnings = []
        refusals = []
        for bound in self._all():
            name = bound.binding["metadata"]["name"]
            for denial in self._denials(bound, request):
                actions = (bound.binding.get("spec") or {}).get("validationActions") or ()
                whose = f"ValidatingAdmissionPolicy '{bound.policy.name}' with binding '{name}'"
                if "Deny" in actions:
                    refusals.append(request.refusal(f"{whose} denied request: {denial.message}", denial.reason))
                if "Warn" in actions:
                    warnings.append(f"Validation failed for {whose}: {denial.message}")
        if refusals:
            raise refusals[0]
        return warnings

    def _all(self) -> list[_Bound]:
        if self._bound is None:
            policies = {stored.name: Policy(stored.decode()) for stored in self._stored(_POLICIES)}
            bindings = [stored.decode() for stored in self._stored(_BINDINGS)]
            self._bound = [
                _Bound(policies[name], binding)
                for binding in bindings
                if (name := binding["spec"].get("policyName", "")) in policies
            ]
        return self._bound

    def _stored(self, plural: str) -> Iterable[Any]:
        return self._registry.store.collection(_GROUP, plural).all()

    def _denials(self, bound: _Bound, request: AdmissionRequest) -> list[Denial]:
        policy, spec = bound.policy, bound.binding["spec"]
        resource = matched(policy.spec.get("matchConstraints") or {}, request, self._registry)
        if resource is None or matched(spec.get("matchResources") or {}, request, self._registry) is None:
            return []
        try:
            parameters = self._parameters(policy.spec.get("paramKind"), spec.get("paramRef"), request)
        except _Misconfigured as error:
            return [Denial(f"failed to configure binding: {error}")] if policy.fails else []
        values = self._values(request, resource)
        return [denial for found in parameters for denial in policy.denials({**values, "params": found})]

    def _values(self, request: AdmissionRequest, resource: Resource) -> Mapping[str, Any]:
        new, old = request.objects_as(resource)
        decide = self._decider(request.user)
        asked = {
            "group": resource.group,
            "resource": resource.plural,
            "subresource": request.subresource,
            "namespace": request.namespace,
            "name": request.name,
        }
        return {
            "object": new,
            "oldObject": old,
            "request": request.described(resource),
            "namespaceObject": self._namespace(request),
            "authorizer": Authorizer(decide),
            "authorizer.requestResource": resource_check(decide, {k: v for k, v in asked.items() if v}),
        }

    def _decider(self, user: User) -> Callable[[Mapping[str, str]], Decision]:
        def decide(asked: Mapping[str, str]) -> Decision:
            who = User(asked["user"]) if "user" in asked else user
            keys = ("group", "resource", "subresource", "namespace", "name", "path")
            place = {key: asked[key] for key in keys if key in asked}
            selector = asked.get("fieldSelector", "")
            answer = self._registry.authorization.judge(
                Attributes(who, asked["verb"], field_selector=selector, **place)
            )
            return Decision(answer.allowed, answer.reason)

        return decide

    def _namespace(self, request: AdmissionRequest) -> Json | None:
        """The fields of the namespace that policies may see."""
        if not request.resource.namespaced:
            return None
        stored = self._registry.store.collection("", "namespaces").get("", request.namespace)
        if stored is None:
            return None
        obj = stored.decode()
        meta = {key: obj["metadata"][key] for key in _NAMESPACE_METADATA if key in obj["metadata"]}
        status = {"phase": (obj.get("status") or {}).get("phase", "Active")}
        return {"metadata": meta, "spec": obj.get("spec") or {}, "status": status}

    def _parameters(self, kind: Json | None, wanted: Json | None, request: AdmissionRequest) -> list[Json | None]:
        """The objects with which the policy is evaluated, each on its own. Raises _Misconfigured."""
        if not kind or not wanted:
            return [None]
        group, _, version = kind.get("apiVersion", "").rpartition("/")
        resource = self._registry.structure.by_kind(group, version, kind.get("kind", ""))
        if resource is None:
            raise _Misconfigured(f"paramKind kind `{kind.get('apiVersion')}, Kind={kind.get('kind')}` not known")
        namespace = (wanted.get("namespace") or request.namespace) if resource.namespaced else ""
        if resource.namespaced and not namespace:
            raise _Misconfigured(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
            )
        if not resource.namespaced and wanted.get("namespace"):
            raise _Misconfigured("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
        collection = self._registry.collection(resource)
        if wanted.get("name"):
            stored = collection.get(namespace, wanted["name"])
            found = [] if stored is None else [stored]
        else:
            selector = Selector.of(convert(LabelSelector, wanted.get("selector") or {}))
            found = [each for each in collection.all(namespace) if selector.matches(each.labels)]
        if not found and wanted.get("parameterNotFoundAction", "Deny") == "Deny":
            raise _Misconfigured("no params found for policy binding with `Deny` parameterNotFoundAction")
        return [to_served(resource, stored.decode()) for stored in found]
