"""Which releases of Kubernetes have which versions of the ``resource.k8s.io`` and ``scheduling.k8s.io`` APIs.

Spec: api.md section 1, K37-TAINT-01 and kubernetes-1.37.md section 8.
"""

from __future__ import annotations

from typing import Final

from dra_api.releases.release import Release

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
