"""Which feature gates concern nodes, and which are the API server's."""

from __future__ import annotations

from dataclasses import replace

from dra_devcluster.agent import AgentSettings
from dra_devcluster.agent.gates import with_gates


def test_the_gates_of_nodes_become_settings_and_the_others_remain() -> None:
    gates = {
        "DRAWorkloadResourceClaims": True,
        "ResourceHealthStatus": False,
        "ResourceHealthStatusMessage": False,
        "DRAListTypeAttributes": True,
    }
    changed = {
        "workload_resource_claims": True,
        "resource_health_status": False,
        "resource_health_status_message": False,
    }
    settings = AgentSettings(pod_retry=1.0)
    assert with_gates(settings, gates) == (replace(settings, **changed), {"DRAListTypeAttributes": True})  # type: ignore[arg-type]
    assert with_gates(settings, {}) == (settings, {})
