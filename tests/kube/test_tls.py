"""Which API servers are trusted: as many as Kubernetes' own clients trust, and no others."""

from __future__ import annotations

import base64
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from authority import Authority, write_kubeconfig
from cryptography.x509.oid import ExtendedKeyUsageOID
from dra_kube import Api, Connection, Unreachable, connection
from dra_kube.access.credentials import client_tls
from dra_operator.sources.handlers import session_for

TLS = sys.modules["dra_kube.access.credentials"]
Call = Callable[[Connection], Awaitable[None]]


async def our_client(settings: Connection) -> None:
    async with Api(settings) as api:
        assert await api.raw_get("/version") == {"major": "1"}


async def kopf_session(settings: Connection) -> None:
    context = session_for(settings)
    async with context.aiohttp_session as session, session.get(f"{context.server}/version") as response:
        assert await response.json() == {"major": "1"}


CLIENTS = pytest.mark.parametrize("call", [our_client, kopf_session], ids=["our client", "Kopf"])


async def reach(call: Call, folder: Path, ca: bytes, serving: ssl.SSLContext, **cluster: Any) -> None:
    """Start a server, write a kubeconfig for it, and call."""

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"major": "1"})

    app = web.Application()
    app.router.add_get("/version", version)
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=serving)
    try:
        data = base64.b64encode(ca).decode()
        host = cluster.pop("host", "127.0.0.1")
        entry = {"server": f"https://{host}:{server.port}", "certificate-authority-data": data, **cluster}
        if entry.get("insecure-skip-tls-verify"):
            del entry["certificate-authority-data"]
        file = write_kubeconfig(folder, entry, {"token": "t"})
        await call(connection(file))
    finally:
        await server.close()


@CLIENTS
@pytest.mark.parametrize(
    ("key_usage", "identifiers"),
    [(True, True), (False, True), (True, False), (False, False)],
    ids=["nothing missing", "no key usage", "no key identifiers", "neither"],
)
async def test_an_authority_that_go_accepts_is_accepted(
    call: Call, tmp_path: Path, key_usage: bool, identifiers: bool
) -> None:
    authority = Authority.make("root", key_usage=key_usage, identifiers=identifiers)
    await reach(call, tmp_path, authority.pem, authority.serving(tmp_path, "127.0.0.1"))


@CLIENTS
async def test_an_intermediate_authority_is_trusted_without_its_root(call: Call, tmp_path: Path) -> None:
    intermediate = Authority.make("intermediate", signed_by=Authority.make("root"))
    await reach(call, tmp_path, intermediate.pem, intermediate.serving(tmp_path, "127.0.0.1"))


@CLIENTS
async def test_tls_server_name_is_what_the_certificate_has_to_prove(call: Call, tmp_path: Path) -> None:
    authority = Authority.make("root")
    serving = authority.serving(tmp_path, "api.example.com")
    asked: list[str | None] = []
    serving.sni_callback = lambda _socket, name, _context: asked.append(name)
    await reach(call, tmp_path, authority.pem, serving, **{"tls-server-name": "api.example.com"})
    assert asked == ["api.example.com"]


@CLIENTS
async def test_verification_can_be_switched_off(call: Call, tmp_path: Path) -> None:
    serving = Authority.make("root").serving(tmp_path, "elsewhere.example.com")
    await reach(call, tmp_path, b"", serving, **{"insecure-skip-tls-verify": True})


@CLIENTS
@pytest.mark.parametrize(
    ("names", "cluster", "says"),
    [
        (["elsewhere.example.com"], {}, "IP address mismatch"),
        (["127.0.0.1"], {"tls-server-name": "api.example.com"}, "[Hh]ostname mismatch"),
        (["127.0.0.1"], {"host": "localhost"}, "[Hh]ostname mismatch"),
    ],
    ids=["another name", "not the tls-server-name", "an address only, asked by name"],
)
async def test_a_certificate_for_another_server_is_refused(
    call: Call, tmp_path: Path, names: list[str], cluster: dict[str, str], says: str
) -> None:
    authority = Authority.make("root")
    serving = authority.serving(tmp_path, *names, common_name="localhost")
    with pytest.raises((Unreachable, aiohttp.ClientError), match=says):
        await reach(call, tmp_path, authority.pem, serving, **cluster)


