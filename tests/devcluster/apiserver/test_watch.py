"""Watches: every change once and in order, from any point that is still remembered."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp import web
from bare_client import CONFIG_MAPS, PODS, Client, config_map, pod
from dra_devcluster.apiserver import DevApiServer, store
from dra_devcluster.apiserver.errors import StatusError

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


async def revision(client: Client) -> str:
    return str((await client.get(CONFIG_MAPS))["metadata"]["resourceVersion"])


async def test_a_watch_goes_on_from_where_a_list_ended(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("before"))
    since = await revision(client)
    await client.post(CONFIG_MAPS, config_map("a"))
    await client.patch(f"{CONFIG_MAPS}/a", {"data": {"x": "y"}})
    async with client.watch(CONFIG_MAPS, resourceVersion=since) as watch:
        await client.delete(f"{CONFIG_MAPS}/a")
        events = [await watch.next() for _ in range(3)]
    assert [kind for kind, _ in events] == ["ADDED", "MODIFIED", "DELETED"]
    revisions = [int(obj["metadata"]["resourceVersion"]) for _, obj in events]
    assert revisions == sorted(set(revisions))
    assert all((obj["kind"], obj["apiVersion"]) == ("ConfigMap", "v1") for _, obj in events)


@pytest.mark.parametrize("since", ["", "0"])
async def test_a_watch_without_a_point_to_start_from_begins_with_the_state(client: Client, since: str) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    await client.post(CONFIG_MAPS, config_map("b"))
    async with client.watch(CONFIG_MAPS, resourceVersion=since) as watch:
        assert await watch.names(2) == [("ADDED", "a"), ("ADDED", "b")]
        await client.post(CONFIG_MAPS, config_map("c"))
        assert await watch.names(1) == [("ADDED", "c")]


async def test_with_a_selector_objects_come_and_go_as_they_match(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    async with client.watch(CONFIG_MAPS, resourceVersion=await revision(client), labelSelector="on=yes") as watch:
        await client.post(CONFIG_MAPS, config_map("other"))
        await client.patch(f"{CONFIG_MAPS}/a", {"metadata": {"labels": {"on": "yes"}}})
        await client.patch(f"{CONFIG_MAPS}/a", {"data": {"x": "y"}})
        await client.patch(f"{CONFIG_MAPS}/a", {"metadata": {"labels": {"on": "no"}}})
        await client.delete(f"{CONFIG_MAPS}/a")
        await client.post(CONFIG_MAPS, config_map("b", labels={"on": "yes"}))
        assert await watch.names(4) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b")]


async def test_a_node_agent_sees_a_pod_when_it_is_bound_to_its_node(client: Client) -> None:
    async with client.watch("/api/v1/pods", fieldSelector="spec.nodeName=n1") as watch:
        await client.post(PODS, pod("p", schedulerName="absent"))
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "p"},
            "target": {"kind": "Node", "name": "n1"},
        }
        await client.post(f"{PODS}/p/binding", body)
        assert await watch.names(1) == [("ADDED", "p")]


async def test_a_watch_of_one_object_shows_only_it(client: Client) -> None:
    async with client.watch(CONFIG_MAPS, fieldSelector="metadata.name=b") as watch:
        await client.post(CONFIG_MAPS, config_map("a"))
        await client.post(CONFIG_MAPS, config_map("b"))
        assert await watch.names(1) == [("ADDED", "b")]


async def test_streaming_lists_end_with_a_marked_bookmark(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with client.watch(CONFIG_MAPS, **query) as watch:
        assert await watch.names(1) == [("ADDED", "a")]
        kind, bookmark = await watch.next()
        assert kind == "BOOKMARK"
        assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert bookmark["metadata"]["resourceVersion"] == await revision(client)
    answer = await client.call("GET", CONFIG_MAPS, watch="1", sendInitialEvents="true")
    assert answer.code == 422


async def test_bookmarks_come_while_nothing_happens(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_devcluster.apiserver.verbs.read.BOOKMARK_SECONDS", 0.01)
    async with client.watch(CONFIG_MAPS, allowWatchBookmarks="true") as watch:
        kind, bookmark = await watch.next()
    assert kind == "BOOKMARK"
    assert (bookmark["kind"], bookmark["apiVersion"]) == ("ConfigMap", "v1")
    assert int(bookmark["metadata"]["resourceVersion"]) > 0


async def test_no_bookmark_goes_before_a_change_that_comes_as_its_time_is_over(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has lost the watch in between went on after the change, and never saw it."""

    async def too_late(watcher: store.Watcher) -> None:
        await watcher._wake.wait()
        raise TimeoutError

    monkeypatch.setattr(store.Watcher, "wait", too_late)
    async with client.watch(CONFIG_MAPS, allowWatchBookmarks="true") as watch:
        await client.post(CONFIG_MAPS, config_map("a"))
        assert await watch.names(1) == [("ADDED", "a")]


