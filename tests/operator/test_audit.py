"""What no event reported is found: after each interruption of a watch, after failed audits, and now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from dra_api.core import Node, Pod, PodSpec
from dra_api.meta import Object, ObjectMeta, ObjectVersion
from dra_kube import DEVICE_CLASSES, DEVICE_TAINT_RULES, NODES, PODS, Resource, ServerError
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Features, Inventory
from dra_operator.cache import Cluster, Source
from dra_operator.sources import audit
from dra_operator.sources.audit import Audit
from dra_operator.sources.kinds import WATCHED
from dra_operator.sources.malformed import MalformedObjects
from faults import DropEvents, ErrorEvent, EventFault, FaultProxy, Refuse, Target
from msgspec.structs import replace
from supervised import LiveCluster, Supervising
from waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "AUDIT_GAP_SECONDS", 0.05)
    monkeypatch.setattr(audit, "AUDIT_RETRY_SECONDS", (0.1,))


WATCHES = Target(verbs=("watch",))


@pytest.mark.rule("K37-TAINT-05")
@pytest.mark.parametrize(
    ("resource", "name", "left"),
    [(NODES, "node-1", ["node-0"]), (DEVICE_TAINT_RULES, "r", [])],
    ids=["one of several", "the last one, so that the new list is empty"],
)
@pytest.mark.parametrize("fault", [ErrorEvent(WATCHES, code=410, count=1), DropEvents(WATCHES)])
async def test_a_deletion_that_no_event_reported_is_found_when_the_watch_was_interrupted(
    cluster: LiveCluster,
    proxy: FaultProxy,
    supervising: Supervising,
    resource: Resource,
    name: str,
    left: list[str],
    fault: EventFault,
) -> None:
    """After an ERROR event 410 the kind is listed anew; after a broken connection its watch goes on where it was."""
    await cluster.furnish(nodes=2)
    taint = {"deviceSelector": {"driver": "d.io"}, "taint": {"key": "k", "effect": "NoSchedule"}}
    await cluster.api.create(DEVICE_TAINT_RULES, {"metadata": {"name": "r"}, "spec": taint})
    async with supervising() as site:
        await site.ready()
        store = site.operator.control.cluster.store_of(site.operator.kinds[resource])
        assert name in store
        with proxy.suffering(fault):
            await cluster.api.delete(resource, name)
            if isinstance(fault, DropEvents):
                proxy.break_streams(resource.plural)

            async def removed() -> bool:
                return list(store.keys()) == left

            await until("removed", removed)


async def test_a_failed_audit_is_repeated(cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising) -> None:
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        view = site.operator.control.cluster
        lists = Target(client="own", verbs=("list",), resource="deviceclasses")
        with proxy.suffering(DropEvents(WATCHES), Refuse(lists, code=500, count=3)):
            await cluster.api.delete(DEVICE_CLASSES, "gpu")
            proxy.break_streams("deviceclasses")

            async def removed() -> bool:
                return not len(view.classes)

            await until("removed", removed)
        assert sum(entry.code == 500 for entry in proxy.journal.entries) == 3


class Server:
    """Lists ``listed``, at resourceVersion 9, unless it is away."""

    def __init__(self) -> None:
        self.asked: list[Resource] = []
        self.listed: list[ObjectVersion] = []
        self.is_away = False
        self.meanwhile: Callable[[], object] = lambda: None
        """Happens while a list is on its way."""

    async def list_versions(self, resource: Resource) -> tuple[list[ObjectVersion], str]:
        self.asked.append(resource)
        if self.is_away:
            raise ServerError(500, "", "away")
        self.meanwhile()
        return self.listed, "9"


class Control:
    """As much of the controllers as an audit needs."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.looks = 0

    def look_again(self) -> None:
        self.looks += 1

    def delete(self, _: Source, kind: type[Object], key: str, uid: str) -> None:
        self.cluster.delete(kind, key, uid)


@pytest.fixture
def parts() -> tuple[Server, Control, Audit, list[str]]:
    server, control, restored = Server(), Control(Cluster(Inventory(language=CelSelectors(Features())))), list[str]()
    made = Audit(server, control, MalformedObjects(lambda *_: None), WATCHED, restored.append, 0.5)  # type: ignore[arg-type]
    for resource in WATCHED:
        made.loaded(resource, "5")
    return server, control, made, restored


@pytest.mark.parametrize("is_away", [False, True], ids=["while watches are interrupted all the time", "while all fail"])
async def test_everything_is_looked_at_again_now_and_then(
    parts: tuple[Server, Control, Audit, list[str]], is_away: bool
) -> None:
    server, control, made, _ = parts
    server.is_away = is_away
    task = asyncio.create_task(made.run())

    async def swept() -> bool:
        made.call(PODS)
        return control.looks > 1 and set(server.asked) == set(WATCHED)

    await until("swept", swept, 10)
    task.cancel()
    await asyncio.wait((task,))


