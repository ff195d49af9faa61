"""A kind that is not heard makes the operator unready, and is heard again without a restart of anything."""

from __future__ import annotations

import asyncio
import logging
import random
import string
from collections.abc import Callable
from typing import cast

import pytest
from dra_devcluster.apiserver.verbs import read
from dra_kube import NODES, PODS, RESOURCE_CLAIMS, Api, Resource, Stream
from dra_operator.sources import watches as module
from dra_operator.sources.watches import Limits, Watches
from faults import CutBefore, DropEvents, ErrorEvent, FaultProxy, Refuse, Target, Unserved
from supervised import LiveCluster, Site, Supervising
from waiting import becomes, stays


def target(verb: str, resource: str = "pods") -> Target:
    return Target(verbs=(verb,), resource=resource)


async def test_a_kind_that_may_no_longer_be_watched_makes_the_operator_unready_until_it_may(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising
) -> None:
    await cluster.furnish(template=True)
    async with supervising() as site:
        await site.ready()
        with proxy.suffering(Refuse(target("watch"), code=403, message="pods is forbidden")):
            proxy.break_streams("pods")
            await site.unready("pods: not watched for", "WATCH answered 403: pods is forbidden; ", "rbac.yaml")
            assert site.is_live()
            assert "nodes" not in site.obstacles()
            assert not site.operator.watches.sees(PODS)
            assert site.metric("dra_operator_stream_age_seconds", resource="pods") > 0.5
            await cluster.add_pod("pod")
        await site.ready()
        await cluster.bound("pod")
        await becomes(lambda: site.operator.watches.sees(PODS))
        assert site.metric("dra_operator_watch_failures_total", resource="pods") > 0


async def test_bookmarks_keep_an_idle_watch_fresh_and_their_absence_does_not(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "BOOKMARK_SECONDS", 0.1)
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        stream = stream_of(site, PODS)
        for _ in range(3):
            life = stream.life
            await becomes(lambda life=life: stream.life > life)  # type: ignore[misc]
        site.operator.watches.limits = Limits(silence=1.0)  # only now: a busy machine is as silent at times
        with proxy.suffering(DropEvents(target("watch"))):
            await site.unready("pods: silent for")


def stream_of(site: Site, resource: Resource) -> Stream:
    return site.operator.watches._reflectors[resource].stream


