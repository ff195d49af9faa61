"""Which feature gates concern nodes, and what they and the release decide there."""

from __future__ import annotations

from dataclasses import replace

from dra_api.gates import FeatureGates
from dra_api.releases import Release
from dra_devcluster.agent import AgentSettings
from dra_devcluster.agent.settings import settings_for


def test_release_and_gates_become_settings_of_nodes_and_the_others_stay() -> None:
    gates = FeatureGates.of({"GenericWorkload": True, "DRAWorkloadResourceClaims": True, "ResourceHealthStatus": False})
    settings = AgentSettings(pod_retry=1.0)
    expected = replace(settings, release=Release.V1_36, workload_resource_claims=True, resource_health_status=False)
    assert settings_for(Release.V1_36, gates, settings) == expected
    old = settings_for(Release.V1_35, FeatureGates.of({}, Release.V1_35), settings)
    assert (old.release, old.resource_health_status, old.pod_retry) == (Release.V1_35, False, 1.0)
