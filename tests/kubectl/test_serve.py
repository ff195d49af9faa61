"""``kubectl dra fit --serve``, by HTTP: answers as placing gives them, and clear errors within limits."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientConnectorCertificateError, ClientSession, TCPConnector
from authority import Authority
from dra_api.codec import convert
from dra_api.core import Node
from dra_api.quota import ResourceQuota
from dra_api.resource import ResourceClaim
from dra_api.storage import PersistentVolumeClaim
from dra_devcluster.apiserver import DevApiServer
from dra_kube import NODES, Api, connection
from dra_operator.kubectl import serving as newest
from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.cli import main, parser
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.serve import desk as clerk
from dra_operator.kubectl.serve import server
from dra_operator.kubectl.serve.desk import AnswerTookTooLong, Desk, Question, Reply
from dra_operator.kubectl.serve.server import FIT, address_of, running
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.snapshot import load
from dra_operator.kubectl.whatif.fitting import Copies
from dra_operator.kubectl.whatif.overlay import Overlay
from fit_replays import differences
from rounds import fewer
from waiting import becomes, until

FLEET = Path(__file__).parent / "fleet.yaml"
TOKEN = "a-token-of-enough-letters"


def manifests(name: str) -> list[Any]:
    return list(yaml.safe_load_all(FLEET.with_name(name).read_text()))


def options(*words: str) -> Any:
    return parser(["fit"]).parse_args(["fit", *words])


def serving(*words: str) -> Any:
    return running(options("--serve", "127.0.0.1:0", "--from", str(FLEET), *words))


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def asked(http: ClientSession, address: str, question: Any, **headers: str) -> tuple[int, Any]:
    """Status and answer."""
    body = question if isinstance(question, bytes) else json.dumps(question).encode()
    async with http.post(
        f"{address}{FIT}", data=io.BytesIO(body), headers={"Content-Type": "application/json", **headers}
    ) as got:
        return got.status, await got.json()


def test_the_desk_answers_as_placing_does_whatever_it_was_asked_before() -> None:
    found = list(chain.from_iterable(map(differences, range(fewer(60)))))
    assert [line for line in found if line] == []
    assert len(found) > fewer(300)


async def test_an_answer_is_that_of_the_command(http: ClientSession, capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[tuple[str, list[str], dict[str, Any]]] = [
        ("train.yaml", [], {}),
        ("pod.yaml", ["--max"], {"max": True}),
        ("pod.yaml", ["--count", "3", "--drain", "gpu-1"], {"count": 3, "drain": "gpu-1"}),
        ("pod.yaml", ["--max", "--without", "gpu-1"], {"max": True, "without": ["gpu-1"]}),
        (
            "pod.yaml",
            ["--max", "--add-nodes", str(FLEET.with_name("new-node.yaml"))],
            {"max": True, "addNodes": manifests("new-node.yaml")},
        ),
    ]
    async with serving() as address:
        for _ in range(2):  # what was asked before changes no answer
            for name, words, fields in cases:
                file = str(FLEET.with_name(name))
                main(["fit", "-f", file, "--from", str(FLEET), "-o", "json", *words])
                expected = json.loads(capsys.readouterr().out)
                question = {"manifests": manifests(name), "left": True, **fields}
                status, found = await asked(http, address, question)
                assert (status, found["answer"], found["notes"]) == (200, expected, []), words


async def test_errors_say_what_is_wrong(http: ClientSession) -> None:
    pod = manifests("pod.yaml")
    cases: list[tuple[Any, dict[str, str], int, str]] = [
        (b"{", {}, 400, "not a question: Input data was truncated"),
        ({"manifests": pod, "copies": 2}, {}, 400, "not a question: Object contains unknown field `copies`"),
        ({"manifests": pod, "count": 0}, {}, 400, "not a question: Expected `int` >= 1 - at `$.count`"),
        ({"manifests": pod, "count": 1001}, {}, 400, "the manifests ask for 1001 pods: expected 1 to 1000"),
        ({"manifests": pod, "count": 2, "max": True}, {}, 400, "count and max exclude each other: leave one out"),
        ({"manifests": [*pod, 5]}, {}, 400, f"manifests[{len(pod)}]: expected a Kubernetes object"),
        ({"manifests": []}, {}, 400, "the manifests hold no Pod"),
        ({"manifests": pod, "drain": "gpu-9"}, {}, 400, "there is no node gpu-9"),
        (b" " * (clerk.MOST_QUESTION_BYTES + 1), {}, 413, "a question has at most"),
        ({"manifests": pod}, {"Content-Type": "text/plain"}, 415, "send the question as"),
        ({"manifests": pod}, {"Origin": "http://evil.example.com"}, 403, "web pages may not ask"),
        ({"manifests": pod}, {"Host": "dra.example.com:80"}, 403, "this host is not served"),
    ]
    async with serving() as address:
        for question, headers, status, text in cases:
            found, answer = await asked(http, address, question, **headers)
            assert (found, answer["error"][: len(text)]) == (status, text)
        async with http.get(f"{address}/v1/other") as got:
            assert (got.status, await got.json()) == (404, {"error": "Not Found: POST a question to /v1/fit"})
        assert (await asked(http, address, {"manifests": pod}))[0] == 200


async def test_others_than_this_machine_need_the_token(http: ClientSession, tmp_path: Path) -> None:
    file, shortest = tmp_path / "token", "t" * server.SHORTEST_TOKEN_LETTERS
    for words, why in [
        (["--serve", "0.0.0.0:0"], "--serve 0.0.0.0: others can reach this address"),
        (["--serve", "0.0.0.0:0", "--token-file", str(file)], f"--token-file {file}: "),
        (["--serve", "8484"], "--serve 8484: expected HOST:PORT"),
        (["--serve", "127.0.0.1:65536"], "--serve 127.0.0.1:65536: expected HOST:PORT"),
        (["--serve", "gpu-1.example.com:0"], "--serve gpu-1.example.com: others can reach this address"),
        (["--serve", "0.0.0.0:0", "--token-file", str(tmp_path / "absent")], "No such file"),
    ]:
        for text in (shortest[1:], "é" * 40, "two\tparts" * 9):
            file.write_text(text)
            with pytest.raises(Problem, match=why):
                async with running(options(*words, "--from", str(FLEET))):
                    pass
    file.write_text(f"{shortest}\n")
    question = {"manifests": manifests("pod.yaml")}
    async with serving("--token-file", str(file)) as address:
        assert (await asked(http, address, question))[0] == 401
        assert (await asked(http, address, question, Authorization="Bearer other"))[0] == 401
        assert (await asked(http, address, question, Authorization=f"Bearer {shortest}"))[0] == 200
    assert address_of("127.0.0.1:65535") == ("127.0.0.1", 65_535)
    assert address_of("[::1]:80") == ("::1", 80)


async def test_an_address_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for option in ("--serve", "--serve-grpc"):
            with pytest.raises(Problem, match=f"cannot listen on {address}: .+; choose another address"):
                async with running(options(option, address, "--from", str(FLEET))):
                    pass


@pytest.mark.parametrize(
    ("reason", "status", "again"),
    [(AnswerTookTooLong, 504, None), (clerk.Busy, 503, "1"), (newest.Crowded, 503, "1")],
    ids=["too long", "busy", "crowded"],
)
async def test_why_there_is_no_answer_now_has_its_status(
    reason: type[Exception], status: int, again: str | None, http: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(*_: object) -> Reply:
        raise reason("for a reason")

    monkeypatch.setattr(clerk.Clerk, "answer", answer)
    async with serving() as address, http.post(f"{address}{FIT}", json={"manifests": []}) as got:
        assert (got.status, await got.json()) == (status, {"error": "for a reason"})
        assert got.headers.get("Retry-After") == again


async def test_a_question_that_does_not_arrive_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.05)
    async with serving() as address, asyncio.timeout(30):
        host, port = address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {FIT} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 9\r\n".encode())
        writer.write(b"Content-Type: application/json\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()


def test_an_answer_that_takes_too_long_ends_and_leaves_nothing_behind() -> None:
    clock = iter(range(1_000))
    desk = Desk(load(str(FLEET)), Settings(), 3.5, lambda: float(next(clock)))
    few, many = (Question(manifests=manifests("pod.yaml"), count=number) for number in (2, 9))
    before = desk.answer(few)
    with pytest.raises(AnswerTookTooLong, match=r"longer than 3\.5s: ask for fewer pods"):
        desk.answer(many)
    assert desk.answer(few) == before


async def test_who_asks_too_much_at_a_time_is_told_to_come_again(
    http: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clerk, "MOST_WAITING_QUESTIONS", 1)
    held, answer = threading.Event(), Desk.answer

    def answer_when_told(desk: Desk, question: Question) -> Reply:
        assert held.wait(60)
        return answer(desk, question)

    monkeypatch.setattr(Desk, "answer", answer_when_told)
    question = {"manifests": manifests("pod.yaml")}
    async with serving() as address:
        asking = [asyncio.create_task(asked(http, address, question)) for _ in range(3)]
        await becomes(lambda: sum(task.done() for task in asking) == 2)
        held.set()
        assert sorted(status for status, _ in await asyncio.gather(*asking)) == [200, 503, 503]
        assert (await asked(http, address, question))[0] == 200


async def test_an_old_view_is_read_again_first_and_not_used_if_that_fails(
    http: ClientSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(newest, "READ_SECONDS", 0.0)
    monkeypatch.setattr(newest, "OLDEST_SECONDS", 0.0)
    kubeconfig = tmp_path / "kubeconfig"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "web"}]}}
    async with AsyncExitStack() as stack:
        api_server = await stack.enter_async_context(DevApiServer())
        api_server.write_kubeconfig(kubeconfig)
        words = ["--serve", "127.0.0.1:0", "--kubeconfig", str(kubeconfig), "--request-timeout", "30s"]
        async with running(options(*words)) as address:
            status, found = await asked(http, address, {"manifests": [pod]})
            assert (status, found["answer"]["fits"]) == (200, False)
            async with Api(connection(str(kubeconfig))) as api:
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "one"}}
                await api.create(NODES, node | {"status": {"allocatable": {"cpu": "4", "pods": "10"}}})

            async def fits() -> bool:
                _, found = await asked(http, address, {"manifests": [pod]})
                return bool(found["answer"]["fits"])

            await until("the view has the new node", fits)
            await stack.aclose()

            async def has_failed() -> bool:
                status, found = await asked(http, address, {"manifests": [pod]})
                return status == 503 and "the cluster could not be read" in found["error"]

            await until("the service says that it cannot read", has_failed)
            async with http.get(f"{address}/healthz") as got:
                assert got.status == 503


def test_a_question_uses_up_no_quota() -> None:
    seen = load(str(FLEET))
    used = sum(claim.metadata.namespace == "ml" for claim in seen.every(ResourceClaim))
    hard = {"count/resourceclaims.resource.k8s.io": str(used + 2)}
    quota = convert(ResourceQuota, {"metadata": {"name": "few", "namespace": "ml"}, "spec": {"hard": hard}})
    desk = Desk(replace(seen, objects=[*seen.objects, quota]), Settings())
    for name in ("a", "b", "c"):
        pod = manifests("pod.yaml")[0] | {"metadata": {"name": name}}
        pods = desk.answer(Question(manifests=[pod], count=3)).answer.pods
        assert [bool(pod.node) for pod in pods] == [True, True, False]
        assert "exceeded quota: few" in pods[2].reason


async def test_a_token_that_is_no_text_is_refused_as_any_other(http: ClientSession, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    async with serving("--token-file", str(file)) as address:
        host, port = address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {FIT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode())
        writer.write(b"Authorization: \xff\xfe\r\nContent-Length: 0\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.close()


@pytest.mark.parametrize("spec", [{}, {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "shared"}}]}])
def test_taking_back_pods_takes_time_that_grows_with_their_number_only(spec: dict[str, Any]) -> None:
    """Each change named all pods that were placed: ten thousand took 48 s."""
    seconds = {}
    for number in (400, 1600):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web"},
            "spec": {"schedulerName": "dra-scheduler", "containers": [{"name": "web"}], **spec},
        }
        seen = load(str(FLEET))
        node = {"metadata": {"name": "large", "uid": "large"}, "status": {"allocatable": {"cpu": "1", "pods": "9999"}}}
        volume = {"metadata": {"name": "shared", "namespace": "ml", "uid": "v"}, "spec": {"volumeName": "v"}}
        made = pipeline(replace(seen, objects=[*seen.objects, convert(Node, node)]))
        overlay = Overlay(made)
        made.cluster.apply(convert(PersistentVolumeClaim, volume))
        source = Copies(Question(manifests=[pod]).wanted("ml"), made.cluster)
        for _ in range(number):
            for copy in source.copy():
                overlay.place(copy)
        began = time.thread_time()
        overlay.undo(0)
        seconds[number] = time.thread_time() - began
    assert seconds[1600] < 9 * seconds[400], "16 times as long if it grows with the square"


async def test_a_question_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def answer_without_end(desk: Desk, _: Question) -> Reply:
        desk._due = math.inf
        begun.set()
        try:
            while True:
                desk._pause()
        finally:
            ended.set()

    monkeypatch.setattr(Desk, "answer", answer_without_end)
    async with serving() as address:
        async with ClientSession() as http:
            asking = asyncio.create_task(asked(http, address, {"manifests": manifests("pod.yaml")}))
            await asyncio.to_thread(begun.wait)
            asking.cancel()
            await asyncio.wait((asking,))
        async with asyncio.timeout(30):
            await asyncio.to_thread(ended.wait)


async def test_the_limit_counts_for_all_that_an_answer_takes() -> None:
    """Not for placing pods alone: also for other nodes, and for what is left."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    for fields in ({"without": ["gpu-1"]}, {"left": True}, {"drain": "gpu-1"}):
        desk = Desk(load(str(FLEET)), Settings(), 2.0, clock)
        with pytest.raises(AnswerTookTooLong):
            desk.answer(convert(Question, {"manifests": manifests("pod.yaml"), **fields}))


