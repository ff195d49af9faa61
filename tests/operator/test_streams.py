"""A kind that is not heard makes the operator unready, and a Kopf that left one is replaced."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from dra_devcluster.apiserver.verbs import watch
from dra_kube import NODES, PODS, RESOURCE_CLAIMS, Resource
from dra_operator.app import supervisor
from dra_operator.app.operator import Options
from dra_operator.sources.stream_log import StreamLog
from dra_operator.sources.streams import CATCH_UP_SECONDS, Limits, Stream, Streams
from faults import DropEvents, FaultProxy, Refuse, Target, Unserved
from live_cluster import LiveCluster
from supervised import QUICK, Site, Supervising
from waiting import becomes, until

PODS_PATH = "/api/v1/pods"


def target(verb: str, resource: str = "pods") -> Target:
    return Target(client="kopf", verbs=(verb,), resource=resource)


async def test_kopf_that_may_not_list_a_kind_makes_the_operator_unready(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising
) -> None:
    await cluster.furnish()
    with proxy.suffering(Refuse(target("list"), code=403, message="pods is forbidden")):
        async with supervising() as site:
            await site.unready("pods: not watched yet: LIST answered 403: pods is forbidden")
            assert site.is_live()
            assert "nodes" not in await told_when_others_are_watched(site)


async def told_when_others_are_watched(site: Site) -> str:
    await site.unready("pods")
    async with asyncio.timeout(20):
        while len(site.obstacles().splitlines()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return str(site.obstacles())


async def test_kopf_that_may_no_longer_watch_a_kind_makes_the_operator_unready_until_it_may(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising
) -> None:
    await cluster.furnish(template=True)
    async with supervising(Options(check_invariants=True, limits=replace(QUICK, idle=60.0))) as site:
        await site.ready()
        with proxy.suffering(Refuse(target("watch"), code=403, message="pods is forbidden")):
            proxy.break_streams("pods")
            await site.unready("pods: not watched for", "WATCH answered 403: pods is forbidden")
            assert not site.operator.streams.sees(PODS)
            assert site.metric("dra_operator_stream_age_seconds", resource="pods") > 0.5
            await cluster.add_pod("pod")
        await site.ready()
        await cluster.bound("pod")
        await becomes(lambda: site.operator.streams.sees(PODS))
        assert site.metric("dra_operator_kopf_restarts_total", reason="failure") == 0


async def test_bookmarks_keep_an_idle_watch_fresh_and_their_absence_does_not(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "BOOKMARK_SECONDS", 0.1)
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        (_, stream) = next(site.operator.streams.of_path(PODS_PATH))
        opened = stream.watch
        for _ in range(3):
            life = stream.life
            await becomes(lambda life=life: stream.life > life)  # type: ignore[misc]
        assert stream.watch is opened
        monkeypatch.setattr(stream, "_limits", Limits(silence=1.0))  # only now: a busy machine is as silent at times
        with proxy.suffering(DropEvents(target("watch"))):
            await site.unready("pods: silent for")


async def test_an_api_of_others_whose_server_is_down_holds_nothing_up(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising
) -> None:
    """As every aggregated API may be: discovery lists its group and answers 503 for its version."""
    await cluster.furnish(template=True)
    with proxy.suffering(Refuse(Target(resource="/apis/networking.k8s.io/v1"), code=503)):
        async with supervising() as site:
            await site.ready(30)
            await cluster.place("pod")


@pytest.mark.parametrize("resource", ["pods", "resourceslices"])
async def test_kopf_is_replaced_after_a_watch_was_answered_410_as_http_status(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising, resource: str
) -> None:
    await cluster.furnish(template=True)
    async with supervising() as site:
        await site.ready()
        with proxy.suffering(Refuse(target("watch", resource), code=410, count=1)):
            proxy.break_streams(resource)
            await becomes(lambda: any(entry.code == 410 for entry in proxy.journal.entries))
        await becomes(lambda: site.metric("dra_operator_kopf_restarts_total", reason="failure") > 0)
        await cluster.place("pod")
        await site.ready()


async def test_kopf_is_replaced_when_the_task_that_watches_a_kind_is_gone(
    cluster: LiveCluster, supervising: Supervising
) -> None:
    await cluster.furnish(template=True)
    async with supervising() as site:
        await site.ready()
        (watcher,) = (task for task in asyncio.all_tasks() if task.get_name().startswith("watcher for pods"))
        watcher.cancel()  # as an inactivity timeout does that strikes outside of the stream
        await site.unready("pods")
        await cluster.place("pod")
        await site.ready()


async def test_a_pod_is_bound_at_once_only_if_pods_and_claims_of_others_are_seen(
    cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.furnish(template=True)
    asked: set[Resource] = set()

    def sees(_: Streams, resource: Resource) -> bool:
        asked.add(resource)
        return True

    async with supervising() as site:
        await site.ready()
        monkeypatch.setattr(Streams, "sees", sees)
        await cluster.place("pod")
    assert asked == {PODS, RESOURCE_CLAIMS}


@pytest.mark.parametrize("withdrawn", [(), ("v1", "v1beta2")], ids=["v1", "v1beta1"])
async def test_kopf_is_replaced_as_soon_as_kinds_are_served_again(
    cluster: LiveCluster,
    proxy: FaultProxy,
    supervising: Supervising,
    monkeypatch: pytest.MonkeyPatch,
    withdrawn: tuple[str, ...],
) -> None:
    """Kopf fails when they vanish; then it runs without them until they are back, be it in an older version."""
    monkeypatch.setattr(supervisor, "SERVED_LOOK_SECONDS", 0.1)
    await cluster.furnish(template=True)
    async with supervising() as site:
        await site.ready()
        with proxy.suffering(Unserved(Target(group="resource.k8s.io"))):
            proxy.break_streams()
            await site.unready("WATCH answered 404: Not Found")

            async def unfound() -> bool:
                return RESOURCE_CLAIMS in site.operator.streams.unfound()

            await until("Kopf runs without claims", unfound)
        gone = (Unserved(Target(group="resource.k8s.io", version=version)) for version in withdrawn)
        with proxy.suffering(*gone):
            await cluster.place("pod")
            await site.ready()
            assert site.metric("dra_operator_kopf_restarts_total", reason="renewal") >= 1
            await cluster.place("another")


LIMITS = Limits(silence=90, gap=10, idle=20, start=60)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def streams(clock: Clock) -> Streams:
    made = Streams(LIMITS, clock)
    made.expect(PODS, "v1")
    return made


def test_changes_may_go_unseen_before_the_first_watch_and_after_each_until_the_next_has_caught_up(
    streams: Streams, clock: Clock
) -> None:
    ((_, stream),) = streams.of_path(PODS_PATH)
    seen = [streams.sees(PODS)]  # before the first watch
    stream.watched(clock.now, "first")
    seen.append(streams.sees(PODS))
    clock.now += CATCH_UP_SECONDS
    seen.append(streams.sees(PODS))
    stream.ended(clock.now, "first")
    seen.append(streams.sees(PODS))
    stream.watched(clock.now, "second")
    clock.now += CATCH_UP_SECONDS / 2
    seen.append(streams.sees(PODS))
    clock.now += CATCH_UP_SECONDS
    seen.append(streams.sees(PODS))
    streams.begin()  # Kopf is replaced
    seen.append(streams.sees(PODS))
    assert seen == [False, False, True, False, False, True, False]
    assert not streams.sees(NODES)  # which is not expected to be watched
    streams.clear()
    assert not streams.sees(PODS)  # the operator stops: its last writes are under way


def test_a_kind_is_heard_from_the_first_watch_on(streams: Streams, clock: Clock) -> None:
    ((_, stream),) = streams.of_path(PODS_PATH)
    stream.asked(clock.now)
    stream.listed(clock.now)
    assert streams.problems() == ["pods: not watched yet"]
    stream.watched(clock.now, "watch")
    assert streams.problems() == []


@pytest.mark.parametrize(
    ("after", "problem", "idle"),
    [
        ([("asked", 0), ("listed", 0), ("watched", 89)], None, False),
        ([("asked", 0), ("listed", 0), ("watched", 91)], "pods: silent for 91 s", True),
        ([("watched", 80), ("received", 80)], None, False),
        ([("watched", 80), ("ended", 9)], None, False),
        ([("watched", 80), ("ended", 11)], "pods: not watched for 11 s", False),
        ([("watched", 80), ("ended", 21)], "pods: not watched for 21 s", True),
        ([("watched", 0), ("ended", 15), ("refused", 15)], "pods: not watched for 30 s: refused", False),
        ([("watched", 0), ("ended", 15), ("refused", 21)], "pods: not watched for 36 s: refused", True),
        ([("watched", 0), ("ended", 5), ("asked", 40)], "pods: not watched for 45 s", False),
        ([("watched", 0), ("ended", 5), ("asked", 5), ("listed", 9)], None, False),
        ([], "pods: not watched yet", False),
        ([("begin", 61)], "pods: not watched yet", True),
    ],
    ids=[
        "a watch that is silent for less than the limit",
        "a watch that is silent for too long",
        "a watch that brings something now and then",
        "a short gap between two watches",
        "a long gap, but Kopf may still ask again",
        "a gap after which Kopf does not ask again",
        "refused, but Kopf will ask again",
        "refused, and Kopf does not ask again",
        "a request that takes its time",
        "a list between two watches",
        "nothing yet",
        "a new Kopf that never asks",
    ],
)
def test_what_happens_to_a_stream_decides_whether_it_is_heard_and_whether_kopf_is_at_work(
    streams: Streams, clock: Clock, after: list[tuple[str, float]], problem: str | None, idle: bool
) -> None:
    """Each step happens, and then so many seconds go by."""
    ((_, stream),) = streams.of_path(PODS_PATH)
    arguments = {"watched": ["watch"], "ended": ["watch"], "refused": ["refused"]}
    for step, seconds in after:
        getattr(stream, step)(clock.now, *arguments.get(step, []))
        clock.now += seconds
    assert streams.problems() == ([problem] if problem else [])
    assert streams.idle() == (["pods"] if idle else [])


def test_the_end_of_a_watch_that_was_replaced_is_no_news(streams: Streams, clock: Clock) -> None:
    ((_, stream),) = streams.of_path(PODS_PATH)
    stream.watched(clock.now, "old")
    streams.begin()
    stream.watched(clock.now, "new")
    stream.ended(clock.now, "old")
    clock.now += 30
    assert streams.problems() == []
    assert streams.idle() == []


def test_the_log_tells_each_reason_once_and_when_it_is_over(
    streams: Streams, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Kinds that share a reason share a line; a reconnection that takes seconds is not worth one."""
    caplog.set_level(logging.INFO)
    streams.expect(NODES, "v1")
    streams.expect(RESOURCE_CLAIMS, "v1")
    paths = (PODS_PATH, "/api/v1/nodes", "/apis/resource.k8s.io/v1/resourceclaims")
    log, kinds = StreamLog(streams), [stream for path in paths for _, stream in streams.of_path(path)]

    def lines(seconds: float, step: str, *arguments: str, kinds: list[Stream] = kinds) -> list[str]:
        clock.now += seconds
        for stream in kinds:
            stream.asked(clock.now)
            getattr(stream, step)(clock.now, *arguments)
        caplog.clear()
        log.look()
        return caplog.messages

    assert lines(1, "watched", "watch") == []
    assert lines(1, "ended", "watch") == []
    assert lines(9, "refused", "503") == []
    assert lines(3, "refused", "503") == ["all kinds: not watched for 12 s: 503; retrying until it works"]
    assert lines(5, "refused", "503") == []
    assert lines(5, "refused", "403", kinds=kinds[:1]) == ["pods: not watched for 22 s: 403; retrying until it works"]
    assert lines(5, "refused", "503") == []
    assert lines(1, "watched", "watch", kinds=kinds[:2]) == ["nodes, pods: watched again"]
    assert lines(1, "watched", "watch") == ["resourceclaims.resource.k8s.io: watched again"]
    assert lines(1, "watched", "watch") == []


def test_kinds_that_kopf_did_not_find_are_neither_idle_nor_logged(
    streams: Streams, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It starts to ask for all others at once."""
    streams.expect(RESOURCE_CLAIMS, "v1")
    ((_, stream),) = streams.of_path(PODS_PATH)
    assert streams.unfound() == []
    stream.asked(clock.now)
    stream.watched(clock.now, "watch")
    assert streams.unfound() == [RESOURCE_CLAIMS]
    clock.now += 80
    StreamLog(streams).look()
    assert (streams.idle(), caplog.messages) == ([], [])
    assert streams.problems() == ["resourceclaims.resource.k8s.io: not watched yet"]
