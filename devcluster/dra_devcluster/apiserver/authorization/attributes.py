"""The user of a request, from authentication or impersonation, and the attributes of the request.

A question to an authorizer is in the words of RBAC: verb, group, resource and names, or the path. A user may ask in the
name of another one, by the headers ``Impersonate-*``. Each thing that is taken over (user name, groups, uid, every
extra value) needs the verb ``impersonate``. The groups of a service account and ``system:authenticated`` come on their
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from dra_devcluster.apiserver.errors import StatusError, bad_request, forbidden
from dra_devcluster.apiserver.selectors import equals_of
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
        """The user as ``userInfo`` of reviews and admission."""
        info: Json = {"username": self.name}
        if self.uid:
            info["uid"] = self.uid
        if self.groups:
            info["groups"] = list(self.groups)
        if self.extra:
            info["extra"] = {key: list(values) for key, values in self.extra.items()}
        return info


ADMIN: Final = User("kubernetes-admin", (MASTERS, AUTHENTICATED))
ANONYMOUS: Final = User("system:anonymous", (UNAUTHENTICATED,))


def account_groups(namespace: str) -> tuple[str, ...]:
    """The groups of every service account of a namespace."""
    return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")


def account_name(namespace: str, name: str) -> str:
    """The user name of a service account."""
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


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    groups: tuple[str, ...]
    uid: str
    extra: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, headers: Iterable[tuple[str, str]]) -> _Wanted | None:
        """None when nothing is asked for. Raises a 400 when a user name is missing."""
        found: dict[str, tuple[str, ...]] = {}
        for header, value in headers:
            if (key := header.lower()).startswith("impersonate-"):
                found[key] = (*found.get(key, ()), value)
        name, uid = (found.get(key, ("",))[0] for key in (_USER, _UID))
        groups = found.get(_GROUP, ())
        extra = {unquote(key.removeprefix(_EXTRA)): found[key] for key in found if key.startswith(_EXTRA)}
        if not name and (groups or uid or extra):
            raise bad_request(
                f"groups {list(groups)}, uid {uid!r} or extra {extra} requested without impersonating a user"
            )
        return cls(name, groups, uid, extra) if name else None

    def questions(self, user: User) -> Iterator[Attributes]:
        """What ``user`` must be allowed, one question for each thing that is taken over."""
        verb = "impersonate"
        if account := account_of(self.name):
            yield Attributes(
                user, verb, version="v1", resource="serviceaccounts", namespace=account[0], name=account[1]
            )
        else:
            yield Attributes(user, verb, resource="users", name=self.name)
        for group in self.groups:
            yield Attributes(user, verb, resource="groups", name=group)
        for key, values in self.extra.items():
            for value in values:
                yield Attributes(user, verb, _REVIEWS, "v1", "userextras", key, name=value)
        if self.uid:
            yield Attributes(user, verb, _REVIEWS, "v1", "uids", name=self.uid)

    def user(self) -> User:
        """The user that the request is for."""
        account = account_of(self.name)
        groups = self.groups or (account_groups(account[0]) if account else ())
        if self.name == ANONYMOUS.name:
            added = () if UNAUTHENTICATED in groups else (UNAUTHENTICATED,)
        else:
            added = () if {AUTHENTICATED, UNAUTHENTICATED} & set(groups) else (AUTHENTICATED,)
        return User(self.name, (*groups, *added), self.uid, self.extra)


def impersonated(user: User, headers: Iterable[tuple[str, str]], require: Callable[[Attributes], None]) -> User:
    """Return the user whom the request is for: ``user`` or the one the headers name. Raises 400, and what ``require``
    raises if ``user`` may not ask in that name."""
    wanted = _Wanted.read(headers)
    if wanted is None:
        return user
    for question in wanted.questions(user):
        require(question)
    return wanted.user()
