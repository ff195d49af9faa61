"""As whom requests are made, and which API servers are trusted: headers, tokens, certificates.

Impersonation is what a kubeconfig's user says under ``as``, as the headers that client-go sends. ``as`` names the user,
``as-uid``, ``as-groups`` and ``as-user-extra`` what else is taken over. The API server asks whether the user of the
credentials may do so.

Credentials are renewed before they expire, or when the server refuses them.

The API servers that Kubernetes' own clients trust are trusted here as well. Python and Go differ in five points. Each
of them makes some working cluster look broken:

- Since 3.13 ``ssl.create_default_context`` sets ``VERIFY_X509_STRICT``. It refuses certificate authorities without the
  key usage extension and certificates without an authority key identifier, which EKS, GKE and many private
  authorities make. A plain context leaves the flag out.
- Go accepts every certificate in ``certificate-authority`` as a trust anchor, an intermediate one too. OpenSSL follows
  the chain to a self-signed root unless ``VERIFY_X509_PARTIAL_CHAIN`` is set (Python sets it from 3.13 on).
- ``tls-server-name`` replaces the host name of the URL in the handshake and in the check of the certificate. Go keeps
  it in the TLS settings, so every connection has it. Python wants it with each connection; ``_Context`` keeps it
  instead, so that a session that is not ours (Kopf's) uses it too.
- Go checks names against subject alternative names only, never against the common name.
- client-go reads the files of a client certificate and of the authority again: a kubelet renews its own in place, and a
  cluster rotates ``ca.crt``. It closes the connections that were made with the former ones. So ``ClientTls`` gives
  another context within a second after a file has changed, and who keeps connections asks for it. While the files
  cannot be used, as when a certificate and its key do not belong together yet, the former context counts.
"""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from dra_kube.errors import ConnectionSettingsError, gist

Headers = tuple[tuple[str, str], ...]
"""Names and values; a name may come several times."""

_LEGAL: Final = "!#$&'*+-.^_`|~"
"""What the name of a header may have beside letters and digits; % announces what it may not have."""


def impersonation_of(user: Mapping[str, Any]) -> Headers:
    """The headers for a user of a kubeconfig. Raises ConnectionSettingsError."""
    name, groups = user.get("as") or "", user.get("as-groups") or []
    uid, extra = user.get("as-uid") or "", user.get("as-user-extra") or {}
    lists = [groups, *extra.values()] if isinstance(extra, dict) else [None]
    if not isinstance(name, str) or not isinstance(uid, str) or not all(_is_texts(each) for each in lists):
        raise ConnectionSettingsError(
            "the kubeconfig's user cannot be impersonated: as and as-uid are texts, as-groups is a list of texts, and "
            "as-user-extra has a list of texts for each key; correct them"
        )
    if not name and (groups or uid or extra):
        raise ConnectionSettingsError(
            "the kubeconfig's user has as-uid, as-groups or as-user-extra without as: name the user to impersonate"
        )
    found = tuple(_headers(name, uid, groups, extra)) if name else ()
    if any(ord(letter) < 32 or ord(letter) == 127 for _, value in found for letter in value):
        raise ConnectionSettingsError("the kubeconfig's user impersonates a name with a control character: remove it")
    return found