@CLIENTS
async def test_a_certificate_of_another_authority_is_refused(call: Call, tmp_path: Path) -> None:
    trusted, other = Authority.make("root"), Authority.make("root")
    with pytest.raises((Unreachable, aiohttp.ClientError), match=r"certificate verify failed|certificate is refused"):
        await reach(call, tmp_path, trusted.pem, other.serving(tmp_path, "127.0.0.1"))


def identity_shown(client: ssl.SSLContext, server: ssl.SSLContext) -> str:
    """The name in the client certificate of a new connection."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="api")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (ours, theirs):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    shown = theirs.getpeercert()
    assert shown is not None
    return str(shown["subject"][0][0][1])


def replaced(file: Path, content: bytes) -> None:
    """As a kubelet does: another file takes the name."""
    new = file.with_suffix(".new")
    new.write_bytes(content)
    new.rename(file)


@pytest.fixture
def mutual(tmp_path: Path) -> tuple[Authority, ssl.SSLContext]:
    """An authority, whose certificate is in ``ca``, and the settings of a server that asks for its certificates."""
    authority = Authority.make("root")
    server = authority.serving(tmp_path, "api")
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(cadata=authority.pem.decode())
    (tmp_path / "ca").write_bytes(authority.pem)
    return authority, server


@pytest.mark.parametrize("is_embedded", [False, True], ids=["authority in a file", "authority embedded"])
def test_a_client_certificate_that_is_renewed_in_place_is_shown_by_new_connections(
    mutual: tuple[Authority, ssl.SSLContext], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_embedded: bool
) -> None:
    monkeypatch.setattr(TLS, "LOOK_AT_FILES_SECONDS", 0.0)
    authority, server = mutual
    first, second, third = (authority.issue(ExtendedKeyUsageOID.CLIENT_AUTH, f"node-{number}") for number in range(3))
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    certificate.write_bytes(first[0])
    key.write_bytes(first[1])
    client = client_tls(authority.pem if is_embedded else str(tmp_path / "ca"), (str(certificate), str(key)))
    assert identity_shown(client, server) == "node-0"
    replaced(certificate, second[0])
    assert identity_shown(client, server) == "node-0", "the key does not belong to it yet"
    replaced(key, second[1])
    assert identity_shown(client, server) == "node-1"
    certificate.unlink()
    assert identity_shown(client, server) == "node-1"
    replaced(certificate, third[0])
    replaced(key, third[1])
    assert identity_shown(client, server) == "node-2"


def test_the_files_are_looked_at_once_in_a_while(
    mutual: tuple[Authority, ssl.SSLContext], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, server = mutual
    now = 100.0
    monkeypatch.setattr(TLS, "time", SimpleNamespace(monotonic=lambda: now))
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    pems = [authority.issue(ExtendedKeyUsageOID.CLIENT_AUTH, f"node-{number}") for number in range(2)]
    for file, content in zip((certificate, key), pems[0], strict=True):
        file.write_bytes(content)
    client = client_tls(str(tmp_path / "ca"), (str(certificate), str(key)))
    assert identity_shown(client, server) == "node-0"
    for file, content in zip((certificate, key), pems[1], strict=True):
        replaced(file, content)
    now += TLS.LOOK_AT_FILES_SECONDS * 0.9
    assert identity_shown(client, server) == "node-0", "no look yet"
    now += TLS.LOOK_AT_FILES_SECONDS * 0.2
    assert identity_shown(client, server) == "node-1"


def test_files_are_read_once_as_they_are_also_if_they_cannot_be_used(
    mutual: tuple[Authority, ssl.SSLContext], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that were made with another context are closed: a new one each second would keep none."""
    authority, _ = mutual
    monkeypatch.setattr(TLS, "LOOK_AT_FILES_SECONDS", 0.0)
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    for file, content in zip((certificate, key), authority.issue(ExtendedKeyUsageOID.CLIENT_AUTH, "node"), strict=True):
        file.write_bytes(content)
    client = client_tls(str(tmp_path / "ca"), (str(certificate), str(key)))
    reads, read = list[ssl.SSLContext](), TLS.ClientTls.configure

    def configure(self: Any, context: Any) -> None:
        reads.append(context)
        read(self, context)

    monkeypatch.setattr(TLS.ClientTls, "configure", configure)
    for content, most in ((certificate.read_bytes(), 1), (b"no certificate", 2)):
        replaced(certificate, content)
        assert len({id(client.current()) for _ in range(3)}) == 1
        assert len(reads) == most
