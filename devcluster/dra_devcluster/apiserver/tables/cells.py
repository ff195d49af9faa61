"""The cells of each kind, in the order of its columns in `schema/table-columns.json`.

A cell function gets the object and the time; it must bear any object the server has accepted.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from .ages import UNKNOWN, age, parse_time
from .pods import pod_cells

Json = dict[str, Any]
Cells = Callable[[Json, datetime], list[Any]]
NONE = "<none>"


def name(obj: Json) -> str:
    return str(obj["metadata"].get("name", ""))


def created(obj: Json, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _spec(obj: Json) -> Json:
    return obj.get("spec") or {}


def _status(obj: Json) -> Json:
    return obj.get("status") or {}


def _join(values: Iterable[Any]) -> str:
    return ",".join(str(value) for value in values)


def _labels(selector: Json | None) -> str:
    """A label selector as text; `<none>` when it is absent or empty."""
    selector = selector or {}
    terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or []:
        values = f"({_join(term.get('values') or [])})"
        key, operator = term.get("key", ""), term.get("operator")
        in_words = {
            "In": f"{key} in {values}",
            "NotIn": f"{key} notin {values}",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }
        terms.append(in_words.get(operator or "", key))
    return ",".join(terms) or NONE


def _plain_labels(labels: Json | None) -> str:
    return _labels({"matchLabels": labels or {}})


def _template(obj: Json) -> tuple[str, str]:
    containers = ((_spec(obj).get("template") or {}).get("spec") or {}).get("containers") or []
    return _join(c.get("name", "") for c in containers), _join(c.get("image", "") for c in containers)


def _node(node: Json, now: datetime) -> list[Any]:
    spec, status = _spec(node), _status(node)
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
        _join(sorted(roles)) or NONE,
        created(node, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP") or NONE,
        addresses.get("ExternalIP") or NONE,
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _event(event: Json, now: datetime) -> list[Any]:
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


def _claim(claim: Json, now: datetime) -> list[Any]:
    status, going = _status(claim), bool(claim["metadata"].get("deletionTimestamp"))
    states = ["deleted"] if going else []
    if status.get("allocation") is not None:
        states += ["allocated"] + (["reserved"] if status.get("reservedFor") else [])
    elif not going:
        states.append("pending")
    return [name(claim), ",".join(states), created(claim, now)]


def _slice(item: Json, now: datetime) -> list[Any]:
    spec = _spec(item)
    pool = (spec.get("pool") or {}).get("name", "")
    return [name(item), spec.get("nodeName", ""), spec.get("driver", ""), pool, created(item, now)]


def _taint_rule(rule: Json, now: datetime) -> list[Any]:
    taint = _spec(rule).get("taint") or {}
    added = age(taint.get("timeAdded"), now)
    return [
        name(rule),
        taint.get("key", ""),
        taint.get("value", ""),
        taint.get("effect", ""),
        added,
        created(rule, now),
    ]


def _pool_status(request: Json, now: datetime) -> list[Any]:
    """Sums over the pools that the answer lists; nothing before there is one."""
    status = _status(request)
    pools = status.get("pools") or []
    counts = [sum(pool.get(key) or 0 for pool in pools) for key in _POOL_COUNTS] if pools else ["-"] * 4
    errors = sum(bool(pool.get("validationError")) for pool in pools)
    conditions = {c.get("type"): c for c in status.get("conditions") or [] if c.get("status") == "True"}
    text = "Failed" if "Failed" in conditions else "Complete" if "Complete" in conditions else "Pending"
    finished = conditions.get("Complete") or conditions.get("Failed") or {}
    when = age(finished.get("lastTransitionTime"), now) if finished else NONE
    driver = _spec(request).get("driver", "")
    return [name(request), driver, *counts, errors, status.get("poolCount", len(pools)), text, when]


_POOL_COUNTS = ("totalDevices", "availableDevices", "allocatedDevices", "unavailableDevices")


def _deployment(obj: Json, now: datetime) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}"
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    return [name(obj), ready, updated, available, created(obj, now), *_template(obj), _labels(spec.get("selector"))]


def _replica_set(obj: Json, now: datetime) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    counts = [spec.get("replicas", 1), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [name(obj), *counts, created(obj, now), *_template(obj), _labels(spec.get("selector"))]


def _stateful_set(obj: Json, now: datetime) -> list[Any]:
    ready = f"{_status(obj).get('readyReplicas', 0)}/{_spec(obj).get('replicas', 1)}"
    return [name(obj), ready, created(obj, now), *_template(obj)]


def _daemon_set(obj: Json, now: datetime) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    keys = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    counts = [status.get(key, 0) for key in keys]
    node_selector = ((spec.get("template") or {}).get("spec") or {}).get("nodeSelector")
    tail = [created(obj, now), *_template(obj), _labels(spec.get("selector"))]
    return [name(obj), *counts, _plain_labels(node_selector), *tail]


def _service(obj: Json, now: datetime) -> list[Any]:
    spec = _spec(obj)
    kind = spec.get("type", "ClusterIP")
    outside = [
        i.get("ip") or i.get("hostname", "") for i in (_status(obj).get("loadBalancer") or {}).get("ingress") or []
    ]
    outside += spec.get("externalIPs") or []
    waiting = "<pending>" if kind == "LoadBalancer" else NONE
    ports = [
        f"{p.get('port')}" + (f":{p['nodePort']}" if p.get("nodePort") else "") + f"/{p.get('protocol', 'TCP')}"
        for p in spec.get("ports") or []
    ]
    address = spec.get("clusterIP") or NONE
    external = spec.get("externalName") if kind == "ExternalName" else _join(outside) or waiting
    return [
        name(obj),
        kind,
        address,
        external,
        _join(ports) or NONE,
        created(obj, now),
        _plain_labels(spec.get("selector")),
    ]


_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(modes: list[str] | None) -> str:
    return _join(short for mode, short in _MODES.items() if mode in (modes or []))


def _volume_claim(obj: Json, now: datetime) -> list[Any]:
    spec, status, going = _spec(obj), _status(obj), obj["metadata"].get("deletionTimestamp")
    bound = bool(spec.get("volumeName"))
    phase = "Terminating" if going else status.get("phase", "")
    size = (status.get("capacity") or {}).get("storage", "") if bound else ""
    modes = _modes(status.get("accessModes")) if bound else ""
    classes = [spec.get("storageClassName", ""), spec.get("volumeAttributesClassName") or "<unset>"]
    mode = spec.get("volumeMode") or "<unset>"
    return [name(obj), phase, spec.get("volumeName", ""), size, modes, *classes, created(obj, now), mode]


def _volume(obj: Json, now: datetime) -> list[Any]:
    spec, status, going = _spec(obj), _status(obj), obj["metadata"].get("deletionTimestamp")
    claim = spec.get("claimRef") or {}
    owner = f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""
    phase = "Terminating" if going else status.get("phase", "")
    head = [(spec.get("capacity") or {}).get("storage", ""), _modes(spec.get("accessModes"))]
    head += [spec.get("persistentVolumeReclaimPolicy", ""), phase, owner, spec.get("storageClassName", "")]
    tail = [spec.get("volumeAttributesClassName") or "<unset>", status.get("reason", ""), created(obj, now)]
    return [name(obj), *head, *tail, spec.get("volumeMode") or "<unset>"]


def _quota(obj: Json, now: datetime) -> list[Any]:
    hard, used = _status(obj).get("hard") or {}, _status(obj).get("used") or {}
    texts = {key: f"{key}: {used.get(key, '0')}/{hard[key]}" for key in sorted(hard)}
    limits = ", ".join(text for key, text in texts.items() if key.startswith("limits."))
    requests = ", ".join(text for key, text in texts.items() if not key.startswith("limits."))
    return [name(obj), requests, limits, created(obj, now)]


def _disruption_budget(obj: Json, now: datetime) -> list[Any]:
    spec = _spec(obj)
    bounds = [str(spec.get(key, "N/A")) for key in ("minAvailable", "maxUnavailable")]
    return [name(obj), *bounds, _status(obj).get("disruptionsAllowed", 0), created(obj, now)]


def _role_binding(obj: Json, now: datetime) -> list[Any]:
    role, subjects = obj.get("roleRef") or {}, obj.get("subjects") or []
    names = [
        _join(
            f"{s.get('namespace', '')}/{s.get('name', '')}" if kind == "ServiceAccount" else s.get("name", "")
            for s in subjects
            if s.get("kind") == kind
        )
        for kind in ("User", "Group", "ServiceAccount")
    ]
    return [name(obj), f"{role.get('kind', '')}/{role.get('name', '')}", created(obj, now), *names]


def _policy(obj: Json, now: datetime) -> list[Any]:
    kind = _spec(obj).get("paramKind")
    text = f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else "<unset>"
    return [name(obj), len(_spec(obj).get("validations") or []), text, created(obj, now)]


def _policy_binding(obj: Json, now: datetime) -> list[Any]:
    ref = _spec(obj).get("paramRef")
    text = f"{ref['namespace']}/{ref.get('name', '')}" if ref and ref.get("namespace") else (ref or {}).get("name")
    return [name(obj), _spec(obj).get("policyName", ""), text or "<unset>", created(obj, now)]


def _priority_class(obj: Json, now: datetime) -> list[Any]:
    default, preemption = bool(obj.get("globalDefault")), obj.get("preemptionPolicy", "")
    return [name(obj), obj.get("value", 0), str(default).lower(), created(obj, now), preemption]


def _lease(obj: Json, now: datetime) -> list[Any]:
    return [name(obj), _spec(obj).get("holderIdentity", ""), created(obj, now)]


def _size(obj: Json) -> int:
    return len(obj.get("data") or {}) + len(obj.get("binaryData") or {})


def _aged(obj: Json, now: datetime) -> list[Any]:
    return [name(obj), created(obj, now)]


def dated(obj: Json, now: datetime) -> list[Any]:
    """Kinds without columns of their own: name and creation time."""
    return [name(obj), obj["metadata"].get("creationTimestamp")]


CELLS: dict[str, Cells] = {
    "/pods": pod_cells,
    "/nodes": _node,
    "/namespaces": lambda obj, now: [name(obj), _status(obj).get("phase", ""), created(obj, now)],
    "/events": _event,
    "events.k8s.io/events": _event,
    "/configmaps": lambda obj, now: [name(obj), _size(obj), created(obj, now)],
    "/secrets": lambda obj, now: [name(obj), obj.get("type", ""), _size(obj), created(obj, now)],
    "/serviceaccounts": _aged,
    "/services": _service,
    "/persistentvolumes": _volume,
    "/persistentvolumeclaims": _volume_claim,
    "/resourcequotas": _quota,
    "apps/deployments": _deployment,
    "apps/replicasets": _replica_set,
    "apps/statefulsets": _stateful_set,
    "apps/daemonsets": _daemon_set,
    "coordination.k8s.io/leases": _lease,
    "scheduling.k8s.io/priorityclasses": _priority_class,
    "policy/poddisruptionbudgets": _disruption_budget,
    "networking.k8s.io/networkpolicies": lambda obj, now: [
        name(obj),
        _labels(_spec(obj).get("podSelector")),
        created(obj, now),
    ],
    "rbac.authorization.k8s.io/rolebindings": _role_binding,
    "rbac.authorization.k8s.io/clusterrolebindings": _role_binding,
    "admissionregistration.k8s.io/validatingadmissionpolicies": _policy,
    "admissionregistration.k8s.io/validatingadmissionpolicybindings": _policy_binding,
    "resource.k8s.io/resourceclaims": _claim,
    "resource.k8s.io/resourceclaimtemplates": _aged,
    "resource.k8s.io/deviceclasses": _aged,
    "resource.k8s.io/resourceslices": _slice,
    "resource.k8s.io/devicetaintrules": _taint_rule,
    "resource.k8s.io/resourcepoolstatusrequests": _pool_status,
}
