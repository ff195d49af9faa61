"""What the server fills into the spec of a pod, whether it stands alone or in the template of a workload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dra_devcluster.apiserver.errors import Json

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
