"""``kubectl dra fit --serve-grpc``: the answers are those of HTTP, and each refusal has its code."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
import yaml
from aiohttp import ClientSession, TCPConnector
from authority import Authority
from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.cli import parser
from dra_operator.kubectl.serve import desk as clerk
from dra_operator.kubectl.serve import grpc_door
from dra_operator.kubectl.serve.desk import Desk, Question, Reply
from dra_operator.kubectl.serve.server import FIT, running
from dra_operator.kubectl.serving import Crowded
from dra_operator.kubectl.whatif.drain import BudgetFact, Displaced, Draining, TornGroup
from dra_operator.kubectl.whatif.fitting import Fitting
from dra_operator.kubectl.whatif.overlay import LeftFact, PodFact
from dra_proto.fit.v1 import api_pb2 as messages
from dra_proto.fit.v1 import api_pb2_grpc as services
from google.protobuf.json_format import MessageToDict

FLEET = Path(__file__).parent / "fleet.yaml"
TOKEN = "a-token-of-enough-letters"


def texts(name: str) -> list[str]:
    return [json.dumps(one) for one in yaml.safe_load_all(FLEET.with_name(name).read_text())]


@asynccontextmanager
async def serving(*words: str) -> AsyncIterator[tuple[str, Any]]:
    """What it prints, and a client of the last address."""
    options = parser(["fit"]).parse_args(["fit", "--serve-grpc", "127.0.0.1:0", "--from", str(FLEET), *words])
    async with running(options) as addresses:
        async with grpc.aio.insecure_channel(addresses.splitlines()[-1]) as channel:
            yield addresses, services.FitStub(channel)


async def code_of(client: Any, question: messages.Question, *metadata: tuple[str, str]) -> tuple[str, str]:
    try:
        await client.Ask(question, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


async def test_an_answer_says_what_the_one_by_http_says() -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"max": True, "left": True},
        {"count": 3, "drain": "gpu-1"},
        {"max": True, "without": ["gpu-1"]},
        {"max": True, "add_nodes": texts("new-node.yaml")},
    ]
    async with ClientSession() as http, serving("--serve", "127.0.0.1:0") as (addresses, client):
        for fields in cases:
            manifests = texts("pod.yaml")
            found = await client.Ask(messages.Question(manifests=manifests, **fields))
            question: dict[str, Any] = {"manifests": list(map(json.loads, manifests)), **fields}
            if "add_nodes" in question:
                question["addNodes"] = list(map(json.loads, question.pop("add_nodes")))
            async with http.post(f"{addresses.splitlines()[0]}{FIT}", json=question) as got:
                said = await got.json()
            assert as_by_http(found) == said


def test_an_answer_leaves_nothing_out() -> None:
    """Each field of each part of the answer has a value of its own."""
    place = PodFact(pod="ns/a", node="n", devices=("d/p/x",), reason="none")
    draining = Draining(
        name="gone",
        is_clear=True,
        pods=[
            Displaced(pod="ns/b", owner="Job/b", loses=("d/p/y",), fate="moves", node="m", devices=("e",), reason="r")
        ],
        budgets=[BudgetFact(budget="ns/most", allowed=2, pods=("ns/b",))],
        torn=[TornGroup(group="ns/g", left=("ns/c",))],
    )
    answer = Fitting(
        fits=True,
        copies=3,
        pods=[place],
        left=[LeftFact(device_class="gpu", largest=4, node="n", keeps_away="cordoned")],
        drained=draining,
        next=PodFact(pod="ns/next", reason="full"),
        promised=[PodFact(pod="ns/old", node="n")],
        is_cut=True,
    )
    reply = Reply(taken="now", answer=answer, notes=["note"])
    assert as_by_http(grpc_door.message_of(reply)) == json.loads(msgspec.json.encode(reply))
    assert [name for name in Fitting.__struct_fields__ if not getattr(answer, name)] == []


def as_by_http(found: messages.Answer) -> dict[str, Any]:
    """The message in the shape that HTTP has."""
    said = MessageToDict(found, always_print_fields_with_no_presence=True)
    taken, notes = said.pop("taken"), said.pop("notes")
    displaced, draining = said.pop("drained"), said.pop("draining", None)
    drained = draining and {**draining, "pods": displaced}
    return {"taken": taken, "notes": notes, "answer": {"next": None, **said, "drained": drained}}


async def test_each_refusal_has_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = texts("pod.yaml")
    async with serving() as (_, client):
        for question, code, text in [
            (messages.Question(manifests=pod), "OK", ""),
            (messages.Question(), "INVALID_ARGUMENT", "the manifests hold no Pod"),
            (messages.Question(manifests=["{"]), "INVALID_ARGUMENT", "manifests[0]: not JSON: "),
            (messages.Question(manifests=pod, count=2, max=True), "INVALID_ARGUMENT", "count and max exclude"),
            (messages.Question(manifests=pod, drain="gpu-9"), "INVALID_ARGUMENT", "there is no node gpu-9"),
            (messages.Question(manifests=[" " * clerk.MOST_QUESTION_BYTES]), "RESOURCE_EXHAUSTED", ""),
        ]:
            found = await code_of(client, question)
            assert (found[0], found[1][: len(text)]) == (code, text)
        monkeypatch.setattr(clerk, "MOST_WAITING_QUESTIONS", 0)
        assert (await code_of(client, messages.Question(manifests=pod)))[0] == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (clerk.AnswerTookTooLong, "DEADLINE_EXCEEDED"),
        (clerk.Busy, "UNAVAILABLE"),
        (Crowded, "RESOURCE_EXHAUSTED"),
    ],
)
async def test_why_there_is_no_answer_now_has_its_code(
    reason: type[Exception], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(*_: object) -> Reply:
        raise reason("for a reason")

    monkeypatch.setattr(clerk.Clerk, "answer", answer)
    async with serving() as (_, client):
        assert await code_of(client, messages.Question()) == (code, "for a reason")


async def test_the_token_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    question = messages.Question(manifests=texts("pod.yaml"))
    async with serving("--token-file", str(file)) as (_, client):
        assert (await code_of(client, question))[0] == "UNAUTHENTICATED"
        assert (await code_of(client, question, ("authorization", "Bearer other")))[0] == "UNAUTHENTICATED"
        assert (await code_of(client, question, ("authorization", f"Bearer {TOKEN}")))[0] == "OK"
    with pytest.raises(Problem, match=r"--serve-grpc 0\.0\.0\.0: others can reach this address"):
        async with serving("--serve-grpc", "0.0.0.0:0"):
            pass


@pytest.mark.parametrize("greeting", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])])
async def test_a_connection_that_asks_nothing_is_closed(greeting: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else clients that say nothing could hold all descriptors of the process."""
    monkeypatch.setattr(grpc_door, "GREETING_SECONDS", 0.5)
    monkeypatch.setattr(grpc_door, "IDLE_SECONDS", 0.5)
    async with serving() as (address, _):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(greeting)
        async with asyncio.timeout(20):
            await reader.read()
        writer.close()


