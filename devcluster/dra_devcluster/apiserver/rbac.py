"""Users, the questions that their requests ask, and role-based access by the stored roles and bindings.

A question to an authorizer is in the words of RBAC: verb, group, resource and names, or the path. A user may ask in the
name of another one, by the headers ``Impersonate-*``. Each thing that is taken over (user name, groups, uid, every
extra value) needs the verb ``impersonate``. The groups of a service account and ``system:authenticated`` come on their
own.

A rule knows its rights, and whether some rules together allow as much as others. Bindings are read once and
forgotten at every change of a role or binding, so a request costs one look at the rules of its user. A binding to a
role that does not exist grants nothing; a refusal names the role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import orjson

from dra_devcluster.apiserver.errors import StatusError, bad_request, forbidden
from dra_devcluster.apiserver.selectors import equals_of
from dra_devcluster.apiserver.store import Change, Collection, Store
from dra_devcluster.apiserver.wire import Target, flag

Json = dict[str, Any]

MASTERS: Final = "system:masters"
AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"
_ACCOUNT: Final = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class User:
    """A name, its groups, and what else the token says (``extra``)."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    @property
    def is_master(self) -> bool:
        """Whether nothing is refused to the user."""
        return MASTERS in self.groups

    @property
    def info(self) -> Json:
        extra = {key: list(values) for key, values in self.extra.items()}
        more = {"uid": self.uid, "groups": list(self.groups), "extra": extra}
        return {"username": self.name, **{key: value for key, value in more.items() if value}}


ADMIN: Final = User("kubernetes-admin", (MASTERS, AUTHENTICATED))
ANONYMOUS: Final = User("system:anonymous", (UNAUTHENTICATED,))


def account_groups(namespace: str) -> tuple[str, ...]:
    return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")


def account_name(namespace: str, name: str) -> str:
    return f"{_ACCOUNT}{namespace}:{name}"


def account_of(username: str) -> tuple[str, str] | None:
    """Namespace and name of the service account with that user name, None for other users."""
    parts = username.removeprefix(_ACCOUNT).split(":")
    if not username.startswith(_ACCOUNT) or len(parts) != 2 or not all(parts):
        return None
    return parts[0], parts[1]


_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Decision(NamedTuple):
    """Yes or no; ``reason`` is what a refusal or a review says about it, if anything."""

    allowed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Attributes:
    """One question to authorization. ``path`` is set for requests that are not about a resource."""

    user: User
    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    field_selector: str = ""

    @property
    def full_resource(self) -> str:
        """The resource with its sub-resource, as roles name it."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    def refusal(self, reason: str = "") -> StatusError:
        """The 403 that answers this question with no."""
        name = self.user.name
        if self.path:
            what = f'User "{name}" cannot {self.verb} path "{self.path}"'
        else:
            place = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
            what = (
                f'User "{name}" cannot {self.verb} resource "{self.full_resource}" in API group "{self.group}" {place}'
            )
        for letter, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
            what = what.replace(letter, written)
        return forbidden(self.group, self.resource, self.name, f"{what}: {reason}" if reason else what)

    def __str__(self) -> str:
        if self.path:
            return f"{self.user.name} {self.verb} {self.path}"
        resource = f"{self.full_resource}.{self.group}" if self.group else self.full_resource
        place = "/".join(part for part in (self.namespace, self.name) if part)
        return " ".join(filter(None, (self.user.name, self.verb, resource, place)))


def asked_for(user: User, method: str, path: str, target: Target | None, query: Mapping[str, str]) -> Attributes:
    """The question behind a request; ``target`` is None when the path is not one of a resource."""
    if target is None:
        return Attributes(user, method.lower(), path=path)
    verb, name, selector = _VERBS.get(method, ""), target.name, ""
    if not name and verb == "get":
        verb = "watch" if flag(query, "watch") else "list"
        name = equals_of(query.get("fieldSelector", "")).get("metadata.name", "")
    elif not name and verb == "delete":
        verb = "deletecollection"
    if verb in ("list", "watch", "deletecollection"):
        selector = query.get("fieldSelector", "")
    # A namespace lies in itself: a Role in it may allow to read it.
    namespace = target.name if target.plural == "namespaces" and not target.namespace else target.namespace
    return Attributes(
        user, verb, target.group, target.version, target.plural, target.subresource, namespace, name, "", selector
    )


_USER, _GROUP, _UID, _EXTRA = "impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-"
_REVIEWS = "authentication.k8s.io"


def _wanted(headers: Iterable[tuple[str, str]]) -> User | None:
    """The user whom the headers name, with the groups that they name; None if they name none. Raises a 400."""
    found: dict[str, tuple[str, ...]] = {}
    for header, value in headers:
        if (key := header.lower()).startswith("impersonate-"):
            found[key] = (*found.get(key, ()), value)
    name, uid = (found.get(key, ("",))[0] for key in (_USER, _UID))
    groups = found.get(_GROUP, ())
    extra = {unquote(key.removeprefix(_EXTRA)): found[key] for key in found if key.startswith(_EXTRA)}
    if not name and (groups or uid or extra):
        raise bad_request(f"groups {list(groups)}, uid {uid!r} or extra {extra} requested without impersonating a user")
    return User(name, groups, uid, extra) if name else None


def _questions(user: User, wanted: User) -> Iterator[Attributes]:
    """What ``user`` must be allowed, one question for each thing that is taken over."""
    verb = "impersonate"
    if account := account_of(wanted.name):
        yield Attributes(user, verb, version="v1", resource="serviceaccounts", namespace=account[0], name=account[1])
    else:
        yield Attributes(user, verb, resource="users", name=wanted.name)
    for group in wanted.groups:
        yield Attributes(user, verb, resource="groups", name=group)
    for key, values in wanted.extra.items():
        for value in values:
            yield Attributes(user, verb, _REVIEWS, "v1", "userextras", key, name=value)
    if wanted.uid:
        yield Attributes(user, verb, _REVIEWS, "v1", "uids", name=wanted.uid)


def impersonated(user: User, headers: Iterable[tuple[str, str]], require: Callable[[Attributes], None]) -> User:
    """Return the user whom the request is for: ``user`` or the one the headers name. Raises 400, and what ``require``
    raises if ``user`` may not ask in that name."""
    wanted = _wanted(headers)
    if wanted is None:
        return user
    for question in _questions(user, wanted):
        require(question)
    account = account_of(wanted.name)
    groups = wanted.groups or (account_groups(account[0]) if account else ())
    if wanted.name == ANONYMOUS.name:
        added = () if UNAUTHENTICATED in groups else (UNAUTHENTICATED,)
    else:
        added = () if {AUTHENTICATED, UNAUTHENTICATED} & set(groups) else (AUTHENTICATED,)
    return replace(wanted, groups=(*groups, *added))


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
        # As Go writes lists of strings.
        quoted = {key: " ".join(orjson.dumps(word).decode() for word in value) for key, value in words.items()}
        return "{" + ", ".join(f"{key}:[{texts}]" for key, texts in quoted.items() if texts) + "}"


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