async def test_a_silent_watch_is_made_again(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose server is gone without a word."""
    monkeypatch.setattr(module, "BYTELESS_SECONDS", 1.0)
    await cluster.furnish(template=True)
    async with supervising() as site:
        await site.ready()
        with proxy.suffering(DropEvents(target("watch"))):
            await cluster.add_pod("pod")
            await becomes(lambda: site.metric("dra_operator_watch_failures_total", resource="pods") > 1)
        await cluster.bound("pod")
        await site.ready()


async def test_an_api_of_others_whose_server_is_down_holds_nothing_up(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising
) -> None:
    """As every aggregated API may be: discovery lists its group and answers 503 for its version."""
    await cluster.furnish(template=True)
    with proxy.suffering(Refuse(Target(resource="/apis/networking.k8s.io/v1"), code=503)):
        async with supervising() as site:
            await site.ready(30)
            await cluster.place("pod")


@pytest.mark.parametrize("fault", [Refuse, ErrorEvent], ids=["as HTTP status", "in the stream"])
@pytest.mark.parametrize("code", [410, 500, 504])
async def test_a_watch_that_is_refused_goes_on(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising, code: int, fault: type[Refuse | ErrorEvent]
) -> None:
    await cluster.furnish(template=True)
    async with supervising() as site:
        await site.ready()
        with proxy.suffering(fault(target("watch"), code=code, count=1)):
            await cluster.add_pod("first")  # an event, for the error in its place
            proxy.break_streams("pods")
            await becomes(lambda: site.metric("dra_operator_watch_failures_total", resource="pods") > 0)
        await cluster.place("pod")
        await cluster.bound("first")
        await site.ready()


async def test_a_pod_is_bound_at_once_only_if_pods_and_claims_of_others_are_seen(
    cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.furnish(template=True)
    asked: set[Resource] = set()

    def sees(_: Watches, resource: Resource) -> bool:
        asked.add(resource)
        return True

    async with supervising() as site:
        await site.ready()
        monkeypatch.setattr(Watches, "sees", sees)
        await cluster.place("pod")
    assert asked == {PODS, RESOURCE_CLAIMS}


@pytest.mark.parametrize("withdrawn", [(), ("v1", "v1beta2")], ids=["v1", "v1beta1"])
async def test_kinds_that_are_served_again_are_watched_again(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising, withdrawn: tuple[str, ...]
) -> None:
    """Be it in an older version."""
    await cluster.furnish(template=True)
    async with supervising() as site:
        await site.ready()
        with proxy.suffering(Unserved(Target(group="resource.k8s.io"))):
            proxy.break_streams()
            await site.unready("resourceclaims.resource.k8s.io: not watched for", "serves resourceclaims", "in none")
            await cluster.heard()  # what needs no devices is placed all the same
        gone = (Unserved(Target(group="resource.k8s.io", version=version)) for version in withdrawn)
        with proxy.suffering(*gone):
            await cluster.place("pod")
            await site.ready()
            await cluster.place("another")


async def test_a_server_that_is_away_makes_the_operator_unready_but_not_dead(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising
) -> None:
    await cluster.furnish(template=True)
    async with supervising() as site:
        await site.ready()
        view = site.operator.control.cluster
        with proxy.suffering(CutBefore(Target())):
            proxy.break_streams()
            await site.unready("nodes", "pods")

            async def is_live() -> bool:
                return site.is_live()

            await stays("it is live", is_live, 1)
        await cluster.place("pod")
        await site.ready()
        assert site.operator.control.cluster is view


# --- what is told ---


@pytest.fixture
async def watches() -> Watches:
    made = Watches(Limits(silence=90.0, gap=10.0))
    for resource in (PODS, NODES, RESOURCE_CLAIMS):
        made.follow(cast(Api, None), resource, "1", cast(module.Receive, None), tuple)
    return made


async def test_the_log_tells_each_reason_once_and_when_it_is_over(
    watches: Watches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kinds that share a reason share a line; a reconnection that takes seconds is not worth one."""
    caplog.set_level(logging.INFO)
    now = asyncio.get_running_loop().time()
    streams = [reflector.stream for reflector in watches._reflectors.values()]

    def lines(seconds: float, step: str, reason: str = "", streams: list[Stream] = streams) -> list[str]:
        nonlocal now
        now += seconds
        monkeypatch.setattr(module, "_now", lambda: now)
        for stream in streams:
            if step == "refused":
                stream.refusal = reason
            else:
                getattr(stream, step)(now)
        caplog.clear()
        watches.log()
        return caplog.messages

    assert lines(1, "opened") == []
    assert lines(1, "ended") == []
    assert lines(9, "refused", "503") == []
    assert lines(3, "refused", "503") == ["all kinds: not watched for 12 s: 503; retrying until it works"]
    assert lines(5, "refused", "503") == []
    assert lines(5, "refused", "403", streams[:1]) == ["pods: not watched for 22 s: 403; retrying until it works"]
    assert lines(5, "refused", "503") == []
    assert lines(1, "opened", streams=streams[:2]) == ["nodes, pods: watched again"]
    assert lines(1, "opened") == ["resourceclaims.resource.k8s.io: watched again"]
    assert lines(1, "opened") == []


@pytest.mark.parametrize(
    ("refusal", "most"),
    [
        (lambda: "WATCH answered 500: error reading from server: read tcp 10.0.0.1:{0}->10.0.0.2:2379: timed out", 1),
        (lambda: "WATCH failed: <h1>Bad Gateway</h1> request 3f{0}-9a{0}", 1),
        (lambda: "WATCH answered 503: overloaded, request " + "".join(random.choices(string.ascii_letters, k=12)), 35),
    ],
    ids=["a port", "an id with digits", "an id of letters"],
)
async def test_an_outage_that_has_other_words_each_time_neither_fills_the_log_nor_the_memory(
    watches: Watches,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refusal: Callable[[], str],
    most: int,
) -> None:
    """Ten minutes; each kind is tried each second."""
    start = asyncio.get_running_loop().time()
    streams = [reflector.stream for reflector in watches._reflectors.values()]
    for stream in streams:
        stream.opened(start)
        stream.ended(start)
    for second in range(600):
        monkeypatch.setattr(module, "_now", lambda now=start + second: now)
        for number, stream in enumerate(streams):
            stream.refusal = refusal().format(40_000 + 3 * second + number)
        watches.log()
    assert 1 <= len(caplog.messages) <= most + len(streams) * 9
    if most == 1:
        assert len(caplog.messages) == 1
    assert all(len(told.reasons) <= module.TOLD_REASONS for told in watches._told.values())
    # Another failure is news all the same.
    caplog.clear()
    monkeypatch.setattr(module, "_now", lambda: start + 700)
    for stream in streams:
        stream.refusal = "WATCH answered 403: pods is forbidden"
    watches.log()
    assert len(caplog.messages) == 1


async def test_nothing_is_seen_that_is_not_followed(watches: Watches) -> None:
    stream = watches._reflectors[PODS].stream
    assert not watches.sees(PODS)
    stream.opened(asyncio.get_running_loop().time() - 1.0)
    assert watches.sees(PODS)
    watches.clear()
    assert not watches.sees(PODS)  # the operator stops: its last writes are under way
    assert (watches.states(), watches.ages()) == ([], [])
