"""The publisher against an API server: watching, writing, retrying, undoing foreign changes (RS-01 to RS-06)."""

from __future__ import annotations

import asyncio
import copy
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from dra_api.resource import Counter, Device, DeviceAttribute, DeviceCounterConsumption, DeviceTaint
from dra_api.values import Quantity
from dra_devcluster.apiserver import serve_in_thread
from dra_kube import (
    NODES,
    RESOURCE_SLICES,
    Api,
    ApiError,
    BadRequest,
    Change,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Resource,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    connection,
    reflector,
)
from dra_kubeletplugin import (
    ContestedPool,
    DroppedFields,
    Owner,
    Pool,
    PoolInvalid,
    PoolRefused,
    Recoverable,
    Slice,
    SlicePublisher,
    SyncFailed,
    WatchFailed,
    attribute,
    counter_set,
    device,
)
from dra_kubeletplugin.slices import writer
from dra_kubeletplugin.testing.api import Json, PluginApi
from waiting import becomes

NODE = Owner.node("worker-1")
Errors = list[Recoverable]


def pool(*names: str, **others: Any) -> Pool:
    """A pool with one slice per argument, each holding the devices that its text names."""
    return Pool(slices=tuple(Slice(devices=tuple(map(device, text.split()))) for text in names), **others)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_PAUSE_SECONDS", 0.01)


@pytest.fixture
def errors() -> Errors:
    return []


@asynccontextmanager
async def publishing(api: PluginApi, errors: Errors, **others: Any) -> AsyncIterator[SlicePublisher]:
    """A publisher for the node that undoes foreign changes soon, and trusts its own writes until the watch has them."""
    arguments = {"owner": NODE, "sync_delay": 0.02, "overlay_seconds": 30.0, **others}
    report = lambda error, message: errors.append(error)  # noqa: E731
    async with SlicePublisher(api.client, "gpu.example.com", on_error=report, **arguments) as publisher:
        yield publisher


async def settled(publisher: SlicePublisher) -> None:
    await asyncio.wait_for(publisher.settled(), 30)


OFFERED = [
    ("a device that is published", "p", "a", True),
    ("one of another slice", "p", "b", True),
    ("an unknown device", "p", "x", False),
    ("a pool without devices", "empty", "a", False),
    ("a pool that was withdrawn", "withdrawn", "a", False),
    ("a pool that others publish", "rack-1", "a", True),
    ("a pool that cannot be written", "twice", "x", True),
]


async def test_what_a_publisher_offers(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors) as publisher:
        assert publisher.offers("p", "x"), "nothing was published by now"
        publisher.publish({"p": pool("x"), "withdrawn": pool("a")})
        publisher.publish({"p": pool("a", "b"), "empty": Pool(), "twice": pool("a a")})
        assert not publisher.offers("p", "x"), "before anything is written"
        await settled(publisher)
        found = [(case, publisher.offers(name, device)) for case, name, device, _ in OFFERED]
    assert found == [(case, expected) for case, _, _, expected in OFFERED]


def devices(api: PluginApi) -> list[list[str]]:
    """Names of the devices in the stored slices."""
    return [[entry["name"] for entry in item["spec"].get("devices", ())] for item in api.slices()]


OWNERS = [
    ("a node", NODE, pool("a"), "worker-1", [("Node", "worker-1", "node-uid")]),
    ("another object", Owner("v1", "ConfigMap", "rack", "u"), pool("a", all_nodes=True), None,
     [("ConfigMap", "rack", "u")]),
    ("no node", None, pool("a", all_nodes=True), None, []),
]  # fmt: skip


@pytest.mark.rule("RS-04")
@pytest.mark.parametrize(("owner", "wanted", "node", "refs"), [c[1:] for c in OWNERS], ids=[c[0] for c in OWNERS])
async def test_slices_are_created_updated_and_deleted_for(
    api: PluginApi,
    errors: Errors,
    owner: Owner | None,
    wanted: Pool,
    node: str | None,
    refs: list[tuple[str, str, str]],
) -> None:
    async with publishing(api, errors, owner=owner) as publisher:
        publisher.publish({"p": wanted})
        await settled(publisher)
        (created,) = api.slices()
        owners = created["metadata"].get("ownerReferences", [])
        assert [(ref["kind"], ref["name"], ref["uid"]) for ref in owners] == refs
        assert created["spec"].get("nodeName") == node
        publisher.publish({"p": pool("b", all_nodes=wanted.all_nodes)})
        await settled(publisher)
        assert devices(api) == [["b"]]
        publisher.publish({})
        await settled(publisher)
        assert not api.slices()
        statistics = publisher.statistics
        assert (statistics.creates, statistics.updates, statistics.deletes) == (1, 1, 1)
    assert not errors