async def test_held_connections_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_door, "MOST_CLIENT_CONNECTIONS", 3)
    async with serving() as (address, client), asyncio.timeout(20):
        host, _, port = address.rpartition(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(8)]
        assert (await client.Ask(messages.Question(manifests=texts("pod.yaml")))).fits
        for _, writer in held:
            writer.close()


async def test_the_connection_of_a_question_that_is_answered_outlasts_newcomers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_door, "MOST_CLIENT_CONNECTIONS", 3)
    held, may_answer, answer = threading.Event(), threading.Event(), Desk.answer

    def answer_when_told(desk: Desk, question: Question) -> Reply:
        held.set()
        assert may_answer.wait(60)
        return answer(desk, question)

    monkeypatch.setattr(Desk, "answer", answer_when_told)
    async with serving() as (address, client), asyncio.timeout(60):
        asking = asyncio.ensure_future(client.Ask(messages.Question(manifests=texts("pod.yaml"))))
        await asyncio.to_thread(held.wait)
        host, _, port = address.rpartition(":")
        others = [await asyncio.open_connection(host, int(port)) for _ in range(8)]
        may_answer.set()
        assert (await asking).fits
        for _, writer in others:
            writer.close()


async def test_questions_and_answers_are_encrypted_where_a_certificate_is_given(tmp_path: Path) -> None:
    authority = Authority.make("authority")
    certificate, key = authority.files(tmp_path, "127.0.0.1")
    words = ["--tls-cert", str(certificate), "--tls-key", str(key)]
    async with serving("--serve", "127.0.0.1:0", *words) as (addresses, plain):
        url, address = addresses.splitlines()
        assert url.startswith("https://")
        question = messages.Question(manifests=texts("pod.yaml"))
        assert (await code_of(plain, question))[0] == "UNAVAILABLE"
        credentials = grpc.ssl_channel_credentials(authority.pem)
        async with grpc.aio.secure_channel(address, credentials) as channel:
            secured: Any = services.FitStub(channel)
            assert (await secured.Ask(question)).fits
        context = ssl.create_default_context(cadata=authority.pem.decode())
        asked = {"manifests": list(map(json.loads, texts("pod.yaml")))}
        async with (
            ClientSession(connector=TCPConnector(ssl=context)) as http,
            http.post(f"{url}{FIT}", json=asked) as got,
        ):
            assert (await got.json())["answer"]["fits"]
