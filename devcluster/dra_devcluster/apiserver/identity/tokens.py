"""Authentication: bearer tokens and their users.

A service account's token is a JSON web token that the server signs. It names the account, and the pod or node that it
is bound to. The token ends with its time, its account, or what it is bound to, whichever ends first: each request looks
them up. Administrators and nodes have tokens without content, valid as long as the server runs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from dra_devcluster.apiserver.authorization import ADMIN, AUTHENTICATED, User, account_groups, account_name
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.storage.metadata import new_uid
from dra_devcluster.apiserver.storage.store import Store

ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
_ALGORITHM: Final = "ES256"
_EXTRA: Final = "authentication.kubernetes.io"
_LEEWAY_SECONDS: Final = 60.0  # seconds that the token of a deleted object stays good, as time for its last requests
_KNOWN_TOKENS: Final = 256


class InvalidToken(Exception):
    """The token is none of this server's, or no longer good; the text says which, for a TokenReview."""


class Tokens:
    """The tokens that are valid; ``admin`` is one of a user who may do everything."""

    def __init__(self, store: Store, admin: str | None = None) -> None:
        self.admin = admin or secrets.token_urlsafe(24)
        self._store = store
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._users: dict[str, User] = {self.admin: ADMIN}
        self._claims = lru_cache(_KNOWN_TOKENS)(self._verified)

    def credential(self, user: User) -> str:
        """A new token of a user that is no service account, valid as long as the server runs."""
        token = secrets.token_urlsafe(24)
        self._users[token] = user
        return token

    def user(self, authorization: str) -> User | None:
        """The user of an Authorization header, or None."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        try:
            return self.user_of_token(token.strip())
        except InvalidToken:
            return None

    def user_of_token(self, token: str, audiences: Sequence[str] = (ISSUER,)) -> User:
        """The user whose token it is, if it is meant for one of the audiences. Raises InvalidToken."""
        known = self._users.get(token)
        if known is not None:
            return known
        claims = self._claims(token)
        if not set(claims["aud"]) & set(audiences):
            given, wanted = (" ".join(f'"{name}"' for name in names) for names in (claims["aud"], audiences))
            raise InvalidToken(f"token audiences [{given}] is invalid for the target audiences [{wanted}]")
        if claims["exp"] < time.time():
            raise InvalidToken("service account token has expired")
        return self._account(claims)

    def issue(self, account: Json, seconds: int, audiences: Sequence[str], bound: Json) -> tuple[str, float]:
        """A token for a service account, and when it expires (seconds since the epoch).

        ``bound`` has what it is bound to: ``pod``, ``node`` or ``secret``, each with name and uid.
        """
        meta = account["metadata"]
        issued = int(time.time())
        claims: Json = {
            "iss": ISSUER,
            "sub": account_name(meta["namespace"], meta["name"]),
            "aud": list(audiences),
            "iat": issued,
            "nbf": issued,
            "exp": issued + seconds,
            "jti": new_uid(),
            "kubernetes.io": {"namespace": meta["namespace"], "serviceaccount": reference(meta), **bound},
        }
        return jwt.encode(claims, self._key, _ALGORITHM), issued + seconds

    def _verified(self, token: str) -> Json:
        """The content of a token that this server has signed. Its time is looked at with each request."""
        try:
            claims: dict[str, Any] = jwt.decode(
                token, self._key.public_key(), [_ALGORITHM], {"verify_exp": False, "verify_aud": False}, issuer=ISSUER
            )
        except (jwt.InvalidTokenError, UnicodeEncodeError) as error:  # the latter: a header may hold any byte
            raise InvalidToken("invalid bearer token") from error
        return claims

    def _account(self, claims: Json) -> User:
        """The service account, if it and what the token is bound to are still there. Raises InvalidToken."""
        content = claims["kubernetes.io"]
        namespace, account = content["namespace"], content["serviceaccount"]
        pod, node, secret = (content.get(kind) for kind in ("pod", "node", "secret"))
        self._look_up("serviceaccounts", namespace, account)
        if pod:
            self._look_up("pods", namespace, pod)
        elif node:
            self._look_up("nodes", "", node)
        if secret:
            self._look_up("secrets", namespace, secret)
        extra = {f"{_EXTRA}/credential-id": (f"JTI={claims['jti']}",)}
        for kind, bound in (("node", node), ("pod", pod)):
            for key in ("name", "uid"):
                if bound and bound.get(key):
                    extra[f"{_EXTRA}/{kind}-{key}"] = (bound[key],)
        groups = (*account_groups(namespace), AUTHENTICATED)
        return User(account_name(namespace, account["name"]), groups, account["uid"], extra)

    def _look_up(self, plural: str, namespace: str, bound: Json) -> None:
        stored = self._store.collection("", plural).get(namespace, bound["name"])
        if stored is None or stored.uid != bound["uid"]:
            raise InvalidToken("service account token has been invalidated")
        if stored.finalizing:
            deleted = datetime.fromisoformat(stored.decode()["metadata"]["deletionTimestamp"])
            if (datetime.now(UTC) - deleted).total_seconds() > _LEEWAY_SECONDS:
                raise InvalidToken("service account token has been invalidated")


def reference(meta: Json) -> Json:
    """How a token names an object."""
    return {"name": meta["name"], "uid": meta["uid"]}
