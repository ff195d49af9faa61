"""Role-based access control over the stored roles and bindings.

A rule says what it allows, and whether some rules together allow all that others do. Bindings are read once and
forgotten at every change of a role or binding, so a request costs one look at the rules of its user. A binding to a
role that does not exist grants nothing; a refusal names the role."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from dra_devcluster.apiserver.authorization.attributes import Attributes, Decision, User, account_name
from dra_devcluster.apiserver.store import Change, Collection, Store

Json = dict[str, Any]
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a Role or ClusterRole, about resources or about paths (``urls``)."""

    verbs: Words = ()
    groups: Words = ()
    resources: Words = ()
    names: Words = ()
    urls: Words = ()

    @classmethod
    def of(cls, rule: Json) -> Rule:
        """From the rule of an object; absent lists are empty."""
        keys = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")
        return cls(*(tuple(rule.get(key) or ()) for key in keys))

    def allows(self, asked: Attributes) -> bool:
        """Whether the rule answers the question with yes."""
        if not _has(self.verbs, asked.verb):
            return False
        if asked.path:
            return any(_url_covers(url, asked.path) for url in self.urls)
        return (
            _has(self.groups, asked.group)
            and _covers_resource(self.resources, asked.full_resource)
            and (not self.names or asked.name in self.names)
        )

    def covers(self, part: Rule) -> bool:
        """Whether the rule allows all that ``part``, one of `parts`, allows."""
        return (
            _has_all(self.verbs, part.verbs)
            and _has_all(self.groups, part.groups)
            and all(_covers_resource(self.resources, resource) for resource in part.resources)
            and all(any(_url_covers(own, url) for own in self.urls) for url in part.urls)
            and (not self.names or (bool(part.names) and set(part.names) <= set(self.names)))
        )

    def parts(self) -> Iterator[Rule]:
        """The same permissions in rules of one verb, one group, one resource and at most one name each."""
        for verb in self.verbs:
            for group in self.groups:
                for resource in self.resources:
                    whole = Rule((verb,), (group,), (resource,))
                    yield from (replace(whole, names=(name,)) for name in self.names) if self.names else (whole,)
            yield from (Rule((verb,), urls=(url,)) for url in self.urls)

    def __str__(self) -> str:
        words = {
            "APIGroups": self.groups,
            "Resources": self.resources,
            "NonResourceURLs": self.urls,
            "ResourceNames": self.names,
            "Verbs": self.verbs,
        }
        return "{" + ", ".join(f"{key}:[{_quoted(value)}]" for key, value in words.items() if value) + "}"


def missing(wanted: Iterable[Rule], held: Iterable[Rule]) -> list[Rule]:
    """What ``wanted`` allows and ``held`` does not, with the verbs of one resource in one rule."""
    owned = list(held)
    lacking = [part for rule in wanted for part in rule.parts() if not any(own.covers(part) for own in owned)]
    verbs: dict[Rule, Words] = {}
    for part in lacking:
        place = replace(part, verbs=())
        verbs[place] = (*verbs.get(place, ()), *part.verbs)
    return [replace(place, verbs=tuple(dict.fromkeys(found))) for place, found in verbs.items()]


def _has(words: Words, word: str) -> bool:
    return "*" in words or word in words


def _has_all(words: Words, wanted: Words) -> bool:
    return "*" in words or set(wanted) <= set(words)


def _covers_resource(resources: Words, wanted: str) -> bool:
    _, slash, subresource = wanted.partition("/")
    return _has(resources, wanted) or bool(slash and f"*/{subresource}" in resources)


def _url_covers(url: str, path: str) -> bool:
    return url == path or (url.endswith("*") and path.startswith(url.rstrip("*")))


def _quoted(words: Words) -> str:
    """As Go writes a list of strings."""
    return " ".join(orjson.dumps(word).decode() for word in words)


GROUP: Final = "rbac.authorization.k8s.io"
_PLURALS: Final = {"Role": "roles", "ClusterRole": "clusterroles"}


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