def _headers(name: str, uid: str, groups: list[str], extra: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    yield "Impersonate-User", name
    if uid:
        yield "Impersonate-Uid", uid
    for group in groups:
        yield "Impersonate-Group", group
    for key, values in extra.items():
        for value in values:
            yield f"Impersonate-Extra-{quote(str(key), safe=_LEGAL)}", value


def _is_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


logger = logging.getLogger(__name__)

LOOK_UP_SECONDS = 1.0  # seconds
RELOAD_SECONDS = 10.0
"""Seconds until refused credentials are loaded once more: a plugin may take its time, and all requests wait for it."""


class Credentials:
    """The header ``Authorization``, as long as it is good.

    It is looked up at most once a second: the package runs its refresh hook each time, which costs as much as a
    request. The hook knows of tokens with a time at which they end. For all others (a ``tokenFile``, a plugin that says
    no time, a kubeconfig that was written anew) everything is loaded again after the server refused them, as client-go
    asks a plugin again. So it is shortly before ``until``, when a plugin said how long its client certificate is good.

    When any of this fails, the last answer counts: a token is renewed long before its end.
    """

    def __init__(
        self, look_up: Callable[[], str | None], load: Callable[[], datetime | None], until: datetime | None
    ) -> None:
        self._look_up, self._load, self._ends = look_up, load, until
        self._answer: str | None = None
        self._has_answered = False
        self._until = 0.0
        self._is_refused = False
        self._may_load_at = 0.0
        self._told: dict[str, str] = {}

    def authorization(self) -> str | None:
        """What to send now. Raises ConnectionSettingsError if it never could be read."""
        now = time.monotonic()
        if now < self._until:
            return self._answer
        if (self._is_refused or self._is_ending()) and now >= self._may_load_at:
            self._is_refused, self._may_load_at = False, now + RELOAD_SECONDS
            try:
                self._ends = self._load()
                self._tell("load")
            except Exception as error:  # the loader passes on errors of files, plugins and clouds
                self._tell("load", error)
        try:
            self._answer, self._has_answered = self._look_up(), True
            self._tell("look up")
        except Exception as error:
            if not self._has_answered:
                raise ConnectionSettingsError(
                    f"cannot read the credentials: {_words(error)}; check their file"
                ) from error
            self._tell("look up", error)
        self._until = now + LOOK_UP_SECONDS
        return self._answer

    def _tell(self, step: str, error: Exception | None = None) -> None:
        """Log what goes wrong, once while it stays the same; a plugin may put the time into its words."""
        words = _words(error) if error is not None else ""
        if words and gist(words) != self._told.get(step):
            logger.warning("cannot renew the credentials, keeping the previous ones: %s", words)
        self._told[step] = gist(words)

    def _is_ending(self) -> bool:
        return self._ends is not None and (self._ends - datetime.now(UTC)).total_seconds() < RELOAD_SECONDS

    def refused(self, answer: str | None) -> None:
        """The server said 401; unless the answer is outdated, the next look-up loads a new one."""
        self._is_refused = self._is_refused or answer == self._answer


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


Pem = str | bytes
"""The path of a file in PEM form, or the content of one that a kubeconfig embeds."""
Certificate = tuple[Pem, Pem | None]
"""A client certificate and its key."""

SHARED_MEMORY = "/dev/shm"

LOOK_AT_FILES_SECONDS: Final = 1.0
"""Seconds between two looks at the files. Each request asks for the context, and a look is a system call per file."""


class _Context(ssl.SSLContext):
    """Client settings with the name that the server has to prove."""

    server_name: str | None = None

    def __repr__(self) -> str:
        """As aiohttp calls its own settings in errors; an address in memory would make a new text of each."""
        return "default"

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """One connection; asyncio makes all of its connections this way."""
        return super().wrap_bio(incoming, outgoing, server_side, self.server_name or server_hostname, session)


class ClientTls(_Context):
    """The settings as they were first; each new connection takes the newest, ``current``."""

    _verify = True
    _ca: Pem | None = None
    _certificate: Certificate | None = None
    _seen: object = None
    _looks_at: float = 0.0
    _newest: _Context | None = None

    def read_from(self, ca: Pem | None, certificate: Certificate | None) -> None:
        """Take these from now on."""
        self._ca, self._certificate = ca, certificate
        self._looks_at = 0.0

    def current(self) -> ssl.SSLContext:
        """The context for new connections: another one within a second after one of the files has another version."""
        now = time.monotonic()
        if now >= self._looks_at:
            self._looks_at = now + LOOK_AT_FILES_SECONDS
            self._look()
        return self._newest or self

    def _look(self) -> None:
        with suppress(OSError):
            found = self._version()
            if found != self._seen:
                self._seen = found  # one that cannot be used is tried once
                made = _Context(ssl.PROTOCOL_TLS_CLIENT)
                self.configure(made)
                self._newest = made

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """For those who keep this context."""
        newest = self.current()
        wrap = super().wrap_bio if newest is self else newest.wrap_bio
        return wrap(incoming, outgoing, server_side, server_hostname, session)

    def configure(self, context: _Context) -> None:
        """Read the files into a context. Raises OSError."""
        context.server_name = self.server_name
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.hostname_checks_common_name = False
        with ExitStack() as stack:
            if self._ca:
                context.load_verify_locations(stack.enter_context(_as_file(self._ca)))
            else:
                context.load_default_certs()
            if self._certificate is not None:
                chain, key = self._certificate
                context.load_cert_chain(
                    stack.enter_context(_as_file(chain)), stack.enter_context(_as_file(key)) if key else None
                )
        if not self._verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE

    def begin(self) -> None:
        """Read the files for the first time. Raises OSError."""
        self._seen = self._version()
        self.configure(self)

    def _version(self) -> list[tuple[object, ...]]:
        """What changes when a file is replaced, or a link to it, or its content, or another one is named."""
        return [_version_of(pem) for pem in (self._ca, *(self._certificate or ())) if pem]


def _version_of(pem: Pem) -> tuple[object, ...]:
    if isinstance(pem, bytes):
        return (pem,)
    found = os.stat(pem)
    return pem, found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def _as_file(pem: Pem) -> Iterator[str]:
    """The path of a file with it, which is gone afterwards if it was embedded: OpenSSL reads files only."""
    if isinstance(pem, str):
        yield pem
        return
    with tempfile.NamedTemporaryFile(dir=scratch_parent()) as file:
        file.write(pem)
        file.flush()
        yield file.name


def scratch_parent() -> str | None:
    """Where embedded certificates and keys are written for a moment; None for where temporary files lie as a rule.

    A container with a read-only root file system often has no writable folder but this one, in memory.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        return SHARED_MEMORY
    return None


def client_tls(
    ca: Pem | None = None,
    certificate: Certificate | None = None,
    *,
    server_name: str | None = None,
    verify: bool = True,
) -> ClientTls:
    """A context for connections to an API server.

    Without ``ca`` the authorities of the system count. Raises OSError (ssl.SSLError is one) for what cannot be used.
    """
    context = ClientTls(ssl.PROTOCOL_TLS_CLIENT)  # TLS 1.2 or newer; name and chain are checked
    context.server_name, context._verify = server_name, verify
    context.read_from(ca, certificate)
    context.begin()
    return context


def newest(tls: ssl.SSLContext) -> ssl.SSLContext:
    """The context for a connection that is made now."""
    return tls.current() if isinstance(tls, ClientTls) else tls
