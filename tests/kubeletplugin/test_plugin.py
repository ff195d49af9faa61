"""A plugin seen by the kubelet: registration, calls on the wire, start and stop (PH-01 to PH-10)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import aiohttp
import grpc
import pytest
from dra_api.resource import ResourceClaim
from dra_kube import RESOURCE_SLICES, Forbidden, Invalid, ServerError, Unauthorized
from dra_kubeletplugin import (
    ClaimError,
    ClaimRef,
    ContainerEdits,
    Driver,
    KubeletPlugin,
    PluginError,
    PluginSettings,
    Pool,
    PoolRefused,
    PreparedDevice,
    ServerDied,
    SettingsError,
    StartError,
    device,
    results_for,
)
from dra_kubeletplugin.claims import calls
from dra_kubeletplugin.claims.calls import LEGACY, V1, V1BETA1, WireVersion
from dra_kubeletplugin.claims.device_status import fetch_claim
from dra_kubeletplugin.kubelet import Interceptor, LoggingInterceptor, SocketServer, is_newest
from dra_kubeletplugin.monitoring import Metrics, monitored
from dra_kubeletplugin.testing import CallRecorder, FakeKubelet, Faults
from dra_kubeletplugin.testing.api import PluginApi
from dra_proto.health.v1alpha1 import api_pb2 as health_pb2
from dra_proto.health.v1alpha1 import api_pb2_grpc as health_grpc
from node_world import MakeClaim
from waiting import becomes

A = ClaimRef("default", "a", "uid-of-a")
B = ClaimRef("default", "b", "uid-of-b")


class Sample(Driver):
    """Prepares what is allocated; ``hold`` keeps calls waiting, ``answer`` replaces the results."""

    def __init__(self) -> None:
        self.running = self.most_running = 0
        self.hold: asyncio.Event | None = None
        self.answer: object = None
        self.cancelled = 0
        self.errors: list[PluginError] = []
        self.claims: list[ResourceClaim] = []

    async def prepare(self, claim: ResourceClaim) -> Any:
        self.claims.append(claim)
        await self._work()
        if claim.metadata.name == "broken":
            raise ClaimError("no such firmware")
        if self.answer is not None:
            return self.answer
        edits = ContainerEdits(env=("A=b",))
        return [PreparedDevice.of(result, edits=edits) for result in results_for("gpu.example.com", claim)]

    async def unprepare(self, claim: ClaimRef) -> None:
        await self._work()
        if isinstance(self.answer, Exception):
            raise self.answer

    def handle_error(self, error: PluginError, message: str) -> None:
        self.errors.append(error)

    async def _work(self) -> None:
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            if self.hold:
                await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


@pytest.fixture
def driver() -> Sample:
    return Sample()


@pytest.fixture
def recorder() -> CallRecorder:
    return CallRecorder()


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
async def running(
    api: PluginApi, driver: Sample, settings: PluginSettings, recorder: CallRecorder, faults: Faults
) -> AsyncIterator[KubeletPlugin]:
    async with KubeletPlugin(driver, settings, api.client, interceptors=[recorder, faults]) as plugin:
        yield plugin


@pytest.fixture
async def kubelet(running: KubeletPlugin, settings: PluginSettings) -> AsyncIterator[FakeKubelet]:
    async with FakeKubelet(settings) as fake:
        yield fake


# --- registration ---


@pytest.mark.rule("PH-03", "PH-04")
async def test_get_info_names_driver_socket_and_services_in_order(
    kubelet: FakeKubelet, settings: PluginSettings
) -> None:
    info = await kubelet.get_info()
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "gpu.example.com", str(settings.plugin_path))
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]


@pytest.mark.rule("PH-03")
@pytest.mark.parametrize(("off", "left"), [("serve_v1", "v1beta1.DRAPlugin"), ("serve_v1beta1", "v1.DRAPlugin")])
async def test_a_version_can_be_left_out(
    api: PluginApi, driver: Sample, settings: PluginSettings, off: str, left: str
) -> None:
    changes: dict[str, Any] = {off: False}
    settings = replace(settings, **changes)
    async with KubeletPlugin(driver, settings, api.client), FakeKubelet(settings) as kubelet:
        assert list((await kubelet.get_info()).supported_versions) == [left]
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await kubelet.prepare([], V1 if off == "serve_v1" else V1BETA1)
        assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_kubelet_of_old_is_served_on_demand(
    api: PluginApi, driver: Sample, settings: PluginSettings, claim: MakeClaim
) -> None:
    await claim("a", result={"shareID": "s"})
    settings = replace(settings, serve_v1=False, serve_v1beta1=False, serve_legacy=True)
    async with KubeletPlugin(driver, settings, api.client), FakeKubelet(settings) as kubelet:
        assert list((await kubelet.get_info()).supported_versions) == ["v1alpha3.NodeService"]
        (prepared,) = (await kubelet.prepare([A], LEGACY))["uid-of-a"].devices
        assert (prepared.device_name, list(prepared.request_names)) == ("gpu-0", ["req"])
        assert (await kubelet.unprepare([A], LEGACY))["uid-of-a"].error == ""


@pytest.mark.rule("PH-04")
async def test_the_verdict_of_the_kubelet_is_remembered(kubelet: FakeKubelet, running: KubeletPlugin) -> None:
    assert running.registration_status is None
    with pytest.raises(grpc.aio.AioRpcError, match="wrong version"):
        await kubelet.notify(registered=False, error="wrong version")
    assert running.registration_status
    assert not running.registration_status.registered
    assert running.registration_status.error == "wrong version"
    waiting = asyncio.create_task(running.registered())
    await kubelet.register()
    await asyncio.wait_for(waiting, 30)
    assert running.registration_status.registered


async def test_faults_can_be_injected_into_registration(kubelet: FakeKubelet, faults: Faults) -> None:
    with faults.failing("GetInfo"), pytest.raises(grpc.aio.AioRpcError, match="injected error"):
        await kubelet.get_info()
    await kubelet.register()


# --- prepare and unprepare on the wire ---


@pytest.mark.rule("PH-08")
@pytest.mark.parametrize("version", [V1, V1BETA1], ids=lambda version: version.name)
async def test_prepared_devices_on_the_wire(
    kubelet: FakeKubelet, claim: MakeClaim, version: WireVersion, driver: Sample
) -> None:
    await claim("a", request="req/sub", result={"shareID": "s"})
    answer = (await kubelet.prepare([A], version))["uid-of-a"]
    assert answer.error == ""
    (prepared,) = answer.devices
    assert list(prepared.request_names) == ["req"], "sub-requests are cut off"
    assert (prepared.pool_name, prepared.device_name) == ("worker-1", "gpu-0")
    assert list(prepared.cdi_device_ids) == ["gpu.example.com/claim=claim-uid-of-a-req-0"]
    assert getattr(prepared, "share_id", None) == ("s" if version is V1 else None)
    assert driver.claims[0].status.allocation, "the driver gets the claim as the API server has it"
    assert (await kubelet.unprepare([A], version))["uid-of-a"].error == ""


async def test_one_claim_fails_alone(kubelet: FakeKubelet, claim: MakeClaim) -> None:
    await claim("a")
    await claim("broken", device="gpu-1")
    answers = await kubelet.prepare([A, ClaimRef("default", "broken", "uid-of-broken")])
    assert answers["uid-of-broken"].error == "no such firmware"
    assert not answers["uid-of-broken"].devices
    assert len(answers["uid-of-a"].devices) == 1


WHOLE_CALL = [
    ("a claim that is gone", {}, "claim default/a does not exist any more"),
    ("a claim without allocation", {"allocated": False}, "claim default/a not allocated"),
    ("a claim made again", {"uid": "other"}, "claim default/a got replaced"),
    ("a malformed claim", {"result": {"device": 7}}, "claim default/a is malformed: .*device"),
]


@pytest.mark.rule("PH-08")
@pytest.mark.parametrize(("changes", "message"), [case[1:] for case in WHOLE_CALL], ids=[c[0] for c in WHOLE_CALL])
async def test_the_whole_call_fails_for(
    kubelet: FakeKubelet, claim: MakeClaim, driver: Sample, changes: dict[str, Any], message: str
) -> None:
    await claim("b")
    if changes:
        await claim("a", **changes)
    with pytest.raises(grpc.aio.AioRpcError, match=message):
        await kubelet.prepare([A, B])
    assert not driver.claims, "the driver is not asked"


async def test_an_api_server_that_fails_fails_the_call(kubelet: FakeKubelet, api: PluginApi, claim: MakeClaim) -> None:
    await claim("a")
    api.faults["get"] = [ServerError(500, "InternalError", "etcd is down")]
    with pytest.raises(grpc.aio.AioRpcError, match="etcd is down"):
        await kubelet.prepare([A])
    assert (await kubelet.prepare([A]))["uid-of-a"].devices


async def test_an_error_that_utf_8_cannot_have_reaches_the_kubelet_with_escapes(
    api: PluginApi, driver: Sample, settings: PluginSettings
) -> None:
    class Odd(Interceptor):
        async def unary(self, method: str, request: Any, context: Any, proceed: Any) -> Any:
            raise ClaimError("no such file: \udcff")

    async with KubeletPlugin(driver, settings, api.client, interceptors=[Odd()]), FakeKubelet(settings) as kubelet:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await kubelet.unprepare([A])
    assert failure.value.details() == "no such file: \\udcff"


async def test_an_exception_of_the_driver_reaches_the_kubelet_as_text_and_the_log_with_its_trace(
    kubelet: FakeKubelet, claim: MakeClaim, driver: Sample, caplog: pytest.LogCaptureFixture
) -> None:
    await claim("a")
    driver.answer = ZeroDivisionError("no memory left")
    assert (await kubelet.unprepare([A]))["uid-of-a"].error == "no memory left"
    assert "unprepare of claim default/a: no memory left" in caplog.text
    assert "Traceback" in caplog.text


async def test_an_error_without_text_is_no_success(kubelet: FakeKubelet, driver: Sample) -> None:
    driver.answer = ValueError()
    assert (await kubelet.unprepare([A]))["uid-of-a"].error == "ValueError"


@pytest.mark.rule("PH-09")
async def test_claims_are_unprepared_without_asking_the_api_server(kubelet: FakeKubelet, api: PluginApi) -> None:
    api.requests.clear()
    assert (await kubelet.unprepare([A]))["uid-of-a"].error == ""
    assert not api.requests


async def test_a_device_list_may_be_empty(kubelet: FakeKubelet, claim: MakeClaim, driver: Sample) -> None:
    await claim("a")
    driver.answer = []
    answers = await kubelet.prepare([A])
    assert answers.keys() == {"uid-of-a"}
    assert not answers["uid-of-a"].error


# --- logs and test hooks ---


@pytest.mark.rule("PH-06")
async def test_requests_are_numbered_in_the_log(
    kubelet: FakeKubelet, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "dra_kubeletplugin")
    await kubelet.get_info()
    await kubelet.get_info()
    texts = [r.getMessage() for r in caplog.records if "/pluginregistration.Registration/GetInfo" in r.getMessage()]
    numbers = [int(text.split()[1]) for text in texts]
    assert [text.split()[0] for text in texts] == ["request", "answer"] * 2
    assert numbers[0] == numbers[1] < numbers[2] == numbers[3]
    with faults.failing("GetInfo", "out of order"), pytest.raises(grpc.aio.AioRpcError):
        await kubelet.get_info()
    assert "GetInfo failed: out of order" in caplog.text


async def test_calls_are_recorded_while_they_run_and_after(
    kubelet: FakeKubelet, recorder: CallRecorder, faults: Faults
) -> None:
    with faults.blocking("NodeUnprepareResources"):
        call = asyncio.create_task(kubelet.unprepare([A]))
        await asyncio.wait_for(recorder.arrived("NodeUnprepareResources"), 30)
        assert recorder.calls[-1].response is None
    await call
    assert recorder.calls[-1].response is not None
    recorder.reset()
    with faults.failing("NodeUnprepareResources", "simulated UnprepareResources failure"):
        with pytest.raises(grpc.aio.AioRpcError, match="simulated UnprepareResources failure"):
            await kubelet.unprepare([A])
    assert recorder.count("NodeUnprepareResources") == 1
    assert recorder.calls[-1].error


class Health(health_grpc.DRAResourceHealthServicer):
    """Reports one device twice."""

    async def NodeWatchResources(  # noqa: N802  # grpc's name
        self, request: health_pb2.NodeWatchResourcesRequest, context: object
    ) -> AsyncIterator[health_pb2.NodeWatchResourcesResponse]:
        for state in (health_pb2.HEALTHY, health_pb2.UNHEALTHY):
            yield health_pb2.NodeWatchResourcesResponse(devices=[health_pb2.DeviceHealth(health=state)])


@pytest.mark.rule("PH-06")
async def test_streams_are_logged_message_by_message_and_can_be_failed(
    short_path: Path, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    interceptors = [LoggingInterceptor(logging.getLogger("streams"), logging.DEBUG), faults]
    register = partial(health_grpc.add_DRAResourceHealthServicer_to_server, Health())
    path, died = short_path / "h.sock", lambda died: pytest.fail(str(died))
    server = SocketServer("gpu.example.com", path, re.compile("h.sock"), register, interceptors, died)
    await server.start()
    try:
        options = [("grpc.default_authority", "localhost")]
        async with grpc.aio.insecure_channel(f"unix:{server.path}", options=options) as channel:
            # The stubs know the synchronous side of the generated code only.
            watch: Any = health_grpc.DRAResourceHealthStub(channel).NodeWatchResources
            states = [message.devices[0].health async for message in watch(health_pb2.NodeWatchResourcesRequest())]
            assert states == [health_pb2.HEALTHY, health_pb2.UNHEALTHY]
            with (
                faults.failing("NodeWatchResources", "no health today"),
                pytest.raises(grpc.aio.AioRpcError) as failure,
            ):
                _ = [message async for message in watch(health_pb2.NodeWatchResourcesRequest())]
            assert failure.value.details() == "no health today"
    finally:
        await server.stop()
    first_words = [record.getMessage().split()[0] for record in caplog.records if record.name == "streams"]
    assert first_words == ["request", "message", "message", "request", "request"]
    assert "failed: no health today" in caplog.text


# --- one at a time, and calls that are given up ---


@pytest.mark.rule("PH-07", "PH-09")
async def test_calls_run_one_at_a_time(kubelet: FakeKubelet, driver: Sample, recorder: CallRecorder) -> None:
    driver.hold = asyncio.Event()
    calls = [asyncio.create_task(kubelet.unprepare([A])) for _ in range(3)]
    await recorder.arrived("NodeUnprepareResources", 3)
    driver.hold.set()
    await asyncio.gather(*calls)
    assert driver.most_running == 1


async def test_work_on_different_claims_overlaps_when_not_serialised(
    api: PluginApi, driver: Sample, settings: PluginSettings, recorder: CallRecorder
) -> None:
    settings = replace(settings, serialize=False)
    driver.hold = asyncio.Event()
    async with KubeletPlugin(driver, settings, api.client, interceptors=[recorder]), FakeKubelet(settings) as kubelet:
        calls = [asyncio.create_task(kubelet.unprepare(claims)) for claims in ([A], [B], [A])]
        await recorder.arrived("NodeUnprepareResources", 3)
        await becomes(lambda: driver.running == 2)
        driver.hold.set()
        await asyncio.gather(*calls)
    assert driver.most_running == 2, "on the same claim it never overlaps"


@pytest.mark.rule("PH-10", "PH-16")
async def test_what_a_call_that_is_given_up_has_begun_keeps_its_turn(
    kubelet: FakeKubelet, driver: Sample, claim: MakeClaim, recorder: CallRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    await claim("a")
    driver.hold = asyncio.Event()
    prepare = asyncio.create_task(kubelet.prepare([A]))
    await becomes(lambda: driver.running == 1)
    prepare.cancel()
    await becomes(lambda: "NodePrepareResources was cancelled by the caller after" in caplog.text)
    assert "the call ended, but prepare of claim default/a is still at work" in caplog.text
    unprepare = asyncio.create_task(kubelet.unprepare([A]))
    await recorder.arrived("NodeUnprepareResources")
    driver.hold.set()
    assert (await asyncio.wait_for(unprepare, 30))["uid-of-a"].error == ""
    assert (driver.most_running, driver.cancelled) == (1, 0)
    assert "prepare of claim default/a ended after" in caplog.text


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (Forbidden(403, "Forbidden", "no"), "ServiceAccount needs a ClusterRole that allows it: .* resourceclaims"),
        (Unauthorized(401, "Unauthorized", "no"), "does not know the kubeconfig's token or certificate, or the pod's"),
    ],
)
async def test_a_plugin_without_rights_tells_the_kubelet_what_it_lacks(
    kubelet: FakeKubelet, api: PluginApi, claim: MakeClaim, error: Exception, remedy: str
) -> None:
    """People see it in the events of the pod, before they think of the driver's log."""
    await claim("a")
    api.faults["get"] = [error]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await kubelet.prepare([A])
    assert re.search(remedy, str(raised.value.details()))


