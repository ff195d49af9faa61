"""The cells of each kind, in the order of its columns, and their parts: ages, counts, names.

A function gets the object and the time, and must not fail for any object that the server accepts. Ages are as kubectl
prints them: two units while they matter, one later (119s, 5m30s, 3h, 47h, 4d12h, 2y30d).

READY, STATUS and RESTARTS of a pod come from the states of its containers. STATUS starts from the phase. The first
unfinished init container overrides it, otherwise the last container with a reason does; deletion overrides them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from dra_api.values import parse_time

_MINUTE_SECONDS, _HOUR_SECONDS, _DAY_SECONDS = 60, 3600, 86400
_YEAR = 365 * _DAY_SECONDS
# Below how many seconds: main unit, its letter, smaller unit (0: not shown) and its letter.
_STEPS = (
    (2 * _MINUTE_SECONDS, 1, "s", 0, ""),
    (10 * _MINUTE_SECONDS, _MINUTE_SECONDS, "m", 1, "s"),
    (3 * _HOUR_SECONDS, _MINUTE_SECONDS, "m", 0, ""),
    (8 * _HOUR_SECONDS, _HOUR_SECONDS, "h", _MINUTE_SECONDS, "m"),
    (2 * _DAY_SECONDS, _HOUR_SECONDS, "h", 0, ""),
    (8 * _DAY_SECONDS, _DAY_SECONDS, "d", _HOUR_SECONDS, "h"),
    (2 * _YEAR, _DAY_SECONDS, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY_SECONDS, "d"),
)
UNKNOWN = "<unknown>"


def human_duration(seconds: float) -> str:
    """The text for a duration. A little below zero (clocks differ) counts as none, far below is invalid."""
    if seconds < -1:
        return "<invalid>"
    whole = max(0, int(seconds))
    for below, unit, letter, smaller, small_letter in _STEPS:
        if whole < below:
            rest = whole % unit // smaller if smaller else 0
            return f"{whole // unit}{letter}" + (f"{rest}{small_letter}" if rest else "")
    return f"{whole // _YEAR}y"


def age(timestamp: object, now: datetime) -> str:
    """Time since an RFC 3339 timestamp; `<unknown>` when there is none."""
    moment = parse_time(timestamp)
    return UNKNOWN if moment is None else human_duration((now - moment).total_seconds())


Json = dict[str, Any]
NONE = "<none>"


def name(obj: Json) -> str:
    """The object's name."""
    return str(obj["metadata"].get("name", ""))


def created(obj: Json, now: datetime) -> str:
    """The AGE column."""
    return age(obj["metadata"].get("creationTimestamp"), now)


def spec_of(obj: Json) -> Json:
    """The spec, empty when there is none."""
    return obj.get("spec") or {}


def status_of(obj: Json) -> Json:
    """The status, empty when there is none."""
    return obj.get("status") or {}


def joined(values: Iterable[Any]) -> str:
    """The values with commas between."""
    return ",".join(str(value) for value in values)


def selector_text(selector: Json | None) -> str:
    """A label selector as text; `<none>` when it is absent or empty."""
    selector = selector or {}
    terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or []:
        values = f"({joined(term.get('values') or [])})"
        key, operator = term.get("key", ""), term.get("operator")
        in_words = {
            "In": f"{key} in {values}",
            "NotIn": f"{key} notin {values}",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }
        terms.append(in_words.get(operator or "", key))
    return ",".join(terms) or NONE


def label_text(labels: Json | None) -> str:
    return selector_text({"matchLabels": labels or {}})


def pod_cells(pod: Json, now: datetime) -> list[Any]:
    """Name, ready, status, restarts, age; wide: IP, node, nominated node, readiness gates."""
    spec, status, metadata = pod.get("spec") or {}, pod.get("status") or {}, pod["metadata"]
    summary = _Summary(spec, status, metadata)
    gates = spec.get("readinessGates") or []
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or []}
    met = sum(conditions.get(gate.get("conditionType")) == "True" for gate in gates)
    ips = status.get("podIPs") or [{}]
    return [
        metadata.get("name", ""),
        f"{summary.ready}/{summary.total}",
        summary.text,
        summary.restarts_text(now),
        age(metadata.get("creationTimestamp"), now),
        ips[0].get("ip") or status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        f"{met}/{len(gates)}" if gates else "<none>",
    ]


