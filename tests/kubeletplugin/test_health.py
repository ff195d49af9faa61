"""The health of devices: what the driver reports, and what kubelets hear of it (plugin-helper.md section 6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import grpc
import pytest
from dra_api.resource import ResourceClaim
from dra_kubeletplugin import (
    DeviceHealth,
    Driver,
    HealthFailed,
    KubeletPlugin,
    PluginError,
    PluginSettings,
    Prepared,
    PreparedDevice,
)
from dra_kubeletplugin.health import HEALTH_SERVICES
from dra_kubeletplugin.testing import FakeKubelet
from dra_kubeletplugin.testing.api import PluginApi
from dra_proto.health.v1 import api_pb2 as health_pb2
from waiting import becomes

GOOD = DeviceHealth(pool="p", device="gpu-0", healthy=True)
BAD = DeviceHealth(pool="p", device="gpu-0", healthy=False, message="too hot", timeout_seconds=90)


class Plain(Driver):
    """Knows nothing of health."""

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        return []


class Reporting(Plain):
    """Yields what a test puts into ``reports``; raises what is an exception."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[Any] = asyncio.Queue()
        self.errors: list[PluginError] = []
        self.failure: BaseException | None = None  # what its handler of errors raises
        self.begun = 0

    async def health(self) -> AsyncIterator[Sequence[DeviceHealth]]:
        self.begun += 1
        while True:
            report = await self.reports.get()
            if isinstance(report, BaseException):
                raise report
            yield report

    def handle_error(self, error: PluginError, message: str) -> None:
        self.errors.append(error)
        if self.failure:
            raise self.failure


@pytest.fixture
def driver() -> Reporting:
    return Reporting()


@pytest.fixture
async def kubelet(api: PluginApi, driver: Reporting, settings: PluginSettings) -> AsyncIterator[FakeKubelet]:
    async with KubeletPlugin(driver, settings, api.client), FakeKubelet(settings) as fake:
        yield fake


async def heard(stream: AsyncIterator[list[health_pb2.DeviceHealth]]) -> list[tuple[str, int, str, int]]:
    """The next report: device, health, message, timeout."""
    report = await asyncio.wait_for(anext(stream), 30)
    return [(d.device.device_name, d.health, d.message, d.health_check_timeout_seconds) for d in report]


@pytest.mark.rule("K37-HEALTH-01")
@pytest.mark.parametrize("service", HEALTH_SERVICES)
async def test_a_kubelet_hears_each_change(kubelet: FakeKubelet, driver: Reporting, service: str) -> None:
    stream = kubelet.health(service)
    driver.reports.put_nowait([GOOD])
    assert await heard(stream) == [("gpu-0", health_pb2.HEALTHY, "", 0)]
    driver.reports.put_nowait([BAD])
    assert await heard(stream) == [("gpu-0", health_pb2.UNHEALTHY, "too hot", 90)]
    driver.reports.put_nowait([DeviceHealth(device="gpu-0", healthy=None)])
    assert await heard(stream) == [("gpu-0", health_pb2.UNKNOWN, "", 0)]


@pytest.mark.rule("K37-HEALTH-05")
async def test_a_kubelet_that_comes_later_hears_the_latest_report_at_once(
    kubelet: FakeKubelet, driver: Reporting
) -> None:
    first = kubelet.health()
    driver.reports.put_nowait([GOOD])
    await heard(first)
    second = kubelet.health(HEALTH_SERVICES[1])
    assert await heard(second) == [("gpu-0", health_pb2.HEALTHY, "", 0)]
    driver.reports.put_nowait([BAD])
    assert await heard(first) == await heard(second)
    assert driver.begun == 1, "the driver is asked once, however many listen"


