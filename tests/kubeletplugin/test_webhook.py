"""The validating webhook for parameters: what it refuses, over HTTPS, and as a real API server asks it."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ipaddress
import json
import os
import signal
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import aiohttp
import envtest
import pytest
from command import MARK
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from dra_kube import RESOURCE_CLAIMS, Api, ApiError, connection
from dra_kube.door import REQUESTS
from dra_kubeletplugin import ParametersWebhook, SettingsError, serve_webhook, webhook
from dra_kubeletplugin.webhook import run_webhook

NAME = "paint.example.com"


@dataclass
class Paint:
    color: Literal["red", "green"] = "red"
    coats: int = 1


def few(paint: Paint) -> None:
    if paint.coats > 3:
        raise ValueError(f"{paint.coats} coats do not dry in time: use at most 3")


WEBHOOK = ParametersWebhook(NAME, Paint, check=few)


def config(parameters: Any, driver: str = NAME) -> list[dict[str, Any]]:
    return [{"opaque": {"driver": driver, "parameters": parameters}}]


def claim(configs: Any) -> dict[str, Any]:
    return {"spec": {"devices": {"config": configs}}}


def question(kind: str, obj: Any, old: Any = None) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "kind": {"kind": kind}, "object": obj, "oldObject": old},
    }


def asked(kind: str, obj: Any, old: Any = None) -> dict[str, Any]:
    answer: dict[str, Any] = WEBHOOK.review(question(kind, obj, old))["response"]
    assert answer["uid"] == "u"
    return answer


BAD = {"colour": "green"}
QUESTIONS: list[tuple[str, str, Any, Any, str]] = [
    ("a claim", "ResourceClaim", claim(config({"color": "green"})), None, ""),
    ("a misspelt field", "ResourceClaim", claim(config(BAD)), None,
     "spec.devices.config[0].opaque.parameters: invalid for driver paint.example.com: unknown field `colour`"),
    ("a wrong value", "ResourceClaim", claim([*config({}), *config({"color": "blue"})]), None,
     "spec.devices.config[1].opaque.parameters: invalid"),
    ("values that do not go together", "ResourceClaim", claim(config({"coats": 9})), None, "9 coats do not dry"),
    ("no object", "ResourceClaim", claim(config(7)), None, "invalid"),
    ("another driver", "ResourceClaim", claim(config(BAD, "gpu.example.com")), None, ""),
    ("a template", "ResourceClaimTemplate", {"spec": claim(config(BAD))}, None, "spec.spec.devices.config[0]"),
    ("a class", "DeviceClass", {"spec": {"config": config(BAD)}}, None, "spec.config[0].opaque.parameters: invalid"),
    ("what is stored already", "ResourceClaim", claim(config(BAD)), claim(config(BAD)), ""),
    ("what is added to it", "DeviceClass", {"spec": {"config": [*config(BAD), *config({"coats": 4})]}},
     {"spec": {"config": config(BAD)}}, "spec.config[1]"),
    ("what is deleted", "ResourceClaim", None, claim(config(BAD)), ""),
    ("another kind", "Pod", {"spec": {}}, None, ""),
    ("no spec", "ResourceClaim", {}, None, ""),
    ("wrong shapes", "ResourceClaim", {"spec": {"devices": {"config": ["x", {"opaque": 3}]}}}, None, ""),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "obj", "old", "refusal"), [c[1:] for c in QUESTIONS], ids=[c[0] for c in QUESTIONS])
def test_what_the_driver_would_refuse_is_refused(kind: str, obj: Any, old: Any, refusal: str) -> None:
    answer = asked(kind, obj, old)
    assert answer["allowed"] == (not refusal)
    if refusal:
        assert answer["status"]["code"] == 422
        assert refusal in answer["status"]["message"]


@pytest.mark.parametrize(
    "question",
    [None, [], {}, {"request": {}}, {"request": {"uid": 1, "kind": 3}}, {"request": {"uid": 1, "kind": {"kind": []}}}],
)
def test_what_is_no_review_is_an_error(question: Any) -> None:
    with pytest.raises(ValueError, match="no AdmissionReview"):
        WEBHOOK.review(question)


def test_each_parameter_is_compared_once_however_many_are_stored() -> None:
    compared = 0

    class Compared(bytes):
        __hash__ = bytes.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return bytes.__eq__(self, other)

    class Counting(ParametersWebhook):
        def _parameters(self, kind: str, obj: Any) -> Iterator[tuple[str, bytes]]:
            for path, raw in super()._parameters(kind, obj):
                yield path, Compared(raw)

    def many(first: int) -> dict[str, Any]:
        return claim([one for number in range(first, first + 200) for one in config({"coats": number})])

    request = {"uid": "u", "kind": {"kind": "ResourceClaim"}, "object": many(0), "oldObject": many(1000)}
    assert Counting(NAME, Paint).review({"request": request})["response"]["allowed"]
    assert compared <= 400


def keep_busy(seconds: float) -> None:
    """The loop can do nothing else."""
    time.sleep(seconds)


async def test_a_question_that_comes_too_late_is_not_ended_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "BODY_SECONDS", 0.05)
    has_begun = asyncio.Event()

    class Late:
        async def iter_any(self) -> AsyncIterator[bytes]:
            yield b"12345678"
            has_begun.set()
            await asyncio.Event().wait()

    class Punctual:
        async def iter_any(self) -> AsyncIterator[bytes]:
            yield b"1"
            keep_busy(0.06)  # until the other question is late
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # now its time is over, and it has not noticed
            yield b"2"

    arriving = webhook._Arriving(9)
    late = asyncio.create_task(arriving.body(cast(Any, SimpleNamespace(content=Late()))))
    await has_begun.wait()
    monkeypatch.setattr(webhook, "BODY_SECONDS", 30.0)
    assert await arriving.body(cast(Any, SimpleNamespace(content=Punctual()))) == b"12"
    with pytest.raises(TimeoutError):
        await late


async def test_the_room_of_a_question_comes_free_when_it_is_read_or_gave_way() -> None:
    class Question:
        def __init__(self, *, ends: bool = True) -> None:
            self.has_begun, self.ends = asyncio.Event(), ends

        async def iter_any(self) -> AsyncIterator[bytes]:
            yield b"12345678"
            self.has_begun.set()
            for _ in range(3):  # in which a time that is over is noticed
                await asyncio.sleep(0)
            if not self.ends:
                await asyncio.Event().wait()

    arriving, late = webhook._Arriving(9), Question(ends=False)

    async def read(question: Question) -> bytes:
        return await arriving.body(cast(Any, SimpleNamespace(content=question)))

    assert [await read(Question()) for _ in range(3)] == [b"12345678"] * 3
    slow = asyncio.create_task(read(late))
    await late.has_begun.wait()
    with pytest.raises(TimeoutError):  # of equal ones the first gives way
        await asyncio.gather(slow, read(Question()))
    assert [await read(Question()) for _ in range(3)] == [b"12345678"] * 3


# --- over HTTPS ---


def certificate(folder: Path, name: str = "webhook") -> tuple[Path, Path]:
    """A certificate for this machine, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "tls.crt", folder / "tls.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


