"""A certificate authority for the life of one server, and the server's certificate.

Elliptic-curve keys: made in a millisecond, where RSA keys would take most of the start-up time.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_VALIDITY = datetime.timedelta(days=30)


@dataclass(frozen=True)
class Identity:
    """The CA's certificate (PEM), and a TLS context that serves with a certificate it signed."""

    ca: bytes
    tls: ssl.SSLContext


def make_identity(host: str) -> Identity:
    """A new CA and server certificate for a loopback address or host name."""
    now = datetime.datetime.now(datetime.UTC)
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
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of clients may differ a little
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
