"""Pods as a kind: defaults, admission, graceful deletion, and the health of their devices.

The defaults hold in the templates of workloads too. A pod or PodGroup names a priority class, and the server fills in
its numbers. An object without a class gets the default one of the cluster, if there is one. Numbers that differ from
the class are refused.

A pod that has a node is marked first; the node agent ends its containers and deletes it with a grace of 0. A pod
without a node, or one that has finished, goes at once.

The health of devices in ``allocatedResourcesStatus`` has a name for each: ``claim:NAME`` or ``claim:NAME/REQUEST`` for
the claims of the container, or a resource that it requests. From 1.37 on also ``claim:CLAIM/REQUEST`` for a claim that
serves extended resources, if the pod's status records that it does so for this container (K37-EXT-02).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dra_api import core
from dra_api.releases import Release
from dra_api.validation import FieldError, validate_pod_claim_status, validate_pod_claims
from dra_api.validation import formats as faults
from dra_api.validation.formats import Errors
from dra_api.values import now

from dra_devcluster.apiserver.errors import Json, forbidden
from dra_devcluster.apiserver.kinds.base import Kind, Write, decoded, selectable_by
from dra_devcluster.apiserver.kinds.pod_rules import status_faults, validate_new, validate_spec, validate_update
from dra_devcluster.apiserver.kinds.resources import (
    POD_LEVEL_SINCE,
    containers_of,
    default_pod_requests,
    quality_of_service,
)
from dra_devcluster.apiserver.metadata import entries, not_seen, one_of, unchanged
from dra_devcluster.apiserver.selectors import has_ended

_SPEC = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
}
_CONTAINER = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_FILE_MODE = 0o644
_UNREACHABLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def default_spec(spec: Json) -> None:
    """Defaults of the fields themselves: they hold in templates too."""
    _fill(spec, _SPEC)
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1  # as short as one that is graceful can be
    spec.setdefault("securityContext", {})
    for _, container in containers_of(spec):
        _container(container)
        if spec.get("hostNetwork"):
            for port in container.get("ports") or ():
                port.setdefault("hostPort", port.get("containerPort"))
    for volume in spec.get("volumes") or ():
        if not volume.keys() - {"name"}:
            volume["emptyDir"] = {}
        for key in ("configMap", "secret", "projected", "downwardAPI"):
            if isinstance(volume.get(key), dict):
                volume[key].setdefault("defaultMode", _FILE_MODE)


def admit_pod(spec: Json) -> None:
    """What admission adds to pods: the server's own doing, which no client owns."""
    spec.setdefault("serviceAccountName", spec.get("serviceAccount") or "default")
    spec["serviceAccount"] = spec["serviceAccountName"]
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    tolerations = spec.setdefault("tolerations", [])
    for key in _UNREACHABLE:
        if not any(_tolerates(toleration, key) for toleration in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})


def _tolerates(toleration: Json, key: str) -> bool:
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", "NoExecute")


def _container(container: Json) -> None:
    _fill(container, _CONTAINER)
    if container.get("image"):
        container.setdefault("imagePullPolicy", _pull_policy(container["image"]))
    resources: Json = container.setdefault("resources", {})
    for name, amount in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(name, amount)
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for probe in filter(None, map(container.get, _PROBES)):
        _fill(probe, _PROBE)
        if probe.get("httpGet"):
            _fill(probe["httpGet"], {"path": "/", "scheme": "HTTP"})
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        if source.get("fieldRef"):
            source["fieldRef"].setdefault("apiVersion", "v1")


def _pull_policy(image: str) -> str:
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if "@" not in image and tag in ("", "latest") else "IfNotPresent"


def _fill(obj: Json, values: dict[str, Any]) -> None:
    for key, value in values.items():
        if obj.get(key) in (None, ""):
            obj[key] = value