@asynccontextmanager
async def serving(folder: Path, port: int) -> AsyncIterator[str]:
    cert, key = folder / "tls.crt", folder / "tls.key"
    task = asyncio.create_task(serve_webhook(WEBHOOK, endpoint=f"127.0.0.1:{port}", certificate=cert, key=key))
    try:
        async with asyncio.timeout(30):
            while True:
                if task.done():
                    task.result()
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                except OSError:
                    await asyncio.sleep(0.01)
        yield f"https://127.0.0.1:{port}"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_renewed_certificate_is_served(
    tmp_path: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "_LOOK_AT_CERTIFICATE_SECONDS", 0.02)
    certificate(tmp_path)
    async with serving(tmp_path, unused_tcp_port) as url:

        async def answers() -> bool:
            trusted = ssl.create_default_context(cafile=str(tmp_path / "tls.crt"))
            try:
                async with aiohttp.ClientSession() as http, http.get(f"{url}/healthz", ssl=trusted) as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        assert await answers()
        (tmp_path / "tls.key").write_text("half of a Secret")
        await asyncio.sleep(0.1)
        assert await answers()
        certificate(tmp_path, "renewed")
        async with asyncio.timeout(30):
            while not await answers():  # noqa: ASYNC110  # on a server
                await asyncio.sleep(0.02)


