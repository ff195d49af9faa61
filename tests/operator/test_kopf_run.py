"""Kopf inside our process: it needs no user name, kills no task of ours, and may fail as often as it likes."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import pwd
import sys
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import pytest
import yaml
from dra_kube import connection
from dra_operator.app import supervisor
from dra_operator.app.operator import Operator, Options
from dra_operator.app.supervisor import OperatorFailed, Supervisor
from dra_operator.controllers import Control
from dra_operator.sources.kopf_run import KopfRun, identity
from dra_operator.sources.kopf_settings import configure
from dra_operator.sources.streams import Limits
from faults import CutBefore, DelayEvents, FaultProxy, Target, Unserved
from kopf._cogs.structs.references import Selector
from kopf._core.reactor import observation
from live_cluster import LiveCluster
from supervised import Supervising
from waiting import stays, until

ROOT = Path(__file__).resolve().parents[2]
UID = 65532  # of the image


def deployment_command() -> list[str]:
    (container,) = yaml.safe_load((ROOT / "manifests/operator/deployment.yaml").read_text())["spec"]["template"][
        "spec"
    ]["containers"]
    command: list[str] = container["command"]
    assert command[0] == "dra-operator"
    port = command.index("--metrics-port") + 1
    assert command[port] == "8080"
    return [sys.executable, "-m", "dra_operator.cli", *command[1:port], "0", *command[port + 1 :]]


AS_STRANGER = """
import os, sys
uid, command = int(sys.argv[1]), sys.argv[2:]
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, 0, 0)  # effectively root, or Python and the sources might not be readable
os.execv(command[0], command)
"""


@pytest.fixture
def as_stranger() -> list[str]:
    """What starts a command under a uid without a passwd entry: the real one, by which users are looked up."""
    if os.geteuid() != 0:
        pytest.skip("ONLY ROOT CAN START A PROCESS AS ANOTHER USER: run this test as root, as CI does in its container")
    with pytest.raises(KeyError):
        pwd.getpwuid(UID)
    return [sys.executable, "-c", AS_STRANGER, str(UID)]


async def test_the_deployments_command_works_as_a_user_without_name_and_home(
    cluster: LiveCluster, kubeconfig: Path, as_stranger: list[str]
) -> None:
    """A pod that appears after the start is placed: Kopf delivers."""
    await cluster.furnish(template=True)
    nameless = {"USER", "HOME", "LOGNAME", "LNAME", "USERNAME", "HOSTNAME"}
    environment = {name: value for name, value in os.environ.items() if name not in nameless}
    process = await asyncio.create_subprocess_exec(
        *as_stranger,
        *deployment_command(),
        stderr=asyncio.subprocess.PIPE,
        env=environment | {"KUBECONFIG": str(kubeconfig)},
    )
    assert process.stderr is not None
    log = ""
    try:
        async with asyncio.timeout(60):
            while "metrics and probes on " not in log:
                line = (await process.stderr.readline()).decode()
                assert line, log
                log += line
        port = log.rstrip().rpartition(":")[2]
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:

            async def ready() -> bool:
                async with http.get("/readyz") as answer:
                    assert answer.status == 200, await answer.text()
                return True

            await until("ready", ready)
        await cluster.place("pod")
    finally:
        process.terminate()
        _, rest = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, log + rest.decode()


def test_the_identity_is_the_pods_name_or_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTNAME", "dra-operator-5d4f")
    assert identity() == "dra-operator-5d4f"
    monkeypatch.delenv("HOSTNAME")
    assert identity() != identity()


def test_a_kopf_that_failed_does_not_kill_the_process_later() -> None:
    settings = kopf.OperatorSettings()
    configure(settings)
    assert settings.process.ultimate_exiting_timeout is None


async def test_tasks_of_ours_survive_the_end_of_a_kopf_that_is_older(
    cluster: LiveCluster, supervising: Supervising
) -> None:
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        ours = asyncio.create_task(asyncio.Event().wait(), name="ours")
        task = next(task for task in asyncio.all_tasks() if task.get_name() == "multidimensional multitasker")
        task.cancel()
        await site.unready("restarting Kopf: Kopf ended")
        await site.ready()
        assert not ours.done()
        ours.cancel()


@pytest.fixture
def failing_kopf(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Kopf fails at its start as long as the list is not empty."""
    real, fails = kopf.spawn_tasks, [True]

    async def spawn(**arguments: Any) -> Any:
        if fails:
            raise OSError("No username set in the environment")
        return await real(**arguments)

    monkeypatch.setattr(kopf, "spawn_tasks", spawn)
    return fails


async def test_a_kopf_that_fails_again_and_again_is_not_ready_and_in_the_end_not_live(
    cluster: LiveCluster, supervising: Supervising, failing_kopf: list[bool]
) -> None:
    await cluster.furnish(template=True)
    async with supervising(Options(limits=Limits(failing=6.0))) as site:
        await site.unready("restarting Kopf: Kopf ended with OSError('No username")
        assert site.is_live()

        async def dead() -> bool:
            return any("No username" in line for line in site.deadly())

        await until("not live", dead)
        failing_kopf.clear()
        await site.ready()

        async def live() -> bool:
            return site.is_live()

        await until("live", live)
        assert site.metric("dra_operator_kopf_restarts_total", reason="failure") > 1
        await cluster.place("pod")


