"""Who follows a kind has in the end what the server has, whatever happens to its lists and watches."""

from __future__ import annotations

import asyncio
import math
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from dra_api.meta import ObjectVersion
from dra_kube import (
    PODS,
    Api,
    Change,
    Connection,
    Forbidden,
    Gone,
    NotFound,
    NotServed,
    Pauses,
    Reflector,
    Resource,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from dra_kube import reflector as module
from history_kit.clock import in_no_time
from hypothesis import given
from hypothesis import strategies as st
from waiting import becomes

Obj = dict[str, Any]
END: Final = "the server ends the watch"
LOST: Final = Unreachable("the connection broke")


def pod(name: str, uid: str, version: int) -> Obj:
    meta = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta}


@dataclass
class Server:
    """An API server with pods. ``faults``: what the next lists and watches do before anything else."""

    version: int = 10
    pods: dict[str, Obj] = field(default_factory=dict)
    history: list[tuple[int, str, Obj]] = field(default_factory=list)
    oldest: int = 0
    faults: dict[str, list[Exception]] = field(default_factory=dict)
    asked: list[tuple[str, float]] = field(default_factory=list)
    forgotten: int = 0
    queues: list[asyncio.Queue[Any]] = field(default_factory=list)

    def write(self, name: str, uid: str = "") -> None:
        self.version += 1
        kind = "MODIFIED" if name in self.pods else "ADDED"
        known = self.pods.get(name)
        uid = uid or (known["metadata"]["uid"] if known else f"{name}-{self.version}")
        self._happen(kind, pod(name, uid, self.version))
        self.pods[name] = pod(name, uid, self.version)

    def delete(self, name: str) -> None:
        if name in self.pods:
            self.version += 1
            self._happen("DELETED", pod(name, self.pods.pop(name)["metadata"]["uid"], self.version))

    def expire(self) -> None:
        """The server forgets what happened before."""
        self.oldest = self.version
        self.history.clear()

    def break_watches(self, how: object = LOST) -> None:
        for queue in self.queues:
            queue.put_nowait(how)

    def _happen(self, kind: str, obj: Obj) -> None:
        self.history.append((self.version, kind, obj))
        for queue in self.queues:
            queue.put_nowait((kind, obj))

    def _ask(self, verb: str) -> None:
        self.asked.append((verb, asyncio.get_running_loop().time()))
        if self.faults.get(verb):
            raise self.faults[verb].pop(0).with_traceback(None)

    # --- as dra_kube.Api ---

    async def listed(self, resource: Resource, *_: object, **__: object) -> AsyncIterator[tuple[list[Change], str]]:
        self._ask("list")
        await asyncio.sleep(0.001)
        version, found = str(self.version), list(self.pods.values())
        for obj in found:
            yield [Change.of("LISTED", obj, resource)], version
            await asyncio.sleep(0.001)
        yield [], version

    async def changes(
        self, resource: Resource, *_: object, resource_version: str, **__: object
    ) -> AsyncIterator[list[Change]]:
        self._ask("watch")
        if int(resource_version) < self.oldest:
            raise Gone(410, "Expired", "too old")
        queue: asyncio.Queue[Any] = asyncio.Queue()
        for version, kind, obj in self.history:
            if version > int(resource_version):
                queue.put_nowait((kind, obj))
        self.queues.append(queue)
        try:
            yield []
            while (item := await queue.get()) != END:
                if isinstance(item, Exception):
                    raise item.with_traceback(None)
                yield [Change.of(item[0], item[1], resource)]
        finally:
            self.queues.remove(queue)

    def forget(self, _: Resource) -> None:
        self.forgotten += 1


