"""The environment of admission policies: ``object``, ``oldObject``, ``request``, ``params``, ``variables``, ...

Objects are of unknown type: any JSON that ``json.loads`` gives is a valid value. ``variables`` holds the policy's own
variables, whose types the caller knows from compiling them one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .environment import CHECKED_TYPES, STANDARD_TYPES, Environment, kubernetes
from .libraries.authorization import AUTHORIZER, RESOURCE_CHECK
from .messages import STRUCTS
from .types import BOOL, DYN, STRING, Type, list_of, map_of, struct

_REQUEST: Final = struct("kubernetes.AdmissionRequest")
_KIND: Final = struct("kubernetes.GroupVersionKind")
_RESOURCE: Final = struct("kubernetes.GroupVersionResource")
_USER: Final = struct("kubernetes.UserInfo")
_VARIABLES: Final = struct("kubernetes.variables")

_STRUCTS: Final[Mapping[str, Mapping[str, Type]]] = {
    _REQUEST.name: {
        "kind": _KIND, "resource": _RESOURCE, "subResource": STRING, "requestKind": _KIND, "requestResource": _RESOURCE,
        "requestSubResource": STRING, "name": STRING, "namespace": STRING, "operation": STRING, "userInfo": _USER,
        "dryRun": BOOL, "options": DYN, "uid": STRING,
    },
    _KIND.name: {"group": STRING, "version": STRING, "kind": STRING},
    _RESOURCE.name: {"group": STRING, "version": STRING, "resource": STRING},
    _USER.name: {
        "username": STRING, "uid": STRING, "groups": list_of(STRING), "extra": map_of(STRING, list_of(STRING)),
    },
}  # fmt: skip


def admission_policies(variables: Mapping[str, Type] | None = None, *, result: Type | None = BOOL) -> Environment:
    """The environment of a policy's expressions.

    ``variables`` are the types of the policy's variables so far. ``result`` is the type that the expression must have:
    bool for validations, string for messages, None for variables, which may be anything.
    """
    return Environment(
        name="admission policies",
        functions=kubernetes(),
        variables={
            "object": DYN,
            "oldObject": DYN,
            "params": DYN,
            "namespaceObject": DYN,
            "request": _REQUEST,
            "variables": _VARIABLES,
            "authorizer": AUTHORIZER,
            "authorizer.requestResource": RESOURCE_CHECK,
        },
        structs={**STRUCTS, **_STRUCTS, _VARIABLES.name: dict(variables or {})},
        type_names=STANDARD_TYPES,
        checked_names=CHECKED_TYPES,
        accepts_result=lambda output: result is None or output == result or output.is_dynamic,
        result_rule="any type" if result is None else str(result),
    )
