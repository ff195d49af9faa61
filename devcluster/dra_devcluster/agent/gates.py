"""The feature gates of Kubernetes that decide about a node, and the settings in which they end up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .settings import AgentSettings

_FIELDS = {
    "DRAWorkloadResourceClaims": "workload_resource_claims",
    "ResourceHealthStatus": "resource_health_status",
    "ResourceHealthStatusMessage": "resource_health_status_message",
}


def with_gates(settings: AgentSettings, gates: Mapping[str, bool]) -> tuple[AgentSettings, dict[str, bool]]:
    """The settings with those of the gates that concern nodes, and the other gates."""
    own = {_FIELDS[name]: value for name, value in gates.items() if name in _FIELDS}
    others = {name: value for name, value in gates.items() if name not in _FIELDS}
    return replace(settings, **own), others  # type: ignore[arg-type]  # these fields are booleans
