"""The process of ``dra-operator run``: it needs no user name, and ends when its controllers do."""

from __future__ import annotations

import asyncio
import os
import pwd
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from dra_api import yaml_text
from dra_kube import PODS, Api, Resource, connection
from dra_operator.app.operator import Operator
from dra_operator.app.run import OperatorFailed, Supervisor
from dra_operator.controllers import Control
from supervised import LiveCluster
from waiting import becomes, until

ROOT = Path(__file__).resolve().parents[2]
UID = 65532  # of the image


def deployment_command() -> list[str]:
    (container,) = yaml_text.load((ROOT / "manifests/operator/deployment.yaml").read_text())["spec"]["template"][
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
    """A pod that appears after the start is placed."""
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


async def test_a_reconciler_that_ends_ends_the_process(cluster: LiveCluster, kubeconfig: Path) -> None:
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
    await cluster.furnish()

    async def fail(control: Control) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Control, "run", fail)
    async with asyncio.timeout(60):
        with pytest.raises(OperatorFailed, match="the controllers ended"):
            await Supervisor(Operator(), connection(kubeconfig)).run()
    assert "the controllers failed" in caplog.text
    assert "in sync" not in caplog.text


async def test_a_watch_that_meets_a_bug_ends_neither_the_others_nor_the_process(
    cluster: LiveCluster, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.furnish(template=True)
    known, bugs = Api.changes, ["a bug"]

    async def changes(api: Api, resource: Resource, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        if resource == PODS and bugs:
            raise KeyError(bugs.pop())
        async for batch in known(api, resource, *arguments, **options):
            yield batch

    monkeypatch.setattr(Api, "changes", changes)
    supervisor = Supervisor(Operator(), connection(kubeconfig))
    task = asyncio.create_task(supervisor.run())
    await cluster.place("pod")
    assert "KeyError: 'a bug'" in caplog.text
    supervisor.stop()
    await task


async def test_a_signal_ends_the_process_while_a_burst_comes_in(
    cluster: LiveCluster, kubeconfig: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.furnish(template=True)
    operator = Operator()
    supervisor = Supervisor(operator, connection(kubeconfig))
    task = asyncio.create_task(supervisor.run())
    await cluster.heard()
    view = operator.control.cluster
    adding = asyncio.gather(*(cluster.add_pod(f"pod-{number}") for number in range(60)))
    await becomes(lambda: len(view.pods) > 1)
    supervisor.stop()
    async with asyncio.timeout(30):
        await task
    await adding
    assert not [record for record in caplog.records if record.name in ("asyncio", "dra_kube.reflector")]
