"""The agent as a whole: starting, refusing to start, living beside others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dra_devcluster.agent import CheckpointCorrupted, LocalRuntime, NodeAgent
from dra_kube import NODES
from one_node import OneNode
from waiting import becomes


@pytest.mark.rule("KM-11")
async def test_an_agent_with_a_damaged_checkpoint_does_not_start(node: OneNode) -> None:
    await node.stop()
    (node.root / "dra_manager_state").write_text("damaged")
    with pytest.raises(CheckpointCorrupted, match="drain the node, remove this file"):
        await node.start()
    (node.root / "dra_manager_state").unlink()
    await node.start()


async def test_several_agents_live_in_one_process_and_run_only_their_own_pods(node: OneNode, short_path: Path) -> None:
    async with NodeAgent(node.api, "node-2", root=short_path / "2", settings=node.settings):
        nodes, _ = await node.api.list(NODES)
        assert [one["metadata"]["name"] for one in nodes] == ["node-1", "node-2"]
        for name in ("node-1", "node-2"):
            await node.pod(name, "echo $HOSTNAME", nodeName=name)
            await node.phase(name, "Succeeded")
            assert await node.log(name) == f"{name}\n"
        assert len(list((node.root / "pods").iterdir())) == 1
        assert len(list((short_path / "2" / "pods").iterdir())) == 1


async def test_a_container_that_has_ended_leaves_no_descriptor_open(node: OneNode) -> None:
    def opened() -> list[str]:
        return sorted(os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink())

    async with LocalRuntime(node.root / "apart") as runtime:
        before = [it for it in opened() if "pidfd" in it]
        for name in ("a", "b"):
            runtime.start("uid", name, ["true"], {"PATH": node.settings.search_path})
            await runtime.wait("uid", name)
        assert [it for it in opened() if "pidfd" in it] == before


async def test_what_is_kept_of_pods_that_are_gone_is_removed_at_the_start(node: OneNode) -> None:
    await node.stop()
    async with LocalRuntime(node.root) as runtime:
        runtime.start("gone", "c", ["true"], {"PATH": node.settings.search_path})
        await runtime.wait("gone", "c")
    await node.start()
    await becomes(lambda: not (node.root / "pods" / "gone").exists())
