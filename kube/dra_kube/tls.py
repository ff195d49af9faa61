"""Trusts the API servers that Kubernetes' own clients trust, which are written in Go.

Python and Go differ in five points. Each of them makes some working cluster look broken:

- Since 3.13 ``ssl.create_default_context`` sets ``VERIFY_X509_STRICT``. It refuses certificate authorities without the
  key usage extension and certificates without an authority key identifier, which EKS, GKE and many private
  authorities make. A plain context leaves the flag out.
- Go accepts every certificate in ``certificate-authority`` as a trust anchor, an intermediate one too. OpenSSL follows
  the chain to a self-signed root unless ``VERIFY_X509_PARTIAL_CHAIN`` is set (Python sets it from 3.13 on).
- ``tls-server-name`` replaces the host name of the URL in the handshake and in the check of the certificate. Go keeps
  it in the TLS settings, so every connection has it. Python wants it with each connection; ``_Context`` keeps it
  instead, so that a session that is not ours (Kopf's) uses it too.
- Go checks names against subject alternative names only, never against the common name.
- client-go reads the files of a client certificate again: a kubelet renews its own in place. So does ``_Context``, for
  each new connection. While certificate and key do not belong together, the former ones are shown.
"""

from __future__ import annotations

import os
import ssl
from contextlib import suppress

_Files = tuple[str, str | None]


class _Context(ssl.SSLContext):
    """Client settings with the name that the server has to prove, and the files that prove who we are."""

    server_name: str | None = None
    certificate: _Files | None = None
    _read: object = None

    def read_certificate(self) -> None:
        """Read the client certificate and its key, if they are there in another version. Raises OSError."""
        if self.certificate is None or (found := _version(self.certificate)) == self._read:
            return
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(*self.certificate)  # or what is loaded here is lost
        self.load_cert_chain(*self.certificate)
        self._read = found

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """One connection; asyncio makes all of its connections this way."""
        with suppress(OSError):
            self.read_certificate()
        return super().wrap_bio(incoming, outgoing, server_side, self.server_name or server_hostname, session)


def client_tls(
    ca_file: str | None = None,
    certificate: _Files | None = None,
    *,
    server_name: str | None = None,
    verify: bool = True,
) -> ssl.SSLContext:
    """A context for connections to an API server.

    Without ``ca_file`` the authorities of the system count. ``certificate`` names the files of a client certificate
    and its key. Raises OSError (ssl.SSLError is one) for unusable files.
    """
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)  # TLS 1.2 or newer; name and chain are checked
    context.server_name = server_name
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.hostname_checks_common_name = False
    if ca_file:
        context.load_verify_locations(ca_file)
    else:
        context.load_default_certs()
    context.certificate = certificate
    context.read_certificate()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _version(files: _Files) -> list[tuple[int, int, int]]:
    """What changes when a file is replaced, or a link to it, or its content."""
    found = [os.stat(file) for file in files if file]
    return [(each.st_ino, each.st_size, each.st_mtime_ns) for each in found]
