"""Which requests a user made, as the development cluster was asked to authorize them, and what its roles lack."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dra_devcluster.apiserver.authorization import Attributes

Json = dict[str, Any]


@dataclass(frozen=True, order=True)
class Access:
    """One kind of request: ``resource`` with its sub-resource (``pods/status``)."""

    user: str
    verb: str
    group: str
    resource: str


class _Recorder(logging.Handler):
    def __init__(self, seen: set[Access]) -> None:
        super().__init__(logging.DEBUG)
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        asked = record.args[0] if isinstance(record.args, tuple) else None
        if isinstance(asked, Attributes) and asked.resource:
            self._seen.add(Access(asked.user.name, asked.verb, asked.group, asked.full_resource))


@contextmanager
def recorded() -> Iterator[set[Access]]:
    """Everything that development clusters of this process are asked for meanwhile."""
    log, seen = logging.getLogger("dra_devcluster.requests"), set[Access]()
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


def refused(accesses: Iterable[Access], roles: Iterable[Json], bindings: Iterable[Json]) -> list[Access]:
    """Those that no ClusterRole allows, going by the ClusterRoleBindings to service accounts."""
    rules = {role["metadata"]["name"]: role.get("rules") or [] for role in roles}
    allowed: dict[str, list[Json]] = {}
    for binding in bindings:
        for subject in binding.get("subjects") or []:
            user = f"system:serviceaccount:{subject.get('namespace')}:{subject['name']}"
            allowed.setdefault(user, []).extend(rules[binding["roleRef"]["name"]])
    return sorted(
        access for access in accesses if not any(_allows(rule, access) for rule in allowed.get(access.user, []))
    )


def _allows(rule: Json, access: Access) -> bool:
    """Rules for single names do not count: none of our requests is made for one known beforehand."""
    return (
        not rule.get("resourceNames")
        and access.group in rule["apiGroups"]
        and access.resource in rule["resources"]
        and access.verb in rule["verbs"]
    )
