"""The bench around a driver: what happens when the driver, or what is known of it, is not as a check needs it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from bad_driver import BadLauncher
from bad_driver_node import PARTITIONS
from dra_api.releases import Release
from dra_driver_test.cli import main
from dra_driver_test.command import as_junit
from dra_driver_test.errors import NotJudged
from dra_driver_test.harness.server import ADMIN_LABEL
from dra_driver_test.kit import (
    Bench,
    BenchError,
    Finding,
    Place,
    Target,
    Verdict,
    all_checks,
    bench_for,
    chosen,
    open_bench,
    run,
    run_beside,
    run_check,
)
from dra_kube import NAMESPACES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, AlreadyExists, Api, connection
from fake_plugin import FakePlugin
from planted_faults import PATIENT, OpenBench
from waiting import becomes, until

HEALTH = ["health.is-offered-if-it-is-served", "health.comes-at-once"]
CHECKS = {check.name: check for check in all_checks()}


async def test_a_check_that_restarts_is_skipped_for_a_driver_that_only_has_sockets(
    kubeconfig: Path, short_path: Path
) -> None:
    place = Place.below(short_path, "node-sockets", kubeconfig)
    async with open_bench(place, None, PATIENT) as bench:
        async with running(BadLauncher("sockets.example.com"), place):
            results = [one async for one in run(chosen(all_checks(), ["r*.*", "prepare.answers-a-claim"]), bench)]
    verdicts = {one.check.name: (one.verdict, one.text) for one in results}
    assert verdicts["prepare.answers-a-claim"][0] is Verdict.PASSED
    for name, (verdict, text) in verdicts.items():
        if CHECKS[name].restarts:
            assert verdict is Verdict.SKIPPED
            assert "only sockets are given" in text


@asynccontextmanager
async def running(launcher: BadLauncher, place: Place, uid: str = "") -> AsyncIterator[None]:
    """A driver that the bench does not start."""
    instance = await launcher.start(place, uid)
    try:
        yield
    finally:
        await instance.stop()


async def held_by_a_pod(api: Api, node: str, driver: str, *devices: str, admin: bool = False) -> None:
    """A claim of somebody else with these devices of the node."""
    with suppress(AlreadyExists):
        await api.create(NAMESPACES, {"metadata": {"name": "work", "labels": {ADMIN_LABEL: "true"}}})
    request = {"deviceClassName": "gpu", "count": len(devices), **({"adminAccess": True} if admin else {})}
    spec = {"devices": {"requests": [{"name": "gpus", "exactly": request}]}}
    name = f"of-{node}-{'-'.join(devices)}"
    await api.create(RESOURCE_CLAIMS, {"metadata": {"name": name, "namespace": "work"}, "spec": spec})
    with_admin = {"adminAccess": True} if admin else {}
    results = [{"request": "gpus", "driver": driver, "pool": node, "device": it, **with_admin} for it in devices]
    status = {"allocation": {"devices": {"results": results}}}
    await api.patch(RESOURCE_CLAIMS, name, {"status": status}, "work", subresource="status")


async def test_a_node_whose_devices_pods_hold_is_not_tested(
    kubeconfig: Path, short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place.below(short_path, "node-held", kubeconfig)
    place.create()
    flags = ["--registry", str(place.registry), "--cdi-dir", str(place.cdi), "--node-name", "node-held"]
    async with Api(connection(kubeconfig)) as api, AsyncExitStack() as stack:
        await api.create(NODES, {"metadata": {"name": "node-held"}})
        await stack.enter_async_context(running(BadLauncher("held.example.com"), place))
        await held_by_a_pod(api, "node-held", "held.example.com", "gpu-0", "gpu-2")
        await until("all slices are published", partial(is_published, api, "held.example.com"))
        before = await everything(api)
        code = await asyncio.to_thread(main, [*flags, "--kubeconfig", str(kubeconfig)])
        assert (code, await everything(api)) == (3, before)
        said = capsys.readouterr()
        assert "node-held/gpu-0 by work/of-node-held-gpu-0-gpu-2" in said.err
        assert "drain the node" in said.err
        assert said.out == "", "no check has run"


async def is_published(api: Api, driver: str) -> bool:
    pools = [one["spec"]["pool"] for one in (await api.list(RESOURCE_SLICES))[0] if one["spec"]["driver"] == driver]
    return bool(pools) and len(pools) == pools[0]["resourceSliceCount"]


async def everything(api: Api) -> list[tuple[str, str]]:
    """Claims, slices and namespaces with their versions."""
    found = [one for kind in (RESOURCE_CLAIMS, RESOURCE_SLICES) for one in (await api.list(kind))[0]]
    return sorted((one["metadata"]["name"], one["metadata"]["resourceVersion"]) for one in found)


async def test_devices_that_a_pod_gets_meanwhile_are_left_out(kubeconfig: Path, short_path: Path) -> None:
    place = Place.below(short_path, "node-shared", kubeconfig)
    async with open_bench(place, None, PATIENT) as bench, running(BadLauncher("shared.example.com"), place):
        async with Api(connection(kubeconfig)) as api:
            await bench.ready()
            every = {device.name for device in await bench.published()}
            await held_by_a_pod(api, "node-shared", "shared.example.com", "gpu-0", "gpu-1")
            await held_by_a_pod(api, "another-node", "shared.example.com", "gpu-2")
            await held_by_a_pod(api, "node-shared", "another.example.com", "gpu-2")
            await held_by_a_pod(api, "node-shared", "shared.example.com", "gpu-3", admin=True)
            assert {device.name for device in await bench.published()} == every - {"gpu-0", "gpu-1"}
            results = [one async for one in run(chosen(all_checks(), ["prepare.*"]), bench)]
            assert [one.text for one in results if one.verdict is Verdict.FAILED] == []
            await held_by_a_pod(api, "node-shared", "shared.example.com", *sorted(every - {"gpu-0", "gpu-1"}))
            with pytest.raises(NotJudged, match="claims hold all devices"):
                await bench.published()


def csi_plugin(kubelet: Path) -> FakePlugin:
    """A plugin of another type, whose socket sorts before those of the drivers here."""
    plugin = FakePlugin(kubelet, "a.csi.example.com", services=())
    plugin.type = "CSIPlugin"
    return plugin


async def test_other_plugins_of_a_node_neither_notice_the_bench_nor_are_taken_for_the_driver(
    kubeconfig: Path, short_path: Path
) -> None:
    """With --registry the sockets of CSI plugins lie beside the driver's, and end when they are told of a failure."""
    place = Place.below(short_path, "node-others", kubeconfig)
    async with open_bench(place, None, PATIENT) as bench, csi_plugin(short_path) as csi:
        assert await bench.socket() is None
        async with running(BadLauncher("sockets.example.com"), place):
            results = [one async for one in run(chosen(all_checks(), ["registration.*"]), bench)]
    assert [one.text for one in results if one.verdict not in (Verdict.PASSED, Verdict.SKIPPED)] == []
    assert csi.infos > 0
    assert csi.statuses == []