def completion(pod: Json) -> list[Json]:
    """The row condition by which kubectl knows a finished pod."""
    phase = (pod.get("status") or {}).get("phase")
    if phase == "Succeeded":
        message = "The pod has completed successfully."
    elif phase == "Failed":
        message = "The pod failed."
    else:
        return []
    return [{"type": "Completed", "status": "True", "reason": phase, "message": message}]


class _Summary:
    def __init__(self, spec: Json, status: Json, metadata: Json) -> None:
        self.sidecars = {c["name"] for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"}
        self.total = len(spec.get("containers") or []) + len(self.sidecars)
        self.ready = self.restarts = 0
        self.last_restart: datetime | None = None
        conditions = {c.get("type"): c for c in status.get("conditions") or []}
        self.text = status.get("reason") or status.get("phase") or ""
        if conditions.get("PodScheduled", {}).get("reason") == "SchedulingGated":
            self.text = "SchedulingGated"
        initializing = self._init_containers(status, len(spec.get("initContainers") or []))
        if not initializing or conditions.get("Initialized", {}).get("status") == "True":
            self._containers(status, ready=conditions.get("Ready", {}).get("status") == "True")
        if metadata.get("deletionTimestamp"):
            if status.get("reason") == "NodeLost":
                self.text = "Unknown"
            elif status.get("phase") not in ("Succeeded", "Failed"):
                self.text = "Terminating"

    def restarts_text(self, now: datetime) -> str:
        if not self.restarts or self.last_restart is None:
            return str(self.restarts)
        return f"{self.restarts} ({human_duration((now - self.last_restart).total_seconds())} ago)"

    def _count(self, container: Json) -> None:
        self.restarts += container.get("restartCount") or 0
        finished = parse_time(((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt"))
        if finished and (self.last_restart is None or finished > self.last_restart):
            self.last_restart = finished

    def _init_containers(self, status: Json, count: int) -> bool:
        """Whether the pod is still (or for ever) initializing; sets the text if so."""
        for index, container in enumerate(status.get("initContainerStatuses") or []):
            self._count(container)
            state = container.get("state") or {}
            ended, waiting = state.get("terminated"), state.get("waiting") or {}
            if ended and not ended.get("exitCode"):
                continue
            if container.get("name") in self.sidecars and container.get("started"):
                self.ready += bool(container.get("ready"))
                continue
            if ended:
                self.text = "Init:" + _ending(ended)
            elif waiting.get("reason") not in (None, "", "PodInitializing"):
                self.text = "Init:" + waiting["reason"]
            else:
                self.text = f"Init:{index}/{count}"
            return True
        return False

    def _containers(self, status: Json, ready: bool) -> None:
        # From here on only containers that keep running count as restarted.
        self.restarts, self.last_restart = 0, None
        for container in status.get("initContainerStatuses") or []:
            if container.get("name") in self.sidecars:
                self._count(container)
        running = False
        for container in reversed(status.get("containerStatuses") or []):
            self._count(container)
            state = container.get("state") or {}
            if (state.get("waiting") or {}).get("reason"):
                self.text = state["waiting"]["reason"]
            elif state.get("terminated") is not None:
                self.text = _ending(state["terminated"])
            elif container.get("ready") and state.get("running") is not None:
                running = True
                self.ready += 1
        if self.text == "Completed" and running:
            self.text = "Running" if ready else "NotReady"


def _ending(terminated: Json) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    signal = terminated.get("signal")
    return f"Signal:{signal}" if signal else f"ExitCode:{terminated.get('exitCode', 0)}"


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
