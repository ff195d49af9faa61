"""Which names the health of devices may have in a pod's status (``allocatedResourcesStatus``).

``claim:NAME`` or ``claim:NAME/REQUEST`` for the claims of the container, or a resource that it requests. From 1.37 on
also ``claim:CLAIM/REQUEST`` for a claim that serves extended resources, if the pod's status records that it does so for
this container (K37-EXT-02).
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.releases.release import Release

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.structure import Fault

_LISTS = {
    "initContainerStatuses": "initContainers",
    "containerStatuses": "containers",
    "ephemeralContainerStatuses": "ephemeralContainers",
}


def health_faults(pod: Json, release: Release) -> Iterator[Fault]:
    """The names that mean nothing, and those that stand twice."""
    status = pod.get("status") or {}
    for field, of_spec in _LISTS.items():
        containers = {each["name"]: each for each in pod["spec"].get(of_spec) or ()}
        for index, reported in enumerate(status.get(field) or ()):
            known = _names(containers.get(reported.get("name"), {}), status, release)
            seen: set[str] = set()
            for number, resource in enumerate(reported.get("allocatedResourcesStatus") or ()):
                name = resource.get("name", "")
                path = f"status.{field}[{index}].allocatedResourcesStatus[{number}].name"
                if name not in known:
                    yield faults.invalid(path, name, "must match one of the container's resource requirements")
                elif name in seen:
                    yield faults.duplicate(path, name)
                seen.add(name)


def _names(container: Json, status: Json, release: Release) -> set[str]:
    resources = container.get("resources") or {}
    names = set(resources.get("requests") or ()) | set(resources.get("limits") or ())
    for claim in resources.get("claims") or ():
        names |= {"/".join(filter(None, (f"claim:{claim['name']}", claim.get("request"))))}
    extended = status.get("extendedResourceClaimStatus") or {} if release >= Release.V1_37 else {}
    return names | {
        f"claim:{extended.get('resourceClaimName')}/{mapping.get('requestName')}"
        for mapping in extended.get("requestMappings") or ()
        if mapping.get("containerName") == container.get("name")
    }