def running_target(folder: Path, kubeconfig: Path, driver: str = "") -> Target:
    """Drivers that run, with sockets below the folder."""
    registry, cdi = folder / "plugins_registry", folder / "cdi"
    return Target(registry=registry, cdi=cdi, node="node-many", kubeconfig=kubeconfig, driver=driver)


async def test_of_several_drivers_that_run_the_named_one_is_tested_and_the_others_hear_nothing(
    kubeconfig: Path, short_path: Path
) -> None:
    place = Place.below(short_path, "node-many", kubeconfig)
    place.create()
    async with (
        FakePlugin(short_path, "a.example.com", services=("v1.DRAPlugin",)) as other,
        bench_for(running_target(short_path, kubeconfig, "sockets.example.com"), PATIENT) as bench,
        running(BadLauncher("sockets.example.com"), place),
    ):
        results = [one async for one in run(chosen(all_checks(), ["registration.*"]), bench)]
        assert bench.name == "sockets.example.com"
    assert [one.text for one in results if one.verdict not in (Verdict.PASSED, Verdict.SKIPPED)] == []
    assert other.infos > 0
    assert other.statuses == []


async def test_of_several_drivers_that_run_one_has_to_be_named(kubeconfig: Path, short_path: Path) -> None:
    Place.below(short_path, "node-many", kubeconfig).create()
    services = ("v1.DRAPlugin",)
    async with (
        FakePlugin(short_path, "a.example.com", services=services) as one,
        FakePlugin(short_path, "b.example.com", services=services),
        csi_plugin(short_path),
    ):
        with pytest.raises(BenchError, match=r"2 drivers have .* --driver, one of a\.example\.com, b\.example\.com"):
            async with bench_for(running_target(short_path, kubeconfig), PATIENT):
                pass
    assert one.statuses == []


