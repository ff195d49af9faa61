"""The identity of a server and of its clients: certificates, kubeconfig files, and bearer tokens with their users.

A certificate authority lives as long as its server, and signs the server's certificate. Keys are of elliptic curves:
made in a millisecond, where RSA keys would take most of the start-up time. A kubeconfig has the address, the CA and a
token of one server, or of several.

A service account's token is a JSON web token that the server signs. It names the account, and the pod or node that it
is bound to. The token expires with the first of its time, its account, and that pod or node. Each request looks them
up. Administrators and nodes have tokens without content, valid as long as the server runs.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import secrets
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import jwt
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from dra_api import yaml_text

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.metadata import new_uid
from dra_devcluster.apiserver.rbac import ADMIN, AUTHENTICATED, User, account_groups, account_name
from dra_devcluster.apiserver.store import Store

_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_VALIDITY = timedelta(days=30)


@dataclass(frozen=True)
class Identity:
    """The CA's certificate (PEM), and a TLS context that serves with a certificate it signed."""

    ca: bytes
    tls: ssl.SSLContext


def make_identity(host: str) -> Identity:
    """A new CA and server certificate for a loopback address or host name."""
    now = datetime.now(UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("dra-devcluster-ca")
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    certificate = (
        _builder(_name("kube-apiserver"), ca_name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternatives(host)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Identity(ca.public_bytes(pem), _context(certificate.public_bytes(pem), private))


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks of clients may differ a little
        .not_valid_after(now + _VALIDITY)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(host: str) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in _NAMES]
    addresses = {"127.0.0.1", "::1"}
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if host not in _NAMES:
            names.append(x509.DNSName(host))
    else:
        addresses.add(host)
    return names + [x509.IPAddress(ipaddress.ip_address(address)) for address in sorted(addresses)]


def _context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with TemporaryDirectory(prefix="dra-devcluster-") as folder:  # the ssl module reads files only
        path = Path(folder, "server.pem")
        path.touch(mode=0o600)
        path.write_bytes(certificate + key)
        context.load_cert_chain(path)
    return context


NAME = "dra-devcluster"
_PARTS = ("clusters", "users", "contexts")
_SERVER_ANSWER_SECONDS = 2.0  # seconds that a server may take to answer


def kubeconfig(url: str, ca: bytes, token: str, name: str = NAME) -> Json:
    """A kubeconfig that needs no other file; ``name`` is that of its cluster, user and context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": url, "certificate-authority-data": base64.b64encode(ca).decode()}}
        ],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
        "current-context": name,
    }


def write_kubeconfig(path: Path, config: Json) -> None:
    """Write the file in one step, readable by its owner only: a process that waits for it never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.touch(mode=0o600)
        temporary.write_text(yaml.safe_dump(config, sort_keys=False))
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_kubeconfig(path: Path) -> Json:
    """The content of a file that may be missing or empty. Raises OSError, and ValueError for what is no kubeconfig."""
    try:
        found = yaml_text.load(path.read_text())
    except FileNotFoundError:
        return {}
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {' '.join(str(error).split())}") from error
    if found is None:
        return {}
    entries = [found.get(part) or [] for part in _PARTS] if isinstance(found, dict) else [""]
    if not all(isinstance(part, list) and all(isinstance(entry, dict) for entry in part) for part in entries):
        raise ValueError("it is not a kubeconfig")
    kept: Json = found
    return kept


def merged(before: Json, config: Json) -> Json:
    """``before`` with the cluster of ``config`` in it as the current one, in the place of one of the same name."""
    name = config["current-context"]
    parts = {
        part: [*(entry for entry in before.get(part) or () if entry.get("name") != name), *config[part]]
        for part in _PARTS
    }
    return {**before, **config, **parts}


def living(config: Json, name: str) -> str:
    """The address of the cluster of that name if its server answers, empty if there is none."""
    for entry in config.get("clusters") or ():
        cluster = entry.get("cluster") or {}
        if entry.get("name") == name and _answers(cluster):
            return str(cluster["server"])
    return ""


def _answers(cluster: Json) -> bool:
    """Whether a server with the certificate of this cluster is there; a later one on the same port has another."""
    try:
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=ca)
        urllib.request.urlopen(f"{cluster['server']}/version", timeout=_SERVER_ANSWER_SECONDS, context=context).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError, KeyError):
        return False
    return True


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