async def test_what_is_forgotten_cannot_be_watched(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOGGED_CHANGES", 2)
    since = await revision(client)
    for number in range(4):
        await client.post(CONFIG_MAPS, config_map(f"c{number}"))
    async with client.watch(CONFIG_MAPS, resourceVersion=since) as watch:
        kind, status = await watch.next()
        assert await watch.is_over()
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
    assert status["message"].startswith(f"too old resource version: {since} (")


async def test_a_server_forgets_its_changes_and_ends_watches_when_it_is_told_to(
    server: DevApiServer, client: Client
) -> None:
    since = await revision(client)
    await client.post(CONFIG_MAPS, config_map("before"))
    async with client.watch(CONFIG_MAPS, resourceVersion=await revision(client)) as running:
        server.expire_watches()
        running_event = await running.next()
        assert await running.is_over()
    async with client.watch(CONFIG_MAPS, resourceVersion=since) as late:
        late_event = await late.next()
    for kind, status in (running_event, late_event):
        assert (kind, status["code"]) == ("ERROR", 410)
    async with client.watch(CONFIG_MAPS, resourceVersion=await revision(client)) as again:
        await client.post(CONFIG_MAPS, config_map("after"))
        assert await again.names(1) == [("ADDED", "after")]
        server.end_watches()
        assert await again.is_over()


async def test_a_continue_token_expires_with_the_log(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOGGED_CHANGES", 2)
    for number in range(3):
        await client.post(CONFIG_MAPS, config_map(f"c{number}"))
    token = (await client.get(CONFIG_MAPS, limit="1"))["metadata"]["continue"]
    for number in range(3):
        await client.delete(f"{CONFIG_MAPS}/c{number}")
    answer = await client.call("GET", CONFIG_MAPS, limit="1", **{"continue": token})
    assert (answer.code, answer.reason) == (410, "Expired")


async def test_a_revision_from_another_life_of_the_server_has_expired(client: Client) -> None:
    answer = await client.call("GET", CONFIG_MAPS, watch="1", resourceVersion="999999")
    assert (answer.code, answer.reason) == (410, "Expired")


async def test_a_watch_ends_after_the_time_it_asked_for(client: Client) -> None:
    async with client.watch(CONFIG_MAPS, timeoutSeconds="1") as watch:
        assert await watch.is_over()


async def test_a_watch_that_cannot_keep_up_is_told_to_list_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "UNREAD_CHANGES", 1)
    collection = store.Store().collection("", "configmaps")
    watcher = collection.watch(None)
    for number in range(3):
        collection.put({"metadata": {"name": f"c{number}"}}, {})
    assert watcher.overrun
    assert watcher.take() == []


async def test_a_watch_can_show_tables(client: Client) -> None:
    async with client.watch(PODS, accept=TABLE) as watch:
        await client.post(PODS, pod("a", schedulerName="absent"))
        await client.post(PODS, pod("b", schedulerName="absent"))
        _, first = await watch.next()
        _, second = await watch.next()
    assert (first["kind"], first["rows"][0]["cells"][0]) == ("Table", "a")
    assert first["columnDefinitions"]
    assert second["rows"][0]["cells"][0] == "b"
    assert not second["columnDefinitions"]


async def test_a_client_that_leaves_amid_a_write_leaves_no_trace_in_the_log(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is closing, and the server has not yet been told that it is lost."""
    write = web.StreamResponse.write

    async def write_as_the_client_leaves(answer: web.StreamResponse, content: bytes) -> None:
        request = answer._req
        if b"ADDED" in content and request is not None and request.transport is not None:
            request.transport.abort()
        await write(answer, content)

    monkeypatch.setattr(web.StreamResponse, "write", write_as_the_client_leaves)
    async with client.watch(CONFIG_MAPS):
        await client.post(CONFIG_MAPS, config_map("a"))
    await client.until("/metrics", lambda answer: b'verb="WATCH"' in answer.body)
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def changes(collection: store.Collection, *numbers: int) -> None:
    for number in numbers:
        collection.put({"metadata": {"name": f"c{number}", "uid": "x" * 100}}, {})


def seen(collection: store.Collection, since: int) -> list[int]:
    return [change.stored.revision for change in collection.watch(since).take()]


def test_the_log_of_changes_has_a_number_and_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, each in (("LOGGED_CHANGES", 1), ("LOG_BYTES", 0)):
        collection = store.Store().collection("", "configmaps")
        changes(collection, 10)
        size = each or len(next(collection.all()).data)
        with monkeypatch.context() as patch:
            patch.setattr(store, limit, 3 * size)
            changes(collection, 11, 12)
            assert seen(collection, 1) == [2, 3, 4], limit
            changes(collection, 13, 14)
            assert seen(collection, 3) == [4, 5, 6], limit
            with pytest.raises(StatusError, match="too old resource version: 2 "):
                collection.watch(2)
            collection.expire()
            assert seen(collection, 6) == []
            changes(collection, 15, 16, 17)
            assert seen(collection, 6) == [7, 8, 9], limit


async def test_a_reader_of_changes_waits_when_it_has_read_all_and_is_forgotten_when_it_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "UNREAD_CHANGES", 2)
    collection = store.Store().collection("", "configmaps")
    watcher = collection.watch(None)
    changes(collection, 1, 2)
    assert (watcher.overrun, len(watcher.take())) == (False, 2)
    waiting = asyncio.ensure_future(watcher.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    watcher.end()
    await waiting
    assert watcher.take() == []
    await watcher.wait()  # there is nothing to wait for any more
    watcher.close()
    assert not collection.watchers


def test_a_namespace_without_objects_takes_no_room() -> None:
    collection = store.Store().collection("", "configmaps")
    for name in ("a", "b"):
        collection.put({"metadata": {"name": name, "namespace": "n"}}, {})
    for left, name in ((1, "a"), (0, "b")):
        collection.remove(("n", name), {"metadata": {"name": name, "namespace": "n"}})
        assert (collection.count(), collection.count("n"), len(collection._spaces)) == (left, left, left)
