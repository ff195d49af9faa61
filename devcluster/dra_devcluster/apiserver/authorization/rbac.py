"""Role-based access control over the stored roles and bindings.

Bindings are read once and forgotten at every change of a role or binding, so that a request costs one look at the
rules of its user. A binding to a role that does not exist grants nothing; a refusal names the role.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from dra_devcluster.apiserver.storage.store import Change, Collection, Store

from .attributes import Attributes, Decision
from .rules import Rule, missing
from .user import User, account_name

GROUP: Final = "rbac.authorization.k8s.io"
_PLURALS: Final = {"Role": "roles", "ClusterRole": "clusterroles"}
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Binding:
    """A RoleBinding or, with ``namespace`` empty, a ClusterRoleBinding."""

    namespace: str
    name: str
    role: tuple[str, str]  # kind and name
    subjects: tuple[tuple[str, str, str], ...]  # kind, name, namespace

    @classmethod
    def of(cls, obj: Json) -> Binding:
        meta, role = obj["metadata"], obj.get("roleRef") or {}
        namespace = meta.get("namespace", "")
        subjects = tuple(
            (subject.get("kind", ""), subject.get("name", ""), subject.get("namespace") or namespace)
            for subject in obj.get("subjects") or ()
        )
        return cls(namespace, meta["name"], (role.get("kind", ""), role.get("name", "")), subjects)

    def applies_to(self, user: User) -> str:
        """The subject that is the user or has them in it, as refusals and reviews name it; empty if none is."""
        for kind, name, namespace in self.subjects:
            if kind == "ServiceAccount" and namespace and user.name == account_name(namespace, name):
                return f'{kind} "{name}/{namespace}"'
            if (kind == "User" and user.name == name) or (kind == "Group" and name in user.groups):
                return f'{kind} "{name}"'
        return ""

    def __str__(self) -> str:
        kind, place = ("RoleBinding", f"/{self.namespace}") if self.namespace else ("ClusterRoleBinding", "")
        return f'{kind} "{self.name}{place}" of {self.role[0]} "{self.role[1]}"'


class Rbac:
    """Answers by the roles and bindings of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._bindings: dict[str, list[Binding]] = {}
        self._rules: dict[tuple[str, str, str], tuple[Rule, ...] | None] = {}
        store.listen(self._forget)

    def _forget(self, collection: Collection, change: Change) -> None:
        if collection.group == GROUP:
            self._bindings.clear()
            self._rules.clear()

    def decide(self, asked: Attributes) -> Decision:
        """Allowed if a rule of one of the user's bindings allows it."""
        lost: list[str] = []
        for binding, subject in self._bindings_of(asked.user, asked.namespace):
            rules = self.role(*binding.role, binding.namespace)
            if rules is None:
                lost.append(f'{binding.role[0].lower()}.{GROUP} "{binding.role[1]}" not found')
            elif any(rule.allows(asked) for rule in rules):
                return Decision(True, f"RBAC: allowed by {binding} to {subject}")
        texts = ", ".join(dict.fromkeys(lost))
        return Decision(False, texts and f"RBAC: {f'[{texts}]' if ', ' in texts else texts}")

    def rules_of(self, user: User, namespace: str) -> Iterator[Rule]:
        """All rules that apply to the user in the namespace, those of the cluster first."""
        for binding, _ in self._bindings_of(user, namespace):
            yield from self.role(*binding.role, binding.namespace) or ()

    def lacks(self, user: User, namespace: str, rules: Iterable[Rule]) -> list[Rule]:
        """What the rules allow and the user may not do."""
        return missing(rules, self.rules_of(user, namespace))

    def _bindings_of(self, user: User, namespace: str) -> Iterator[tuple[Binding, str]]:
        for place in ("", namespace) if namespace else ("",):
            for binding in self._bindings_in(place):
                if subject := binding.applies_to(user):
                    yield binding, subject

    def _bindings_in(self, namespace: str) -> list[Binding]:
        found = self._bindings.get(namespace)
        if found is None:
            plural = "rolebindings" if namespace else "clusterrolebindings"
            stored = self._store.collection(GROUP, plural).all(namespace)
            found = self._bindings[namespace] = [Binding.of(each.decode()) for each in stored]
        return found

    def role(self, kind: str, name: str, namespace: str) -> tuple[Rule, ...] | None:
        """The rules of a role; None if there is no such role."""
        key = (kind, name, namespace if kind == "Role" else "")
        if key not in self._rules:
            plural = _PLURALS.get(kind)
            stored = self._store.collection(GROUP, plural).get(key[2], name) if plural else None
            rules = stored.decode().get("rules") or () if stored else ()
            self._rules[key] = tuple(Rule.of(rule) for rule in rules) if stored else None
        return self._rules[key]
