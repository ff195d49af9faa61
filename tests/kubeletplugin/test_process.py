"""``dra-kubelet-plugin simulated`` as a process, on a development cluster's API server, called by a kubelet."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from command import ForkedProcess, start_forked
from dra_devcluster.apiserver import DevApiServer
from dra_kube import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Api, connection
from dra_kubeletplugin import ClaimRef, PluginSettings
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.commands import FLAGS
from dra_kubeletplugin.testing import FakeKubelet
from waiting import becomes

DRIVER = "gpu.example.com"
KUBECONFIG = """
{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}],
  clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}], users: [{{name: u, user: {{}}}}]}}
"""


@dataclass
class Place:
    """Where a plugin of a test lives."""

    kubeconfig: Path
    folder: Path
    api: Api
    settings: PluginSettings

    @property
    def arguments(self) -> list[str]:
        """The command line."""
        paths = {"plugin-registration-path": "r", "datadir": "p", "cdi-dir": "cdi"}
        flags = {"kubeconfig": self.kubeconfig, "node-name": "worker-1", "drivername": DRIVER}
        flags |= {flag: self.folder / name for flag, name in paths.items()}
        return ["dra-kubelet-plugin", "simulated", *(f"--{flag}={value}" for flag, value in flags.items())]

    def sockets(self) -> list[str]:
        """Names of the sockets below the folder."""
        return sorted(path.name for path in self.folder.rglob("*.sock"))

    def hidden_sockets(self) -> list[Path]:
        """Sockets under the names that the kubelet passes over."""
        return sorted(path for path in self.folder.rglob(".*") if path.is_socket())

    def cdi_files(self) -> list[str]:
        """Names in the CDI folder."""
        return sorted(path.name for path in (self.folder / "cdi").iterdir())


@pytest.fixture
async def place(short_path: Path) -> AsyncIterator[Place]:
    async with DevApiServer() as server:
        kubeconfig = server.write_kubeconfig(short_path / "kubeconfig")
        async with Api(connection(kubeconfig)) as api:
            await api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker-1"}})
            (short_path / "r").mkdir()
            settings = PluginSettings(
                driver_name=DRIVER, registry_dir=short_path / "r", data_dir=short_path / "p" / DRIVER
            )
            yield Place(kubeconfig, short_path, api, settings)


@asynccontextmanager
async def started(place: Place, *flags: str, command: list[str] | None = None) -> AsyncIterator[ForkedProcess]:
    """The plugin's process, serving."""
    log = place.folder / "log"
    log.unlink(missing_ok=True)
    process = await start_forked([*(command or place.arguments), *flags], os.environ, log=log)
    try:
        await becomes(lambda: "serves on" in log.read_text() or process.returncode is not None)
        assert process.returncode is None, log.read_text()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def slices(place: Place, count: int) -> list[dict[str, Any]]:
    """The published slices, as soon as there are so many."""
    async with asyncio.timeout(60):
        while True:
            found, _ = await place.api.list(RESOURCE_SLICES)
            if len(found) == count:
                return found
            await asyncio.sleep(0.02)


async def allocated_claim(
    api: Api, device: str = "device-00", configuration: tuple[str, str] = ("color", "red")
) -> ClaimRef:
    """A claim to which a device is allocated, with one parameter."""
    claim = await api.create(
        RESOURCE_CLAIMS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "my-claim", "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "req", "exactly": {"deviceClassName": "gpu"}}]}},
        },
    )
    result = {"request": "req", "driver": DRIVER, "pool": "worker-1", "device": device}
    parameters = {"driver": DRIVER, "parameters": dict([configuration])}
    devices = {"results": [result], "config": [{"source": "FromClaim", "opaque": parameters}]}
    claim["status"] = {"allocation": {"devices": devices}}
    await api.update(RESOURCE_CLAIMS, claim, "status")
    return ClaimRef("default", "my-claim", claim["metadata"]["uid"])