async def test_what_kopf_lacks_is_not_reported_in_its_own_words(
    cluster: LiveCluster, supervising: Supervising, caplog: pytest.LogCaptureFixture
) -> None:
    """Every stock server lacks DeviceTaintRule."""
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
    assert "Unresolved" not in caplog.text


def test_kinds_that_are_served_no_more_are_named_without_kopfs_advice(caplog: pytest.LogCaptureFixture) -> None:
    """When Kopf looks for the kinds again, after resource.k8s.io was switched off."""
    configure(kopf.OperatorSettings())
    observation._disable_mismatched_selectors(
        resources=set(), selectors=frozenset({Selector(group="resource.k8s.io", version="v1", plural="resourceclaims")})
    )
    assert [record.getMessage() for record in caplog.records] == [
        "the API server does not serve resourceclaims: they are watched once it does"
    ]


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What asyncio says of tasks that ended in the wrong order, and Kopf of a connection that is closed."""
    bad = ("request_cancel_callback", "never awaited", "TCP closed", "Connector is closed", "stream left")
    return [text for record in caplog.records if any(word in (text := record.getMessage()) for word in bad)]


async def test_the_watchers_end_first_when_one_of_them_fails(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising, caplog: pytest.LogCaptureFixture
) -> None:
    """Kopf itself closes their connection under them, and has nothing left to wait for but them."""
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        with proxy.suffering(Unserved(Target(group="resource.k8s.io", client="kopf"))):
            proxy.break_streams()
            await site.unready("restarting Kopf: Kopf ended with APINotFoundError")
        await site.ready()
    assert complaints(caplog) == []


async def test_kopf_ends_in_good_order_while_events_come_in(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising, caplog: pytest.LogCaptureFixture
) -> None:
    """A watcher that is cancelled between two events leaves a task, and Kopf waits for that for seconds."""
    await cluster.furnish(template=True)
    caplog.set_level(logging.DEBUG, "kopf._core.reactor.running")
    async with supervising() as site:
        await site.ready()
        view = site.operator.control.cluster
        with proxy.suffering(DelayEvents(Target(resource="pods", client="kopf"), seconds=(0.5, 0.5), count=1)):
            await asyncio.gather(*(cluster.add_pod(f"pod-{number}") for number in range(60)))

            async def first() -> bool:
                return len(view.pods) > 0

            await until("the first of many events", first)
            site.supervisor.stop()
    assert "Hung tasks stopping is skipped: no tasks given." in caplog.text
    assert complaints(caplog) == []


async def test_a_server_that_is_away_makes_the_operator_unready_but_not_dead(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising
) -> None:
    await cluster.furnish()
    async with supervising(Options(limits=Limits(silence=3, gap=0.3, idle=15, failing=0.5))) as site:
        await site.ready()
        with proxy.suffering(CutBefore(Target())):
            proxy.break_streams()
            await site.unready("nodes", "pods")

            async def is_live() -> bool:
                return site.is_live()

            await stays("it is live", is_live, 1)
        await site.ready()


async def test_the_view_is_kept_when_kopf_is_started_again(cluster: LiveCluster, supervising: Supervising) -> None:
    await cluster.furnish(template=True)
    async with supervising() as site:
        await site.ready()
        view = site.operator.control.cluster
        next(task for task in asyncio.all_tasks() if task.get_name() == "multidimensional multitasker").cancel()
        await cluster.place("pod")
        assert site.operator.control.cluster is view
        await site.ready()


def is_new_watcher(task: asyncio.Task[Any]) -> bool:
    """One of Kopf's that was made, and has not begun."""
    if not task.get_name().startswith("watcher for "):
        return False
    return inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_CREATED  # type: ignore[arg-type]


async def test_kopf_ends_in_good_order_before_its_watchers_begin(
    cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coroutine that was never awaited would be found when the test is over."""
    runs: list[KopfRun] = []

    class Noted(KopfRun):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            runs.append(self)

    monkeypatch.setattr(supervisor, "KopfRun", Noted)
    await cluster.furnish()
    async with supervising(), asyncio.timeout(60):
        while not any(map(is_new_watcher, asyncio.all_tasks())):  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0)
        await runs[0].end()
    gc.collect()


async def test_a_reconciler_that_ends_ends_the_process(
    cluster: LiveCluster, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    await cluster.furnish()
    operator = Operator()
    task = asyncio.create_task(Supervisor(operator, connection(kubeconfig)).run())

    async def runs() -> bool:
        return operator.is_running

    await until("started", runs)
    next(one for one in asyncio.all_tasks() if one.get_name() == "operator").cancel()
    with pytest.raises(OperatorFailed):
        await task


async def test_reconcilers_that_fail_before_all_of_them_run_end_the_process(
    cluster: LiveCluster, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    await cluster.furnish()

    async def fail(control: Control) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Control, "run", fail)
    async with asyncio.timeout(60):
        with pytest.raises(OperatorFailed, match="the controllers ended"):
            await Supervisor(Operator(), connection(kubeconfig)).run()
    assert "the controllers failed" in caplog.text
    assert "in sync" not in caplog.text