async def test_a_call_whose_work_does_not_end_says_so_before_the_kubelet_gives_it_up(
    kubelet: FakeKubelet, driver: Sample, claim: MakeClaim
) -> None:
    """People saw a deadline that was exceeded; the next call gets the result all the same."""
    await claim("a")
    driver.hold = asyncio.Event()
    for _ in range(2):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await kubelet.prepare([A], deadline=1.0)
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "prepare of claim default/a" in str(raised.value.details())
        assert "at work" in str(raised.value.details())
        assert "restart the driver's pod on this node" in str(raised.value.details())
    driver.hold.set()
    assert not (await kubelet.prepare([A]))["uid-of-a"].error
    assert driver.most_running == 1


async def test_a_call_of_a_thousand_claims_says_in_the_end_what_to_do(kubelet: FakeKubelet, driver: Sample) -> None:
    """It was cut off after their names."""
    driver.hold = asyncio.Event()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await kubelet.unprepare([ClaimRef("default", f"a-{n}", f"uid-of-a-{n}") for n in range(1_000)], deadline=1.0)
    assert "claim default/a-0, default/a-1, " in str(raised.value.details())
    assert " and 992 more is still at work" in str(raised.value.details())
    assert str(raised.value.details()).endswith("restart the driver's pod on this node")
    driver.hold.set()


