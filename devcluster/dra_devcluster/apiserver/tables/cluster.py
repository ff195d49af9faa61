"""The columns of every kind but pods.

The lines of role bindings, admission policies, priorities and leases.

The lines of resource.k8s.io: claims, slices, taint rules.

The lines of storage classes, CSI nodes and attachments.

The lines of workloads.

The lines of nodes, events, services, volumes and quotas.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dra_api.values import parse_time

from dra_devcluster.apiserver.tables.parts import (
    NONE,
    UNKNOWN,
    Json,
    age,
    created,
    joined,
    label_text,
    name,
    selector_text,
    spec_of,
    status_of,
)


def role_binding_cells(obj: Json, now: datetime) -> list[Any]:
    role, subjects = obj.get("roleRef") or {}, obj.get("subjects") or []
    names = [
        joined(
            f"{s.get('namespace', '')}/{s.get('name', '')}" if kind == "ServiceAccount" else s.get("name", "")
            for s in subjects
            if s.get("kind") == kind
        )
        for kind in ("User", "Group", "ServiceAccount")
    ]
    return [name(obj), f"{role.get('kind', '')}/{role.get('name', '')}", created(obj, now), *names]


def policy_cells(obj: Json, now: datetime) -> list[Any]:
    kind = spec_of(obj).get("paramKind")
    text = f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else "<unset>"
    return [name(obj), len(spec_of(obj).get("validations") or []), text, created(obj, now)]


def policy_binding_cells(obj: Json, now: datetime) -> list[Any]:
    ref = spec_of(obj).get("paramRef")
    text = f"{ref['namespace']}/{ref.get('name', '')}" if ref and ref.get("namespace") else (ref or {}).get("name")
    return [name(obj), spec_of(obj).get("policyName", ""), text or "<unset>", created(obj, now)]


def priority_class_cells(obj: Json, now: datetime) -> list[Any]:
    default, preemption = bool(obj.get("globalDefault")), obj.get("preemptionPolicy", "")
    return [name(obj), obj.get("value", 0), str(default).lower(), created(obj, now), preemption]


def lease_cells(obj: Json, now: datetime) -> list[Any]:
    return [name(obj), spec_of(obj).get("holderIdentity", ""), created(obj, now)]


def claim_cells(claim: Json, now: datetime) -> list[Any]:
    status, going = status_of(claim), bool(claim["metadata"].get("deletionTimestamp"))
    states = ["deleted"] if going else []
    if status.get("allocation") is not None:
        states += ["allocated"] + (["reserved"] if status.get("reservedFor") else [])
    elif not going:
        states.append("pending")
    return [name(claim), ",".join(states), created(claim, now)]


def slice_cells(item: Json, now: datetime) -> list[Any]:
    spec = spec_of(item)
    pool = (spec.get("pool") or {}).get("name", "")
    return [name(item), spec.get("nodeName", ""), spec.get("driver", ""), pool, created(item, now)]


def taint_rule_cells(rule: Json, now: datetime) -> list[Any]:
    taint = spec_of(rule).get("taint") or {}
    added = age(taint.get("timeAdded"), now)
    return [
        name(rule),
        taint.get("key", ""),
        taint.get("value", ""),
        taint.get("effect", ""),
        added,
        created(rule, now),
    ]


def pool_status_cells(request: Json, now: datetime) -> list[Any]:
    """Sums over the pools that the answer lists; nothing before there is one."""
    status = status_of(request)
    pools = status.get("pools") or []
    counts = [sum(pool.get(key) or 0 for pool in pools) for key in _POOL_COUNTS] if pools else ["-"] * 4
    errors = sum(bool(pool.get("validationError")) for pool in pools)
    conditions = {c.get("type"): c for c in status.get("conditions") or [] if c.get("status") == "True"}
    text = "Failed" if "Failed" in conditions else "Complete" if "Complete" in conditions else "Pending"
    finished = conditions.get("Complete") or conditions.get("Failed") or {}
    when = age(finished.get("lastTransitionTime"), now) if finished else NONE
    driver = spec_of(request).get("driver", "")
    return [name(request), driver, *counts, errors, status.get("poolCount", len(pools)), text, when]


_POOL_COUNTS = ("totalDevices", "availableDevices", "allocatedDevices", "unavailableDevices")


_UNSET = "<unset>"
_IS_DEFAULT = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")


def storage_class_cells(obj: Json, now: datetime) -> list[Any]:
    notes = obj["metadata"].get("annotations") or {}
    shown = f"{name(obj)} (default)" if any(notes.get(note) == "true" for note in _IS_DEFAULT) else name(obj)
    modes = [obj.get("reclaimPolicy") or _UNSET, obj.get("volumeBindingMode") or _UNSET]
    return [shown, obj.get("provisioner", ""), *modes, bool(obj.get("allowVolumeExpansion")), created(obj, now)]


def csi_node_cells(obj: Json, now: datetime) -> list[Any]:
    return [name(obj), len(spec_of(obj).get("drivers") or ()), created(obj, now)]


def attachment_cells(obj: Json, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    volume = (spec.get("source") or {}).get("persistentVolumeName", "")
    attached = bool(status_of(obj).get("attached"))
    return [name(obj), spec.get("attacher", ""), volume, spec.get("nodeName", ""), attached, created(obj, now)]


def _template(obj: Json) -> tuple[str, str]:
    containers = ((spec_of(obj).get("template") or {}).get("spec") or {}).get("containers") or []
    return joined(c.get("name", "") for c in containers), joined(c.get("image", "") for c in containers)


def deployment_cells(obj: Json, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}"
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    return [
        name(obj),
        ready,
        updated,
        available,
        created(obj, now),
        *_template(obj),
        selector_text(spec.get("selector")),
    ]


def replica_set_cells(obj: Json, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    counts = [spec.get("replicas", 1), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [name(obj), *counts, created(obj, now), *_template(obj), selector_text(spec.get("selector"))]


def stateful_set_cells(obj: Json, now: datetime) -> list[Any]:
    ready = f"{status_of(obj).get('readyReplicas', 0)}/{spec_of(obj).get('replicas', 1)}"
    return [name(obj), ready, created(obj, now), *_template(obj)]


def daemon_set_cells(obj: Json, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    keys = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    counts = [status.get(key, 0) for key in keys]
    node_selector = ((spec.get("template") or {}).get("spec") or {}).get("nodeSelector")
    tail = [created(obj, now), *_template(obj), selector_text(spec.get("selector"))]
    return [name(obj), *counts, label_text(node_selector), *tail]


def job_cells(obj: Json, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    true = [c.get("type") for c in status.get("conditions") or [] if c.get("status") == "True"]
    going = bool(obj["metadata"].get("deletionTimestamp"))
    text = next((kind for kind in ("Complete", "Failed", "Suspended") if kind in true), "Terminating" if going else "")
    text = text or next((kind for kind in ("FailureTarget", "SuccessCriteriaMet") if kind in true), "Running")
    done, wanted, width = status.get("succeeded", 0), spec.get("completions"), spec.get("parallelism") or 0
    ratio = f"{done}/{wanted}" if wanted is not None else f"{done}/1 of {width}" if width > 1 else f"{done}/1"
    start, end = parse_time(status.get("startTime")), parse_time(status.get("completionTime"))
    duration = age(status.get("startTime"), end or now) if start else ""
    return [name(obj), text, ratio, duration, created(obj, now), *_template(obj), selector_text(spec.get("selector"))]


def cron_job_cells(obj: Json, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    last = age(status.get("lastScheduleTime"), now) if parse_time(status.get("lastScheduleTime")) else NONE
    suspended = str(bool(spec.get("suspend"))).capitalize()
    head = [spec.get("schedule", ""), spec.get("timeZone") or NONE, suspended, len(status.get("active") or [])]
    template = spec.get("jobTemplate") or {}
    tail = [*_template(template), selector_text(spec_of(template).get("selector"))]
    return [name(obj), *head, last, created(obj, now), *tail]


def disruption_budget_cells(obj: Json, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    bounds = [str(spec.get(key, "N/A")) for key in ("minAvailable", "maxUnavailable")]
    return [name(obj), *bounds, status_of(obj).get("disruptionsAllowed", 0), created(obj, now)]


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