class Mirror:
    """What a follower has, built from what it is told alone."""

    def __init__(self, server: Server, **options: Any) -> None:
        self.pods: dict[str, ObjectVersion] = {}
        self.lists: list[str] = []
        self.failures: list[Exception] = []
        self.reflector = Reflector(
            cast(Api, server),
            PODS,
            self.receive,
            knows=lambda: list(self.pods.values()),
            listed=self.listed,
            failed=self.failures.append,
            **options,
        )

    async def receive(self, change: Change) -> None:
        version = change.version
        if not change.is_end:
            self.pods[version.key] = version
        elif (known := self.pods.get(version.key)) is not None and known.uid == version.uid:
            del self.pods[version.key]

    async def listed(self, version: str) -> None:
        self.lists.append(version)

    def sees(self) -> bool:
        return self.reflector.stream.sees(asyncio.get_running_loop().time())

    def problem(self, silence: float = 90.0) -> str:
        return self.reflector.stream.problem(asyncio.get_running_loop().time(), gap=10.0, silence=silence)

    def shows(self, server: Server) -> bool:
        return self.pods == {f"ns/{name}": Change.of("", obj, PODS).version for name, obj in server.pods.items()}


def play(story: Callable[[], Coroutine[None, None, None]]) -> None:
    """Whenever all wait, it is later at once."""
    in_no_time(story, "dra_kube", (), lambda _: True)


STEPS = st.one_of(
    st.tuples(st.sampled_from(["write", "delete", "replace"]), st.sampled_from("abc")),
    st.tuples(st.sampled_from(["expire", "break", "end", "refuse", "vanish", "later", "pause"]), st.just("")),
)


@given(st.lists(STEPS, max_size=25), st.booleans())
def test_whatever_happens_the_follower_has_in_the_end_what_the_server_has(
    steps: list[tuple[str, str]], begins_late: bool
) -> None:
    async def story() -> None:
        server = Server()
        server.write("a")
        mirror = Mirror(server)
        task = asyncio.create_task(mirror.reflector.run())
        await asyncio.sleep(0.0 if begins_late else 1.0)
        for what, name in steps:
            match what:
                case "write":
                    server.write(name)
                case "delete":
                    server.delete(name)
                case "replace":
                    server.delete(name)
                    server.write(name)
                case "expire":
                    server.expire()
                case "break":
                    server.break_watches()
                case "end":
                    server.break_watches(END)
                case "refuse":
                    server.faults = {verb: [Forbidden(403, "Forbidden", "no")] for verb in ("list", "watch")}
                    server.break_watches()
                case "vanish":
                    server.faults = {"list": [NotServed("no")], "watch": [NotFound(404, "", "no")]}
                    server.break_watches(ServerError(500, "", "an ERROR in the stream"))
                case "later":
                    await asyncio.sleep(0.002)
                case "pause":
                    await asyncio.sleep(20.0)
        server.break_watches(END)
        await asyncio.sleep(100.0)
        assert mirror.shows(server), (mirror.pods, server.pods)
        assert mirror.sees()
        assert not mirror.problem(silence=math.inf)
        task.cancel()

    play(story)


@pytest.mark.parametrize(
    ("error", "lists"),
    [
        (END, 1),
        (LOST, 1),
        (Forbidden(403, "Forbidden", "no"), 1),
        (ServerError(500, "", "in the stream"), 1),
        (TooManyRequests(429, "", "later"), 1),
        (Gone(410, "Expired", "too old"), 2),
        (ServerError(504, "Timeout", "Too large resource version"), 2),
        (NotFound(404, "", "the server could not find the requested resource"), 2),
        (ValueError("a bug"), 2),
    ],
    ids=str,
)
def test_only_what_loses_the_version_costs_another_list(error: object, lists: int) -> None:
    async def story() -> None:
        server = Server()
        server.write("a")
        mirror = Mirror(server)
        task = asyncio.create_task(mirror.reflector.run())
        await asyncio.sleep(1.0)
        server.break_watches(error)
        await asyncio.sleep(0.01)
        assert not mirror.sees()
        server.delete("a")
        server.write("b")
        await asyncio.sleep(5.0)
        assert len(mirror.lists) == lists
        assert mirror.shows(server)
        assert server.forgotten == isinstance(error, NotFound)
        assert list(map(str, mirror.failures)) == ([str(error)] if isinstance(error, Exception) else [])
        task.cancel()

    play(story)