async def test_a_call_whose_claim_cannot_be_read_says_so_before_the_kubelet_gives_it_up(
    kubelet: FakeKubelet, claim: MakeClaim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that an API server takes counts: the turn is waited for that much shorter."""
    await claim("a")
    await claim("b")

    async def hanging(api: Any, ref: ClaimRef) -> ResourceClaim:
        if ref == A:
            await asyncio.Event().wait()
        return await fetch_claim(api, ref)

    monkeypatch.setattr(calls, "fetch_claim", hanging)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await kubelet.prepare([A, B], deadline=1.0)
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "claim default/a cannot be read: the API server has not answered within" in str(raised.value.details())


@pytest.mark.rule("PH-16")
async def test_a_call_that_is_given_up_while_it_waits_never_starts(
    kubelet: FakeKubelet, driver: Sample, claim: MakeClaim, recorder: CallRecorder
) -> None:
    await claim("a")
    driver.hold = asyncio.Event()
    first = asyncio.create_task(kubelet.unprepare([B]))
    await becomes(lambda: driver.running == 1)
    waiting = asyncio.create_task(kubelet.prepare([A]))
    await recorder.arrived("NodePrepareResources")
    waiting.cancel()
    await becomes(lambda: recorder.calls[-1].error is not None)
    driver.hold.set()
    await first
    await kubelet.unprepare([B])
    assert not driver.claims


@pytest.mark.rule("PH-07")
async def test_instances_of_a_rolling_update_exclude_each_other(
    api: PluginApi, settings: PluginSettings, driver: Sample
) -> None:
    old, new = (replace(settings, rolling_update_uid=uid) for uid in ("old", "new"))
    successor = Sample()
    driver.hold = asyncio.Event()
    async with (
        KubeletPlugin(driver, old, api.client),
        KubeletPlugin(successor, new, api.client),
        FakeKubelet(old) as first,
        FakeKubelet(new) as second,
    ):
        assert (await first.get_info()).endpoint != (await second.get_info()).endpoint
        held = asyncio.create_task(first.unprepare([A]))
        await becomes(lambda: driver.running == 1)
        waiting = asyncio.create_task(second.unprepare([B]))
        assert (await second.get_info()).name == "gpu.example.com", "waiting must not block the event loop"
        assert successor.most_running < 1
        driver.hold.set()
        await asyncio.gather(held, waiting)
        assert successor.most_running == 1


@pytest.mark.rule("PH-07")
async def test_the_socket_of_a_killed_instance_makes_no_other_one_the_older(
    api: PluginApi, settings: PluginSettings, driver: Sample
) -> None:
    async with KubeletPlugin(driver, settings, api.client) as plugin:
        _stale_socket(settings.folder / f"dra-{DEAD}.sock")
        assert plugin.is_newest
        async with KubeletPlugin(driver, replace(settings, rolling_update_uid=LIVE), api.client) as successor:
            assert (plugin.is_newest, successor.is_newest) == (False, True)
        assert plugin.is_newest


@pytest.mark.rule("PH-07")
async def test_the_older_instance_publishes_nothing_until_the_newer_one_ends(
    api: PluginApi, settings: PluginSettings, driver: Sample
) -> None:
    """They may have different configurations; the kubelet that registers both lets each restore its slices soon."""

    def names() -> set[str]:
        return {one["name"] for stored in api.slices() for one in stored["spec"]["devices"]}

    async def started(plugin: KubeletPlugin, settings: PluginSettings, name: str) -> None:
        async with FakeKubelet(settings) as kubelet:
            await kubelet.register()
        await plugin.publish({"node-1": Pool.of([device(name)])})

    newer = replace(settings, rolling_update_uid=LIVE)
    async with KubeletPlugin(driver, settings, api.client) as plugin:
        await started(plugin, settings, "gpu-old")
        await plugin.published()
        async with KubeletPlugin(driver, newer, api.client) as successor:
            await started(successor, newer, "gpu-new")
            await successor.published()
            await plugin.publish({"node-1": Pool.of([device("gpu-old"), device("gpu-plugged-in")])})
            await asyncio.sleep(2.5)
            assert names() == {"gpu-new"}
            assert (plugin.statistics.creates, plugin.statistics.updates, successor.statistics.updates) == (1, 0, 1)
        await asyncio.wait_for(plugin.published(), 30)
        assert names() == {"gpu-old", "gpu-plugged-in"}


@pytest.mark.parametrize(("first", "second", "is_told"), [("", "new", True), ("old", "", True), ("old", "new", False)])
async def test_instances_that_share_no_lock_files_are_named(
    api: PluginApi, settings: PluginSettings, caplog: pytest.LogCaptureFixture, first: str, second: str, is_told: bool
) -> None:
    """An update that brings the uids has an instance without one: both may work on a claim, and nothing said so."""
    uids = {"": "", "old": "3b1c6d0e-8c1d-4b52-9c3f-0a54c0ffee00", "new": "3b1c6d0e-8c1d-4b52-9c3f-0a54c0ffee01"}
    one, other = (replace(settings, rolling_update_uid=uids[name]) for name in (first, second))
    async with KubeletPlugin(Sample(), one, api.client):
        assert "take turns" not in caplog.text
        async with KubeletPlugin(Sample(), other, api.client):
            told = f"serves on {one.plugin_path}, and one of the two has no rolling_update_uid: they do not take turns"
            assert (told in caplog.text) is is_told


@pytest.mark.rule("PH-07")
async def test_the_instance_that_starts_last_is_the_newest_also_when_the_clock_was_set_back(
    api: PluginApi, settings: PluginSettings, driver: Sample
) -> None:
    async with KubeletPlugin(driver, settings, api.client) as plugin:
        tomorrow = settings.plugin_path.stat().st_mtime_ns + 86400 * 10**9
        os.utime(settings.plugin_path, ns=(tomorrow, tomorrow))
        async with KubeletPlugin(driver, replace(settings, rolling_update_uid=LIVE), api.client) as successor:
            assert (plugin.is_newest, successor.is_newest) == (False, True)
        assert (plugin.is_newest, successor.is_newest) == (True, False)


# --- start and stop ---


@pytest.mark.rule("PH-02")
async def test_sockets_come_and_go_with_the_plugin(api: PluginApi, driver: Sample, settings: PluginSettings) -> None:
    _stale_socket(settings.plugin_path)
    _stale_socket(settings.registration_path)
    async with KubeletPlugin(driver, settings, api.client), FakeKubelet(settings) as kubelet:
        await kubelet.register()
        assert {path.name for path in settings.folder.glob("*.sock")} == {"dra.sock", "gpu.example.com-reg.sock"}
    assert not list(settings.folder.glob("*.sock"))


async def test_a_plugin_stops_on_a_disk_that_is_read_only(
    api: PluginApi, driver: Sample, settings: PluginSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left its servers running, and the process ended with a trace."""

    def refuse(path: Path, *_: object, **__: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    plugin = KubeletPlugin(driver, settings, api.client)
    async with plugin:
        with monkeypatch.context() as patch:
            patch.setattr("pathlib.Path.unlink", refuse)
            await plugin._stack.aclose()
        assert settings.plugin_path.exists()
    server = _server(settings.plugin_path)
    with monkeypatch.context() as patch, pytest.raises(StartError, match="cannot remove stale sockets in"):
        patch.setattr("pathlib.Path.unlink", refuse)
        await server.start()
    async with KubeletPlugin(driver, settings, api.client):
        pass
    assert not settings.plugin_path.exists()


def _server(path: Path, died: Callable[[ServerDied], None] = lambda died: pytest.fail(str(died))) -> SocketServer:
    register = partial(health_grpc.add_DRAResourceHealthServicer_to_server, Health())
    return SocketServer("gpu.example.com", path, re.compile(r"\w+\.sock"), register, [], died)


async def test_a_socket_without_hard_links_is_renamed(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    server = _server(short_path / "a.sock")
    with monkeypatch.context() as patch:
        patch.setattr("dra_kubeletplugin.kubelet.os.link", refuse)
        await server.start()
    assert os.listdir(short_path) == ["a.sock"]
    with pytest.raises(StartError, match="another process serves"):
        server.check()
    await server.stop()
    assert os.listdir(short_path) == []


async def test_of_two_processes_that_start_at_once_one_leaves_the_socket_to_the_other(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = _server(short_path / "a.sock")
    monkeypatch.setattr(server, "_remove_abandoned", lambda: server.path.write_text("of the other"))
    with pytest.raises(StartError, match=r"cannot serve on the socket \S+/a\.sock: .*File exists"):
        await server.start()
    assert server.path.read_text() == "of the other"


async def test_a_server_that_ends_by_itself_is_fatal(short_path: Path) -> None:
    errors: list[ServerDied] = []
    server = _server(short_path / "a.sock", errors.append)
    await server.start()
    assert server._server
    await server._server.stop(None)
    await becomes(lambda: errors)
    assert "ended unexpectedly: restart the plugin" in str(errors[0])
    await server.stop()


async def test_sockets_that_go_while_they_are_looked_at_hinder_nobody(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, server = short_path / "b.sock", _server(short_path / "a.sock")

    def gone(path: Path) -> NoReturn:
        other.unlink(missing_ok=True)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    with monkeypatch.context() as patch:
        patch.setattr("dra_kubeletplugin.kubelet._is_listened_on", gone)
        _stale_socket(other)
        await server.start()
        _stale_socket(other)
        assert is_newest(server.path, re.compile(r"\w+\.sock"))
        patch.setattr("pathlib.Path.iterdir", gone)
        assert is_newest(server.path, re.compile(r"\w+\.sock")), "the folder cannot be read"
    await server.stop()


DEAD, LIVE = "0f1e2d3c-0000-4000-8000-00000000000a", "0f1e2d3c-0000-4000-8000-00000000000b"
SIBLINGS = [
    ("of a killed instance of a rolling update", [f"dra-{DEAD}.sock", f"gpu.example.com-{DEAD}-reg.sock"], True),
    ("of an instance from before rolling updates", ["dra.sock", "gpu.example.com-reg.sock"], True),
    ("of another driver", ["gpu.example.com-two-reg.sock", f"gpu.example.com-two-{DEAD}-reg.sock", "x.sock"], False),
]


@pytest.mark.rule("PH-17")
@pytest.mark.parametrize(("names", "gone"), [case[1:] for case in SIBLINGS], ids=[case[0] for case in SIBLINGS])
async def test_a_start_removes_sockets_that_killed_instances_of_the_driver_left(
    api: PluginApi, driver: Sample, settings: PluginSettings, names: list[str], gone: bool
) -> None:
    """A kubelet tries to reach what they lead to for ever, and the next pod has other names."""
    for name in names:
        _stale_socket(settings.folder / name)
    async with (
        KubeletPlugin(driver, replace(settings, rolling_update_uid=LIVE), api.client),
        KubeletPlugin(Sample(), replace(settings, rolling_update_uid="new"), api.client),
    ):
        left = {path.name for path in settings.folder.glob("*.sock")}
    assert {name for name in left if LIVE in name} == {f"dra-{LIVE}.sock", f"gpu.example.com-{LIVE}-reg.sock"}
    assert left & set(names) == (set() if gone else set(names))


@pytest.mark.rule("PH-17")
@pytest.mark.parametrize("umask", [0, 0o777], ids=["open", "closed"])
async def test_only_the_owner_may_use_the_sockets_whatever_the_umask(
    api: PluginApi, driver: Sample, settings: PluginSettings, umask: int
) -> None:
    (settings.folder / "cdi").mkdir()
    (settings.folder / "claims").mkdir()
    before = os.umask(umask)
    try:
        async with KubeletPlugin(driver, settings, api.client):
            modes = {path: path.stat().st_mode & 0o777 for path in settings.folder.glob("*.sock")}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys([settings.plugin_path, settings.registration_path], 0o700)


@pytest.mark.rule("PH-01", "PH-05")
async def test_the_dra_service_listens_first_and_ends_first(
    api: PluginApi, driver: Sample, settings: PluginSettings
) -> None:
    with (
        patch.object(SocketServer, "start", autospec=True, side_effect=SocketServer.start) as start,
        patch.object(SocketServer, "stop", autospec=True, side_effect=SocketServer.stop) as stop,
    ):
        async with KubeletPlugin(driver, settings, api.client):
            pass
    for moments in (start, stop):
        assert [call.args[0].path for call in moments.call_args_list] == [
            settings.plugin_path,
            settings.registration_path,
        ]


@pytest.mark.rule("PH-05")
async def test_a_start_without_the_folder_of_the_kubelet_leaves_nothing(
    api: PluginApi, driver: Sample, settings: PluginSettings, short_path: Path
) -> None:
    settings = replace(settings, registry_dir=short_path / "registry", data_dir=short_path / "data")
    with pytest.raises(StartError, match=r"registry for the socket gpu\.example\.com-reg\.sock does not exist"):
        async with KubeletPlugin(driver, settings, api.client):
            raise AssertionError("must not start")
    assert os.listdir(short_path) == [], "what cannot start leaves nothing on disk"


UNUSABLE = [
    ("data_dir", "file/data"),
    ("cdi_dir", "file/cdi"),
    ("cdi_dir", "kept/file/cdi"),
    ("lock_dir", "file/locks"),
    ("data_dir", "/proc/dra"),  # in which not even root can make a folder
    ("cdi_dir", "/proc/self"),  # nor a file
    ("lock_dir", "/proc/self"),
]


@pytest.mark.parametrize(("name", "path"), UNUSABLE)
async def test_a_start_that_fails_takes_back_its_folders_and_leaves_those_of_others(
    api: PluginApi, driver: Sample, settings: PluginSettings, short_path: Path, name: str, path: str
) -> None:
    (short_path / "registry").mkdir()
    (short_path / "kept").mkdir()
    (short_path / "kept" / "file").touch()
    (short_path / "file").touch()
    before = below(short_path)
    folders: dict[str, Path] = {each: short_path / "new" / each for each in ("data_dir", "cdi_dir", "lock_dir")}
    folders |= {"registry_dir": short_path / "registry", name: short_path / path}
    settings = PluginSettings(driver_name="gpu.example.com", serialize=False, **folders)  # type: ignore[arg-type]
    with pytest.raises(
        StartError, match=r"cannot make the folders of the plugin|cannot inspect the socket .*/file/data"
    ):
        async with KubeletPlugin(driver, settings, api.client):
            raise AssertionError("must not start")
    assert below(short_path) == before


async def test_work_beside_the_plugin_that_cannot_start_leaves_no_folders(
    api: PluginApi, driver: Sample, settings: PluginSettings, short_path: Path
) -> None:
    settings = replace(settings, data_dir=short_path / "new" / "data")
    with pytest.raises(ZeroDivisionError):
        async with KubeletPlugin(driver, settings, api.client):
            raise ZeroDivisionError
    assert below(short_path) == []


async def test_a_new_lock_folder_is_made(
    api: PluginApi, driver: Sample, settings: PluginSettings, short_path: Path, claim: MakeClaim
) -> None:
    settings = replace(settings, rolling_update_uid="new", lock_dir=short_path / "new" / "locks")
    await claim("a")
    async with KubeletPlugin(driver, settings, api.client), FakeKubelet(settings) as kubelet:
        assert (await kubelet.prepare([A]))["uid-of-a"].error == ""
    assert (short_path / "new" / "locks" / "serialize.lock").exists()


@pytest.mark.rule("PH-05", "PH-16")
async def test_stopping_cancels_running_calls(
    api: PluginApi, driver: Sample, settings: PluginSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.claims.calls._GRACE_SECONDS", 0.1)
    driver.hold = asyncio.Event()
    async with FakeKubelet(settings) as kubelet:
        async with KubeletPlugin(driver, settings, api.client):
            call = asyncio.create_task(kubelet.unprepare([A]))
            await becomes(lambda: driver.running == 1)
        with pytest.raises(grpc.aio.AioRpcError):
            await call
    await becomes(lambda: driver.cancelled == 1)


@pytest.mark.rule("PH-17")
async def test_a_second_process_does_not_take_the_sockets_of_a_first(
    api: PluginApi, driver: Sample, settings: PluginSettings, running: KubeletPlugin, kubelet: FakeKubelet
) -> None:
    """Each would unlink the other's socket, end because its own is gone, be restarted, and so on."""
    with pytest.raises(StartError, match=r"another process serves on the socket .*dra\.sock: .*rolling_update_uid"):
        async with KubeletPlugin(Sample(), settings, api.client):
            raise AssertionError("must not start")
    await kubelet.register()
    assert not driver.errors


async def test_a_socket_that_vanishes_is_fatal(
    running: KubeletPlugin, settings: PluginSettings, driver: Sample
) -> None:
    settings.registration_path.unlink()
    with pytest.raises(ServerDied, match=r"gpu\.example\.com-reg\.sock was removed"):
        await asyncio.wait_for(running.wait(), 30)
    assert isinstance(driver.errors[0], ServerDied)


async def test_a_dead_plugin_ends_even_if_its_error_handler_fails(
    running: KubeletPlugin, settings: PluginSettings, driver: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(error: PluginError, message: str) -> None:
        raise RuntimeError("a bug of the driver")

    monkeypatch.setattr(driver, "handle_error", broken)
    settings.registration_path.unlink()
    with pytest.raises(ServerDied):
        await asyncio.wait_for(running.wait(), 30)


async def test_a_file_in_place_of_the_socket_is_left_alone(
    api: PluginApi, driver: Sample, settings: PluginSettings
) -> None:
    settings.plugin_path.write_text("precious")
    with pytest.raises(StartError, match=r"dra\.sock exists and is not a socket: remove it"):
        async with KubeletPlugin(driver, settings, api.client):
            raise AssertionError("must not start")
    assert settings.plugin_path.read_text() == "precious"


async def test_registration_and_service_can_be_split(api: PluginApi, driver: Sample, settings: PluginSettings) -> None:
    registrar = KubeletPlugin(driver, replace(settings, run_dra_service=False), api.client)
    service = KubeletPlugin(driver, replace(settings, run_registration=False), api.client)
    async with FakeKubelet(settings) as kubelet, registrar:
        assert (await kubelet.register()).endpoint == str(settings.plugin_path)
        assert not settings.plugin_path.exists()
        async with service:
            assert (await kubelet.unprepare([A]))["uid-of-a"].error == ""


# --- publishing through the plugin ---


@pytest.mark.rule("PH-05")
async def test_slices_stay_when_the_plugin_ends(api: PluginApi, driver: Sample, settings: PluginSettings) -> None:
    async with KubeletPlugin(driver, settings, api.client) as plugin:
        await plugin.publish({"pool": Pool.of([device("gpu-0")])})
        await asyncio.wait_for(plugin.published(), 30)
    (stored,) = api.slices()
    assert stored["spec"]["nodeName"] == "worker-1"
    assert stored["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert not driver.errors


async def test_a_device_that_was_never_published_is_refused(
    kubelet: FakeKubelet, running: KubeletPlugin, driver: Sample, claim: MakeClaim
) -> None:
    await claim("a", device="gpu-1")
    await running.publish({"worker-1": Pool.of([device("gpu-0")])})
    answer = (await kubelet.prepare([A]))["uid-of-a"]
    assert "device gpu-1 of pool worker-1 is not published on this node" in answer.error
    assert driver.claims == []


async def test_publishing_needs_a_node(api: PluginApi, driver: Sample, settings: PluginSettings) -> None:
    async with KubeletPlugin(driver, replace(settings, node_name=""), api.client) as plugin:
        with pytest.raises(SettingsError, match="node_name"):
            await plugin.publish({})


async def test_slices_are_back_soon_after_a_restarted_kubelet_registers_the_plugin(
    api: PluginApi, driver: Sample, settings: PluginSettings
) -> None:
    async with KubeletPlugin(driver, settings, api.client) as plugin, FakeKubelet(settings) as kubelet:
        await kubelet.register()
        await plugin.publish({"p": Pool.of([device("a")])})
        await plugin.published()
        await api.remove(RESOURCE_SLICES, api.slices()[0]["metadata"]["name"])  # as a kubelet that starts
        await kubelet.register()
        await asyncio.wait_for(api.until(lambda: bool(api.slices())), 15)
        assert plugin.statistics.creates == 2


async def test_a_plugin_whose_slices_are_refused_is_not_ready_and_says_why(
    api: PluginApi, driver: Sample, settings: PluginSettings
) -> None:
    api.faults["create"] = [Invalid(422, "Invalid", "no slices on Sundays")]
    async with (
        KubeletPlugin(driver, settings, api.client) as plugin,
        FakeKubelet(settings) as kubelet,
        monitored(Metrics(), "127.0.0.1:0", "/metrics") as probes,
        aiohttp.ClientSession(f"http://{probes.address}") as http,
    ):
        assert await (await http.get("/readyz")).text() == "the plugin starts or stops"
        await kubelet.register()
        async with probes.about(plugin):
            unpublished = await http.get("/readyz")
            assert (unpublished.status, await unpublished.text()) == (503, "nothing was published yet")
            await plugin.publish({"p": Pool.of([device("a")])})
            await plugin.published()
            answer = await http.get("/readyz")
            assert answer.status == 503
            assert (await answer.text()).startswith('pool "p", slice #0: no slices on Sundays')
            assert (await http.get("/healthz")).status == 200, "a restart would not help"
            await plugin.publish({"p": Pool.of([device("b")])})
            await plugin.published()
            assert (await http.get("/readyz")).status == 200
    assert [type(error) for error in driver.errors] == [PoolRefused]


async def test_a_plugin_whose_devices_a_controller_publishes_is_ready_without_slices(
    api: PluginApi, driver: Sample, settings: PluginSettings
) -> None:
    """It was never ready, so that its DaemonSet never finished to roll out."""
    async with (
        KubeletPlugin(driver, replace(settings, publishes=False), api.client) as plugin,
        FakeKubelet(settings) as kubelet,
        monitored(Metrics(), "127.0.0.1:0", "/metrics") as probes,
        aiohttp.ClientSession(f"http://{probes.address}") as http,
        probes.about(plugin),
    ):
        assert await (await http.get("/readyz")).text() == "not registered"
        await kubelet.register()
        assert (await http.get("/readyz")).status == 200
        with pytest.raises(SettingsError, match="a controller of the driver does"):
            await plugin.publish({})
    assert not api.slices()


def below(folder: Path) -> list[Path]:
    """All files and folders in it."""
    return sorted(folder.rglob("*"))


def _stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
