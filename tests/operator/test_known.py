"""Kopf hears what is news, in its order, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from dra_api.codec import TOO_DEEP, DecodeError
from dra_api.core import Pod
from dra_api.meta import ObjectVersion
from dra_kube import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kube.http.pages import list_in
from dra_operator.sources import tracing
from dra_operator.sources.cut import was_cut
from dra_operator.sources.known import BOOKMARK_SECONDS, KnownEvents, News
from dra_operator.sources.known import unknown_items as _unknown_items
from dra_operator.sources.reception import Reception
from hypothesis import given
from hypothesis import strategies as st
from kopf._core.reactor.inventory import ResourceMemories
from live_cluster import LiveCluster
from objects import Obj
from supervised import Supervising
from waiting import becomes
from wrong_answers import wrong_answers


def pod(name: str, version: str = "1") -> Obj:
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": version}, "spec": {}}


def unknown_items(page: bytes, knows: Callable[[News], bool]) -> bytes:
    return asyncio.run(_unknown_items(list_in(page), knows))


def line(kind: str, obj: Obj) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def bookmark(version: str) -> bytes:
    return b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%s"}}}\n' % version.encode()


def knows(news: News) -> bool:
    version = news.version
    if news.is_deleted:
        return version.name == "gone"
    return version in (ObjectVersion("old", "uid-old", "1", "ns"), ObjectVersion("cluster-wide", "uid", "1"))


def large(**spec: Any) -> Obj:
    obj = pod("large")
    meta = obj["metadata"] | {"labels": {"app": "a"}, "managedFields": [{"manager": "x" * 1000}] * 100}
    return obj | {"kind": "Pod", "metadata": meta, "spec": {"schedulerName": "ours", **spec}}


def test_kopf_hears_of_a_large_pod_only_what_is_read_of_it() -> None:
    """As dicts a hundred pods of a megabyte take a gigabyte, which Kopf keeps for a while."""
    environment = [{"name": f"E{number}", "value": "x" * 20} for number in range(20_000)]
    big = large(containers=[{"name": "main", "env": environment, "resources": {"requests": {"cpu": "2"}}}])
    event = KnownEvents(knows, time.monotonic).passed_on(line("MODIFIED", big))
    page = unknown_items(
        json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [big | {"kind": ""}]}).encode(),
        knows,
    )
    for obj in (json.loads(event)["object"], *json.loads(page)["items"]):
        assert len(json.dumps(obj)) < 1_000
        assert was_cut(obj)
        assert (obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]) == ("uid-large", "1")
        assert obj["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
        assert obj["metadata"]["labels"] == {"app": "a"}


SELECTORS = [{"cel": {"expression": "true || " + "x" * 1_000}}] * 16
EXACTLY: Obj = {"deviceClassName": "gpu", "selectors": SELECTORS}
REQUESTS: Obj = {"v1": [{"name": f"r{it}", "exactly": EXACTLY} for it in range(8)]}
REQUESTS |= {"v1beta2": REQUESTS["v1"], "v1beta1": [{"name": f"r{it}", **EXACTLY} for it in range(8)]}


@pytest.mark.parametrize("version", REQUESTS)
@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_kopf_hears_of_a_large_claim_or_template_only_what_is_kept_of_it(kind: str, version: str) -> None:
    spec: Obj = {"devices": {"requests": REQUESTS[version]}}
    body = {"metadata": pod("big")["metadata"], "spec": spec if kind == "ResourceClaim" else {"spec": spec}}
    head = {"apiVersion": f"resource.k8s.io/{version}", "kind": kind}
    event = KnownEvents(knows, time.monotonic).passed_on(line("ADDED", head | body))
    page = unknown_items(
        json.dumps({**head, "kind": f"{kind}List", "metadata": {"resourceVersion": "1"}, "items": [body]}).encode(),
        knows,
    )
    for obj in (json.loads(event)["object"], *json.loads(page)["items"]):
        assert len(json.dumps(obj)) < 1_500
        assert was_cut(obj)
        assert (obj["apiVersion"], obj["kind"]) == ("resource.k8s.io/v1", kind)  # as the operator reads it
        kept = obj["spec"] if kind == "ResourceClaim" else obj["spec"]["spec"]
        assert [it["exactly"] for it in kept["devices"]["requests"]] == [{"deviceClassName": "gpu"}] * 8


@pytest.mark.parametrize("kind", ["DeviceClass", "Node"])
def test_kopf_hears_all_of_another_kind(kind: str) -> None:
    came = line("MODIFIED", large() | {"kind": kind})
    assert KnownEvents(knows, time.monotonic).passed_on(came) == came


CONTAINER = {"name": "main", "image": "none"}
ELSEWHERE = {
    "metadata": {"name": "elsewhere", "namespace": "ns"},
    "spec": {"schedulerName": "another", "containers": [CONTAINER]},
}
GPU: Obj = {"deviceClassName": "gpu"}
CLUSTER_WIDE = {"metadata": {"name": "cluster-wide", "uid": "uid", "resourceVersion": "1"}}
EVENTS = {
    "a known version": (line("MODIFIED", pod("old")), bookmark("1")),
    "a known version of a cluster-wide object": (line("ADDED", CLUSTER_WIDE), bookmark("1")),
    "a newer version": (line("MODIFIED", pod("old", "2")), None),
    "another object": (line("ADDED", pod("new")), None),
    "a successor of the same name": (
        line("ADDED", pod("old") | {"metadata": {"name": "old", "uid": "2", "resourceVersion": "2"}}),
        None,
    ),
    "a deletion": (line("DELETED", pod("old")), None),
    "a known deletion": (line("DELETED", pod("gone", "3")), bookmark("3")),
    "a bookmark": (line("BOOKMARK", {"metadata": {"resourceVersion": "7"}}), None),
    "an error": (line("ERROR", {"kind": "Status", "code": 410}), None),
    "an empty line": (b"\n", b""),
}


@pytest.mark.parametrize("event", EVENTS)
def test_a_known_version_becomes_a_bookmark_and_no_other(event: str) -> None:
    came, passed_on = EVENTS[event]
    assert KnownEvents(knows, time.monotonic).passed_on(came) == (came if passed_on is None else passed_on)


def test_a_bookmark_comes_once_a_second_and_no_more() -> None:
    now = 10.0
    reader = KnownEvents(knows, lambda: now)
    known, new = line("MODIFIED", pod("old")), line("ADDED", pod("new"))
    assert reader.passed_on(known + new + known) == bookmark("1") + new
    now = 10.9
    assert reader.passed_on(known) == b""
    now = 11.1
    assert reader.passed_on(known + known) == bookmark("1")


def deep(name: str) -> bytes:
    parameters = b"[" * 1_000_000 + b"]" * 1_000_000
    meta = json.dumps(pod(name)["metadata"]).encode()
    return b'{"kind":"ResourceClaim","metadata":%s,"spec":{"config":%s},"status":{"a":1}}' % (meta, parameters)


def test_an_object_that_nests_too_deep_for_python_keeps_its_name_and_its_status_only() -> None:
    content = deep("new")
    cut = {"kind": "ResourceClaim", "metadata": pod("new")["metadata"], "spec": TOO_DEEP, "status": {"a": 1}}
    event = KnownEvents(knows, time.monotonic).passed_on(b'{"type":"ADDED","object":%s}\n' % content)
    assert json.loads(event) == {"type": "ADDED", "object": cut}
    page = unknown_items(
        b'{"kind":"List","metadata":{"resourceVersion":"1"},"items":[%s,%s]}'
        % (content, json.dumps(pod("other")).encode()),
        knows,
    )
    assert json.loads(page)["items"] == [cut, pod("other")]


@pytest.mark.parametrize("answer", sorted(set(wrong_answers("Pod")) - {"nothing", "a blank"}))
def test_what_is_no_event_ends_the_watch_and_what_is_no_list_is_none(answer: str) -> None:
    content = wrong_answers("Pod")[answer].replace(b"\n", b" ")
    reader = KnownEvents(knows, time.monotonic)
    first = line("ADDED", pod("new"))
    assert reader.passed_on(first + content + b"\n" + first) == first
    assert reader.wrong
    with pytest.raises(DecodeError):
        list_in(content)


def test_an_event_that_never_closes_or_is_longer_than_any_ends_the_watch() -> None:
    for text in (b'{"type":"ADDED","object":' + b"[" * 1_000_000 + b"\n", b"x" * 34_000_000):
        reader = KnownEvents(knows, time.monotonic)
        assert reader.passed_on(text) == b""
        assert reader.wrong


@given(st.lists(st.sampled_from(sorted(EVENTS))), st.data())
def test_pieces_of_any_size_give_the_same_lines(events: list[str], data: st.DataObject) -> None:
    stream = b"".join(EVENTS[event][0] for event in events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    ticks = itertools.count(step=BOOKMARK_SECONDS)
    reader = KnownEvents(knows, lambda: next(ticks))
    got = b"".join(map(reader.passed_on, pieces))
    assert got == b"".join(EVENTS[it][0] if EVENTS[it][1] is None else EVENTS[it][1] or b"" for it in events)


def test_a_list_keeps_what_is_unknown_and_all_that_is_said_about_it() -> None:
    meta = {"resourceVersion": "9", "continue": "token"}
    items = [pod("old"), pod("new"), {"metadata": None}, pod("old", "2")]
    page = json.dumps({"kind": "PodList", "metadata": meta, "items": items}).encode()
    left = [pod("new"), {"metadata": None}, pod("old", "2")]
    found = {"kind": "PodList", "apiVersion": "", "metadata": meta, "items": left}
    assert json.loads(unknown_items(page, knows)) == found


async def test_what_others_write_is_taken_in_and_what_the_operator_wrote_is_not(
    cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And Kopf hears of neither."""
    await cluster.furnish(nodes=3, template=True)
    async with supervising() as site:
        heard: list[str] = []
        by_kopf: list[str] = []
        taken_in, received = Reception.received, site.operator.received

        def listen(reception: Reception, resource: object, version: str, kind: str | None, raw: Obj) -> None:
            heard.append(f"{resource} {raw['metadata']['name']}")
            taken_in(reception, resource, version, kind, raw)  # type: ignore[arg-type]

        def kopf(resource: object, version: str, kind: str | None, raw: Obj) -> None:
            by_kopf.append(f"{resource} {raw['metadata']['name']}")
            received(resource, version, kind, raw)  # type: ignore[arg-type]

        monkeypatch.setattr(Reception, "received", listen)
        monkeypatch.setattr(site.operator, "received", kopf)
        await site.ready()
        await cluster.place("pod")
        name = (await cluster.claims())[0]["metadata"]["name"]
        await cluster.api.patch(RESOURCE_CLAIMS, name, {"metadata": {"labels": {"by": "another"}}}, "ns")
        await cluster.heard()
        assert f"{RESOURCE_CLAIMS} {name}" in heard
        assert not [what for what in heard if what.startswith((str(NODES), str(RESOURCE_SLICES)))]
        assert f"{RESOURCE_CLAIMS} {name}" not in by_kopf


