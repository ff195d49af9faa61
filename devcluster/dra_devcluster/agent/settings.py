"""Settings of the node agent, where the node's files lie, and the known defects of a kubelet that it can have.

Periods and limits are in seconds, with the defaults of a kubelet (kubelet-manager.md section 2). Tests shorten them. A
development cluster shortens the pauses for which a person would wait. The release of Kubernetes and its feature gates
decide a few more.

The node agent does the right thing by default. Each known defect of the kubelet of Kubernetes 1.36 has a switch, so
that a driver or a controller can be tried against the defect that it will meet.

Several nodes share the machine, so each has a folder of its own for the files that a kubelet and a container runtime
keep in fixed places. Containers and plugins know the fixed paths.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final

from dra_api.gates import GATE_OF, FeatureGates
from dra_api.releases import NEWEST, Release


class KubeletDefect(StrEnum):
    """The names, with the rule of the specification that tells more."""

    DUPLICATED_DEVICES = "duplicated-devices"
    """A driver's answer is added to its earlier one, so retries give a container the same device twice (KM-15)."""

    UNNOTICED_REALLOCATION = "unnoticed-reallocation"
    """A claim that is allocated anew counts as prepared, so a pod may run with the earlier devices (KM-16)."""

    FOREIGN_UNPREPARE = "foreign-unprepare"
    """A pod unprepares a claim of the same name that another pod holds (KM-18)."""

    HEALTH_STREAM_FOR_ALL = "health-stream-for-all"
    """Drivers without a health service are asked for a stream again and again (KM-22)."""

    HEALTH_BY_DRIVER = "health-by-driver"
    """The end of one instance's stream forgets what all instances reported, and pods show it late (KM-26)."""

    ACCUMULATED_CDI_IDS = "accumulated-cdi-ids"
    """The pod-resources API lists with each device the CDI ids of the devices before it as well (KM-28)."""


_GATES: Final = FeatureGates.of({})
_SETTINGS_OF_GATES: Final = (
    "workload_resource_claims",
    "resource_health_status",
    "resource_health_status_message",
    "optional_node_operations",
    "node_allocatable_resources",
)
"""Settings with the names of their gates in ``FeatureGates``."""
NODE_GATES: Final = frozenset(map(GATE_OF.__getitem__, _SETTINGS_OF_GATES))


@dataclass(frozen=True, slots=True)
class Backoff:
    """Growing pauses: ``first`` seconds, ``factor`` times longer after each failure, at most ``cap``."""

    first: float
    cap: float
    factor: float = 2.0

    def pause(self, failures: int) -> float:
        """The pause after that many failures in a row (0 counts as 1)."""
        return min(self.cap, self.first * self.factor ** min(max(failures - 1, 0), 64))


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Every period and limit of a node agent."""

    # Plugins: registration (KM-01 to KM-05) and calls (KM-14, KM-19).
    plugin_period: float = 1.0
    dial_timeout: float = 10.0
    info_timeout: float = 1.0
    notify_timeout: float = 5.0
    registration_backoff: Backoff = Backoff(0.5, 122.0)
    call_timeout: float = 45.0

    # Speak the services that a kubelet of Kubernetes 1.32 spoke, and choose among them as it did.
    legacy_service: bool = False

    # Claims that are reserved for the PodGroup of a pod: a gate of Kubernetes.
    workload_resource_claims: bool = _GATES.workload_resource_claims

    # Calls of drivers that their slices skip (a gate of Kubernetes, K37-ONO-12), and a gate of which a node only says
    # that it is on (K37-NA-23).
    optional_node_operations: bool = _GATES.optional_node_operations
    node_allocatable_resources: bool = _GATES.node_allocatable_resources

    # Stale slices (KM-10) and stale claims (KM-20).
    wipe_delay: float = 30.0
    wipe_backoff: Backoff = Backoff(1.0, 300.0)
    wipe_jitter: float = 0.2
    wipe_attempts: int = 100
    claim_period: float = 60.0

    # Device health (KM-22, KM-23): the gates of Kubernetes, the time for which a report counts, the pause after the end
    # of a stream.
    resource_health_status: bool = _GATES.resource_health_status
    resource_health_status_message: bool = _GATES.resource_health_status_message
    health_timeout: float = 30.0
    health_retry: float = 5.0

    # Pods: the next try after a failed step, how long a volume shows old content, and the restarts of containers.
    pod_retry: float = 10.0
    volume_period: float = 60.0
    # The least time that a probe may take: machines that are slow for a moment must not fail them.
    probe_timeout: float = 0.0
    restart_backoff: Backoff = Backoff(10.0, 300.0)
    restart_forgiven: float = 600.0
    shutdown_grace: float = 2.0

    # The node object, and the release that it names.
    release: Release = NEWEST
    lease_period: float = 10.0
    node_status_period: float = 300.0

    # What a kubelet does wrong and this agent does not, unless it is asked to.
    defects: frozenset[KubeletDefect] = frozenset()

    # Search path of containers whose pod sets none.
    search_path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def declared_features(settings: AgentSettings) -> list[str]:
    """The names of features that the node declares in its status; none before 1.37 (K37-ONO-08, K37-NA-23)."""
    declared = ("node_allocatable_resources", "optional_node_operations")
    on = settings.release >= Release.V1_37
    return sorted(GATE_OF[name] for name in declared if on and getattr(settings, name))


def settings_for(release: Release, gates: FeatureGates, settings: AgentSettings) -> AgentSettings:
    """The settings with what release and gates decide."""
    return replace(settings, release=release, **{name: getattr(gates, name) for name in _SETTINGS_OF_GATES})


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file, and make its folder if that is missing. Raises OSError; the old file stays then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


KUBELET_ROOT = "/var/lib/kubelet"
_CDI = ("/var/run/cdi", "/run/cdi", "/etc/cdi")


class HostPaths:
    """The mapping of one node. All other paths are those of the machine."""

    def __init__(self, root: Path, cdi_root: Path) -> None:
        self._places = {KUBELET_ROOT: root.absolute()} | dict.fromkeys(_CDI, cdi_root.absolute())

    def real(self, path: str) -> Path:
        """Where a path of the node lies on this machine."""
        asked = PurePosixPath(path)
        for place, real in self._places.items():
            if asked.is_relative_to(place):
                return real / asked.relative_to(place)
        return Path(path)
