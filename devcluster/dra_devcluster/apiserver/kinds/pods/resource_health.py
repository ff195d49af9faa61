"""The health of devices in a pod's status (``allocatedResourcesStatus``): its names and its words.

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

_WORDS = ("Healthy", "Unhealthy", "Unknown")
_NO_RESOURCE = "must match one of the container's resource requirements"
_NO_CLAIM = (
    "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' "
    "or 'claim:<claimName>' if request is empty"
)


def health_faults(pod: Json, release: Release) -> Iterator[Fault]:
    """Names that mean nothing, names given twice, and unknown words for health."""
    status = pod.get("status") or {}
    for field, of_spec in _LISTS.items():
        containers = {each["name"]: each for each in pod["spec"].get(of_spec) or ()}
        for index, reported in enumerate(status.get(field) or ()):
            known = _names(containers.get(reported.get("name"), {}), status, release)
            seen: set[str] = set()
            for number, resource in enumerate(reported.get("allocatedResourcesStatus") or ()):
                name = resource.get("name", "")
                path = f"status.{field}[{index}].allocatedResourcesStatus[{number}]"
                if name not in known:
                    yield faults.invalid(f"{path}.name", name, _NO_CLAIM if name.startswith("claim:") else _NO_RESOURCE)
                elif name in seen:
                    yield faults.duplicate(f"{path}.name", name)
                seen.add(name)
                for place, device in enumerate(resource.get("resources") or ()):
                    if device.get("health", "") not in _WORDS:
                        yield faults.unsupported(f"{path}.resources[{place}].health", device.get("health", ""), _WORDS)


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