async def test_a_named_driver_that_is_not_there_is_told_from_those_that_are(kubeconfig: Path, short_path: Path) -> None:
    Place.below(short_path, "node-many", kubeconfig).create()
    limits = replace(PATIENT, registered=0.2)
    async with FakePlugin(short_path, "a.example.com", services=("v1.DRAPlugin",)) as other:
        async with bench_for(running_target(short_path, kubeconfig, "b.example.com"), limits) as bench:
            with pytest.raises(Finding, match=r"the driver is a\.example\.com, not b\.example\.com"):
                await bench.ready()
    assert other.statuses == []


async def test_a_driver_that_restarts_itself_is_not_taken_for_another_one(kubeconfig: Path, short_path: Path) -> None:
    place, launcher = Place.below(short_path, "node-two", kubeconfig), BadLauncher("sockets.example.com")
    async with open_bench(place, None, PATIENT) as bench:
        async with running(launcher, place, "1"):
            await bench.ready()
        async with FakePlugin(short_path, "another.example.com", services=("v1.DRAPlugin",)) as other:
            await becomes(lambda: other.statuses)
            async with running(launcher, place, "2"):
                socket = await bench.socket()
                await bench.ready()
                assert (socket, bench.name) == (bench.registration.socket, "sockets.example.com")


async def test_a_driver_may_be_a_plugin_of_another_type_as_well(bad_bench: OpenBench) -> None:
    async with bad_bench() as bench, csi_plugin(bench.place.kubelet):
        result = await run_check(CHECKS["registration.is-a-dra-plugin"], bench)
    assert result.verdict is Verdict.PASSED, result.text


async def test_the_cdi_files_of_other_vendors_survive_the_checks(bad_bench: OpenBench) -> None:
    """With --cdi-dir these are the files of a real node."""
    async with bad_bench() as bench:
        other = bench.cdi.folder / "vendor.example.com-gpu.json"
        device = {"name": "0", "containerEdits": {"env": ["GPU=0"]}}
        other.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "vendor.example.com/gpu", "devices": [device]}))
        result = await run_check(CHECKS["cdi.files-come-back"], bench)
        assert result.verdict is Verdict.PASSED, result.text
        assert other.exists()


async def test_a_file_name_that_is_no_utf_8_is_told_in_letters_that_a_report_can_hold(bad_bench: OpenBench) -> None:
    async def finds(bench: Bench) -> None:
        raise Finding(os.fsdecode(b"bad-\xff.json: it is empty"))

    async with bad_bench() as bench:
        result = await run_check(replace(CHECKS["cdi.files-are-valid"], run=finds), bench)
    assert result.text == r"bad-\udcff.json: it is empty"
    assert as_junit("d", [result]).encode()


async def test_a_driver_is_not_blamed_for_a_device_that_two_files_of_another_vendor_describe(
    bad_bench: OpenBench,
) -> None:
    async with bad_bench() as bench:
        device = {"name": "0", "containerEdits": {"env": ["GPU=0"]}}
        text = json.dumps({"cdiVersion": "0.6.0", "kind": "vendor.example.com/gpu", "devices": [device]})
        for name in ("vendor.json", "vendor-again.json"):
            (bench.cdi.folder / name).write_text(text)
        result = await run_check(CHECKS["cdi.devices-are-described-once"], bench)
    assert result.verdict is Verdict.PASSED, result.text


@pytest.mark.parametrize("name", ["cdi.files-of-others-stay", "cdi.files-of-neighbours-stay"])
async def test_a_check_that_ends_early_leaves_none_of_its_own_cdi_files(
    name: str, kubeconfig: Path, short_path: Path
) -> None:
    place = Place.below(short_path, "node-left", kubeconfig)
    driver = BadLauncher("sockets.example.com", "unprepare fails")
    async with open_bench(place, None, PATIENT) as bench, running(driver, place):
        result = await run_check(CHECKS[name], bench)
        left = [path.name for path in bench.cdi.files() if not path.name.startswith("sockets.example.com-")]
    assert result.verdict is Verdict.FAILED
    assert left == []


async def test_a_driver_that_does_not_register_is_waited_for_once_and_shows_its_calls(bad_bench: OpenBench) -> None:
    names = ["prepare.answers-a-claim", "prepare.can-be-repeated", "restart.ends-in-time"]
    async with bad_bench("it offers version numbers", limits=replace(PATIENT, registered=1.0)) as bench:
        results = [await run_check(CHECKS[name], bench) for name in names]
    assert [one.verdict for one in results] == [Verdict.FAILED, Verdict.NOT_JUDGED, Verdict.NOT_JUDGED]
    assert "GetInfo()" in results[0].text
    assert 'supported_versions: "1.0.0"' in results[0].text
    assert 'NotifyRegistrationStatus(error: "RegisterPlugin error' in results[0].text


