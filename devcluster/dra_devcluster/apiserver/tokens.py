"""Authentication: bearer tokens and their users.

Service account tokens are JSON web tokens signed by this server, because some clients read them; the server itself
looks tokens up.
"""

from __future__ import annotations

import base64
import secrets
import time
from typing import Any

import orjson
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from .authorization import ADMIN, AUTHENTICATED, User, account_groups, account_name
from .errors import Json

ISSUER = "https://kubernetes.default.svc.cluster.local"


class Tokens:
    """The tokens that are valid; ``admin`` is one of a user who may do everything."""

    def __init__(self, admin: str | None = None) -> None:
        self.admin = admin or secrets.token_urlsafe(24)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._users: dict[str, tuple[User, float | None]] = {self.admin: (ADMIN, None)}

    def credential(self, user: User) -> str:
        """A new token of a user that is no service account, valid as long as the server runs."""
        token = secrets.token_urlsafe(24)
        self._users[token] = (user, None)
        return token

    def user(self, authorization: str) -> User | None:
        """The user of an Authorization header, or None."""
        scheme, _, token = authorization.partition(" ")
        return self.user_of_token(token.strip()) if scheme.lower() == "bearer" else None

    def user_of_token(self, token: str) -> User | None:
        found = self._users.get(token)
        if found is None:
            return None
        user, expires = found
        if expires is not None and expires < time.time():
            del self._users[token]
            return None
        return user

    def issue(self, account: Json, seconds: int, audiences: list[str], bound: Json | None = None) -> tuple[str, float]:
        """A token for a service account, and when it expires (seconds since the epoch)."""
        meta = account["metadata"]
        username = account_name(meta["namespace"], meta["name"])
        issued = time.time()
        claims: Json = {
            "iss": ISSUER,
            "sub": username,
            "aud": audiences or [ISSUER],
            "iat": int(issued),
            "nbf": int(issued),
            "exp": int(issued + seconds),
            "jti": secrets.token_hex(16),
            "kubernetes.io": {
                "namespace": meta["namespace"],
                "serviceaccount": {"name": meta["name"], "uid": meta["uid"]},
                **(bound or {}),
            },
        }
        user = User(username, (*account_groups(meta["namespace"]), AUTHENTICATED), meta["uid"])
        token = self._sign(claims)
        self._users[token] = (user, issued + seconds)
        return token, issued + seconds

    def _sign(self, claims: Json) -> str:
        content = f"{_part({'alg': 'ES256', 'typ': 'JWT'})}.{_part(claims)}"
        r, s = decode_dss_signature(self._key.sign(content.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{content}.{_base64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _part(content: Any) -> str:
    return _base64(orjson.dumps(content))


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