async def test_several_pools_with_several_slices(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a", "b"), "q": pool("c")})
        await settled(publisher)
        pools = [item["spec"]["pool"] for item in api.slices()]
        assert [(item["name"], item["resourceSliceCount"]) for item in pools] == [("p", 2), ("q", 1), ("p", 2)]
        publisher.publish({"q": pool("c")})
        await settled(publisher)
        assert devices(api) == [["c"]]


async def test_a_hundred_slices(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool(*(f"d{index}" for index in range(100)))})
        await settled(publisher)
        assert devices(api) == [[f"d{index}"] for index in range(100)]


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_int_021_slices_are_published_in_the_only_version_that_is_served(
    version: str, tmp_path: Path, errors: Errors
) -> None:
    served = {f"resource.k8s.io/{each}": each == version for each in ("v1", "v1beta2", "v1beta1", "v1alpha3")}
    with serve_in_thread(api_versions=served) as server:
        async with Api(connection(server.write_kubeconfig(tmp_path / "kubeconfig"))) as api:
            await api.create(NODES, {"metadata": {"name": "worker-1"}})
            report = lambda error, message: errors.append(error)  # noqa: E731
            async with SlicePublisher(api, "gpu.example.com", owner=NODE, on_error=report) as publisher:
                publisher.publish({"p": Pool.of([device("a", attributes={"x": 1})])})
                await settled(publisher)
            (stored,) = (await api.raw_get(f"/apis/resource.k8s.io/{version}/resourceslices"))["items"]
    body = {"attributes": {"x": {"int": 1}}}
    assert stored["spec"]["devices"] == [{"name": "a", **({"basic": body} if version == "v1beta1" else body)}]
    assert errors == []


@pytest.mark.rule("RS-01")
async def test_a_restart_finds_its_slices_again(api: PluginApi, errors: Errors) -> None:
    for _ in range(2):
        async with publishing(api, errors) as publisher:
            publisher.publish({"p": pool("a", "b")})
            await settled(publisher)
    assert publisher.statistics.creates == publisher.statistics.updates == publisher.statistics.deletes == 0
    assert len(api.slices()) == 2


async def test_slices_of_an_earlier_configuration_are_removed(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors) as publisher:
        publisher.publish({"old": pool("a")})
        await settled(publisher)
    async with publishing(api, errors) as publisher:
        publisher.publish({"new": pool("a")})
        await settled(publisher)
        await api.until(lambda: [item["spec"]["pool"]["name"] for item in api.slices()] == ["new"])


