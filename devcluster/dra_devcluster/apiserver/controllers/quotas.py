"""ResourceQuotas: their status says what the namespace uses of what it may."""

from __future__ import annotations

from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.kinds.quota import used
from dra_devcluster.apiserver.served.registry import Registry
from dra_devcluster.apiserver.storage.metadata import dig
from dra_devcluster.apiserver.storage.store import Change, Collection
from dra_devcluster.apiserver.verbs.write import store_changed

from .worker import Worker


class QuotaController(Worker[str]):
    """Counts anew, by namespace, when something in a namespace with quotas comes, goes, or changes."""

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self._registry = registry
        self._quotas = registry.resource("", "v1", "resourcequotas")
        for stored in registry.collection(self._quotas).all():
            self.add(stored.namespace)
        registry.store.listen(self._see)

    def _see(self, collection: Collection, change: Change) -> None:
        namespace = change.stored.namespace
        if namespace and self._registry.collection(self._quotas).count(namespace):
            self.add(namespace)

    def handle(self, key: str) -> None:
        for stored in list(self._registry.collection(self._quotas).all(key)):
            quota = stored.decode()
            hard = dig(quota, "spec.hard") or {}
            amounts = used(self._registry, key, hard)
            status = {"hard": hard, "used": {name: str(amount) for name, amount in amounts.items()}}
            if quota.get("status") != status:
                store_changed(Write(self._registry, self._quotas, namespace=key), stored, {**quota, "status": status})
