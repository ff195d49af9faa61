"""The roles and bindings that every cluster has from the start: ``cluster-admin``, ``edit``, ``view``, ``system:*``."""

from __future__ import annotations

from copy import deepcopy
from typing import Final

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.served.registry import Registry
from dra_devcluster.apiserver.structure import load_data
from dra_devcluster.apiserver.verbs.write import create

_GROUP: Final = "rbac.authorization.k8s.io"
_ANNOTATIONS: Final = {"rbac.authorization.kubernetes.io/autoupdate": "true"}
_LABELS: Final = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_PLURALS: Final = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}


def ensure_default_roles(registry: Registry) -> None:
    """Create those that are missing; those of a snapshot stay as they are."""
    for default in load_data("rbac.json"):
        meta: Json = default["metadata"]
        namespace = meta.get("namespace", "")
        resource = registry.resource(_GROUP, "v1", _PLURALS[default["kind"]])
        if registry.collection(resource).get(namespace, meta["name"]) is None:
            labels = {**_LABELS, **meta.get("labels", {})}
            marked = {**meta, "annotations": dict(_ANNOTATIONS), "labels": labels}
            create(
                Write(registry, resource, namespace=namespace, verb="create"), deepcopy({**default, "metadata": marked})
            )