_PREEMPTING: Final = "PreemptLowerPriority"
_BUILTIN: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def admit_priority(obj: Json, write: Write, what: str, *, with_policy: bool = True) -> None:
    """Fills in class, number and preemption policy of a new object. ``what``: the kind as in "a pod spec".

    Raises a 403 for a class that does not exist, and for other values than its own.
    """
    spec, name = obj["spec"], obj["metadata"].get("name", "")
    chosen = _class_of(obj, write)
    if chosen.get("metadata"):
        spec["priorityClassName"] = chosen["metadata"]["name"]
    wanted = {"priority": ("integer value of priority", chosen.get("value", 0))}
    if with_policy:
        policy = chosen.get("preemptionPolicy") or _PREEMPTING
        wanted["preemptionPolicy"] = ("string value of PreemptionPolicy", policy)
    for field, (title, value) in wanted.items():
        given = spec.get(field)
        if given is not None and given != value:
            why = (
                f"the {title} ({given}) must not be provided in {what} spec; priority admission controller computed "
                f"{value} from the given PriorityClass name"
            )
            raise forbidden(write.resource.group, write.resource.plural, name, why)
        spec[field] = value


def _class_of(obj: Json, write: Write) -> Json:
    """The class that the object names, or else the default one; empty if there is none."""
    classes = write.registry.store.collection("scheduling.k8s.io", "priorityclasses")
    name = obj["spec"].get("priorityClassName", "")
    if name in _BUILTIN:
        return {"metadata": {"name": name}, "value": _BUILTIN[name]}
    if name:
        stored = classes.get("", name)
        if stored is None:
            why = f"no PriorityClass with name {name} was found"
            resource = write.resource
            raise forbidden(resource.group, resource.plural, obj["metadata"].get("name", ""), why)
        return stored.decode()
    defaults = [found for stored in classes.all() if (found := stored.decode()).get("globalDefault")]
    return min(defaults, key=lambda it: (it.get("value", 0), it["metadata"]["name"]), default={})


_LISTS = {
    "initContainerStatuses": "initContainers",
    "containerStatuses": "containers",
    "ephemeralContainerStatuses": "ephemeralContainers",
}

_NO_RESOURCE = "must match one of the container's resource requirements"
_NO_CLAIM = (
    "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' "
    "or 'claim:<claimName>' if request is empty"
)


def health_faults(pod: Json, release: Release) -> Errors:
    """Names that mean nothing, names given twice, and unknown words for health."""
    status = pod.get("status") or {}
    for field, of_spec in _LISTS.items():
        containers = {each["name"]: each for each in pod["spec"].get(of_spec) or ()}
        for place, reported in entries(status, field, "status"):
            known = _names(containers.get(reported.get("name"), {}), status, release)
            seen: set[str] = set()
            for path, resource in entries(reported, "allocatedResourcesStatus", place):
                name = resource.get("name", "")
                if name in known:
                    yield from not_seen(name, seen, f"{path}.name", name)
                else:
                    yield faults.invalid(f"{path}.name", name, _NO_CLAIM if name.startswith("claim:") else _NO_RESOURCE)
                for here, device in entries(resource, "resources", path):
                    yield from one_of(device.get("health", ""), f"{here}.health", ("Healthy", "Unhealthy", "Unknown"))


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
        spec.setdefault("enableServiceLinks", True)  # which templates do not have
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

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        if write.subresource == "status":
            found = [
                *validate_pod_claim_status(decoded(core.Pod, obj)),
                *health_faults(obj, write.registry.release),
                *status_faults(obj.get("status") or {}),
            ]
            kept = unchanged(obj.get("status") or {}, (old or obj).get("status") or {}, "status", "qosClass")
            return [*kept, *found]
        found = list(validate_spec(obj["spec"]))
        if old is None:
            found += validate_new(obj["spec"])
        if old is not None and not write.subresource:
            found += validate_update(obj["spec"], old["spec"])
        before = decoded(core.Pod, old) if old is not None else None
        return [*found, *validate_pod_claims(decoded(core.Pod, obj), before)]

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