async def test_benches_beside_each_other_share_the_checks(bad_bench: OpenBench) -> None:
    checks = chosen(all_checks(), ["prepare.*"])
    async with bad_bench() as one, bad_bench() as other:
        results = [result async for result in run_beside(checks, [one, other])]
        assert one.name != other.name
    assert {result.check.name for result in results} == {check.name for check in checks}
    assert [result.text for result in results if result.verdict is Verdict.FAILED] == []


async def test_a_check_has_a_time_out(bad_bench: OpenBench) -> None:
    async with bad_bench("it publishes nothing") as bench:
        await bench.ready()
        result = await run_check(CHECKS["slices.are-published"], bench, timeout=0.5)
    assert (result.verdict, result.text) == (Verdict.FAILED, "not done after 0.5 s")


async def test_after_a_failed_check_the_next_one_finds_a_fresh_node(bad_bench: OpenBench) -> None:
    async with bad_bench("it never gives a device back") as bench:
        first = await run_check(CHECKS["claims.get-a-device-after-it-is-given-back"], bench)
        second = await run_check(CHECKS["prepare.answers-a-claim"], bench)
    assert (first.verdict, second.verdict) == (Verdict.FAILED, Verdict.PASSED)


async def test_a_check_that_misses_a_folder_of_the_node_fails_and_the_run_goes_on(bad_bench: OpenBench) -> None:
    names = ["unprepare.answers-a-claim", "cdi.files-of-others-stay", "prepare.answers-a-claim"]
    async with bad_bench("it removes the empty CDI folder") as bench:
        results = [await run_check(CHECKS[name], bench) for name in names]
        assert [one.verdict for one in results] == [Verdict.PASSED, Verdict.FAILED, Verdict.PASSED]
        assert f"the driver removed {bench.cdi.folder}: " in results[1].text


async def test_a_check_that_the_system_refuses_something_fails_with_its_words(
    bad_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> str:
        raise PermissionError(13, "Permission denied", "/var/run/cdi")

    async with bad_bench() as bench:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_text", refused)
            first = await run_check(CHECKS["cdi.files-of-others-stay"], bench)
        second = await run_check(CHECKS["cdi.files-of-others-stay"], bench)
    assert first.text == "the check could not go on: [Errno 13] Permission denied: '/var/run/cdi'"
    assert (first.verdict, second.verdict) == (Verdict.FAILED, Verdict.PASSED)


async def test_a_claim_that_stays_prepared_is_not_the_fault_of_the_next_check(bad_bench: OpenBench) -> None:
    async with bad_bench("unprepare fails") as bench:
        names = ["prepare.answers-a-claim", "prepare.says-the-same-again"]
        results = [await run_check(CHECKS[name], bench) for name in names]
    assert [one.text for one in results] == ["", ""]


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("shares are exclusive", "unprepare.leaves-other-shares"),
        ("it refuses admin access", "unprepare.of-an-administrator-leaves-the-device"),
    ],
)
async def test_a_driver_that_prepares_no_two_claims_on_a_device_is_not_blamed_a_second_time(
    fault: str, name: str, bad_bench: OpenBench
) -> None:
    async with bad_bench(fault) as bench:
        result = await run_check(CHECKS[name], bench)
    assert result.verdict is Verdict.SKIPPED
    assert "the driver does not prepare both claims" in result.text


async def test_a_driver_that_gives_up_during_a_check_fails_it(bad_bench: OpenBench) -> None:
    async with bad_bench("it gives up after a refusal") as bench:
        result = await run_check(CHECKS["registration.survives-a-refusal"], bench)
    assert "the driver ended: not registered" in result.text


@pytest.mark.rule("K37-HEALTH-09", "K37-META-03", "K37-NUMA-01")
@pytest.mark.parametrize(
    ("release", "fault", "names", "verdicts"),
    [
        (Release.V1_36, "health is offered and not served", HEALTH, ["warned", "failed"]),
        (Release.V1_37, "health is offered and not served", HEALTH, ["passed", "skipped"]),
        (
            Release.V1_36,
            "its device metadata are v1alpha1 only",
            ["metadata.have-a-version-of-the-release"],
            ["passed"],
        ),
        (Release.V1_36, "a NUMA node is -1", ["slices.write-standard-attributes-as-agreed"], ["passed"]),
    ],
)
async def test_a_driver_is_judged_as_on_a_node_of_the_release(
    release: Release, fault: str, names: list[str], verdicts: list[str], bad_bench: OpenBench
) -> None:
    """Other faults of 1.37 stand in the table of planted faults."""
    async with bad_bench(fault, release=release) as bench:
        assert [(await run_check(CHECKS[name], bench)).verdict.value for name in names] == verdicts