async def test_a_failed_audit_is_repeated_at_once_when_a_watch_begins(
    parts: tuple[Server, Control, Audit, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "AUDIT_RETRY_SECONDS", (3600.0,))
    server, control, made, _ = parts
    control.cluster.apply(Node(metadata=ObjectMeta(name="old", uid="u", resource_version="4")))
    server.is_away = True
    task = asyncio.create_task(made.run())
    made.call(NODES)

    async def failed() -> bool:
        return NODES in server.asked

    await until("failed", failed)
    server.is_away = False
    made.call(NODES)

    async def removed() -> bool:
        return "old" not in control.cluster.nodes

    await until("removed", removed)
    task.cancel()
    await asyncio.wait((task,))


@pytest.mark.parametrize(
    ("seen", "removed", "restored"),
    [("8", True, False), ("9", True, False), ("10", False, True), ("opaque", True, False)],
)
async def test_a_list_that_is_older_than_what_was_seen_removes_nothing_and_is_reported(
    parts: tuple[Server, Control, Audit, list[str]], seen: str, removed: bool, restored: bool
) -> None:
    _, control, made, reported = parts
    control.cluster.apply(Node(metadata=ObjectMeta(name="old", uid="u", resource_version="4")))
    made.saw(NODES, seen)
    task = asyncio.create_task(made.run())
    made.call(NODES)

    async def done() -> bool:
        return ("old" not in control.cluster.nodes) == removed and bool(reported) == restored

    await until("compared", done, 5)
    task.cancel()
    await asyncio.wait((task,))


async def audit_once(server: Server, made: Audit, resource: Resource, told: list[str]) -> None:
    """The kind is compared, and what that told has had its time."""
    task = asyncio.create_task(made.run())
    made.call(resource)

    async def asked() -> bool:
        return bool(server.asked)

    await until("asked", asked, 5)
    for _ in range(20):
        if told:
            break
        await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.wait((task,))


@pytest.mark.parametrize(
    ("known", "listed", "restored"),
    [
        (("u", "8"), ("u", "8"), False),
        (("u", "8"), ("u", "9"), False),
        (("u", "10"), None, True),
        (("u", "8"), ("u", "7"), True),
        (("u", "8"), ("other", "7"), True),
        (("u", "8"), ("other", "9"), False),
        (("u", "8"), ("deleted", "9"), True),
    ],
    ids=[
        "the same version",
        "a newer version",
        "the answer to a write is newer than the list",
        "an older version",
        "a predecessor",
        "a successor",
        "what was deleted before",
    ],
)
async def test_single_objects_tell_that_the_server_went_back(
    parts: tuple[Server, Control, Audit, list[str]],
    known: tuple[str, str],
    listed: tuple[str, str] | None,
    restored: bool,
) -> None:
    """Other writers may have raised the resourceVersion above the one before the restore."""
    server, control, made, told = parts
    control.cluster.nodes.deleted.add("deleted")
    control.cluster.apply(Node(metadata=ObjectMeta(name="node", uid=known[0], resource_version=known[1])))
    if listed is not None:
        server.listed = [ObjectVersion("node", *listed)]
    await audit_once(server, made, NODES, told)
    assert bool(told) == restored


@pytest.mark.parametrize(("listed", "restored"), [("8", True), ("9", False)], ids=["without it", "with it"])
async def test_a_binding_that_the_server_lost_before_its_event_came_is_found(
    parts: tuple[Server, Control, Audit, list[str]], listed: str, restored: bool
) -> None:
    """The answer to a binding has no version: without its event only the pod's old version says that it is undone."""
    server, control, made, told = parts
    pod = Pod(metadata=ObjectMeta(namespace="ns", name="pod", uid="u", resource_version="8"))
    control.cluster.apply(pod)
    control.cluster.assume_bound(pod)
    server.listed = [ObjectVersion("ns/pod", "u", listed)]
    await audit_once(server, made, PODS, told)
    assert bool(told) == restored


async def test_thousands_that_were_deleted_without_an_event_have_one_line(
    parts: tuple[Server, Control, Audit, list[str]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a minute in which the API server was away, and all pods of a busy cluster were replaced."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(audit, "UNSEEN_ENDS_SECONDS", 0.01)
    server, control, made, told = parts
    for number in range(5_000):
        meta = ObjectMeta(namespace=f"ns-{number % 100}", name=f"pod-{number}", uid=f"u{number}", resource_version="4")
        control.cluster.apply(Pod(metadata=meta))
    await audit_once(server, made, PODS, told)

    async def logged() -> bool:
        return "deleted without an event" in caplog.text

    await until("logged", logged)
    assert not len(control.cluster.pods)
    (line,) = [it for it in caplog.messages if "without an event" in it]
    assert line == ("pods deleted without an event (5000 objects): ns-0/pod-0, ns-1/pod-1, ns-2/pod-2 and 4997 more")


async def test_a_binding_whose_event_comes_with_the_list_is_not_lost(
    parts: tuple[Server, Control, Audit, list[str]],
) -> None:
    server, control, made, told = parts
    meta = ObjectMeta(namespace="ns", name="pod", uid="u", resource_version="8")
    control.cluster.apply(Pod(metadata=meta))
    control.cluster.assume_bound(Pod(metadata=meta))
    bound = Pod(metadata=replace(meta, resource_version="9"), spec=PodSpec(node_name="node"))
    server.meanwhile = lambda: control.cluster.apply(bound)
    server.listed = [ObjectVersion("ns/pod", "u", "9")]
    await audit_once(server, made, PODS, told)
    assert control.cluster.pods.get("ns/pod") is bound
    assert not told