async def test_the_life_of_a_plugin(place: Place) -> None:
    async with started(place) as process:
        (published,) = await slices(place, 1)
        assert [device["name"] for device in published["spec"]["devices"]] == [f"device-0{i}" for i in range(4)]
        node = await place.api.get(NODES, "worker-1")
        assert published["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
        assert published["spec"]["nodeName"] == "worker-1"

        ref = await allocated_claim(place.api)
        async with FakeKubelet(place.settings) as kubelet:
            await kubelet.register()
            answer = (await kubelet.prepare([ref]))[ref.uid]
            assert list(answer.devices[0].cdi_device_ids) == [f"{DRIVER}/claim=claim-{ref.uid}-req-0"]
            assert place.cdi_files() == [f"{DRIVER}-{ref.uid}-req-0.json"]
            assert "user_color=red" in (place.folder / "cdi" / place.cdi_files()[0]).read_text()
            await kubelet.unprepare([ref])
        assert not place.cdi_files()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert not place.sockets()
    assert len(await slices(place, 1)) == 1, "the kubelet removes slices, not the plugin"


async def test_hostdev_gives_a_device_of_this_machine(place: Place) -> None:
    config = place.folder / "hostdev.yaml"
    config.write_text("devices: [{name: nothing, paths: [/dev/null], container: {env: {HOLE: '{containerPath}'}}}]")
    command = [place.arguments[0], "hostdev", f"--config={config}", *place.arguments[2:]]
    async with started(place, command=command):
        (published,) = await slices(place, 1)
        assert [device["name"] for device in published["spec"]["devices"]] == ["nothing-null"]
        ref = await allocated_claim(place.api, "nothing-null", ("containerPath", "/dev/hole"))
        async with FakeKubelet(place.settings) as kubelet:
            assert (await kubelet.prepare([ref]))[ref.uid].error == ""
        edits = json.loads((place.folder / "cdi" / place.cdi_files()[0]).read_text())["devices"][0]["containerEdits"]
        assert edits == {
            "env": ["HOLE=/dev/hole"],
            "deviceNodes": [{"path": "/dev/hole", "hostPath": "/dev/null", "permissions": "rw"}],
        }


async def test_prj_016_a_plugin_killed_between_prepare_and_unprepare_leaves_no_cdi_file(place: Place) -> None:
    ref = await allocated_claim(place.api)
    async with started(place) as process:
        async with FakeKubelet(place.settings) as kubelet:
            await kubelet.prepare([ref])
        process.kill()
        await process.wait()
    assert len(place.cdi_files()) == 1
    assert len(place.sockets()) == 2, "a killed process leaves its sockets"
    for path in (place.folder / "cdi").iterdir():
        path.unlink()
    async with started(place):
        await becomes(lambda: len(place.cdi_files()) == 1, 30)  # its containers may be started again
        async with FakeKubelet(place.settings) as kubelet:
            assert (await kubelet.unprepare([ref]))[ref.uid].error == ""
    assert not place.cdi_files()


DIES_AT_A_LINK = """
import os, signal, sys
from dra_kubeletplugin.cli import main
left, link = int(sys.argv.pop(1)), os.link
def dies(source, target):
    global left
    left -= 1
    return link(source, target) if left else os.kill(os.getpid(), signal.SIGKILL)
os.link = dies
main(sys.argv[1:])
"""


@pytest.mark.parametrize("at", [1, 2], ids=["of the service", "of the registration"])
async def test_a_socket_that_a_killed_plugin_never_moved_into_place_goes_at_the_next_start(
    place: Place, at: int
) -> None:
    command = [sys.executable, "-c", DIES_AT_A_LINK, str(at), *place.arguments[1:]]
    killed = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
    assert await killed.wait() == -signal.SIGKILL
    *_, hidden = left = place.hidden_sockets()
    assert len(left) == at
    mark = hidden.name[:5]
    listened_on, other_drivers = hidden.with_name(f"{mark}x1"), hidden.with_name(".x123456")
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as server:
        other.bind(str(other_drivers))
        server.bind(str(listened_on))
        server.listen()
        async with started(place):
            now = {*place.hidden_sockets()}
            assert not {*left} & now
            assert {listened_on, other_drivers} < now


async def test_a_kubelet_that_looks_late_finds_the_hidden_name_which_goes_with_the_socket(place: Place) -> None:
    """It looks at each name that was made; when one is gone by then it logs an error."""
    async with started(place) as process:
        hidden = place.hidden_sockets()
        shown = list(place.folder.rglob("*.sock"))
        assert {path.stat().st_ino for path in hidden} == {path.stat().st_ino for path in shown}
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert [place.hidden_sockets(), place.sockets()] == [[], []]


async def test_configuration_file_flags_and_node_name_of_the_environment(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_NAME", "worker-1")
    config = place.folder / "config.yaml"
    config.write_text(
        "driverName: other.example.com\nnodeName: elsewhere\n"
        "pools: [{name: p, devices: [{name: gpu, count: 130, attributes: {model: A100}}]}]"
    )
    arguments = [argument for argument in place.arguments if "--node-name" not in argument]
    async with started(place, f"--config={config}", command=arguments):
        first, second = await slices(place, 2)
        assert first["spec"]["driver"] == DRIVER, "the flag overrides the file"
        assert first["spec"]["nodeName"] == "worker-1", "the environment overrides the file"
        assert sorted([len(first["spec"]["devices"]), len(second["spec"]["devices"])]) == [2, 128]


async def test_metrics_and_probes(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with started(place, f"--http-endpoint={address}"), aiohttp.ClientSession(f"http://{address}") as http:
        await slices(place, 1)
        assert (await http.get("/healthz")).status == 200
        assert (await http.get("/readyz")).status == 503
        async with FakeKubelet(place.settings) as kubelet:
            await kubelet.register()
        assert (await http.get("/readyz")).status == 200
        assert 'href="/metrics"' in await (await http.get("/")).text()
        text = await (await http.get("/metrics")).text()
    assert 'dra_plugin_slice_writes_total{operation="creates"} 1.0' in text
    method = "/pluginregistration.Registration/GetInfo"
    assert f'dra_plugin_grpc_duration_seconds_count{{method="{method}",outcome="ok"}} 1.0' in text


async def test_a_fatal_error_ends_the_process_with_a_message(place: Place) -> None:
    async with started(place) as process:
        place.settings.registration_path.unlink()
        assert await asyncio.wait_for(process.wait(), 60) == 1
    assert "error: the socket" in (place.folder / "log").read_text()


async def test_an_api_server_out_of_reach_is_waited_for(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    place.kubeconfig.write_text(KUBECONFIG.format(port=port))
    async with started(place) as process:
        await becomes(lambda: "cannot watch the ResourceSlices" in (place.folder / "log").read_text())
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0


BAD = [
    ("no node name", [], "the node name is missing: pass --node-name", 2),
    ("a bad driver name", ["--node-name=n", "--drivername=GPU_1"], "the driver name 'GPU_1' is not a DNS subdomain", 2),
    ("a driver name that CDI cannot carry", ["--node-name=n", "--drivername=3d.example.com"], "begin with a letter", 2),
    ("a missing file", ["--config=/nowhere.yaml"], "cannot read the configuration /nowhere.yaml", 2),
    ("a kubeconfig that is missing", ["--node-name=n", "--kubeconfig=/nowhere"], "/nowhere does not exist; pass", 2),
    ("no registration directory", ["--node-name=n", "--kubeconfig=KUBECONFIG", "--plugin-registration-path=/nowhere"],
     "the folder /nowhere for the socket test-driver.cdi.k8s.io-reg.sock does not exist: create or mount it", 1),
    ("a data directory below a file", ["--node-name=n", "--kubeconfig=KUBECONFIG", "--datadir=KUBECONFIG"],
     "Not a directory", 1),
    ("a bad endpoint", ["--node-name=n", "--kubeconfig=KUBECONFIG", "--http-endpoint=nonsense"], "is not host:port", 2),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "message", "code"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_input_ends_with_one_clear_line(
    short_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    message: str,
    code: int,
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    kubeconfig = short_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.format(port=1))
    defaults = [f"--{flag}={short_path}" for flag in ("plugin-registration-path", "datadir", "cdi-dir")]
    assert main(["simulated", *defaults, *(flag.replace("KUBECONFIG", str(kubeconfig)) for flag in flags)]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dra-kubelet-plugin: error: ")
    assert message in line
    assert list(short_path.iterdir()) == [kubeconfig], "what cannot start leaves nothing on disk"


def test_an_error_is_the_exit_code_of_the_process(short_path: Path) -> None:
    command = [sys.executable, "-m", "dra_kubeletplugin.cli", "simulated"]
    environment = {"HOME": str(short_path)}  # no NODE_NAME
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("dra-kubelet-plugin: error: the node name is missing")


@pytest.mark.parametrize("flags", [["--num-devices=-1"], ["--num-devices=many"], ["--no-such-flag"]])
def test_wrong_usage_has_exit_code_2(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulated", *flags])
    assert ended.value.code == 2
    assert "usage: dra-kubelet-plugin" in capsys.readouterr().err


@pytest.mark.parametrize("driver", ["simulated", "hostdev"])
def test_help_names_every_flag(capsys: pytest.CaptureFixture[str], driver: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([driver, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for flag in ("--config", *FLAGS, "--kubeconfig", "--node-name", "--drivername", "--datadir", "--cdi-dir"):
        assert flag in shown