def test_what_a_write_of_the_follower_brought_after_the_list_is_not_taken_for_deleted() -> None:
    async def story() -> None:
        server = Server()
        mirror = Mirror(server)
        for number in range(5):
            server.write(f"p{number}")
        task = asyncio.create_task(mirror.reflector.run())
        await asyncio.sleep(0.003)  # in the middle of the list
        server.write("own")
        mirror.pods["ns/own"] = Change.of("", server.pods["own"], PODS).version
        mirror.pods["ns/old"] = ObjectVersion("old", "old", "3", "ns")
        mirror.pods["ns/opaque"] = ObjectVersion("opaque", "opaque", "a-version", "ns")
        await asyncio.sleep(0.5)
        assert {"ns/own", "ns/opaque"} == mirror.pods.keys() - {f"ns/p{number}" for number in range(5)}
        task.cancel()

    play(story)


def test_attempts_that_bring_nothing_come_at_growing_intervals_until_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "spread", lambda seconds: seconds)

    async def story() -> None:
        server = Server()
        server.faults = {"list": [LOST] * 9, "watch": [Unreachable("a page of a proxy")] * 4}
        mirror = Mirror(server, pauses=Pauses(0.1, 5.0))
        task = asyncio.create_task(mirror.reflector.run())
        await asyncio.sleep(60.0)
        gaps = [round(later - at, 1) for (_, at), (_, later) in zip(server.asked, server.asked[1:], strict=False)]
        assert gaps[:9] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
        assert gaps[9:14] == [0.0, 0.1, 0.2, 0.4, 0.8]  # the list brought something
        server.break_watches(END)
        await asyncio.sleep(10.0)
        assert len(server.asked) == 16
        server.faults["watch"] = [TooManyRequests(429, "", "later", {"retryAfterSeconds": 7})]
        server.break_watches()
        await asyncio.sleep(20.0)
        assert round(server.asked[-1][1] - server.asked[-2][1], 1) == 7.0
        task.cancel()

    play(story)


def test_a_server_that_ends_every_watch_at_once_is_not_asked_all_the_time() -> None:
    async def story() -> None:
        server = Server()
        mirror = Mirror(server)
        task = asyncio.create_task(mirror.reflector.run())

        async def end() -> None:
            while True:
                await asyncio.sleep(0.001)
                server.break_watches(END)

        ending = asyncio.create_task(end())
        await asyncio.sleep(60.0)
        assert len(server.asked) < 20
        assert not mirror.failures
        for one in (task, ending):
            one.cancel()

    play(story)


def test_probes_hear_why_nothing_is_seen() -> None:
    async def story() -> None:
        server = Server()
        server.faults["list"] = [Forbidden(403, "Forbidden", "pods is forbidden")]
        mirror = Mirror(server, pauses=Pauses(20.0, 20.0))
        assert mirror.problem() == "not watched yet"
        task = asyncio.create_task(mirror.reflector.run())
        await asyncio.sleep(1.0)
        assert mirror.problem() == "not watched yet: LIST answered 403: pods is forbidden"
        await asyncio.sleep(30.0)
        assert (mirror.problem(), mirror.sees()) == ("", True)
        await asyncio.sleep(100.0)
        assert mirror.problem().startswith("silent for 1")
        server.faults["watch"] = [LOST]
        server.break_watches()
        await asyncio.sleep(1.0)
        assert (mirror.problem(), mirror.sees()) == ("", False)
        await asyncio.sleep(12.0)
        assert mirror.problem() == "not watched for 13 s: WATCH failed: the connection broke"
        await asyncio.sleep(60.0)
        assert (mirror.problem(), mirror.sees()) == ("", True)
        task.cancel()

    play(story)


