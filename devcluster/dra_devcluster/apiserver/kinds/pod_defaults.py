"""What the server fills into the spec of a pod, whether it stands alone or in the template of a workload.

The admission of priorities: a pod or PodGroup names a class, and the server fills in what the class says. An object
without a class gets the one that is the default of the cluster, if there is one. Numbers that differ from those of the
class are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dra_devcluster.apiserver.errors import Json, forbidden
from dra_devcluster.apiserver.kinds.base import Write

CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")
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


def containers_of(spec: Json) -> Iterator[tuple[str, Json]]:
    """All containers with their field paths below ``spec``."""
    for key in CONTAINER_LISTS:
        for index, container in enumerate(spec.get(key) or ()):
            if isinstance(container, dict):
                yield f"spec.{key}[{index}]", container


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
        _volume(volume)


def default_pod(spec: Json) -> None:
    """Defaults that pods have and templates do not."""
    spec.setdefault("enableServiceLinks", True)


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
    for name in _PROBES:
        if container.get(name):
            _probe(container[name])
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        if source.get("fieldRef"):
            source["fieldRef"].setdefault("apiVersion", "v1")


def _pull_policy(image: str) -> str:
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if "@" not in image and tag in ("", "latest") else "IfNotPresent"


def _probe(probe: Json) -> None:
    _fill(probe, _PROBE)
    if probe.get("httpGet"):
        _fill(probe["httpGet"], {"path": "/", "scheme": "HTTP"})


def _volume(volume: Json) -> None:
    sources = [key for key in volume if key != "name"]
    if not sources:
        volume["emptyDir"] = {}
    for key in ("configMap", "secret", "projected", "downwardAPI"):
        if isinstance(volume.get(key), dict):
            volume[key].setdefault("defaultMode", _FILE_MODE)


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
