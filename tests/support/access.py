"""What users asked of development clusters, and what roles allow of it, rule by rule."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from dra_devcluster.apiserver.authorization import Attributes, Rule, User
from dra_devcluster.apiserver.authorization.rbac import GROUP, Rbac
from dra_devcluster.apiserver.storage.store import Store

Json = dict[str, Any]
_PLURALS = {"ClusterRole": "clusterroles", "Role": "roles", "ClusterRoleBinding": "clusterrolebindings",
            "RoleBinding": "rolebindings"}  # fmt: skip


class _Recorder(logging.Handler):
    def __init__(self, seen: set[Attributes]) -> None:
        super().__init__(logging.DEBUG)
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        asked = record.args[0] if isinstance(record.args, tuple) else None
        if isinstance(asked, Attributes) and asked.resource:
            self._seen.add(asked)


@contextmanager
def recorded() -> Iterator[set[Attributes]]:
    """Every question about a resource that development clusters of this process answer meanwhile."""
    log, seen = logging.getLogger("dra_devcluster.requests"), set[Attributes]()
    handler, level = _Recorder(seen), log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    try:
        yield seen
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = True


def rules_of(objects: Iterable[Json]) -> Rbac:
    """Roles and bindings, as objects of manifests, as an authorizer; other objects are left out."""
    store = Store()
    rbac = Rbac(store)
    for obj in objects:
        if obj["kind"] in _PLURALS:
            store.collection(GROUP, _PLURALS[obj["kind"]]).put({**obj, "metadata": dict(obj["metadata"])}, {})
    return rbac


def namespace_of(name: str) -> str:
    """Where the manifests put what has this name."""
    return "dra-plugins" if name == "dra-plugin" else "dra-system"


def account(name: str) -> User:
    """A service account of the manifests as a user, without its groups."""
    return User(f"system:serviceaccount:{namespace_of(name)}:{name}")


def single_rules(objects: Iterable[Json]) -> Iterator[Rule]:
    """What the roles allow, in rules of one verb and one resource."""
    for obj in objects:
        if obj["kind"] in ("ClusterRole", "Role"):
            for rule in obj["rules"]:
                yield from Rule.of(rule).parts()
