"""The environment of admission policies: ``object``, ``oldObject``, ``request``, ``params``, ``variables``, ...

Objects are of unknown type: any JSON that ``json.loads`` gives is a valid value. A namespace has only some of its
fields, as in the reference. ``variables`` holds the policy's own variables; the caller knows their types because it
compiles them one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dra_cel.basics.types import BOOL, DYN, INT, STRING, TIMESTAMP, Type, list_of, map_of, struct
from dra_cel.environments.environment import STRUCTS
from dra_cel.libraries.authorization import AUTHORIZER, RESOURCE_CHECK

from .environment import CHECKED_TYPES, STANDARD_TYPES, Environment, kubernetes

_REQUEST: Final = struct("kubernetes.AdmissionRequest")
_KIND: Final = struct("kubernetes.GroupVersionKind")
_RESOURCE: Final = struct("kubernetes.GroupVersionResource")
_USER: Final = struct("kubernetes.UserInfo")
_VARIABLES: Final = struct("kubernetes.variables")
_NAMESPACE: Final = struct("kubernetes.Namespace")
_METADATA: Final = struct("kubernetes.NamespaceMetadata")
_SPEC: Final = struct("kubernetes.NamespaceSpec")
_STATUS: Final = struct("kubernetes.NamespaceStatus")
_CONDITION: Final = struct("kubernetes.NamespaceCondition")

_STRUCTS: Final[Mapping[str, Mapping[str, Type]]] = {
    _REQUEST.name: {
        "kind": _KIND, "resource": _RESOURCE, "subResource": STRING, "requestKind": _KIND, "requestResource": _RESOURCE,
        "requestSubResource": STRING, "name": STRING, "namespace": STRING, "operation": STRING, "userInfo": _USER,
        "dryRun": BOOL, "options": DYN,
    },
    _KIND.name: {"group": STRING, "version": STRING, "kind": STRING},
    _RESOURCE.name: {"group": STRING, "version": STRING, "resource": STRING},
    _USER.name: {
        "username": STRING, "uid": STRING, "groups": list_of(STRING), "extra": map_of(STRING, list_of(STRING)),
    },
    _NAMESPACE.name: {"metadata": _METADATA, "spec": _SPEC, "status": _STATUS},
    _METADATA.name: {
        "name": STRING, "generateName": STRING, "namespace": STRING, "labels": map_of(STRING, STRING),
        "annotations": map_of(STRING, STRING), "UID": STRING, "creationTimestamp": TIMESTAMP,
        "deletionGracePeriodSeconds": INT, "deletionTimestamp": TIMESTAMP, "generation": INT,
        "resourceVersion": STRING, "finalizers": list_of(STRING),
    },
    _SPEC.name: {"finalizers": list_of(STRING)},
    _STATUS.name: {"conditions": list_of(_CONDITION), "phase": STRING},
    _CONDITION.name: {
        "status": STRING, "type": STRING, "lastTransitionTime": TIMESTAMP, "message": STRING, "reason": STRING,
    },
}  # fmt: skip


def admission_policies(variables: Mapping[str, Type] | None = None, *, result: Type | None = BOOL) -> Environment:
    """The environment of a policy's expressions.

    ``variables`` are the types of the policy's variables so far. ``result`` is the type that the expression must have:
    bool for validations, string for messages, None for variables, which may be anything. An expression of unknown type
    (``object.spec.enabled``) is refused, as by the reference: write ``object.spec.enabled == true``.
    """
    return Environment(
        name="admission policies",
        functions=kubernetes(),
        variables={
            "object": DYN,
            "oldObject": DYN,
            "params": DYN,
            "namespaceObject": _NAMESPACE,
            "request": _REQUEST,
            "variables": _VARIABLES,
            "authorizer": AUTHORIZER,
            "authorizer.requestResource": RESOURCE_CHECK,
        },
        structs={**STRUCTS, **_STRUCTS, _VARIABLES.name: dict(variables or {})},
        type_names=STANDARD_TYPES,
        checked_names={**CHECKED_TYPES, **{name: struct(name) for name in _STRUCTS}},
        bindings=False,
        accepts_result=lambda output: result is None or output == result,
        result_rule="any type" if result is None else str(result),
    )
