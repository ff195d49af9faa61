"""Objects that follow from others: the roles that every cluster has, aggregated ClusterRoles, the status of quotas.

The default roles and bindings are there from the start: ``cluster-admin``, ``edit``, ``view``, ``system:*``. The rules
of an aggregated ClusterRole are the rules of all ClusterRoles that its selectors choose. The status of a ResourceQuota
says how much of it the namespace uses.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Final

from dra_api.codec import convert
from dra_api.meta import LabelSelector
from dra_api.selectors import Selector

from dra_devcluster.apiserver.controllers.worker import Worker
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.kinds.quota import used
from dra_devcluster.apiserver.metadata import dig
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.store import Change, Collection
from dra_devcluster.apiserver.structure import load_data
from dra_devcluster.apiserver.verbs.write import create, store_changed, update

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


_PLACE = ("rbac.authorization.k8s.io", "clusterroles")


class AggregationController(Worker[str]):
    """Writes the rules of aggregated ClusterRoles, all of them whenever one ClusterRole changes."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._roles = registry.resource(_PLACE[0], "v1", _PLACE[1])
        self._add_all()

    def see(self, collection: Collection, change: Change) -> None:
        if (collection.group, collection.resource) == _PLACE:
            self._add_all()

    def _add_all(self) -> None:
        for stored in self.registry.collection(self._roles).all():
            self.add(stored.name)

    def handle(self, key: str) -> None:
        stored = self.registry.collection(self._roles).get("", key)
        if stored is None:
            return
        role = stored.decode()
        selectors = dig(role, "aggregationRule.clusterRoleSelectors")
        if not selectors:
            return
        rules = self._chosen([Selector.of(convert(LabelSelector, each)) for each in selectors], key)
        if rules != (role.get("rules") or []):
            update(Write(self.registry, self._roles, verb="patch"), stored, {**role, "rules": rules})

    def _chosen(self, selectors: list[Selector], own: str) -> list[Json]:
        """The rules of the chosen roles in the order of their names, each rule once; never the role's own."""
        rules: list[Json] = []
        for stored in self.registry.collection(self._roles).all():
            if stored.name != own and any(selector.matches(stored.labels) for selector in selectors):
                rules += [rule for rule in stored.decode().get("rules") or () if rule not in rules]
        return rules


class QuotaController(Worker[str]):
    """Counts anew, by namespace, when something in a namespace with quotas comes, goes, or changes."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._quotas = registry.resource("", "v1", "resourcequotas")
        for stored in registry.collection(self._quotas).all():
            self.add(stored.namespace)

    def see(self, collection: Collection, change: Change) -> None:
        namespace = change.stored.namespace
        if namespace and self.registry.collection(self._quotas).count(namespace):
            self.add(namespace)

    def handle(self, key: str) -> None:
        for stored in list(self.registry.collection(self._quotas).all(key)):
            quota = stored.decode()
            hard = dig(quota, "spec.hard") or {}
            amounts = used(self.registry, key, hard)
            status = {"hard": hard, "used": {name: str(amount) for name, amount in amounts.items()}}
            if quota.get("status") != status:
                store_changed(Write(self.registry, self._quotas, namespace=key), stored, {**quota, "status": status})