async def in_line(line: newest.QuestionLine, client: str, size: int, said: list[str], most: int = 64) -> None:
    async with line.turn(client, size, most):
        said.append(f"{client} {size}")


async def test_next_in_line_is_the_client_that_used_least_and_its_smallest_question() -> None:
    now = 0.0
    line, said = newest.QuestionLine(lambda: now), list[str]()
    async with asyncio.TaskGroup() as group:
        async with line.turn("many", 1, 64):
            for client, size in [("many", 900), ("many", 2), ("many", 900), ("few", 900), ("few", 3)]:
                group.create_task(in_line(line, client, size, said))
            await asyncio.sleep(0)
            now += 5.0
    assert said == ["few 3", "few 900", "many 2", "many 900", "many 900"]


async def test_where_too_many_are_in_line_the_one_that_would_be_last_is_refused() -> None:
    line, said = newest.QuestionLine(), list[str]()
    async with line.turn("a", 1, 3):
        large = [asyncio.create_task(in_line(line, "a", size, said, 3)) for size in (900, 10_000)]
        await asyncio.sleep(0)
        small = asyncio.create_task(in_line(line, "a", 1, said, 3))
        with pytest.raises(newest.Crowded, match="3 questions wait: ask again"):
            await in_line(line, "a", 10_000, said, 3)
        with pytest.raises(newest.Crowded):
            await large[1]
        large[0].cancel()
    await small
    assert said == ["a 1"]
    async with asyncio.timeout(5):
        await in_line(line, "a", 7, said)