def test_an_object_that_cannot_be_taken_in_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        server = Server()
        seen: list[str] = []

        async def receive(change: Change) -> None:
            if change.version.name == "odd":
                raise KeyError("a bug")
            seen.append(change.version.name)

        follower = Reflector(cast(Api, server), PODS, receive)
        server.write("odd")
        server.write("a")
        task = asyncio.create_task(follower.run())
        await asyncio.sleep(1.0)
        server.write("odd")
        server.write("b")
        await asyncio.sleep(1.0)
        assert seen == ["a", "b"]
        assert follower.stream.sees(asyncio.get_running_loop().time())
        task.cancel()

    play(story)
    assert [record.message for record in caplog.records] == [
        f"Pod ns/odd of resourceVersion {version} was not taken in whole" for version in (11, 13)
    ]


def test_others_have_their_turn_while_a_burst_is_taken_in() -> None:
    async def story() -> None:
        server = Server()
        turns: list[int] = []
        seen: list[str] = []

        async def receive(change: Change) -> None:
            seen.append(change.version.name)

        async def batch(*_: object, **__: object) -> AsyncIterator[list[Change]]:
            big = [pod(f"p{number}", "u", number) | {"spec": "x" * 10_000} for number in range(100)]
            yield [Change.of("ADDED", obj, PODS) for obj in big]
            await asyncio.Event().wait()

        async def other() -> None:
            while len(seen) < 100:
                turns.append(len(seen))
                await asyncio.sleep(0)

        server.changes = batch  # type: ignore[method-assign]
        task = asyncio.create_task(Reflector(cast(Api, server), PODS, receive, since="5").run())
        await other()
        assert len(set(turns)) > 10
        task.cancel()

    play(story)


async def test_a_silent_stream_is_given_up_and_the_next_one_goes_on_where_it_was() -> None:
    """Over HTTP. What came whole before the silence counts, what was cut off does not."""
    asked: list[str] = []
    line = b'{"type":"ADDED","object":{"kind":"Pod","metadata":{"name":"p%d","uid":"u","resourceVersion":"%d"}}}\n'

    async def watch(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": []})
        asked.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        number = 6 + len(asked)
        await response.write(line % (number, number))
        await response.write(line[:40])
        await asyncio.sleep(30)
        return response

    app = web.Application()
    app.router.add_get("/api/v1/pods", watch)
    server = TestServer(app)
    await server.start_server()
    seen: list[str] = []

    async def receive(change: Change) -> None:
        seen.append(change.version.name)

    async with Api(Connection(str(server.make_url("")).rstrip("/"), None, lambda: None)) as api:
        follower = Reflector(api, PODS, receive, silence=0.2)
        task = asyncio.create_task(follower.run())
        await becomes(lambda: len(asked) >= 3)
        task.cancel()
        await asyncio.wait([task])
    await server.close()
    assert asked[:3] == ["5", "7", "8"]
    assert seen[:2] == ["p7", "p8"]


async def test_a_watch_that_waits_does_not_hold_its_last_burst() -> None:
    """An operator has two dozen watches, and each had the last 0.2 MB four times, as text, lines, events and heads."""
    line = b'{"type":"ADDED","object":{"kind":"Pod","metadata":{"name":"p","uid":"u","labels":{"a":"%s"}}}}\n'
    burst, count = b"".join(line % (b"x" * 20_000) for _ in range(40)), 0

    async def send(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(burst)
        await asyncio.sleep(60)
        return response

    async def receive(_: Change) -> None:
        nonlocal count
        count += 1

    app = web.Application()
    app.router.add_get("/api/v1/pods", send)
    server = TestServer(app)
    await server.start_server()
    async with Api(Connection(str(server.make_url("")).rstrip("/"), None, lambda: None)) as api:
        tracemalloc.start()
        try:
            task = asyncio.create_task(Reflector(api, PODS, receive, since="1").run())
            await becomes(lambda: count == 40)
            await asyncio.sleep(0.05)
            held = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/dra_kube/*")])
        finally:
            tracemalloc.stop()
        task.cancel()
        await asyncio.wait([task])
    await server.close()
    assert sum(trace.size for trace in held.traces) < 20_000
