"""Pods as a kind: graceful deletion, and the health of their devices.

A pod that has a node is marked first; the node agent ends its containers and deletes it with a grace of 0. A pod
without a node, or one that has finished, goes at once.

The health of devices in ``allocatedResourcesStatus`` has a name for each:
``claim:NAME`` or ``claim:NAME/REQUEST`` for the claims of the container, or a resource that it requests. From 1.37 on
also ``claim:CLAIM/REQUEST`` for a claim that serves extended resources, if the pod's status records that it does so for
this container (K37-EXT-02).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dra_api import core
from dra_api.codec import DecodeError, convert
from dra_api.releases.release import Release
from dra_api.validation import FieldError, validate_pod_claim_status, validate_pod_claims

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json, bad_request
from dra_devcluster.apiserver.kinds.base import Kind, Write, selectable_by
from dra_devcluster.apiserver.kinds.pod_defaults import admit_pod, admit_priority, default_pod, default_spec
from dra_devcluster.apiserver.kinds.pod_resources import POD_LEVEL_SINCE, default_pod_requests, quality_of_service
from dra_devcluster.apiserver.kinds.pod_rules import status_faults, validate_new, validate_spec, validate_update
from dra_devcluster.apiserver.storage.selectors import has_ended
from dra_devcluster.apiserver.structure import Fault
from dra_devcluster.clock import now

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


_RECORDS = ("extendedResourceClaimStatus", "resourceClaimStatuses", "nodeAllocatableResourceClaimStatuses")


class PodKind(Kind):
    has_generation = True
    returns_deleted = True
    deletes_gracefully = True
    status_writes_metadata = True
    selectable = selectable_by(
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    )

    def default(self, obj: Json, write: Write) -> None:
        spec = obj.setdefault("spec", {})
        default_spec(spec)
        default_pod(spec)
        default_pod_requests(spec)

    def prepare_create(self, obj: Json, write: Write) -> None:
        spec = obj["spec"]
        if not write.registry.gates.generic_workload:
            spec.pop("schedulingGroup", None)
        if write.registry.release < POD_LEVEL_SINCE:
            spec.pop("resources", None)
        admit_priority(obj, write, "pod")
        admit_pod(spec)
        obj["status"] = {"phase": "Pending", "qosClass": quality_of_service(spec)}
        if spec.get("schedulingGates"):
            obj["status"]["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                    "lastProbeTime": None,
                    "lastTransitionTime": now(),
                }
            ]

    def prepare_update(self, obj: Json, old: Json, write: Write) -> None:
        if write.subresource not in ("ephemeralcontainers", "resize"):
            super().prepare_update(obj, old, write)
            admit_pod(obj["spec"])
            if write.subresource == "status":
                _keep_status(obj, old, write.registry.release)
            return
        sent, obj["spec"], obj["status"] = obj["spec"], dict(old["spec"]), old["status"]
        if write.subresource == "ephemeralcontainers":
            obj["spec"]["ephemeralContainers"] = sent.get("ephemeralContainers") or []
            return
        resources = {container.get("name"): container.get("resources") for container in sent.get("containers") or ()}
        obj["spec"]["containers"] = [
            {**container, "resources": resources.get(container["name"]) or container.get("resources") or {}}
            for container in old["spec"]["containers"]
        ]

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[Fault]:
        if write.subresource == "status":
            found = [
                *map(_fault, validate_pod_claim_status(_decoded(obj))),
                *health_faults(obj, write.registry.release),
                *status_faults(obj.get("status") or {}),
            ]
            quality = _quality(obj)
            is_kept = old is None or quality == _quality(old)
            return found if is_kept else [faults.immutable("status.qosClass", quality), *found]
        found = list(validate_spec(obj["spec"]))
        if old is None:
            found += validate_new(obj["spec"])
        if old is not None and not write.subresource:
            found += validate_update(obj["spec"], old["spec"])
        before = _decoded(old) if old is not None else None
        return [*found, *map(_fault, validate_pod_claims(_decoded(obj), before))]

    def grace(self, obj: Json, wanted: int | None) -> int:
        spec = obj.get("spec") or {}
        if not spec.get("nodeName") or has_ended(obj):
            return 0
        seconds = wanted if wanted is not None else spec.get("terminationGracePeriodSeconds", 30)
        return max(int(seconds), 0)


def _keep_status(obj: Json, old: Json, release: Release) -> None:
    """What an update of the status keeps if it leaves it out: the quality, and from 1.37 on the records of claims
    (K37-EXT-04). An empty list counts as left out here; in Kubernetes it takes a record away."""
    kept = ("qosClass", *(_RECORDS if release >= Release.V1_37 else ()))
    before = old.get("status") or {}
    for name in kept:
        if before.get(name) is not None:
            obj.setdefault("status", {}).setdefault(name, before[name])


def _quality(pod: Json) -> Any:
    return (pod.get("status") or {}).get("qosClass")


def _decoded(pod: Json) -> core.Pod:
    try:
        return convert(core.Pod, pod)
    except DecodeError as error:
        raise bad_request(f"Pod cannot be handled: {error}") from error


def _fault(error: FieldError) -> Fault:
    return Fault(str(error.type), error.field, error.body)
