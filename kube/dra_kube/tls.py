"""Trusts the API servers that Kubernetes' own clients trust, which are written in Go.

Python and Go differ in four points. Each of them makes some working cluster look broken:

- Since 3.13 ``ssl.create_default_context`` sets ``VERIFY_X509_STRICT``. It refuses certificate authorities without the
  key usage extension and certificates without an authority key identifier, which EKS, GKE and many private
  authorities make. A plain context leaves the flag out.
- Go accepts every certificate in ``certificate-authority`` as a trust anchor, an intermediate one too. OpenSSL follows
  the chain to a self-signed root unless ``VERIFY_X509_PARTIAL_CHAIN`` is set (Python sets it from 3.13 on).
- ``tls-server-name`` replaces the host name of the URL in the handshake and in the check of the certificate. Go keeps
  it in the TLS settings, so every connection has it. Python wants it with each connection; ``_Context`` keeps it
  instead, so that a session that is not ours (Kopf's) uses it too.
- Go checks names against subject alternative names only, never against the common name.
"""

from __future__ import annotations

import ssl


class _Context(ssl.SSLContext):
    """Client settings with the name that the server has to prove."""

    server_name: str | None = None

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


def client_tls(
    ca_file: str | None = None,
    certificate: tuple[str, str | None] | None = None,
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
    if certificate:
        context.load_cert_chain(*certificate)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
