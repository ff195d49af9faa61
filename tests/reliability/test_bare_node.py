"""A node of tests recovers from a stall, as a kubelet's does."""

from __future__ import annotations

from pathlib import Path

import pytest
from dra_devcluster.apiserver import serve_in_thread
from dra_kube import NODES, Api, connection
from proving_ground import bare_node
from waiting import until


@pytest.mark.parametrize("kind", ["Ready", "MemoryPressure"])
async def test_a_node_is_ready_again_after_the_node_lifecycle_controller_gave_it_up(kind: str, tmp_path: Path) -> None:
    """That writes Unknown, also where a kubelet has written nothing, and takes its taint off when Ready is True."""
    unknown = {"type": kind, "status": "Unknown", "reason": "NodeStatusUnknown"}
    with serve_in_thread() as server:
        async with (
            Api(connection(server.write_kubeconfig(tmp_path / "kubeconfig"))) as api,
            bare_node(api, "node", renewal_seconds=0.3),
        ):
            await api.patch(NODES, "node", {"status": {"conditions": [unknown]}}, subresource="status")

            async def is_ready() -> bool:
                conditions = (await api.get(NODES, "node"))["status"]["conditions"]
                return ("Ready", "True") in {(entry["type"], entry["status"]) for entry in conditions}

            await until("the node is ready again", is_ready, 10)