async def test_a_header_that_cannot_be_read_is_logged_as_a_warning_without_it(
    tmp_path: Path, unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The API server's credentials for webhooks are in a header."""
    cert, _ = certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=str(cert))
    async with serving(tmp_path, unused_tcp_port):
        reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port, ssl=trusted)
        writer.write(f"POST /validate HTTP/1.1\r\nHost: a\r\nAutho rization: Bearer {MARK}\r\n\r\n".encode())
        assert b" 400 " in await reader.readline()
        writer.close()
    (record,) = [record for record in caplog.records if record.name == REQUESTS.name]
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert "it cannot be read" in record.getMessage()


async def test_what_cannot_be_served_is_an_error_with_a_remedy(tmp_path: Path, unused_tcp_port: int) -> None:
    with pytest.raises(SettingsError, match="mount the Secret of the webhook"):
        async with serving(tmp_path, unused_tcp_port):
            pass


# --- as a program ---


def test_the_program_serves_until_it_is_told_to_end(tmp_path: Path, unused_tcp_port: int) -> None:
    cert, key = certificate(tmp_path)
    body = json.dumps(question("ResourceClaim", claim(config({"coats": 4}))))
    answers: list[Any] = []

    def ask() -> Any:
        trusted = ssl.create_default_context(cafile=str(cert))
        with closing(HTTPSConnection("127.0.0.1", unused_tcp_port, timeout=10, context=trusted)) as connection:
            connection.request("POST", "/validate", body)
            return json.load(connection.getresponse())["response"]["status"]["message"]

    def ask_and_end() -> None:
        ends = time.monotonic() + 10
        try:
            while not answers and time.monotonic() < ends:
                try:
                    answers.append(ask())
                except OSError:
                    time.sleep(0.01)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask_and_end)
    asking.start()
    endpoint = f"127.0.0.1:{unused_tcp_port}"
    run_webhook(NAME, Paint, ["--endpoint", endpoint, "--tls-cert", str(cert), "--tls-key", str(key)], check=few)
    asking.join()
    (text,) = answers
    assert "use at most 3" in text


def test_a_program_without_its_certificate_ends_with_one_line(
    tmp_path: Path, unused_tcp_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _, key = certificate(tmp_path)
    arguments = [
        "--endpoint",
        f"127.0.0.1:{unused_tcp_port}",
        "--tls-cert",
        str(tmp_path / "no"),
        "--tls-key",
        str(key),
    ]
    with pytest.raises(SystemExit, match="2"):
        run_webhook(NAME, Paint, arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{NAME}: error: cannot use the certificate {tmp_path / 'no'}")


# --- a real API server ---


@pytest.mark.skipif(envtest.assets() is None, reason="set KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver")
async def test_a_real_api_server_refuses_what_the_webhook_refuses(tmp_path: Path, unused_tcp_port: int) -> None:
    cert, _ = certificate(tmp_path)
    binaries = envtest.assets()
    assert binaries is not None
    folder = tmp_path / "plane"
    folder.mkdir()
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["resourceclaims", "resourceclaimtemplates", "deviceclasses"],
    }
    with envtest.real_api_server(binaries, folder) as kubeconfig:
        async with serving(tmp_path, unused_tcp_port) as url, Api(connection(kubeconfig)) as api:
            hook = {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingWebhookConfiguration",
                "metadata": {"name": "paint"},
                "webhooks": [
                    {
                        "name": NAME,
                        "clientConfig": {
                            "url": f"{url}/validate",
                            "caBundle": base64.b64encode(cert.read_bytes()).decode(),
                        },
                        "rules": [rule],
                        "sideEffects": "None",
                        "admissionReviewVersions": ["v1"],
                    }
                ],
            }
            await api._transport.json(
                "POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", body=hook
            )
            request = {"name": "r", "exactly": {"deviceClassName": "paint"}}

            def body(name: str, parameters: Any) -> dict[str, Any]:
                devices = {"requests": [request], "config": config(parameters)}
                return {"metadata": {"name": name}, "spec": {"devices": devices}}

            async def refusal() -> str:
                try:
                    await api.create(RESOURCE_CLAIMS, body("bad", BAD), "default")
                except ApiError as error:
                    return error.message
                await api.delete(RESOURCE_CLAIMS, "bad", "default")
                return ""

            async with asyncio.timeout(60):
                while not (text := await refusal()):  # noqa: ASYNC110  # taken up by the server after a while
                    await asyncio.sleep(0.1)
            assert "unknown field `colour`" in text
            await api.create(RESOURCE_CLAIMS, body("good", {"color": "green"}), "default")
