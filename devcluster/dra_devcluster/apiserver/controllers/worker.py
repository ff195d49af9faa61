"""Controllers (tasks that work off a queue of keys, filled by changes of the store), and two that derive objects.

A key that is added twice is handled once. One whose work fails is handled again after a pause: what was in the way may
go without a change of the object, as when a policy is deleted or a PriorityClass made.

The rules of an aggregated ClusterRole are the rules of all ClusterRoles that its selectors choose. The status of a
ResourceQuota says how much of it the namespace uses. The default roles and bindings exist from the start:
``cluster-admin``, ``edit``, ``view``, ``system:*``.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from copy import deepcopy
from typing import Final, Generic, Self, TypeVar

from dra_api.codec import convert
from dra_api.meta import LabelSelector
from dra_api.selectors import Selector

from dra_devcluster.apiserver.errors import Json, StatusError
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.kinds.resources import used
from dra_devcluster.apiserver.metadata import dig
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.store import Change, Collection
from dra_devcluster.apiserver.structure import load_data
from dra_devcluster.apiserver.verbs.write import create, store_changed, update
from dra_devcluster.background import cancelled

RETRY_SECONDS: Final = 10.0
"""Until work that failed is tried again; each failure in a row doubles it, since it is a line in the log."""
LONGEST_RETRY_SECONDS: Final = 600.0
K = TypeVar("K")
log = logging.getLogger(__name__)


class Worker(ABC, Generic[K]):
    """Runs ``handle`` for every added key, one at a time; an async context manager."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        registry.store.listen(self.see)
        self._keys: dict[K, None] = {}
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._pauses: dict[K, float] = {}  # of keys whose work failed last; that of a deleted object does not fail
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, key: K) -> None:
        """Have the key handled soon; again if it is being handled now."""
        self._keys[key] = None
        self._wake.set()

    def add_later(self, key: K, seconds: float) -> None:
        """Have the key handled after ``seconds``, or earlier if an earlier call asked for that."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, seconds)
        waiting = self._later.get(key)
        if waiting is not None and waiting.when() <= due:
            return
        if waiting is not None:
            waiting.cancel()
        self._later[key] = loop.call_at(due, self._is_due, key)

    def _handle_later(self, key: K) -> None:
        self._pauses[key] = min(2 * self._pauses.get(key, RETRY_SECONDS / 2), LONGEST_RETRY_SECONDS)
        self.add_later(key, self._pauses[key])

    def _is_due(self, key: K) -> None:
        del self._later[key]
        self.add(key)

    @abstractmethod
    def see(self, collection: Collection, change: Change) -> None:
        """Add the keys that a change of the store concerns."""

    @abstractmethod
    def handle(self, key: K) -> None:
        """Do what the current state asks for; must be repeatable."""

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._keys:
                key = next(iter(self._keys))
                del self._keys[key]
                try:
                    self.handle(key)
                    self._pauses.pop(key, None)
                except StatusError as error:
                    log.warning("%s: %s is tried again: %s", type(self).__name__, key, error)
                    self._handle_later(key)
                except Exception:  # one broken object must not stop the work on all others
                    log.exception("%s: %s failed", type(self).__name__, key)
                    self._handle_later(key)
                await asyncio.sleep(0)  # requests come first

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=type(self).__name__)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await cancelled(self._task)


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
        choices = [Selector.of(convert(LabelSelector, each)) for each in selectors]
        rules: list[Json] = []  # of the chosen roles in the order of their names, each once; never the role's own
        for other in self.registry.collection(self._roles).all():
            if other.name != key and any(choice.matches(other.labels) for choice in choices):
                rules += [rule for rule in other.decode().get("rules") or () if rule not in rules]
        if rules != (role.get("rules") or []):
            update(Write(self.registry, self._roles, verb="patch"), stored, {**role, "rules": rules})


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
