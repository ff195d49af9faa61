"""Versions and gates that the server plays.

Which releases of Kubernetes have which versions of the ``resource.k8s.io`` and ``scheduling.k8s.io`` APIs.

Spec: api.md section 1, K37-TAINT-01 and kubernetes-1.37.md section 8.

Deprecated API versions: every answer to a request for one carries a warning.

The feature gates that the API server uses: those that decide which fields exist, and who may write them.
"""

from __future__ import annotations

from typing import Final

from dra_api.releases.gates import GATE_OF, Component
from dra_api.releases.release import Release
from dra_api.strategy import GATED_FIELDS

from dra_devcluster.apiserver.structure import Resource

_SINCE: Final = {"v1": Release.V1_34, "v1beta2": Release.V1_33, "v1beta1": Release.V1_32}
_SINCE_OF_KIND: Final = {
    ("v1", "devicetaintrules"): Release.V1_37,
    ("v1beta2", "devicetaintrules"): Release.V1_36,
    ("v1alpha3", "devicetaintrules"): Release.V1_33,
    ("v1alpha3", "resourcepoolstatusrequests"): Release.V1_36,
}
OF_WORKLOADS: Final = frozenset({("scheduling.k8s.io", "podgroups"), ("scheduling.k8s.io", "workloads")})
"""Served only with the gate GenericWorkload; in Kubernetes the API version has to be switched on as well."""
_POD_GROUPS: Final = {"v1beta1": (Release.V1_37, None), "v1alpha2": (Release.V1_36, Release.V1_37)}
"""Of PodGroups and Workloads: the first release with the version, and the first one without it."""


def exists_in(release: Release, group: str, version: str, plural: str) -> bool:
    """Whether a server of the release knows this version of the kind; those of other groups are as old as all."""
    if group == "scheduling.k8s.io" and version in _POD_GROUPS:
        first, gone = _POD_GROUPS[version]
        return release >= first and (gone is None or release < gone)
    if group != "resource.k8s.io":
        return True
    since = _SINCE_OF_KIND.get((version, plural), _SINCE.get(version))
    return since is None or release >= since


_DRA = "resource.k8s.io"
# Group and version: deprecated since, gone in.
_LEAVING = {
    (_DRA, "v1beta1"): (Release.V1_35, "1.38"),
    (_DRA, "v1beta2"): (Release.V1_36, "1.39"),
    (_DRA, "v1alpha3"): (Release.V1_36, "1.39"),
}
# Kinds that have no newer version, or are new themselves.
_STAYING = frozenset({("v1beta2", "devicetaintrules"), ("v1alpha3", "resourcepoolstatusrequests")})


def deprecations(resource: Resource, release: Release) -> list[str]:
    """The texts of the warnings, if any, that a server of the release gives to requests for this version."""
    leaving = _LEAVING.get((resource.group, resource.version))
    if leaving is None or (resource.version, resource.plural) in _STAYING:
        return []
    since, gone = leaving
    if release < since:
        return []
    return [f"{resource.api_version} {resource.kind} is deprecated in v{since}+, unavailable in v{gone}+"]


_ATTRIBUTES: Final = {attribute for fields in GATED_FIELDS.values() for attribute in fields}

API_SERVER: Final = Component(
    "the API server",
    frozenset(GATE_OF[attribute] for attribute in _ATTRIBUTES & GATE_OF.keys())
    # Binding conditions take two gates, one of which has fields of its own.
    | {"DRADeviceBindingConditions", "DRAResourceClaimGranularStatusAuthorization"}
    # What ranges may say, and fields that are refused without their gate.
    | {"DRAFractionalCapacityRange", "DRAPartitionableDevicesType"}
    # Whether PodGroups are served, and pods name them; up to 1.36 whether they have a priority and say how they end.
    | {"GenericWorkload", "WorkloadAwarePreemption"}
    # No field has it: the gate before needs it.
    | {"GangScheduling"},
)