async def test_a_client_that_goes_at_the_moment_of_its_turn_stops_nobody() -> None:
    """To call its question failed: the client before it got 500, and nobody after it a turn."""
    line, said = newest.QuestionLine(), list[str]()
    async with asyncio.timeout(5):
        async with line.turn("a", 1, 64):
            gone = asyncio.create_task(in_line(line, "b", 1, said))
            stays = asyncio.create_task(in_line(line, "c", 1, said))
            await asyncio.sleep(0)
            gone.cancel()
        await stays
        async with line.turn("a", 1, 64):
            gone = asyncio.create_task(in_line(line, "b", 9, said))
            await asyncio.sleep(0)
            gone.cancel()
            small = asyncio.create_task(in_line(line, "c", 2, said, 2))  # which finds room, since "b" has gone
            await asyncio.sleep(0)
        await small
    assert said == ["c 1", "c 2"]


async def test_it_says_where_a_token_crosses_the_network_unencrypted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    words = ["--serve", "0.0.0.0:0", "--token-file", str(file), "--from", str(FLEET)]
    async with running(options(*words)):
        assert (
            "--serve 0.0.0.0: the token, questions and answers cross the network in the clear"
            in capsys.readouterr().err
        )
    certificate, key = Authority.make("authority").files(tmp_path, "127.0.0.1")
    async with running(options(*words, "--tls-cert", str(certificate), "--tls-key", str(key))) as address:
        assert address.startswith("https://")
        assert capsys.readouterr().err == ""
    for one in (["--tls-cert", str(certificate)], ["--tls-cert", str(key), "--tls-key", str(key)]):
        with pytest.raises(Problem, match="--tls-cert"):
            async with running(options(*words, *one)):
                pass


async def test_a_renewed_certificate_is_taken_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server, "RENEWAL_LOOK_SECONDS", 0.02)
    looks, changes = list[list[float]](), server.Certificate._changes

    def looked(it: server.Certificate) -> list[float]:
        looks.append(changes(it))
        return looks[-1]

    monkeypatch.setattr(server.Certificate, "_changes", looked)
    certificate, key = Authority.make("first").files(tmp_path, "127.0.0.1")
    async with serving("--tls-cert", str(certificate), "--tls-key", str(key)) as address:
        certificate.unlink()  # a moment without the file changes nothing
        await becomes(lambda: looks[-2:] == [[], []])
        second = Authority.make("second")
        second.files(tmp_path, "127.0.0.1")
        os.utime(key, (1, 1))
        context = ssl.create_default_context(cadata=second.pem.decode())

        async def is_trusted() -> bool:
            async with ClientSession(connector=TCPConnector(ssl=context)) as http:
                try:
                    async with http.get(f"{address}/healthz") as got:
                        return got.status == 200
                except ClientConnectorCertificateError:
                    return False

        await until("the new certificate serves", is_trusted)
