"""The lines of nodes, events, services, volumes and quotas."""

from datetime import datetime
from typing import Any

from dra_api.values.times import parse_time

from .ages import UNKNOWN, age
from .parts import NONE, Json, created, joined, label_text, name, spec_of, status_of


def node_cells(node: Json, now: datetime) -> list[Any]:
    spec, status = spec_of(node), status_of(node)
    ready = next((c.get("status") for c in status.get("conditions") or [] if c.get("type") == "Ready"), None)
    text = {"True": "Ready", None: "Unknown"}.get(ready, "NotReady")
    if spec.get("unschedulable"):
        text += ",SchedulingDisabled"
    labels = node["metadata"].get("labels") or {}
    prefix = "node-role.kubernetes.io/"
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix) and key != prefix}
    roles |= {value for key, value in labels.items() if key == "kubernetes.io/role" and value}
    info = status.get("nodeInfo") or {}
    addresses = {a.get("type"): a.get("address") for a in reversed(status.get("addresses") or [])}
    return [
        name(node),
        text,
        joined(sorted(roles)) or NONE,
        created(node, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP") or NONE,
        addresses.get("ExternalIP") or NONE,
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def event_cells(event: Json, now: datetime) -> list[Any]:
    """A core/v1 or an events.k8s.io/v1 event, whose fields have other names."""
    first = event.get("firstTimestamp") or event.get("deprecatedFirstTimestamp")
    last = event.get("lastTimestamp") or event.get("deprecatedLastTimestamp")
    series, when = event.get("series") or {}, event.get("eventTime")
    seen_first = age(first if parse_time(first) else when, now)
    seen_last = age(last, now) if parse_time(last) else seen_first
    if series:
        seen_last = age(series.get("lastObservedTime"), now)
    about = event.get("involvedObject") or event.get("regarding") or {}
    source = event.get("source") or event.get("deprecatedSource") or {}
    component = source.get("component") or event.get("reportingComponent") or event.get("reportingController") or ""
    host = source.get("host")
    message = event.get("message") or event.get("note") or ""
    return [
        seen_last,
        event.get("type", ""),
        event.get("reason", ""),
        f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        message.strip(),
        seen_first,
        series.get("count") or event.get("count") or event.get("deprecatedCount") or 1,
        name(event),
    ]


def service_cells(obj: Json, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    kind = spec.get("type", "ClusterIP")
    outside = [
        i.get("ip") or i.get("hostname", "") for i in (status_of(obj).get("loadBalancer") or {}).get("ingress") or []
    ]
    outside += spec.get("externalIPs") or []
    waiting = "<pending>" if kind == "LoadBalancer" else NONE
    ports = [
        f"{p.get('port')}" + (f":{p['nodePort']}" if p.get("nodePort") else "") + f"/{p.get('protocol', 'TCP')}"
        for p in spec.get("ports") or []
    ]
    address = spec.get("clusterIP") or NONE
    external = spec.get("externalName") if kind == "ExternalName" else joined(outside) or waiting
    return [
        name(obj),
        kind,
        address,
        external,
        joined(ports) or NONE,
        created(obj, now),
        label_text(spec.get("selector")),
    ]


_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(modes: list[str] | None) -> str:
    return joined(short for mode, short in _MODES.items() if mode in (modes or []))


def volume_claim_cells(obj: Json, now: datetime) -> list[Any]:
    spec, status, going = spec_of(obj), status_of(obj), obj["metadata"].get("deletionTimestamp")
    bound = bool(spec.get("volumeName"))
    phase = "Terminating" if going else status.get("phase", "")
    size = (status.get("capacity") or {}).get("storage", "") if bound else ""
    modes = _modes(status.get("accessModes")) if bound else ""
    classes = [spec.get("storageClassName", ""), spec.get("volumeAttributesClassName") or "<unset>"]
    mode = spec.get("volumeMode") or "<unset>"
    return [name(obj), phase, spec.get("volumeName", ""), size, modes, *classes, created(obj, now), mode]


def volume_cells(obj: Json, now: datetime) -> list[Any]:
    spec, status, going = spec_of(obj), status_of(obj), obj["metadata"].get("deletionTimestamp")
    claim = spec.get("claimRef") or {}
    owner = f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""
    phase = "Terminating" if going else status.get("phase", "")
    head = [(spec.get("capacity") or {}).get("storage", ""), _modes(spec.get("accessModes"))]
    head += [spec.get("persistentVolumeReclaimPolicy", ""), phase, owner, spec.get("storageClassName", "")]
    tail = [spec.get("volumeAttributesClassName") or "<unset>", status.get("reason", ""), created(obj, now)]
    return [name(obj), *head, *tail, spec.get("volumeMode") or "<unset>"]


def quota_cells(obj: Json, now: datetime) -> list[Any]:
    hard, used = status_of(obj).get("hard") or {}, status_of(obj).get("used") or {}
    texts = {key: f"{key}: {used.get(key, '0')}/{hard[key]}" for key in sorted(hard)}
    limits = ", ".join(text for key, text in texts.items() if key.startswith("limits."))
    requests = ", ".join(text for key, text in texts.items() if not key.startswith("limits."))
    return [name(obj), requests, limits, created(obj, now)]


def data_size(obj: Json) -> int:
    return len(obj.get("data") or {}) + len(obj.get("binaryData") or {})
