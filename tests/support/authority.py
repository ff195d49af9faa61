"""Certificate authorities as clusters have them, flaws included, what serves with their certificates; kubeconfigs."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PEM = serialization.Encoding.PEM
HOUR = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Authority:
    """A certificate that signs others. ``key_usage``: whether it says so; ``identifiers``: key identifiers as well."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    identifiers: bool

    @classmethod
    def make(
        cls, name: str, *, key_usage: bool = True, identifiers: bool = True, signed_by: Authority | None = None
    ) -> Authority:
        """A root, or with ``signed_by`` an intermediate authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, signed_by.certificate.subject if signed_by else _name(name), key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        if key_usage:
            builder = builder.add_extension(_SIGNS, critical=True)
        if identifiers:
            builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            issuer = signed_by.key if signed_by else key
            builder = builder.add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False
            )
        return cls(builder.sign(signed_by.key if signed_by else key, hashes.SHA256()), key, identifiers)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(PEM)

    def serving(self, folder: Path, *names: str, common_name: str = "kube-apiserver") -> ssl.SSLContext:
        """A server's context with a certificate for host names and IP addresses."""
        file = folder / "server.pem"
        file.write_bytes(b"".join(self.issue(ExtendedKeyUsageOID.SERVER_AUTH, common_name, *names)))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def files(self, folder: Path, *names: str) -> tuple[Path, Path]:
        """Files with a server's certificate for host names and IP addresses, and with its key."""
        files = folder / "tls.crt", folder / "tls.key"
        for file, content in zip(files, self.issue(ExtendedKeyUsageOID.SERVER_AUTH, "a server", *names), strict=True):
            file.write_bytes(content)
        return files

    def issue(self, usage: x509.ObjectIdentifier, common_name: str, *names: str) -> tuple[bytes, bytes]:
        """A new certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(common_name, self.certificate.subject, key)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names:
            alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        if self.identifiers:
            builder = builder.add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return builder.sign(self.key, hashes.SHA256()).public_bytes(PEM), private


_SIGNS = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(subject: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - HOUR)
        .not_valid_after(now + HOUR)
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def write_kubeconfig(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    """Write the file ``config`` in the folder; ``cluster`` and ``user`` are their entries."""
    file = folder / "config"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    file.write_text(yaml.safe_dump(content))
    return file