async def test_the_health_of_a_device_may_have_been_found_out_long_ago(bad_bench: OpenBench) -> None:
    """A driver that runs for days tells each kubelet when a device last changed."""
    async with bad_bench("variant: no device's health changed for a week") as bench:
        result = await run_check(CHECKS["health.has-times-in-seconds"], bench)
    assert result.verdict is Verdict.PASSED, result.text


async def test_a_recommendation_that_is_not_followed_is_a_warning(bad_bench: OpenBench) -> None:
    async with bad_bench("it writes files in place") as bench:
        result = await run_check(CHECKS["cdi.files-appear-whole"], bench)
    assert result.verdict is Verdict.WARNED


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("it has one device", "the driver published 1: test it where it has more devices"),
        ("all its devices exclude each other", "the driver published 1 of 4, since the others have taints or draw on"),
    ],
)
@pytest.mark.parametrize("name", ["prepare.answers-a-big-batch", "claims.follow-a-new-allocation"])
async def test_a_driver_with_too_few_devices_is_not_judged(
    name: str, fault: str, said: str, bad_bench: OpenBench
) -> None:
    async with bad_bench(fault) as bench:
        result = await run_check(CHECKS[name], bench)
    assert result.verdict is Verdict.NOT_JUDGED
    assert said in result.text


async def test_devices_that_fit_by_their_counters_are_held_side_by_side(bad_bench: OpenBench) -> None:
    async with bad_bench(PARTITIONS) as bench:
        await bench.ready()
        found = {device.name for device in await bench.independent()}
    assert found == {f"gpu-{board}-quarter-{part}" for board in range(2) for part in range(4)}


async def test_a_pool_counts_as_published_when_all_its_slices_are_there(bad_bench: OpenBench) -> None:
    async with bad_bench() as bench:
        await bench.ready()
        (counters,) = [one for one in await bench.published_slices() if one["spec"].get("sharedCounters")]
        await bench.server.delete_slice(counters["metadata"]["name"])
        await bench.published()
        pool = (await bench.slices())[0]["spec"]["pool"]
        assert len(await bench.slices()) == pool["resourceSliceCount"]


async def test_no_more_than_two_instances_run_in_checks_of_updates(bad_bench: OpenBench) -> None:
    running: list[int] = []
    async with bad_bench() as bench:
        for check in chosen(all_checks(), ["rolling.*"]):
            result = await run_check(check, bench)
            assert result.verdict is Verdict.PASSED, result.text
            running.append(bench.driver.count)
    assert set(running) == {1}, "the check itself fails at a third"


async def test_a_finalizer_that_the_driver_leaves_is_its_fault_and_the_run_goes_on(bad_bench: OpenBench) -> None:
    names = ["claims.that-are-created-again-are-new", "unprepare.goes-by-the-uid", "prepare.answers-a-claim"]
    async with bad_bench("it leaves a finalizer on claims") as bench:
        results = [await run_check(CHECKS[name], bench) for name in names]
        left = await bench.server.strange()
    assert [one.verdict for one in results] == [Verdict.FAILED, Verdict.FAILED, Verdict.PASSED]
    assert "the driver left the finalizers" in results[0].text
    assert left == ""


@pytest.mark.parametrize("fault", ["it has no devices", "it publishes nothing"])
async def test_a_driver_without_devices_is_not_judged_and_awaited_once(fault: str, bad_bench: OpenBench) -> None:
    patience = replace(PATIENT, published=2.0)
    async with bad_bench(fault, limits=patience) as bench:
        results = [one async for one in run(chosen(all_checks(), ["prepare.*", "claims.*", "slices.*"]), bench)]
    failed = {one.check.name for one in results if one.verdict is Verdict.FAILED}
    unjudged = [one for one in results if one.verdict is Verdict.NOT_JUDGED]
    assert failed == ({"slices.are-published"} if fault == "it publishes nothing" else set())
    assert len(unjudged) > 20
    assert all("the driver published no " in one.text for one in unjudged)
    assert sum(one.seconds > patience.published for one in results) < len(unjudged) // 2, (
        "for slices, for devices, and a slow machine"
    )
