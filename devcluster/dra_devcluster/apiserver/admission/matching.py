"""Which requests a policy or a binding is about: resources, operations, names, and labels of object and namespace."""

from __future__ import annotations

from collections.abc import Iterable

from dra_api.codec import convert
from dra_api.meta import LabelSelector
from dra_api.relations.label_selectors import Selector

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.served.registry import Registry
from dra_devcluster.apiserver.structure import Resource

from .request import AdmissionRequest

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