async def test_nothing_is_deleted_before_something_is_published(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
    api.requests.clear()
    async with publishing(api, errors):
        await api.until(lambda: ("watch", "resourceslices") in api.requests)
    assert len(api.slices()) == 1


@pytest.mark.rule("RS-01")
async def test_slices_of_other_drivers_and_nodes_are_left_alone(api: PluginApi, errors: Errors) -> None:
    for name, spec in (
        ("driver", {"driver": "other", "nodeName": "worker-1"}),
        ("node", {"driver": "gpu.example.com", "nodeName": "worker-2"}),
        ("network", {"driver": "gpu.example.com", "allNodes": True}),
    ):
        of_pool = {"name": "p", "generation": 9, "resourceSliceCount": 1}
        await api.put(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": {**spec, "pool": of_pool}})
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
        publisher.publish({})
        await settled(publisher)
    assert [item["metadata"]["name"] for item in api.slices()] == ["driver", "network", "node"]


# --- foreign changes ---


@pytest.mark.rule("K37-MISC-01", "RS-02")
async def test_a_slice_deleted_by_another_client_comes_back(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
        first = api.slices()[0]["metadata"]["name"]
        await api.remove(RESOURCE_SLICES, first)
        await api.until(lambda: bool(api.slices()))
        assert api.slices()[0]["metadata"]["name"] != first


@pytest.mark.rule("RS-02")
async def test_a_slice_changed_by_another_client_is_restored(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
        changed = api.slices()[0]
        await api.put(RESOURCE_SLICES, {**changed, "spec": {**changed["spec"], "devices": [{"name": "b"}]}})
        await api.until(lambda: devices(api) == [["a"]])
    (contest,) = [error for error in errors if isinstance(error, ContestedPool)]
    assert contest.slices == (changed["metadata"]["name"],)
    assert "if a second driver with the name gpu.example.com runs on node worker-1, each undoes" in str(contest)
    of_a_controller = ContestedPool("gpu.example.com", "p", contest.slices)
    assert "if a second controller of driver gpu.example.com publishes this pool, without the" in str(of_a_controller)


async def test_two_publishers_of_one_pool_are_told_and_a_deletion_is_no_contest(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a", "b")})
        await settled(publisher)
        await api.remove(RESOURCE_SLICES, api.slices()[0]["metadata"]["name"])
        await api.until(lambda: len(api.slices()) == 2)
        assert errors == []
        async with publishing(api, errors) as second:
            second.publish({"p": pool("x")})
            await becomes(lambda: any(isinstance(error, ContestedPool) for error in errors))


async def test_a_driver_that_publishes_measurements_is_told(
    api: PluginApi, errors: Errors, caplog: pytest.LogCaptureFixture
) -> None:
    """Its slices were written fifty times a second, without a word."""

    def measured(number: int) -> Pool:
        return Pool.of([device("a", attributes={"load": number})])

    async with publishing(api, errors) as publisher:
        for _ in range(100):
            publisher.publish({"p": measured(0)})
        for number in range(59):
            publisher.publish({"p": measured(number + 1), f"other-{number}": Pool.of()})
        assert "within a minute" not in caplog.text
        for number in range(100):
            publisher.publish({"p": measured(-number)})
        await settled(publisher)
    assert caplog.text.count('pool "p" was published with other devices 60 times within a minute') == 1
    assert errors == []


OWN_POD = {
    "username": "system:serviceaccount:drivers:gpu",
    "extra": {"authentication.kubernetes.io/pod-name": ["gpu-x"], "authentication.kubernetes.io/pod-uid": ["u"]},
}


@pytest.mark.parametrize(
    ("user", "refusal", "told"),
    [
        (OWN_POD, None, True),
        (OWN_POD, Forbidden(403, "Forbidden", "events is forbidden"), False),
        ({"username": "admin"}, None, False),
        ({"username": "system:serviceaccount:drivers:gpu", "extra": {}}, None, False),
        ("malformed", None, False),
    ],
)
async def test_an_event_about_the_pod_of_the_driver_says_that_its_pool_is_contested(
    api: PluginApi, errors: Errors, user: Any, refusal: Exception | None, told: bool
) -> None:
    def events() -> list[Any]:
        return [obj for key, obj in api.objects.items() if key[0] == "events"]

    api.user = user
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
        if refusal is not None:
            api.faults["create"] = [refusal]
        for name in ("b", "c"):
            changed = api.slices()[0]
            await api.put(RESOURCE_SLICES, {**changed, "spec": {**changed["spec"], "devices": [{"name": name}]}})
            await api.until(lambda: devices(api) == [["a"]])
            await api.until(lambda: bool(events()) == told)
    assert len(events()) == told, "once for a contest that lasts"
    for event in events():
        assert event["metadata"]["namespace"] == event["involvedObject"]["namespace"] == "drivers"
        assert (event["involvedObject"]["name"], event["involvedObject"]["uid"]) == ("gpu-x", "u")
        assert (event["type"], event["reason"]) == ("Warning", "ContestedPool")
        assert "stop one of them" in event["message"]


async def test_an_event_tells_of_a_contest_although_the_other_writer_wins(api: PluginApi, errors: Errors) -> None:
    """That one changes the slices again in the moment in which they are restored."""
    api.user = OWN_POD
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
        api.faults["update"] = [Conflict(409, "Conflict", "the object has been modified")] * 1000
        changed = api.slices()[0]
        await api.put(RESOURCE_SLICES, {**changed, "spec": {**changed["spec"], "devices": [{"name": "b"}]}})
        await api.until(lambda: any(key[0] == "events" for key in api.objects))


async def test_what_a_newer_instance_writes_is_no_contest(
    api: PluginApi, errors: Errors, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    permitted = [True]
    async with publishing(api, errors, may_publish=lambda: permitted[0]) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
        permitted[0] = False
        changed = api.slices()[0]
        await api.put(RESOURCE_SLICES, {**changed, "spec": {**changed["spec"], "devices": [{"name": "b"}]}})
        await becomes(lambda: "this one waits" in caplog.text)
        permitted[0] = True
        await api.until(lambda: devices(api) == [["a"]])
    assert errors == []


async def test_what_happened_during_a_broken_watch_is_noticed(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors, overlay_seconds=0.05) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
        api.faults["list"] = [ServerError(503, "ServiceUnavailable", "starting")]
        api.objects = {key: obj for key, obj in api.objects.items() if key[0] != "resourceslices"}
        await api.forget_history()
        await api.until(lambda: devices(api) == [["a"]])
    assert [type(error) for error in errors] == [WatchFailed]
    assert isinstance(errors[0].__cause__, ServerError)


@pytest.mark.parametrize("last_write", ["create", "update"])
async def test_a_slice_that_was_deleted_unseen_comes_back_although_we_wrote_it_just_now(
    api: PluginApi, errors: Errors, last_write: str
) -> None:
    async with publishing(api, errors, overlay_seconds=3600.0) as publisher:
        for names in ("a",) if last_write == "create" else ("b", "a"):
            publisher.publish({"p": pool(names)})
            await settled(publisher)
        api.objects = {key: obj for key, obj in api.objects.items() if key[0] != "resourceslices"}
        await api.forget_history()
        await asyncio.wait_for(api.until(lambda: devices(api) == [["a"]]), 30)


async def test_a_slice_that_is_gone_unseen_is_created_at_the_next_change(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
        api.objects = {key: obj for key, obj in api.objects.items() if key[0] != "resourceslices"}
        publisher.publish({"p": pool("b")})
        await asyncio.wait_for(settled(publisher), 30)
    assert devices(api) == [["b"]]
    assert [type(error) for error in errors] == [SyncFailed]


async def test_a_server_that_forgets_at_once_is_asked_at_a_pace(
    api: PluginApi, errors: Errors, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def short(seconds: float) -> float:
        pauses.append(seconds)
        return 0.0

    monkeypatch.setattr(reflector, "spread", short)
    api.faults["watch"] = [Gone(410, "Expired", "too old resource version") for _ in range(20)]
    async with publishing(api, errors):
        await api.until(lambda: len(api.requests) >= 40 and not api.faults["watch"])
    assert len(pauses) >= 20
    assert all(pause >= writer._PAUSE_SECONDS for pause in pauses), "and longer after a list that took long"
    assert not errors


async def test_an_old_list_is_read_again_since_a_watch_may_have_missed_something(
    api: PluginApi, errors: Errors, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ended(resource: Resource, namespace: str | None = None, **options: str) -> AsyncIterator[list[Change]]:
        await api.until(lambda: not api.slices())
        yield []

    monkeypatch.setattr(writer, "_LIST_SECONDS", 0.0)
    async with publishing(api, errors) as publisher:
        monkeypatch.setattr(api, "changes", ended)
        publisher.publish({"p": pool("a")})
        await settled(publisher)
        await api.remove(RESOURCE_SLICES, api.slices()[0]["metadata"]["name"])
        await asyncio.wait_for(api.until(lambda: devices(api) == [["a"]]), 30)
    assert not errors


async def test_a_conflict_is_overcome_although_no_watch_reports_the_other_write(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
        _, newer = await api.list(RESOURCE_SLICES)
        api.slices()[0]["metadata"]["resourceVersion"] = newer
        publisher.publish({"p": pool("b")})
        await asyncio.wait_for(settled(publisher), 30)
    assert devices(api) == [["b"]]
    assert [type(error) for error in errors] == [SyncFailed]


@pytest.mark.rule("RS-03")
async def test_an_own_write_counts_before_the_watch_tells_it(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors, sync_delay=0.0, overlay_seconds=60.0) as publisher:
        for names in ("a", "b", "c", "d"):
            publisher.publish({"p": pool(names)})
            await settled(publisher)
        assert publisher.statistics.creates == 1
        assert publisher.statistics.updates == 3


async def test_a_node_made_again_is_the_owner_of_new_slices(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
        await api.put(NODES, {"metadata": {"name": "worker-1", "uid": "second-uid"}})
        await api.remove(RESOURCE_SLICES, api.slices()[0]["metadata"]["name"])
        await api.until(lambda: bool(api.slices()))
        assert api.slices()[0]["metadata"]["ownerReferences"][0]["uid"] == "second-uid"


# --- failures ---

RIGHTS = (
    "; the driver's ServiceAccount needs a ClusterRole that allows it: list, watch, create, update and delete of "
    "resourceslices, get of nodes and resourceclaims (dra-kubelet-plugin new writes one)"
)
FAILURES = [
    ("create", ServerError(500, "InternalError", "etcd is down"), ""),
    ("create", Forbidden(403, "Forbidden", "not allowed"), RIGHTS),
    ("get", ServerError(500, "InternalError", "no node today"), ""),
    ("get", NotFound(404, "NotFound", "no such node", {"kind": "nodes", "name": "n"}),
     "; give the name that the Node has (--node-name, NODE_NAME)"),
    ("create", Unauthorized(401, "Unauthorized", "Unauthorized"),
     "; the API server does not know the kubeconfig's token or certificate, or the pod's account"),
]  # fmt: skip


async def test_an_older_instance_stops_in_the_middle_of_its_writes(api: PluginApi, errors: Errors) -> None:
    """It wrote on to the end: for as long as that took its slices were mixed with those of the newer instance."""
    is_newest = True

    def stored(_obj: Json) -> None:
        nonlocal is_newest
        is_newest = False

    api.store = stored
    async with publishing(api, errors, may_publish=lambda: is_newest) as publisher:
        publisher.publish({"p": pool("a", "b", "c")})
        await api.until(lambda: devices(api) == [["a"]])
        for _ in range(100):
            await asyncio.sleep(0)
        assert devices(api) == [["a"]]
        assert not errors
        api.store, is_newest = lambda _obj: None, True
        await settled(publisher)
        assert devices(api) == [["a"], ["b"], ["c"]]


class LateApi(PluginApi):
    """Its first create times out for the client, and arrives before the second one, or when ``land`` is called."""

    def __init__(self, *, before_next: bool) -> None:
        super().__init__()
        self._before_next = before_next
        self._under_way: list[tuple[Resource, Json]] = []
        self._creates = 0

    async def create(self, resource: Resource, body: Json) -> Json:
        self._creates += 1
        if self._creates == 1:
            self._under_way.append((resource, copy.deepcopy(body)))
            raise Unreachable("timed out")
        if self._before_next:
            await self.land()
        return await super().create(resource, body)

    async def land(self) -> None:
        """What is under way arrives."""
        while self._under_way:
            await super().create(*self._under_way.pop(0))

    def shown(self) -> list[str]:
        """The devices that readers see: those of the slices of the newest generation, if all of them are there."""
        specs = [item["spec"] for item in self.slices()]
        newest = max(spec["pool"]["generation"] for spec in specs)
        there = [spec for spec in specs if spec["pool"]["generation"] == newest]
        if {spec["pool"]["resourceSliceCount"] for spec in there} != {len(there)}:
            return []
        return [device["name"] for spec in there for device in spec["devices"]]


@pytest.mark.rule("RS-03")
@pytest.mark.parametrize("before_next", [True, False])
@pytest.mark.parametrize("slices", [("a",), ("a", "b")])
async def test_a_slice_whose_creation_had_no_answer_hides_no_pool(
    errors: Errors, slices: tuple[str, ...], before_next: bool
) -> None:
    """There were two slices of one generation, and the pool was incomplete until foreign changes were undone."""
    api = LateApi(before_next=before_next)
    await api.put(NODES, {"metadata": {"name": "worker-1", "uid": "node-uid"}})
    async with publishing(api, errors, sync_delay=600.0) as publisher:
        publisher.publish({"pool": pool(*slices)})
        await settled(publisher)
        await api.land()
        assert api.shown() == list(slices)


@pytest.mark.rule("RS-03")
async def test_a_slice_that_is_created_late_brings_no_device_back(errors: Errors) -> None:
    api = LateApi(before_next=False)
    await api.put(NODES, {"metadata": {"name": "worker-1", "uid": "node-uid"}})
    async with publishing(api, errors, sync_delay=600.0) as publisher:
        publisher.publish({"pool": pool("a b")})
        await becomes(lambda: bool(errors))
        publisher.publish({"pool": pool("a")})
        await settled(publisher)
        await api.land()
        assert api.shown() == ["a"]


@pytest.mark.rule("RS-02")
@pytest.mark.parametrize(("verb", "fault", "remedy"), FAILURES)
async def test_a_failed_write_is_reported_and_tried_again(
    api: PluginApi, errors: Errors, verb: str, fault: ApiError, remedy: str
) -> None:
    api.faults[verb] = [fault, fault]
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a", "b")})
        await settled(publisher)
    assert devices(api) == [["a"], ["b"]]
    assert [type(error) for error in errors] == [SyncFailed, SyncFailed]
    assert str(errors[0]) == f'pool "p": {fault}{remedy}'


async def test_failures_of_weeks_ago_do_not_make_the_next_pause_longer(api: PluginApi, errors: Errors) -> None:
    """A pool that is published after each failure begins anew: the fifteenth failure is as short as the first one."""
    loop = asyncio.get_running_loop()
    async with publishing(api, errors, sync_delay=600.0) as publisher:
        for number in range(15):
            api.faults["update" if number else "create"] = [ServerError(500, "InternalError", "no")]
            began = loop.time()
            publisher.publish({"p": pool(f"dev-{number}")})
            await settled(publisher)
            assert loop.time() - began < 10, f"failure {number}"
    assert len(errors) == 15


@pytest.mark.parametrize("verb", ["update", "delete"])
async def test_conflicts_are_overcome(api: PluginApi, errors: Errors, verb: str) -> None:
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
        api.faults[verb] = [Conflict(409, "Conflict", "the object has been modified")]
        publisher.publish({"p": pool("b")} if verb == "update" else {})
        await settled(publisher)
    assert devices(api) == ([["b"]] if verb == "update" else [])


async def test_one_pool_that_fails_does_not_hold_up_others(api: PluginApi, errors: Errors) -> None:
    def refuse(obj: dict[str, Any]) -> None:
        if obj["spec"]["pool"]["name"] == "bad":
            raise ServerError(500, "InternalError", "no")

    api.store = refuse
    async with publishing(api, errors) as publisher:
        publisher.publish({"bad": pool("a"), "good": pool("b")})
        await api.until(lambda: devices(api) == [["b"]])
    assert {str(error) for error in errors} == {'pool "bad": no'}


async def test_an_error_handler_that_fails_ends_nothing(api: PluginApi, caplog: pytest.LogCaptureFixture) -> None:
    def handler(error: Recoverable, message: str) -> None:
        raise RuntimeError("bug in the driver")

    api.faults["list"] = [ServerError(503, "ServiceUnavailable", "starting")]
    api.faults["create"] = [ServerError(500, "InternalError", "etcd is down")]
    async with SlicePublisher(api.client, "gpu.example.com", owner=NODE, on_error=handler) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
    assert devices(api) == [["a"]]
    assert caplog.text.count("RuntimeError: bug in the driver") == 2


GARBAGE = [
    ("no metadata", {"spec": {}}),
    ("a spec that is a list", {"metadata": {"name": "x", "uid": "u"}, "spec": [1]}),
    ("devices that are none", {"metadata": {"name": "x", "uid": "u"}, "spec": {"devices": 7, "pool": {"name": "p"}}}),
]


@pytest.mark.parametrize("garbage", [case[1] for case in GARBAGE], ids=[case[0] for case in GARBAGE])
async def test_a_malformed_slice_does_not_keep_good_ones_from_being_published(
    api: PluginApi, errors: Errors, garbage: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real_list = api.list

    async def list_with_garbage(resource: Resource, **selectors: str) -> tuple[list[Json], str]:
        objects, version = await real_list(resource, **selectors)
        return [garbage, *objects], version

    monkeypatch.setattr(api, "list", list_with_garbage)
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
    assert devices(api) == [["a"]]
    assert not errors


async def test_what_has_taken_the_name_of_a_malformed_slice_is_not_deleted_for_it(
    api: PluginApi, errors: Errors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A malformed slice has no version to compare."""
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a")})
        await settled(publisher)
    (good,) = api.slices()
    old = {**good["metadata"], "uid": "old"}
    await api.put(RESOURCE_SLICES, {**good, "metadata": old, "spec": {**good["spec"], "devices": 7}})
    delete, makes_anew = api.delete, iter([good])

    async def after_another_one(resource: Resource, name: str, **conditions: Any) -> None:
        if made := next(makes_anew, None):
            await api.put(RESOURCE_SLICES, made)
        await delete(resource, name, **conditions)

    monkeypatch.setattr(api, "delete", after_another_one)
    async with publishing(api, errors) as publisher:
        publisher.publish({})
        await becomes(lambda: not api.slices())
    assert [type(error) for error in errors] == [SyncFailed]


async def test_an_invalid_pool_is_reported_once_and_nothing_of_it_written(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors, sync_delay=60.0) as publisher:  # each desired pool is looked at once
        publisher.publish({"p": pool("a"), "q": pool("x")})
        await settled(publisher)
        publisher.publish({"p": pool("b b"), "q": pool("y")})
        await settled(publisher)
        assert devices(api) == [["a"], ["y"]]
    assert [type(error) for error in errors] == [PoolInvalid]


TOO_LONG = {
    "field": "spec.devices[1].attributes[model].string",
    "reason": "FieldValueTooLong",
    "message": "Too long: may not be more than 64 bytes",
}
REFUSALS = [
    ("an invalid field", Invalid(422, "Invalid", "invalid", {"causes": [TOO_LONG]}),
     'pool "p", slice #0: device "b", attribute "model": spec.devices[1].attributes[model].string: '
     "Too long: may not be more than 64 bytes (shorten it)"),
    ("an admission policy", Invalid(422, "Invalid", "no slices on Sundays"),
     'pool "p", slice #0: no slices on Sundays (change what the driver publishes, or the policy that refuses it)'),
    ("a body that cannot be read", BadRequest(400, "BadRequest", "cannot unmarshal number"),
     'pool "p", slice #0: cannot unmarshal number (change what the driver publishes, or the policy that refuses it)'),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "text"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS])
async def test_a_refused_slice_is_a_problem_until_something_else_is_published(
    api: PluginApi, errors: Errors, fault: ApiError, text: str
) -> None:
    api.faults["create"] = [fault]
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a b")})
        await settled(publisher)
        assert [(type(error), str(error)) for error in errors] == [(PoolRefused, text)]
        assert publisher.problems == {"p": errors[0]}
        publisher.publish({"p": pool("a b"), "q": pool("x")})
        await settled(publisher)
        assert devices(api) == [["x"]], "the same would be refused again"
        publisher.publish({"p": pool("a"), "q": pool("x")})
        await settled(publisher)
        assert not publisher.problems
    assert sorted(devices(api)) == [["a"], ["x"]]


async def test_the_server_is_left_in_peace_for_as_long_as_it_asks(api: PluginApi, errors: Errors) -> None:
    api.faults["create"] = [TooManyRequests(429, "TooManyRequests", "slow down", retry_after=0.4)]
    began = time.monotonic()
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": pool("a"), "q": pool("b")})
        await settled(publisher)
    assert time.monotonic() - began >= 0.4
    assert api.requests.count(("create", "resourceslices")) == 3
    assert [type(error) for error in errors] == [SyncFailed]


async def test_a_driver_that_publishes_over_and_over_stays_within_the_pace(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors, rate=50.0, burst=10) as publisher:
        began = time.monotonic()
        for number in range(300):
            publisher.publish({"p": pool(f"d{number}")})
            for _ in range(20):
                await asyncio.sleep(0)
        await settled(publisher)
        assert publisher.statistics.updates <= 10 + 50 * (time.monotonic() - began)
        assert devices(api) == [["d299"]]


# --- what the driver does to its objects afterwards ---


@pytest.mark.rule("RS-02")
async def test_what_is_published_is_a_copy(api: PluginApi, errors: Errors) -> None:
    attributes = {"model": attribute("A100")}
    resources = {"p": Pool(slices=(Slice(devices=(Device(name="a", attributes=attributes),)),))}
    async with publishing(api, errors) as publisher:
        publisher.publish(resources)
        attributes["model"] = attribute("H100")
        resources["q"] = pool("b")
        await settled(publisher)
    assert [item["spec"]["devices"] for item in api.slices()] == [
        [{"name": "a", "attributes": {"model": {"string": "A100"}}}]
    ]


@pytest.mark.rule("RS-02")
async def test_publishing_the_same_again_sends_nothing(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors) as publisher:
        for _ in range(3):
            publisher.publish({"p": pool("a", "b")})
            await settled(publisher)
        assert (publisher.statistics.creates, publisher.statistics.updates) == (2, 0)


UNUSABLE = [
    ("a number as a name", Device(name=cast(str, 5)), 'device "5": Expected `str`, got `int` - at `name`'),
    ("a text as taints", Device(name="a", taints=cast(Any, "x")),
     'device "a": Expected `array | null`, got `str` - at `taints`'),
    ("an object as a string", Device(name="a", attributes={"x": DeviceAttribute(string=cast(str, object()))}),
     'device "a": NotImplementedError: '),
]  # fmt: skip


@pytest.mark.parametrize(("unusable", "text"), [case[1:] for case in UNUSABLE], ids=[case[0] for case in UNUSABLE])
async def test_a_value_of_a_wrong_type_is_reported_with_its_device(
    api: PluginApi, errors: Errors, unusable: Device, text: str
) -> None:
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": Pool(slices=(Slice(devices=(device("ok"), unusable)),))})
        await settled(publisher)
        assert publisher.problems.keys() == {"p"}
    assert [type(error) for error in errors] == [PoolInvalid]
    assert str(errors[0]).startswith(f'pool "p" has a value that a ResourceSlice cannot hold: {text}')


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """The collector looks at the objects of the whole test process, in whichever thread it happens to run."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
async def test_a_large_pool_lets_the_loop_do_other_work(api: PluginApi, errors: Errors) -> None:
    many = Pool.of([device(f"d{number}", attributes={"index": number, "model": "A"}) for number in range(5120)])
    spent: list[float] = []

    async def measure() -> None:
        while True:
            began = time.thread_time()  # of this thread: work in other threads, and other processes, do not count
            await asyncio.sleep(0)
            spent.append(time.thread_time() - began)

    async with publishing(api, errors) as publisher:
        task = asyncio.create_task(measure())
        publisher.publish({"p": many})
        await settled(publisher)
        task.cancel()
    assert len(api.slices()) == 40
    assert max(spent) < 0.2, "all at once takes half a second"


# --- a kubelet that starts anew ---


async def test_slices_that_a_starting_kubelet_removed_are_back_soon(api: PluginApi, errors: Errors) -> None:
    async with publishing(api, errors, sync_delay=30.0) as publisher:
        publisher.publish({"p": pool("a", "b")})
        await settled(publisher)
        first, second = (item["metadata"]["name"] for item in api.slices())
        await api.remove(RESOURCE_SLICES, first)
        publisher.restore_soon()
        await api.remove(RESOURCE_SLICES, second)
        await asyncio.wait_for(api.until(lambda: devices(api) == [["a"], ["b"]]), 15)
    assert publisher.statistics.creates == 4


# --- fields that the server drops or sets (RS-06) ---

TAINT = DeviceTaint(key="k", effect="NoSchedule")


def drop(*fields: str) -> Callable[[Json], None]:
    """A server that does not keep these fields of devices (or of the slice)."""

    def store(obj: dict[str, Any]) -> None:
        for field in fields:
            obj["spec"].pop(field, None)
            for entry in obj["spec"].get("devices", ()):
                entry.pop(field, None)

    return store


DROPS = [
    ("taints", "DRADeviceTaints", device("a", taints=(TAINT,))),
    ("bindingConditions", "DRADeviceBindingConditions", device("a", binding_conditions=("c",))),
    ("allowMultipleAllocations", "DRAConsumableCapacity", device("a", allow_multiple_allocations=True)),
    ("nodeAllocatableResourceMappings", "DRANodeAllocatableResources",
     device("a", node_allocatable_resource_mappings={"cpu": {}})),
    ("nodeAllocatableResources", "DRANodeAllocatableResources",
     device("a", node_allocatable_resources={"cpu": {}})),
    ("attributes", "DRAListTypeAttributes", device("a", attributes={"x": [1, 2]})),
    ("capacity", "unknown", device("a", capacity={"x": 1})),
]  # fmt: skip


@pytest.mark.rule("RS-06")
@pytest.mark.parametrize(("field", "feature", "wanted"), DROPS, ids=[case[0] for case in DROPS])
async def test_int_020_dropped_fields_are_reported_and_not_written_again_and_again(
    api: PluginApi, errors: Errors, field: str, feature: str, wanted: Device
) -> None:
    api.store = drop(field)
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": Pool.of([wanted])})
        await settled(publisher)
        await api.put(RESOURCE_SLICES, {**api.slices()[0]})  # an event, so that the pool is looked at once more
        api.requests.clear()
        publisher.publish({"p": Pool.of([wanted]), "q": pool("x")})
        await settled(publisher)
    assert {type(error) for error in errors} == {DroppedFields}
    assert str(errors[0]).startswith('pool "p", slice #0: some fields were dropped by the apiserver, probably')
    assert isinstance(errors[0], DroppedFields)
    assert errors[0].features == (feature,)
    assert len(errors) == 1, "once per publication"


@pytest.mark.rule("RS-06")
async def test_dropped_counters_are_recognised(api: PluginApi, errors: Errors) -> None:
    api.store = drop("sharedCounters", "consumesCounters")
    wanted = Pool.of([device("a", consumes={"m": {"c": 1}})], shared_counters=[counter_set("m", {"c": 4})])
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": wanted})
        await settled(publisher)
    assert [getattr(error, "features", None) for error in errors] == [("DRAPartitionableDevices",)] * 2


@pytest.mark.rule("K37-ONO-13", "RS-06")
async def test_calls_that_a_server_before_1_37_does_not_let_kubelets_skip_are_reported(
    api: PluginApi, errors: Errors
) -> None:
    """A server of 1.37 with the gate on keeps the field, and the slices stay as they are."""
    wanted = {"p": Pool.of([device("a")], skip_node_operations=["*"])}
    async with publishing(api, errors) as publisher:
        publisher.publish(wanted)
        await settled(publisher)
        assert [one["spec"]["skipNodeOperations"] for one in api.slices()] == [["*"]]
        api.store = drop("skipNodeOperations")
        publisher.publish({"p": Pool.of([device("b")], skip_node_operations=["*"])})
        await settled(publisher)
        assert ["skipNodeOperations" in one["spec"] for one in api.slices()] == [False]
    assert [getattr(error, "features", None) for error in errors] == [("DRAOptionalNodeOperations",)]
    assert str(errors[0]).endswith("(API servers before Kubernetes 1.37 do not have DRAOptionalNodeOperations)")


@pytest.mark.rule("K37-CG-10", "RS-06")
async def test_dropped_compatibility_groups_are_told_apart_from_dropped_counters(
    api: PluginApi, errors: Errors
) -> None:
    def store(obj: dict[str, Any]) -> None:
        for entry in obj["spec"].get("devices", ()):
            for consumption in entry["consumesCounters"]:
                consumption.pop("compatibilityGroups", None)

    api.store = store
    amount = {"c": Counter(value=Quantity("1"))}
    consumption = DeviceCounterConsumption(counter_set="m", counters=amount, compatibility_groups=("g",))
    wanted = Pool.of([Device(name="a", consumes_counters=(consumption,))], shared_counters=[counter_set("m", {"c": 4})])
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": wanted})
        await settled(publisher)
    assert [getattr(error, "features", None) for error in errors] == [("DRADeviceCompatibilityGroups",)]


@pytest.mark.rule("RS-06")
async def test_taint_times_set_by_the_server_are_kept(api: PluginApi, errors: Errors) -> None:
    def set_time(obj: dict[str, Any]) -> None:
        for taint in obj["spec"]["devices"][0].get("taints", ()):
            taint.setdefault("timeAdded", f"2026-01-01T00:00:{len(api.requests):02}Z")

    api.store = set_time
    tainted = device("a", taints=(TAINT,))
    async with publishing(api, errors) as publisher:
        publisher.publish({"p": Pool.of([tainted])})
        await settled(publisher)
        time = api.slices()[0]["spec"]["devices"][0]["taints"][0]["timeAdded"]
        publisher.publish({"p": Pool.of([tainted, device("b")])})
        await settled(publisher)
    assert devices(api) == [["a", "b"]]
    assert api.slices()[0]["spec"]["devices"][0]["taints"][0]["timeAdded"] == time
    assert not errors


# --- one pool without node name (RS-05) ---


@pytest.mark.rule("RS-05")
async def test_reconciling_one_pool_by_name(api: PluginApi, errors: Errors) -> None:
    other = {"driver": "gpu.example.com", "pool": {"name": "q", "generation": 1, "resourceSliceCount": 1}}
    await api.put(RESOURCE_SLICES, {"metadata": {"name": "other"}, "spec": {**other, "allNodes": True}})
    async with publishing(api, errors, reconcile_pool="p") as publisher:
        publisher.publish({"p": pool("a", all_nodes=True)})
        await settled(publisher)
        created, _ = api.slices()
        assert "nodeName" not in created["spec"]
        assert created["metadata"]["ownerReferences"][0]["name"] == "worker-1"
        publisher.publish({"p": pool("a", all_nodes=True), "q": pool("b", all_nodes=True)})
        assert [str(error) for error in errors] == ["only the pool p may be published, not q"]
        publisher.publish({})
        await settled(publisher)
    assert [item["metadata"]["name"] for item in api.slices()] == ["other"]
