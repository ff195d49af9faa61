"""Whatever a busy or lying API server does, a command ends soon, in words that name the request and what helps."""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from dra_api.core import Pod
from dra_api.meta import ObjectMeta
from dra_operator.kubectl import live, serving
from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.cli import parser
from dra_operator.kubectl.live import KINDS, read_server
from dra_operator.kubectl.observed import Observed, notes_on
from dra_operator.kubectl.why.answer import answer
from waiting import becomes

Answer = Callable[[web.Request], web.StreamResponse | None]
"""What it answers in place of the right answer; None for the right one."""
Asked = list[str]


@pytest.fixture
async def reading() -> AsyncIterator[Callable[[Answer], Asked]]:
    """Yield a function that lets the server answer so. Its result has the paths that were asked for."""
    state: list[Answer] = []
    asked: Asked = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append(request.path_qs)
        return state[-1](request) or _right(request.path)

    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    server = TestServer(app)
    await server.start_server()

    def begin(answer: Answer) -> Asked:
        state.append(answer)
        return asked

    url.append(str(server.make_url("")).rstrip("/"))
    yield begin
    await server.close()
    url.clear()


url: list[str] = []


def _right(path: str) -> web.Response:
    if path == "/version":
        return web.json_response({"major": "1", "minor": "36"})
    if path.count("/") == 3 and path.startswith("/apis/"):
        return web.json_response({"resources": [{"name": kind.plural} for kind in KINDS]})
    items = [{"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}] if path.endswith("/pods") else []
    return web.json_response({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})


def status(code: int, reason: str, message: str, **headers: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code, headers=headers)


async def read(*words: str) -> Observed:
    options = parser().parse_args(["why", "-A", "-s", url[0], "--token", "t", "--request-timeout", "3s", *words])
    return await asyncio.to_thread(partial(read_server, options))


def pods(request: web.Request, answer: Callable[[], web.StreamResponse]) -> web.StreamResponse | None:
    return answer() if request.path == "/api/v1/pods" else None


def a_page_of_pods(request: web.Request, token: str, names: list[str]) -> web.Response:
    items = [{"metadata": {"name": name, "namespace": "ns", "uid": name}} for name in names]
    return web.json_response(
        {"kind": "PodList", "metadata": {"resourceVersion": "1", "continue": token}, "items": items}
    )


def expiring(request: web.Request) -> web.StreamResponse | None:
    if "continue" in request.query:
        return status(410, "Expired", "too old")
    return pods(request, lambda: a_page_of_pods(request, "next", ["a"]))


def endless(request: web.Request) -> web.StreamResponse | None:
    token = int(request.query.get("continue", "0"))
    return pods(request, lambda: a_page_of_pods(request, str(token + 1), []))


LIST = "GET {url}/api/v1/pods"
REFUSED: dict[str, tuple[Answer, str]] = {
    "busy without a time": (
        lambda it: pods(it, lambda: status(429, "TooManyRequests", "busy")),
        f"the API server has too much to do: {LIST}: busy; try again later",
    ),
    "busy for a day": (
        lambda it: pods(it, lambda: status(429, "TooManyRequests", "busy", **{"Retry-After": "86400"})),
        f"the API server has too much to do: {LIST}: busy; try again later",
    ),
    "busy without end": (
        lambda it: pods(it, lambda: status(429, "TooManyRequests", "busy", **{"Retry-After": "1"})),
        f"the API server has too much to do: {LIST}: busy; try again later",
    ),
    "broken": (
        lambda it: pods(it, lambda: status(500, "InternalError", "etcd is gone")),
        f"the API server has failed: {LIST}: etcd is gone; try again later, and look into its log",
    ),
    "forbids to ask for its version": (
        lambda it: status(403, "Forbidden", "forbidden: no") if it.path == "/version" else None,
        "the API server refuses GET {url}/version: forbidden: no",
    ),
    "not credentials": (
        lambda _: status(401, "Unauthorized", "Unauthorized"),
        "the API server refuses the credentials: GET {url}/version: Unauthorized; renew them in the kubeconfig",
    ),
    "forgets the version of a list": (
        expiring,
        f"the API server keeps no version for so long as the list takes: {LIST}: too old; try again",
    ),
    "sends empty pages": (
        endless,
        "the API server cannot be used: /api/v1/pods: the list never ends: the API server answers with empty pages",
    ),
    "tells its version by a list": (
        lambda it: web.json_response([]) if it.path == "/version" else None,
        "the API server cannot be used: {url}/version is not an API server: the answer is no object",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_refusal_names_the_request_and_what_helps(reading: Callable[[Answer], Asked], what: str) -> None:
    answer, said = REFUSED[what]
    asked = reading(answer)
    async with asyncio.timeout(10):
        with pytest.raises(Problem, match=re.escape(said.format(url=url[0]))):
            await read()
    assert len(asked) < 250


async def test_a_server_that_is_busy_longer_than_its_version_is_waited_for_is_told_as_busy(
    reading: Callable[[Answer], Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as one that does not answer."""
    monkeypatch.setattr(live, "VERSION_SECONDS", 1.5)
    reading(lambda _: status(429, "TooManyRequests", "busy", **{"Retry-After": "1"}))
    with pytest.raises(Problem, match=r"the API server has too much to do: GET .*/version: busy; try again later"):
        await read("--request-timeout", "10s")


async def test_a_busy_server_is_asked_again_when_it_wishes(reading: Callable[[Answer], Asked]) -> None:
    """Priority and fairness of Kubernetes answers 429 with Retry-After: 1; a command of forty reads failed with one."""

    def busy(request: web.Request) -> web.StreamResponse | None:
        is_first = request.path in ("/version", "/api/v1/pods") and asked.count(request.path_qs) == 1
        return status(429, "TooManyRequests", "busy", **{"Retry-After": "1"}) if is_first else None

    asked = reading(busy)
    seen = await read("--request-timeout", "10s")
    assert [it.metadata for it in seen.every(Pod)] == [ObjectMeta(name="p", namespace="ns", uid="u")]
    assert seen.unseen == {}


@pytest.mark.parametrize("words", [["ui"], ["fit", "--serve", "127.0.0.1:0"]], ids=["ui", "fit"])
async def test_a_server_that_waits_for_its_first_read_ends_at_ctrl_c(words: list[str]) -> None:
    """It ended when the API server had answered, or the time of the request was over."""
    came, gone = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        came.set()
        await gone.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        command = [sys.executable, "-m", "dra_operator.kubectl.cli", *words, "-s", address, "--token", "t"]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(30):
                await came.wait()
                process.send_signal(signal.SIGINT)
                _, error = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
            gone.set()
    assert (process.returncode, error) == (0, b"")


async def test_a_view_that_is_being_read_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over, begun = threading.Event(), threading.Event()

    def read_slowly(_: argparse.Namespace) -> Observed:
        begun.set()
        assert is_over.wait(30)
        raise Problem("too late")

    monkeypatch.setattr(serving, "read", read_slowly)
    newest = serving.NewestView(argparse.Namespace(source=None), lambda seen: seen)
    newest.renew()
    await becomes(begun.is_set)
    try:
        async with asyncio.timeout(10):
            await newest.stop()
    finally:
        is_over.set()


async def test_a_kind_that_a_server_lacks_is_told_and_the_others_are_read(reading: Callable[[Answer], Asked]) -> None:
    lacking = ("/apis/policy/v1/poddisruptionbudgets", "/apis/storage.k8s.io/v1/csidrivers")
    reading(lambda it: web.Response(status=404, text="404 page not found") if it.path in lacking else None)
    seen = await read()
    assert seen.unseen == {
        "poddisruptionbudgets.policy": "404 page not found",
        "csidrivers.storage.k8s.io": "404 page not found",
    }
    assert len(seen.every(Pod)) == 1


async def test_what_is_forbidden_or_malformed_is_told_in_few_lines(reading: Callable[[Answer], Asked]) -> None:
    """Whether a pod fits depends on rules and volumes as well; and a tenant may have ten thousand malformed pods."""
    hidden = ("devicetaintrules", "persistentvolumes", "persistentvolumeclaims", "csinodes", "events")

    def poor(request: web.Request) -> web.StreamResponse | None:
        kind = request.path.rpartition("/")[2]
        if kind in hidden:
            return status(403, "Forbidden", f'{kind} is forbidden: User "u" cannot list it')
        items = [{"metadata": {"name": f"p{it:03d}", "namespace": "ns"}, "spec": 1} for it in range(100)]
        page = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items}
        return pods(request, lambda: web.json_response(page))

    reading(poor)
    seen = await read()
    [others, *malformed] = notes_on(seen)
    assert others == (
        "incomplete: you may not list csinodes.storage.k8s.io, devicetaintrules.resource.k8s.io, events and 2 more"
    )
    assert malformed[0].startswith("left out, malformed: Pod ns/p000: ")
    assert malformed[20:] == ["left out, malformed: 80 more objects"]
    told = answer(seen, parser().parse_args(["why", "-A"])).notes
    assert [it for it in told if it.startswith(("incomplete", "left"))] == [*malformed, others]
