"""Authorities and client certificates that change while a client runs, as they do in a cluster that lives for years."""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from authority import Authority, write_kubeconfig
from cryptography.x509.oid import ExtendedKeyUsageOID
from dra_kube import PODS, Api, ApiError, Unreachable, connection
from dra_operator.sources.handlers import session_for

CREDENTIALS = sys.modules["dra_kube.access.credentials"]


@pytest.fixture(autouse=True)
def look_at_files_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["dra_kube.access.credentials"], "LOOK_AT_FILES_SECONDS", 0.0)


class Server:
    """Shows the certificate ``serving``, and answers with the name in that of the client, or with ``code``."""

    def __init__(self, serving: ssl.SSLContext) -> None:
        self.serving, self.code = serving, 200
        self.shown: list[str] = []
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        front = self.serving
        front.sni_callback = self._choose
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        server = TestServer(app, scheme="https")
        await server.start_server(ssl=front)
        self.url = f"https://localhost:{server.port}"
        try:
            yield self
        finally:
            await server.close()

    def _choose(self, socket: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        if socket.context is not self.serving:
            socket.context = self.serving

    async def _answer(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        certificate = request.transport.get_extra_info("peercert") or {}
        self.shown.append(certificate["subject"][0][0][1] if certificate else "")
        return web.json_response({"metadata": {"name": "p"}}, status=self.code)


def kubeconfig(folder: Path, url: str, ca: Path, **user: Any) -> Path:
    return write_kubeconfig(folder, {"server": url, "certificate-authority": str(ca)}, user)


def replaced(file: Path, content: bytes) -> None:
    """As kubelets do with the files of a volume: another file takes the name."""
    new = file.with_suffix(".new")
    new.write_bytes(content)
    new.rename(file)


async def ask(api: Api) -> None:
    """A read and a write."""
    await api.get(PODS, "p", "default")
    await api.create(PODS, {"metadata": {"name": "p"}}, "default")


async def test_an_authority_that_is_replaced_is_trusted_from_then_on_and_the_former_one_is_not(tmp_path: Path) -> None:
    former, later = Authority.make("root"), Authority.make("root")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(former.pem)
    async with Server(former.serving(tmp_path, "localhost")).running() as server:
        settings = connection(kubeconfig(tmp_path, server.url, ca, token="t"))
        kopf = session_for(settings).aiohttp_session
        async with Api(settings) as api, kopf:
            await ask(api)
            replaced(ca, later.pem)
            for _ in range(2):
                with pytest.raises(Unreachable, match="the server's certificate is refused"):
                    await api.get(PODS, "p", "default")
                with pytest.raises(Unreachable, match="the server's certificate is refused"):
                    await api.create(PODS, {"metadata": {"name": "p"}}, "default")
            with pytest.raises(aiohttp.ClientError, match="certificate verify failed"):
                await kopf.get(server.url)
            server.serving = later.serving(tmp_path, "localhost")
            await ask(api)
            async with kopf.get(server.url) as answer:
                assert answer.status == 200
            ca.write_text("half a fi")
            await ask(api)


async def test_two_errors_of_one_cause_are_one_text(tmp_path: Path) -> None:
    """Logs and conditions are written when the text changes."""
    (tmp_path / "ca.crt").write_bytes(Authority.make("root").pem)
    file, texts = kubeconfig(tmp_path, "https://127.0.0.1:9", tmp_path / "ca.crt", token="t"), set()
    for _ in range(2):
        async with Api(connection(file)) as api:
            with pytest.raises(Unreachable) as caught:
                await api.get(PODS, "p", "default")
            texts.add(str(caught.value))
    assert len(texts) == 1
    assert "the connection was refused" in texts.pop()


def said(authority: Authority, name: str, ends: datetime | None) -> str:
    """What a plugin prints."""
    certificate, key = (part.decode() for part in authority.issue(ExtendedKeyUsageOID.CLIENT_AUTH, name))
    status = {"clientCertificateData": certificate, "clientKeyData": key}
    if ends is not None:
        status["expirationTimestamp"] = ends.strftime("%Y-%m-%dT%H:%M:%SZ")
    version = "client.authentication.k8s.io/v1"
    return json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})


class Lab:
    """A server that asks for certificates, a client that has them from a plugin, and the client's time in hand."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now, self.authority = folder, 0.0, Authority.make("root")
        self.printed = folder / "printed"
        monkeypatch.setattr(CREDENTIALS, "time", SimpleNamespace(monotonic=lambda: self.now))

    def prints(self, name: str, ends: datetime | None = None) -> None:
        self.printed.write_text(said(self.authority, name, ends))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Server, Api]]:
        (self.folder / "ca.crt").write_bytes(self.authority.pem)
        serving = self.authority.serving(self.folder, "localhost")
        version = "client.authentication.k8s.io/v1"
        plugin = {"apiVersion": version, "command": "cat", "args": [str(self.printed)], "interactiveMode": "Never"}
        serving.verify_mode = ssl.CERT_REQUIRED
        serving.load_verify_locations(cadata=self.authority.pem.decode())
        async with Server(serving).running() as server:
            file = kubeconfig(self.folder, server.url, self.folder / "ca.crt", exec=plugin)
            async with Api(connection(file)) as api:
                yield server, api


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


async def test_a_plugins_certificate_is_renewed_before_it_ends(lab: Lab) -> None:
    lab.prints("one", datetime.now(UTC) + timedelta(hours=1))
    async with lab.running() as (server, api):
        await ask(api)
        lab.prints("two", datetime.now(UTC) + timedelta(seconds=5))
        lab.now = 20.0
        await ask(api)
        assert server.shown == ["one"] * 4, "it is good for an hour"
    lab.prints("two", datetime.now(UTC) + timedelta(seconds=5))
    lab.now = 40.0
    async with lab.running() as (server, api):
        lab.prints("three")
        await ask(api)
        lab.now = 60.0
        await ask(api)
        assert server.shown == ["three"] * 4


async def test_a_plugin_that_fails_is_asked_again_and_the_former_certificate_is_used(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.prints("one", datetime.now(UTC) + timedelta(seconds=5))
    async with lab.running() as (server, api):
        lab.printed.write_text("no JSON")
        await ask(api)
        lab.now = 11.0
        await ask(api)
        assert caplog.text.count("cannot renew the credentials, keeping the previous ones") == 1
        lab.prints("two", datetime.now(UTC) + timedelta(hours=1))
        lab.now = 30.0
        await ask(api)
        assert server.shown == ["one"] * 4 + ["two"] * 2


async def test_a_plugins_certificate_that_the_server_refuses_is_renewed(lab: Lab) -> None:
    lab.prints("one")
    async with lab.running() as (server, api):
        await ask(api)
        lab.prints("two")
        server.code = 401
        with pytest.raises(ApiError):
            await api.get(PODS, "p", "default")
        server.code, lab.now = 200, 20.0
        await ask(api)
        assert server.shown == ["one"] * 3 + ["two"] * 2
