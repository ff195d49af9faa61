"""``dra-devcluster up`` as a process: when it is ready, how it ends, and what it says when it cannot start."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import alive, children, left_in, run, running
from dra_api import yaml_text
from dra_devcluster.cluster import DevCluster, UsageError, _end_together, _progress, _write_kubeconfig
from dra_kube import CONFIG_MAPS, NODES, PODS, RESOURCE_SLICES, Api, connection
from dra_kube.access.connection import contexts
from waiting import until

CONFIG_MAP = {"metadata": {"name": "kept", "namespace": "default"}, "data": {"a": "b"}}


def up(home: Path, *flags: str | Path) -> list[str | Path]:
    return ["dra-devcluster", "up", "--kubeconfig", home / "kubeconfig", *flags]


def sockets_below(home: Path) -> list[Path] | None:
    """Registration sockets of plugins on the first node."""
    return list(home.glob("*/nodes/node-1/plugins_registry/*.sock")) or None


def begun_nodes(home: Path) -> list[Path]:
    """Configurations of plugins that were started, or are about to be."""
    return list(home.glob("dra-*/nodes/*/simulated.yaml"))


def sleeper(node: str) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", "sleep 600 & sleep 600"]}
    return {
        "metadata": {"name": "sleeper", "namespace": "default"},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]},
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_runs_until_a_signal_and_leaves_nothing(number: signal.Signals, home: Path) -> None:
    async with running(up(home, "--nodes", "2", "--devices", "3"), TMPDIR=home) as cluster:
        await cluster.says("The API server listens on https://127.0.0.1:")
        async with Api(connection(home / "kubeconfig")) as api:
            nodes, _ = await api.list(NODES)
            assert {node["metadata"]["name"] for node in nodes} == {"node-1", "node-2"}

            async def devices() -> list[int] | None:
                slices, _ = await api.list(RESOURCE_SLICES)
                return [len(piece["spec"]["devices"]) for piece in slices] if len(slices) == 2 else None

            assert await until("slices of both nodes", devices) == [3, 3]
            await api.create(PODS, sleeper("node-1"))

            async def pod_runs() -> bool:
                status = (await api.get(PODS, "sleeper", "default")).get("status", {})
                return str(status.get("phase")) == "Running"

            await until("the pod running", pod_runs)
        family = children(cluster.process.pid)
        assert len(family) >= 4, "two plugins, and the pod's container with its child"
        assert await cluster.end(number) == 0
        assert "Stopping." in cluster.output
        assert "Traceback" not in cluster.output
        assert alive(family) == set()
    assert left_in(home) == ["kubeconfig"]


@pytest.mark.parametrize(("moment", "number"), [(1, signal.SIGTERM), (5, signal.SIGINT), (5, signal.SIGHUP)])
async def test_a_signal_ends_a_cluster_that_is_not_up_yet(moment: int, number: signal.Signals, home: Path) -> None:
    """At once: it had minutes to go, and no kubeconfig was written."""
    async with running(up(home, "--nodes", "1000", "--devices", "1"), TMPDIR=home) as cluster:

        async def begun() -> bool:
            return len(begun_nodes(home)) >= moment

        await until("the first nodes", begun)
        family = children(cluster.process.pid)
        assert await cluster.end(number) == 0
        assert cluster.output == "Stopping.\n"
        assert alive(family) == set()
    assert left_in(home) == []


async def test_a_cluster_that_is_up_shows_the_devices_of_its_nodes(home: Path) -> None:
    async with running(up(home, "--nodes", "2", "--devices", "300"), TMPDIR=home) as cluster:
        await cluster.says("The API server listens on")
        async with Api(connection(home / "kubeconfig")) as api:
            slices, _ = await api.list(RESOURCE_SLICES)
        assert sum(len(piece["spec"]["devices"]) for piece in slices) == 600
        assert await cluster.end(signal.SIGTERM) == 0


async def test_a_cluster_plays_the_release_that_was_chosen(home: Path) -> None:
    async with running(up(home, "--kubernetes-version", "1.35"), TMPDIR=home) as cluster:
        await cluster.says("The API server listens on https://127.0.0.1:")
        async with Api(connection(home / "kubeconfig")) as api:
            (node,), _ = await api.list(NODES)
            assert node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.35.")
            assert (await api.raw_get("/version"))["minor"] == "35"


async def test_the_kubeconfig_appears_when_the_cluster_can_be_used(home: Path) -> None:
    async with running(up(home, "--nodes", "1"), TMPDIR=home) as cluster:

        async def written() -> bool:
            return (home / "kubeconfig").exists()

        await until("the kubeconfig", written)
        async with Api(connection(home / "kubeconfig")) as api:
            (node,) = (await api.list(NODES))[0]
            assert {"type": "Ready", "status": "True"}.items() <= node["status"]["conditions"][-1].items()
        assert ((home / "kubeconfig").stat().st_mode & 0o777) == 0o600
        assert await cluster.end(signal.SIGINT) == 0


async def test_what_it_prints_can_be_typed(home: Path) -> None:
    async with running(up(home, "--nodes", "1"), TMPDIR=home) as cluster:
        await cluster.says("Ctrl-C ends the cluster")
        assert f"export KUBECONFIG={home / 'kubeconfig'}" in cluster.output
        assert f"node-1: {home}" in cluster.output
        assert await cluster.end(signal.SIGINT) == 0


async def test_a_port_in_use_is_named_and_the_first_cluster_goes_on(home: Path) -> None:
    async with running(up(home, "--nodes", "0"), TMPDIR=home) as first:
        address = (await first.says(r"listens on https://127.0.0.1:(\d+)"))[1]
        before = (home / "kubeconfig").read_text()
        other = ["dra-devcluster", "up", "--kubeconfig", home / "other", "--port", address]
        code, output = await run(other, TMPDIR=home)
        assert code == 2
        assert output == (
            f"dra-devcluster: port {address} on 127.0.0.1 is in use: "
            "choose another with --port, or 0 for any free one\n"
        )
        assert (home / "kubeconfig").read_text() == before
        async with Api(connection(home / "kubeconfig")) as api:
            assert (await api.list(NODES))[0] == []
        assert await first.end(signal.SIGINT) == 0
    assert left_in(home) == ["kubeconfig"]


async def test_objects_are_kept_in_a_snapshot(home: Path) -> None:
    flags = up(home, "--nodes", "0", "--snapshot", home / "objects")
    async with running(flags) as cluster:
        await cluster.says("listens on")
        async with Api(connection(home / "kubeconfig")) as api:
            written = await api.create(CONFIG_MAPS, CONFIG_MAP)
        assert await cluster.end(signal.SIGTERM) == 0
    async with running(flags) as cluster:
        await cluster.says("listens on")
        async with Api(connection(home / "kubeconfig")) as api:
            assert await api.get(CONFIG_MAPS, "kept", "default") == written
        assert await cluster.end(signal.SIGTERM) == 0


async def test_a_plugin_that_ends_is_reported_and_the_cluster_goes_on(home: Path) -> None:
    async with running(up(home, "--nodes", "1", "--devices", "1"), TMPDIR=home) as cluster:
        await cluster.says("listens on")

        async def sockets() -> list[Path] | None:
            return sockets_below(home)

        (registration,) = await until("the plugin's socket", sockets)
        registration.unlink()
        await cluster.says("plugin-node-1 ended with exit code 1")
        async with Api(connection(home / "kubeconfig")) as api:
            assert len((await api.list(NODES))[0]) == 1
        assert await cluster.end(signal.SIGINT) == 0
    assert "the socket" in cluster.output


async def test_two_clusters_live_in_one_kubeconfig(home: Path) -> None:
    (home / "kubeconfig").write_text(yaml.safe_dump(OTHERS))
    async with running(up(home, "--nodes", "0"), TMPDIR=home) as first:
        await first.says("listens on")
        before = (home / "kubeconfig").read_text()
        code, output = await run(up(home, "--nodes", "0"), TMPDIR=home)
        assert code == 2
        assert "is the kubeconfig of a cluster dra-devcluster that runs at https://127.0.0.1:" in output
        assert "choose another --kubeconfig, or another --name" in output
        assert (home / "kubeconfig").read_text() == before
        async with running(up(home, "--nodes", "1", "--name", "second"), TMPDIR=home) as second:
            await second.says("context second")
            for context, nodes in (("dra-devcluster", 0), ("second", 1)):
                async with Api(connection(home / "kubeconfig", context)) as api:
                    assert len((await api.list(NODES))[0]) == nodes
            assert contexts(str(home / "kubeconfig")) == ["mine", "dra-devcluster", "second"]
            assert await second.end(signal.SIGINT) == 0
        assert await first.end(signal.SIGINT) == 0
    async with running(up(home, "--nodes", "0"), TMPDIR=home) as again:
        await again.says("listens on")
        assert contexts(str(home / "kubeconfig")) == ["mine", "second", "dra-devcluster"], "a dead one is replaced"
        assert await again.end(signal.SIGINT) == 0
    kept = yaml_text.load((home / "kubeconfig").read_text())
    assert OTHERS["users"][0] in kept["users"]


OTHERS: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "mine", "cluster": {"server": "https://mine.example.com"}}],
    "users": [{"name": "mine", "user": {"token": "secret"}}],
    "contexts": [{"name": "mine", "context": {"cluster": "mine", "user": "mine"}}],
    "current-context": "mine",
}


async def test_many_nodes_are_counted_while_they_start(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for done in (1, 99, 100, 101, 200, 250):
        _progress(done, 250)
    assert capsys.readouterr().out == "100 of 250 nodes are up\n200 of 250 nodes are up\n"
    told: list[tuple[int, int]] = []
    async with DevCluster(home, nodes=2, progress=lambda *progress: told.append(progress)):
        assert told == [(1, 2), (2, 2)]


BAD_INPUT = [
    ("a kubeconfig below a file", ["--kubeconfig", "HOME/broken/kubeconfig"],
     "cannot write the kubeconfig HOME/broken/kubeconfig: there is no folder HOME/broken; make it first"),
    ("a kubeconfig in a folder that is missing", ["--kubeconfig", "HOME/missing/kubeconfig"],
     "cannot write the kubeconfig HOME/missing/kubeconfig: there is no folder HOME/missing; make it first"),
    ("a kubeconfig that is a folder", ["--kubeconfig", "HOME"],
     "cannot write the kubeconfig HOME: it is a folder; name a file with --kubeconfig"),
    ("a kubeconfig that is none", ["--kubeconfig", "HOME/broken"],
     "HOME/broken exists, and it is not YAML: "),
    ("too many nodes", ["--nodes", "1000000"], "argument --nodes: '1000000' is not a number from 0 to 1000"),
    ("nodes that are no number", ["--nodes", "abc"], "argument --nodes: 'abc' is not a number from 0 to 1000"),
    ("fewer nodes than none", ["--nodes=-1"], "argument --nodes: '-1' is not a number from 0 to 1000"),
    ("a name that is none", ["--name", "a b"], "argument --name: 'a b' is not a name: use letters, digits"),
    ("a snapshot that is no snapshot", ["--snapshot", "HOME/broken"], "HOME/broken is not a snapshot of this server ("),
    ("a snapshot in a folder that is missing", ["--snapshot", "HOME/missing/objects"],
     "cannot write the snapshot HOME/missing/objects: No such file or directory"),
    ("a snapshot that is a folder", ["--snapshot", "HOME"], "cannot read the snapshot HOME: Is a directory"),
    ("a feature gate that does not exist", ["--feature-gates", "DRANothing=true"],
     "unknown feature gate DRANothing; known are DRAAdminAccess, "),
    ("a defect that no kubelet has", ["--kubelet-defects", "accumulated-cdi-ids, clumsiness"],
     "--kubelet-defects: clumsiness is not known; choose from accumulated-cdi-ids, "),
    ("programs in a folder that is missing", ["--programs", "HOME/missing"],
     "--programs: HOME/missing is not a folder; make it, and put the programs of your images there"),
    ("a feature gate that is locked", ["--feature-gates", "DRAAdminAccess=false"],
     "feature gate DRAAdminAccess is locked to true in Kubernetes 1.37: leave it out"),
    ("a release that is not built", ["--kubernetes-version", "1.38"],
     "argument --kubernetes-version: invalid choice: '1.38'"),
    ("a feature gate without a value", ["--feature-gates", "DRAAdminAccess"],
     "--feature-gates: 'DRAAdminAccess' is not of the form NAME=true or NAME=false"),
    ("a port beyond all ports", ["--port", "70000"], "'70000' is not a port: choose one from 0"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "message"), [case[1:] for case in BAD_INPUT], ids=[case[0] for case in BAD_INPUT])
async def test_bad_input_ends_with_one_clear_line(flags: list[str], message: str, home: Path) -> None:
    (home / "broken").write_text('{"this is": "no snapshot"')
    (home / "t").mkdir()
    words = ["dra-devcluster", "up", "--nodes", "1", *(flag.replace("HOME", str(home)) for flag in flags)]
    if "--kubeconfig" not in flags:
        words += ["--kubeconfig", str(home / "kubeconfig")]
    async with running(words, TMPDIR=home / "t") as cluster:
        assert await asyncio.wait_for(cluster.end(), 60) == 2
    (line,) = [line for line in cluster.output.splitlines() if not line.startswith(("usage:", " "))]
    assert line.startswith("dra-devcluster")
    assert message.replace("HOME", str(home)) in line
    assert left_in(home) == ["broken", "t"]
    assert left_in(home / "t") == []


async def test_a_port_in_use_by_something_else_is_named(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, output = await run(up(home, "--port", port), TMPDIR=home)
    assert code == 2
    assert f"port {port} on 127.0.0.1 is in use" in output


def test_a_kubeconfig_that_became_a_folder_meanwhile_is_named(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path, nodes=0)
    with pytest.raises(UsageError, match=r"cannot write the kubeconfig .*: Is a directory; name another with"):
        _write_kubeconfig(cluster, tmp_path)
    (tmp_path / "kubeconfig").write_text("[]")
    with pytest.raises(UsageError, match=r"cannot write the kubeconfig .*: it is not a kubeconfig; name another with"):
        _write_kubeconfig(cluster, tmp_path / "kubeconfig")


async def test_a_node_that_fails_at_its_end_does_not_hold_up_the_others() -> None:
    ended: list[str] = []

    async def end(name: str) -> None:
        ended.append(name)
        if name == "node-1":
            raise OSError(name)

    nodes = [AsyncExitStack() for _ in range(2)]
    for number, node in enumerate(nodes, 1):
        node.push_async_callback(end, f"node-{number}")
    with pytest.raises(OSError, match="node-1"):
        await _end_together(nodes)
    assert ended == ["node-1", "node-2"]
