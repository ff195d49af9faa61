"""Processes that are forked from one that has imported their program: they start, end and die as any others."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import yaml
from command import alive, children, running
from dra_api import VERSION
from dra_devcluster.processes import ForkServer, ProcessFailed
from waiting import becomes

PLUGIN = "dra-kubelet-plugin"


def configuration(folder: Path, name: str) -> list[str]:
    """Arguments of a plugin that goes on until it is ended."""
    root = folder / name
    (root / "registry").mkdir(parents=True)
    nowhere = {"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}]}
    context = {"contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}], "current-context": "c"}
    (root / "kubeconfig").write_text(yaml.safe_dump(nowhere | context))
    config = {"nodeName": name, "kubeconfig": str(root / "kubeconfig"), "cdiDir": str(root / "cdi")}
    config |= {"pluginRegistrationPath": str(root / "registry"), "datadir": str(root / "plugins")}
    (root / "config.yaml").write_text(yaml.safe_dump(config))
    return ["simulated", "--config", str(root / "config.yaml")]


async def test_processes_start_with_their_arguments_and_logs_and_end_with_their_codes(home: Path) -> None:
    async with ForkServer(PLUGIN, home / "server.log") as server:
        good = server.start("good", ["--version"], home / "good.log")
        bad = server.start("bad", ["simulated", "--config", "/missing"], home / "bad.log")
        await becomes(lambda: good.has_ended and bad.has_ended)
        assert (await good.stop(), await bad.stop()) == (0, 2)
        assert VERSION in good.log.read_text()
        with pytest.raises(ProcessFailed, match=r"(?s)bad ended with exit code 2:.*cannot read .* /missing"):
            bad.check()
    assert server.log.read_text() == ""


async def test_a_process_lives_until_it_is_stopped(home: Path) -> None:
    async with ForkServer(PLUGIN, home / "server.log") as server:
        words = configuration(home, "a")
        forked = server.start("a", words, home / "a.log")
        await becomes(lambda: list((home / "a" / "registry").glob("*.sock")))
        forked.check()
        assert not forked.has_ended
        assert await forked.stop() == 0
        assert await forked.stop() == 0
        assert list((home / "a" / "registry").glob("*.sock")) == []


async def test_a_process_that_does_not_react_is_killed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_devcluster.processes._FORKED_GRACE_SECONDS", 0.01)
    async with ForkServer(PLUGIN, home / "server.log") as server:
        others = children(os.getpid())
        forked = server.start("a", configuration(home, "a"), home / "a.log")
        await becomes(lambda: list((home / "a" / "registry").glob("*.sock")))
        (number,) = children(os.getpid()) - others
        os.kill(number, signal.SIGSTOP)
        assert await asyncio.wait_for(forked.stop(), 60) == -signal.SIGKILL


async def test_all_end_with_the_server_and_with_its_parent(home: Path) -> None:
    async with ForkServer(PLUGIN, home / "server.log") as server:
        others = children(os.getpid())
        forked = [server.start(name, configuration(home, name), home / f"{name}.log") for name in "ab"]
        await becomes(lambda: len(list(home.glob("*/registry/*.sock"))) == 2)
        family = children(os.getpid()) - others
        assert len(family) == 2
    await becomes(lambda: not alive(family))
    assert [each.has_ended for each in forked] == [True, True]


async def test_the_plugins_of_a_cluster_that_is_killed_end(home: Path) -> None:
    words: list[str | Path] = [
        "dra-devcluster",
        "up",
        "--nodes",
        "2",
        "--devices",
        "1",
        "--kubeconfig",
        home / "kubeconfig",
    ]
    async with running(words, TMPDIR=home) as cluster:
        await cluster.says("The API server listens on")
        family = children(cluster.process.pid)
        assert len(family) == 3
        cluster.process.send_signal(signal.SIGKILL)
        await cluster.process.wait()
    await becomes(lambda: not alive(family))


async def test_a_server_that_cannot_start_the_program_says_why(home: Path) -> None:
    async with ForkServer("no-such-program", home / "server.log") as server:
        forked = server.start("a", [], home / "a.log")
        await becomes(lambda: forked.has_ended)
        with pytest.raises(ProcessFailed, match=r"no-such-program, beside \S+, is not installed"):
            forked.check()
        await asyncio.wait_for(forked.stop(), 60)
        later = server.start("b", [], home / "b.log")
        assert later.has_ended, "nobody would tell of its end"