@pytest.mark.rule("K37-HEALTH-06")
@pytest.mark.parametrize(("timeout", "of_kubelet"), [(0, 0.1), (1, 300)], ids=["the kubelet's", "the device's"])
async def test_a_report_is_repeated_before_devices_become_unknown(
    kubelet: FakeKubelet, driver: Reporting, monkeypatch: pytest.MonkeyPatch, timeout: int, of_kubelet: float
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.health._KUBELET_TIMEOUT_SECONDS", of_kubelet)
    stream = kubelet.health()
    driver.reports.put_nowait([DeviceHealth(pool="p", device="gpu-0", healthy=True, timeout_seconds=timeout)])
    assert await heard(stream) == await heard(stream)


class Restless(Plain):
    """Reports without ever waiting for something."""

    def __init__(self) -> None:
        self.reported = 0

    async def health(self) -> AsyncIterator[Sequence[DeviceHealth]]:
        while self.reported < 200_000:  # seconds in which nothing else would happen
            self.reported += 1
            yield [replace(GOOD, message=str(self.reported))]


async def test_a_driver_that_reports_without_a_pause_holds_up_nobody(api: PluginApi, settings: PluginSettings) -> None:
    """The event loop had no turn between two reports: the kubelet could not even register the plugin."""
    driver = Restless()
    async with asyncio.timeout(60), KubeletPlugin(driver, settings, api.client), FakeKubelet(settings) as kubelet:
        assert await kubelet.prepare([]) == {}
        assert (await heard(kubelet.health()))[0][0] == "gpu-0"
        assert driver.reported < 200_000


async def test_a_kubelet_that_reads_nothing_holds_up_nobody(kubelet: FakeKubelet, driver: Reporting) -> None:
    """Its stream is full. When it reads again, it hears the latest report."""
    stalled, other = kubelet.health(), kubelet.health()
    driver.reports.put_nowait([GOOD])
    await heard(stalled)
    await heard(other)
    for number in range(100):
        driver.reports.put_nowait([replace(GOOD, message=f"{number} {'x' * 100_000}")])
        assert (await heard(other))[0][2].startswith(f"{number} ")
    assert await kubelet.prepare([]) == {}
    seen: list[int] = []
    while 99 not in seen:
        seen.append(int((await heard(stalled))[0][2].split()[0]))
    assert len(seen) < 50, "what it missed is not kept for it"


WRONG: list[tuple[str, BaseException | DeviceHealth | list[Any], str]] = [
    ("an exception", ZeroDivisionError("the bus hangs"), "the bus hangs"),
    ("no list", GOOD, "yield a list of DeviceHealth"),
    ("names", ["gpu-0"], r"health yielded \['gpu-0'\]"),
    ("an ending of its own", asyncio.CancelledError(), "is called again: CancelledError"),
    ("a negative time", [replace(GOOD, timeout_seconds=-1)], "gpu-0: timeout_seconds -1 is not a whole number from 1"),
    ("half a second", [replace(GOOD, timeout_seconds=cast("Any", 0.5))], "timeout_seconds 0.5 is not a whole number"),
]


@pytest.mark.parametrize(("report", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
async def test_a_driver_whose_health_fails_is_asked_again(
    kubelet: FakeKubelet,
    driver: Reporting,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    report: BaseException | DeviceHealth | list[Any],
    message: str,
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.health._RETRY_SECONDS", 0.01)
    driver.reports.put_nowait(report)
    await becomes(lambda: driver.begun == 2)
    [error] = driver.errors
    assert isinstance(error, HealthFailed)
    with pytest.raises(HealthFailed, match=message):
        raise error
    assert "Traceback" in caplog.text
    driver.reports.put_nowait([GOOD])
    assert await heard(kubelet.health()) == [("gpu-0", health_pb2.HEALTHY, "", 0)]


@pytest.mark.parametrize("failure", [ZeroDivisionError("a bug of the driver"), asyncio.CancelledError()])
async def test_a_driver_whose_handler_of_errors_fails_is_asked_again(
    kubelet: FakeKubelet,
    driver: Reporting,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: BaseException,
) -> None:
    """Its devices were unknown from then on, and no line of the log said so."""
    monkeypatch.setattr("dra_kubeletplugin.health._RETRY_SECONDS", 0.01)
    driver.failure = failure
    driver.reports.put_nowait(ZeroDivisionError("the bus hangs"))
    driver.reports.put_nowait([GOOD])
    assert await heard(kubelet.health()) == [("gpu-0", health_pb2.HEALTHY, "", 0)]
    assert "the driver's handle_error failed; its health is called again" in caplog.text


@pytest.mark.parametrize(
    ("report", "fault"),
    [
        (replace(GOOD, message=cast(str, None)), "message is None"),
        (replace(GOOD, pool=cast(str, 5)), "pool is 5"),
        (replace(GOOD, device=cast(str, b"x")), "device is b'x'"),
        (replace(GOOD, healthy=cast(bool, "yes")), "healthy is 'yes'"),
    ],
)
async def test_a_report_of_wrong_types_is_an_error_of_the_driver_and_not_of_each_kubelet(
    kubelet: FakeKubelet,
    driver: Reporting,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    report: DeviceHealth,
    fault: str,
) -> None:
    """Each stream failed, and all devices were unknown, without a word of which device it was."""
    monkeypatch.setattr("dra_kubeletplugin.health._RETRY_SECONDS", 0.01)
    driver.reports.put_nowait([report])
    driver.reports.put_nowait([GOOD])
    assert await heard(kubelet.health()) == [("gpu-0", health_pb2.HEALTHY, "", 0)]
    assert fault in caplog.text


async def test_a_message_that_no_utf8_can_have_is_told_with_an_escape(kubelet: FakeKubelet, driver: Reporting) -> None:
    driver.reports.put_nowait([replace(BAD, message="/dev/x\udcff")])
    assert await heard(kubelet.health()) == [("gpu-0", health_pb2.UNHEALTHY, "/dev/x\\udcff", 90)]


async def test_nothing_old_is_told_after_a_failure(kubelet: FakeKubelet, driver: Reporting) -> None:
    stream = kubelet.health()
    driver.reports.put_nowait([GOOD])
    await heard(stream)
    driver.reports.put_nowait(ZeroDivisionError("the bus hangs"))
    await becomes(lambda: driver.errors)
    waiting = asyncio.ensure_future(anext(kubelet.health()))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    waiting.cancel()


@pytest.mark.rule("K37-HEALTH-03")
async def test_a_driver_without_health_leaves_a_kubelet_waiting_instead_of_failing_it(
    api: PluginApi, settings: PluginSettings
) -> None:
    """A kubelet of 1.36 asks all drivers, and logs a missing service as an error every 5 s."""
    async with KubeletPlugin(Plain(), settings, api.client), FakeKubelet(settings) as kubelet:
        assert not [name for name in (await kubelet.get_info()).supported_versions if "Health" in name]
        waiting = [asyncio.ensure_future(anext(kubelet.health(service))) for service in HEALTH_SERVICES]
        done, _ = await asyncio.wait(waiting, timeout=0.3)
        assert not done
        for stream in waiting:
            stream.cancel()


@pytest.mark.rule("K37-HEALTH-04", "PH-03")
async def test_without_its_health_service_a_plugin_neither_advertises_nor_serves_one_nor_asks_the_driver(
    api: PluginApi, driver: Reporting, settings: PluginSettings
) -> None:
    settings = replace(settings, serve_health=False)
    async with KubeletPlugin(driver, settings, api.client), FakeKubelet(settings) as kubelet:
        assert not [name for name in (await kubelet.get_info()).supported_versions if "Health" in name]
        for service in HEALTH_SERVICES:
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await asyncio.wait_for(anext(kubelet.health(service)), 30)
            assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert driver.begun == 0


@pytest.mark.rule("K37-HEALTH-02")
async def test_a_driver_with_health_says_so_when_it_registers(kubelet: FakeKubelet) -> None:
    assert list((await kubelet.get_info()).supported_versions) == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        *HEALTH_SERVICES,
    ]


async def test_a_health_that_is_no_generator_says_how_to_write_it(
    api: PluginApi, settings: PluginSettings, caplog: pytest.LogCaptureFixture
) -> None:
    class Listing(Plain):
        def health(self) -> list[DeviceHealth]:  # type: ignore[override]  # the mistake
            return [GOOD]

    async with KubeletPlugin(Listing(), settings, api.client):
        await becomes(lambda: "write 'async def health', and 'yield' each report" in caplog.text)


def _returning() -> None:
    class Returning(Plain):
        async def health(self) -> list[DeviceHealth]:  # type: ignore[override]  # the mistake
            return [GOOD]


def _synchronous() -> None:
    class Synchronous(Driver):
        def prepare(self, claim: ResourceClaim) -> list[PreparedDevice]:  # type: ignore[override]  # the mistake
            return []


@pytest.mark.parametrize(
    ("definition", "message"),
    [(_returning, r"Returning\.health must yield"), (_synchronous, r"Synchronous\.prepare .* 'async def prepare'")],
    ids=["health that returns", "prepare that blocks"],
)
def test_a_method_that_nothing_can_wait_for_is_refused_where_it_is_defined(
    definition: Callable[[], None], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        definition()
