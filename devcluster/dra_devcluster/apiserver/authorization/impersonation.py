"""Impersonation: a request in the name of another user, as the headers ``Impersonate-*`` ask.

Each thing that is taken over (user name, groups, uid, every extra value) needs the verb ``impersonate``. The groups of
a service account and ``system:authenticated`` come on their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

from dra_devcluster.apiserver.authorization.attributes import (
    ANONYMOUS,
    AUTHENTICATED,
    UNAUTHENTICATED,
    User,
    account_groups,
    account_of,
)
from dra_devcluster.apiserver.errors import bad_request

from . import Authorization
from .attributes import Attributes

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


def impersonated(user: User, headers: Iterable[tuple[str, str]], authorization: Authorization) -> User:
    """The user whom the request is for: ``user`` or the one the headers name. Raises 400 and 403."""
    wanted = _Wanted.read(headers)
    if wanted is None:
        return user
    for question in wanted.questions(user):
        authorization.require(question)
    return wanted.user()
