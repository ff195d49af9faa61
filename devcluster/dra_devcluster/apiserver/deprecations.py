"""Which API versions are on their way out: every answer to a request for one carries a warning that says so."""

from __future__ import annotations

from .structure import Resource

_DRA = "resource.k8s.io"
# Group and version: deprecated since, gone in.
_LEAVING = {
    (_DRA, "v1beta1"): ("1.35", "1.38"),
    (_DRA, "v1beta2"): ("1.36", "1.39"),
    (_DRA, "v1alpha3"): ("1.36", "1.39"),
}
# What has no newer version to go to, or has just come.
_STAYING = frozenset({("v1beta2", "devicetaintrules"), ("v1alpha3", "resourcepoolstatusrequests")})


def deprecations(resource: Resource) -> list[str]:
    """The texts of the warnings, if any, for requests to this version of the resource."""
    leaving = _LEAVING.get((resource.group, resource.version))
    if leaving is None or (resource.version, resource.plural) in _STAYING:
        return []
    since, gone = leaving
    return [f"{resource.api_version} {resource.kind} is deprecated in v{since}+, unavailable in v{gone}+"]
