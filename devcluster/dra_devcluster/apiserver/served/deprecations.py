"""Deprecated API versions: every answer to a request for one carries a warning."""

from __future__ import annotations

from dra_api.releases.release import Release

from dra_devcluster.apiserver.structure import Resource

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