def records_of_kopf() -> set[str]:
    """The UIDs of the objects that Kopf has a record of."""
    found = [it for it in gc.get_objects() if isinstance(it, ResourceMemories)]
    return {uid for records in found for uid in records._items}


async def test_kopf_keeps_no_record_of_an_object_whose_end_the_operator_brought_about(
    cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.furnish(template=True)
    async with supervising() as site:
        await site.ready()
        await cluster.place("pod")
        (claim,) = await cluster.claims()
        monkeypatch.setattr(Reception, "_takes_in", lambda *_: False)  # as if it failed: Kopf hears of it
        uid, name = claim["metadata"]["uid"], claim["metadata"]["name"]
        await cluster.api.patch(RESOURCE_CLAIMS, name, {"metadata": {"labels": {"by": "another"}}}, "ns")
        await becomes(lambda: uid in records_of_kopf())
        monkeypatch.undo()
        await cluster.api.delete(PODS, "pod", "ns", grace_seconds=0)
        await cluster.gone(RESOURCE_CLAIMS, name)
        await becomes(lambda: uid not in records_of_kopf())


async def test_the_view_knows_its_version_older_ones_and_the_ends_it_has_seen(
    cluster: LiveCluster, supervising: Supervising
) -> None:
    await cluster.furnish(template=True)
    async with supervising() as site:
        await site.ready()
        await cluster.place("pod")
        (claim,) = await cluster.claims()
        operator, meta = site.operator, claim["metadata"]
        uid, revision = meta["uid"], int(meta["resourceVersion"])

        def knows(version: int, uid: str = uid, *, is_deleted: bool = False) -> bool:
            known = ObjectVersion(meta["name"], uid, str(version), "ns")
            return operator.deals_with(RESOURCE_CLAIMS, News(known, msgspec.Raw(), is_deleted))

        assert [knows(revision + change) for change in (-1, 0, 1)] == [True, True, False]
        assert not knows(revision + 1, "another")
        assert not knows(revision, is_deleted=True)
        await cluster.api.delete(PODS, "pod", "ns", grace_seconds=0)
        await cluster.gone(RESOURCE_CLAIMS, meta["name"])
        store = operator.control.cluster.claims
        await becomes(lambda: store.get(f"ns/{meta['name']}") is None)
        await becomes(lambda: knows(revision + 100, is_deleted=True))  # Kopf had heard of it, and hears of its end
        assert knows(revision + 100)
        assert not knows(revision + 100, "a successor")


async def test_the_node_that_a_binding_gave_a_pod_is_taken_in_without_kopf(
    cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the answer to our own binding alone: here nothing else is taken in."""
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        operator, view = site.operator, site.operator.control.cluster
        content = await cluster.api.create(PODS, ELSEWHERE)
        await becomes(lambda: view.pods.get("ns/elsewhere") is not None)
        meta = content["metadata"]
        version = ObjectVersion(meta["name"], meta["uid"], str(int(meta["resourceVersion"]) + 1000), "ns")
        meta["resourceVersion"] = version.resource_version
        monkeypatch.setattr(Reception, "_takes_in", lambda *_: False)

        def knows(**spec: object) -> bool:
            raw = msgspec.Raw(json.dumps({**content, "spec": {**content["spec"], **spec}}).encode())
            return operator.deals_with(PODS, News(version, raw))

        assert not knows(nodeName="node-1")  # the binding of another writer
        view.bound.add(version.uid)
        assert not knows()  # another change, which came before
        assert not knows(nodeName=7)
        assert version.uid in view.bound
        assert knows(nodeName="node-1")
        found = view.pods.get("ns/elsewhere")
        assert found is not None
        assert (found.spec.node_name, found.metadata.resource_version) == ("node-1", version.resource_version)
        assert version.uid not in view.bound
        assert knows()  # by its version from now on


async def test_what_comes_is_taken_in_without_kopf(cluster: LiveCluster, supervising: Supervising) -> None:
    """An older version that Kopf has in line is dropped; the end of what Kopf has heard of it hears as well."""
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        operator, view = site.operator, site.operator.control.cluster
        content = await cluster.api.create(PODS, ELSEWHERE)
        await becomes(lambda: view.pods.get("ns/elsewhere") is not None)

        def takes_in(
            name: str, more: int, uid: str, *, is_deleted: bool = False, is_whole: bool = True, labels: object = None
        ) -> bool:
            number = str(int(content["metadata"]["resourceVersion"]) + more)
            meta = content["metadata"] | {"name": name, "uid": uid, "resourceVersion": number, "labels": labels}
            whole = json.dumps(content | {"metadata": meta}).encode()
            raw = msgspec.Raw(whole if is_whole else whole[:-1])
            news = News(ObjectVersion(name, uid, number, "ns"), raw, is_deleted)
            return operator.deals_with(PODS, news)

        def known(name: str) -> str:
            found = view.pods.get(f"ns/{name}")
            return found.metadata.resource_version if found is not None else ""

        begun = int(content["metadata"]["resourceVersion"])
        assert takes_in("new", 10, "new")
        assert takes_in("new", 12, "new")
        assert takes_in("new", 11, "new")
        assert known("new") == str(begun + 12)
        operator.received(
            PODS, "v1", "ADDED", content | {"metadata": content["metadata"] | {"labels": {"late": "yes"}}}
        )
        assert takes_in("elsewhere", 20, content["metadata"]["uid"])
        operator.received(PODS, "v1", "ADDED", content)
        assert known("elsewhere") == str(begun + 20)
        assert takes_in("odd", 30, "odd", labels=7)
        assert not known("odd")  # malformed, as from Kopf
        assert takes_in("new", 40, "new", is_deleted=True)
        assert not known("new")
        assert not takes_in("elsewhere", 45, content["metadata"]["uid"], is_whole=False)  # Kopf hears of it
        assert not takes_in("elsewhere", 50, content["metadata"]["uid"], is_deleted=True)
        assert known("elsewhere")  # Kopf takes it away


async def test_what_fails_is_left_to_kopf(
    cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error would end the watch, and with it what everyone's pods wait for."""
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        operator = site.operator

        def deals_with(name: str, number: str, more: bytes = b"") -> bool:
            meta = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": number}
            content = (
                json.dumps({"metadata": meta, "spec": {"nodeName": "x"}}).encode().replace(b'"x"', b'"x%s"' % more)
            )
            return operator.deals_with(PODS, News(ObjectVersion(name, name, number, "ns"), msgspec.Raw(content)))

        assert not deals_with("odd", "1000", b"\xff")
        assert not deals_with("opaque", "a-version")  # newer or older, nothing says
        with monkeypatch.context() as patch:
            patch.setattr(operator.control, "apply", lambda *_: 1 // 0)
            assert not deals_with("unlucky", "1001")
        assert deals_with("unlucky", "1001")


async def test_an_error_while_an_event_is_taken_in_is_logged_and_the_watch_goes_on(
    cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kopf's handler would drop the version as known, without a word."""
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        operator, view = site.operator, site.operator.control.cluster
        reader = KnownEvents(lambda news: operator.deals_with(PODS, news), itertools.count().__next__)

        def failed() -> list[str]:
            records = [it for it in caplog.records if it.exc_info and it.name == "dra_operator.sources.reception"]
            found = [record.message for record in records]
            caplog.clear()
            return found

        def bound(name: str, version: str) -> bytes:
            return line("MODIFIED", pod(name, version) | {"spec": {"nodeName": "x"}})

        with monkeypatch.context() as patch:
            patch.setattr(view, "_rooms", view._rooms | {Pod: (view.pods, lambda _: 1 // 0)})
            events = bound("a", "10001") + bound("b", "10002")
            assert reader.passed_on(events) == events
            assert failed() == [
                f"Pod ns/{name} of resourceVersion {version} was not taken in whole"
                for name, version in (("a", "10001"), ("b", "10002"))
            ]
            view.bound.add("uid-c")  # a binding of ours
            assert reader.passed_on(bound("c", "10003")) == bound("c", "10003")
            assert failed() == ["Pod ns/c of resourceVersion 10003 was not taken in whole"]
        with monkeypatch.context() as patch:
            patch.setattr(operator.control, "apply", lambda *_: 1 // 0)
            assert reader.passed_on(bound("c", "10003")) == bound("c", "10003")  # known already
            assert failed() == ["Pod ns/c of resourceVersion 10003 was not taken in whole"]
        assert reader.passed_on(bound("d", "10004")) == bookmark("10004")
        assert not failed()


@pytest.mark.parametrize("kind", ["pod", "claim"])
async def test_a_large_object_is_taken_in_where_it_is_read_without_its_bulk(
    cluster: LiveCluster, supervising: Supervising, kind: str
) -> None:
    await cluster.furnish()
    labels = {f"l{number}": "x" * 60 for number in range(15_000)}
    resource, meta = (PODS if kind == "pod" else RESOURCE_CLAIMS), {"name": "big", "namespace": "ns", "labels": labels}
    body = ELSEWHERE if kind == "pod" else {"spec": {"devices": {"requests": [{"name": "r", "exactly": GPU}]}}}
    async with supervising() as site:
        await site.ready()
        view = site.operator.control.cluster
        await cluster.api.create(resource, body | {"metadata": meta})
        store = view.pods if kind == "pod" else view.claims
        await becomes(lambda: store.get("ns/big") is not None)
        found = store.get("ns/big")
        assert found is not None
        assert found.metadata.labels is None
        assert found.metadata.uid not in records_of_kopf()


async def test_a_new_pod_does_not_wait_for_answers_to_writes(
    cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.furnish(template=True)
    async with supervising() as site:
        await site.ready()
        await cluster.heard()
        pods = site.operator.control.cluster.pods
        await becomes(lambda: (seen := pods.get("ns/heard")) is not None and seen.spec.node_name)  # the last event
        monkeypatch.setattr(tracing, "ANSWER_SECONDS", 3600.0)
        await cluster.place("pod")
