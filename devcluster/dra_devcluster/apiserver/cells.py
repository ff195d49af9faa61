"""The cells of each kind, in the order of its columns, and their parts: ages, counts, names.

A function gets the object and the time, and must not fail for any object that the server accepts. Ages are as kubectl
prints them: two units while they matter, one later (119s, 5m30s, 3h, 47h, 4d12h, 2y30d).

READY, STATUS and RESTARTS of a pod come from the states of its containers. STATUS starts from the phase. The first
unfinished init container overrides it, otherwise the last container with a reason does; deletion overrides them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
Json = dict[str, Any]
NONE, UNKNOWN, UNSET = "<none>", "<unknown>", "<unset>"
Cell = Callable[[Json, datetime], Any]
Cells = Callable[[Json, datetime], list[Any]]


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


def name(obj: Json) -> str:
    return str(obj["metadata"].get("name", ""))


def created(obj: Json, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def spec_of(obj: Json) -> Json:
    return obj.get("spec") or {}


def status_of(obj: Json) -> Json:
    return obj.get("status") or {}


def at(path: str, missing: Any = "") -> Cell:
    """The value at a dotted path, or ``missing`` if there is none, or an empty text."""
    *parents, last = path.split(".")

    def cell(obj: Json, now: datetime) -> Any:
        for part in parents:
            obj = obj.get(part) or {}
        value = obj.get(last)
        return missing if value is None or value == "" else value

    return cell


def aged(path: str) -> Cell:
    moment = at(path)
    return lambda obj, now: age(moment(obj, now), now)


def count(path: str) -> Cell:
    entries = at(path, ())
    return lambda obj, now: len(entries(obj, now))


def selector(path: str) -> Cell:
    chosen = at(path, None)
    return lambda obj, now: selector_text(chosen(obj, now))


def joined(values: Iterable[Any]) -> str:
    return ",".join(str(value) for value in values)


def selector_text(selector: Json | None) -> str:
    """A label selector as text; `<none>` when it is absent or empty."""
    selector = selector or {}
    terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or []:
        key, values = term.get("key", ""), f"({joined(term.get('values') or [])})"
        in_words = {"In": f"{key} in {values}", "NotIn": f"{key} notin {values}", "DoesNotExist": f"!{key}"}
        terms.append(in_words.get(term.get("operator", ""), key))
    return ",".join(terms) or NONE


def label_text(labels: Json | None) -> str:
    return selector_text({"matchLabels": labels or {}})


def pod_cells(pod: Json, now: datetime) -> list[Any]:
    """Name, ready, status, restarts, age; wide: IP, node, nominated node, readiness gates."""
    spec, status = spec_of(pod), status_of(pod)
    summary = _Summary(spec, status, pod["metadata"])
    gates, true = spec.get("readinessGates") or [], _true_conditions(status)
    met = sum(gate.get("conditionType") in true for gate in gates)
    ips = status.get("podIPs") or [{}]
    return [
        name(pod),
        f"{summary.ready}/{summary.total}",
        summary.text,
        summary.restarts_text(now),
        created(pod, now),
        ips[0].get("ip") or status.get("podIP") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        f"{met}/{len(gates)}" if gates else NONE,
    ]


def completion(pod: Json) -> list[Json]:
    """The row condition by which kubectl knows a finished pod."""
    phase = status_of(pod).get("phase")
    messages = {"Succeeded": "The pod has completed successfully.", "Failed": "The pod failed."}
    if phase not in messages:
        return []
    return [{"type": "Completed", "status": "True", "reason": phase, "message": messages[phase]}]


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


def _subjects(kind: str) -> Cell:
    def cell(obj: Json, now: datetime) -> str:
        subjects = [one for one in obj.get("subjects") or () if one.get("kind") == kind]
        names = [(one.get("namespace", ""), one.get("name", "")) for one in subjects]
        return joined(f"{space}/{own}" if kind == "ServiceAccount" else own for space, own in names)

    return cell


def _role(obj: Json, now: datetime) -> str:
    role = obj.get("roleRef") or {}
    return f"{role.get('kind', '')}/{role.get('name', '')}"


def _parameter_kind(policy: Json, now: datetime) -> str:
    kind = spec_of(policy).get("paramKind")
    return f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else UNSET


def _parameters(binding: Json, now: datetime) -> str:
    ref = spec_of(binding).get("paramRef") or {}
    text = f"{ref['namespace']}/{ref.get('name', '')}" if ref.get("namespace") else ref.get("name")
    return text or UNSET


def _claim_state(claim: Json, now: datetime) -> str:
    status, going = status_of(claim), bool(claim["metadata"].get("deletionTimestamp"))
    states = ["deleted"] if going else []
    if status.get("allocation") is not None:
        states += ["allocated"] + (["reserved"] if status.get("reservedFor") else [])
    elif not going:
        states.append("pending")
    return ",".join(states)


def _true_conditions(status: Json) -> dict[str, Json]:
    return {c.get("type"): c for c in status.get("conditions") or [] if c.get("status") == "True"}


def pool_status_cells(request: Json, now: datetime) -> list[Any]:
    """Sums over the pools that the answer lists; nothing before there is one."""
    status = status_of(request)
    pools = status.get("pools") or []
    counts = [sum(pool.get(key) or 0 for pool in pools) for key in _POOL_COUNTS] if pools else ["-"] * 4
    errors = sum(bool(pool.get("validationError")) for pool in pools)
    conditions = _true_conditions(status)
    text = next((kind for kind in ("Failed", "Complete") if kind in conditions), "Pending")
    finished = conditions.get("Complete") or conditions.get("Failed") or {}
    when = age(finished.get("lastTransitionTime"), now) if finished else NONE
    driver = spec_of(request).get("driver", "")
    return [name(request), driver, *counts, errors, status.get("poolCount", len(pools)), text, when]


_POOL_COUNTS = ("totalDevices", "availableDevices", "allocatedDevices", "unavailableDevices")
_IS_DEFAULT = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")


def _class_name(obj: Json, now: datetime) -> str:
    notes = obj["metadata"].get("annotations") or {}
    return f"{name(obj)} (default)" if any(notes.get(note) == "true" for note in _IS_DEFAULT) else name(obj)


def _of_containers(field: str) -> Cell:
    containers = at("spec.template.spec.containers", ())
    return lambda obj, now: joined(container.get(field, "") for container in containers(obj, now))


def _template(obj: Json, now: datetime) -> list[Any]:
    return [COMMON[title](obj, now) for title in ("Containers", "Images", "Selector")]


def _ready(obj: Json, now: datetime) -> str:
    return f"{status_of(obj).get('readyReplicas', 0)}/{spec_of(obj).get('replicas', 1)}"


def job_cells(obj: Json, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    true = _true_conditions(status)
    going = bool(obj["metadata"].get("deletionTimestamp"))
    text = next((kind for kind in ("Complete", "Failed", "Suspended") if kind in true), "Terminating" if going else "")
    text = text or next((kind for kind in ("FailureTarget", "SuccessCriteriaMet") if kind in true), "Running")
    done, wanted, width = status.get("succeeded", 0), spec.get("completions"), spec.get("parallelism") or 0
    ratio = f"{done}/{wanted}" if wanted is not None else f"{done}/1 of {width}" if width > 1 else f"{done}/1"
    start, end = parse_time(status.get("startTime")), parse_time(status.get("completionTime"))
    duration = age(status.get("startTime"), end or now) if start else ""
    return [name(obj), text, ratio, duration, created(obj, now), *_template(obj, now)]


def cron_job_cells(obj: Json, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    last = age(status.get("lastScheduleTime"), now) if parse_time(status.get("lastScheduleTime")) else NONE
    suspended = str(bool(spec.get("suspend"))).capitalize()
    head = [spec.get("schedule", ""), spec.get("timeZone") or NONE, suspended, len(status.get("active") or [])]
    return [name(obj), *head, last, created(obj, now), *_template(spec.get("jobTemplate") or {}, now)]


def _bound(field: str) -> Cell:
    return lambda obj, now: str(spec_of(obj).get(field, "N/A"))


def _node_state(node: Json, now: datetime) -> str:
    conditions = status_of(node).get("conditions") or []
    ready = next((one.get("status") for one in conditions if one.get("type") == "Ready"), None)
    text = {"True": "Ready", None: "Unknown"}.get(ready, "NotReady")
    return text + ",SchedulingDisabled" if spec_of(node).get("unschedulable") else text


def _node_roles(node: Json, now: datetime) -> str:
    labels = node["metadata"].get("labels") or {}
    prefix = "node-role.kubernetes.io/"
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix) and key != prefix}
    roles |= {value for key, value in labels.items() if key == "kubernetes.io/role" and value}
    return joined(sorted(roles)) or NONE


def _address(kind: str) -> Cell:
    def cell(node: Json, now: datetime) -> str:
        addresses = status_of(node).get("addresses") or ()
        return next((one.get("address") for one in addresses if one.get("type") == kind), None) or NONE

    return cell


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
    ingress = (status_of(obj).get("loadBalancer") or {}).get("ingress") or []
    outside = [one.get("ip") or one.get("hostname", "") for one in ingress] + (spec.get("externalIPs") or [])
    waiting = "<pending>" if kind == "LoadBalancer" else NONE
    ports = [
        f"{p.get('port')}" + (f":{p['nodePort']}" if p.get("nodePort") else "") + f"/{p.get('protocol', 'TCP')}"
        for p in spec.get("ports") or []
    ]
    external = spec.get("externalName") if kind == "ExternalName" else joined(outside) or waiting
    head = [name(obj), kind, spec.get("clusterIP") or NONE, external]
    return [*head, joined(ports) or NONE, created(obj, now), label_text(spec.get("selector"))]


_SHORT_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(modes: list[str] | None) -> str:
    return joined(short for mode, short in _SHORT_MODES.items() if mode in (modes or []))


def _phase(obj: Json, now: datetime) -> str:
    return "Terminating" if obj["metadata"].get("deletionTimestamp") else status_of(obj).get("phase", "")


def _if_bound(cell: Cell) -> Cell:
    """The cell of a volume claim that has a volume; empty for others."""
    return lambda obj, now: cell(obj, now) if spec_of(obj).get("volumeName") else ""


def _owner(volume: Json, now: datetime) -> str:
    claim = spec_of(volume).get("claimRef") or {}
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


def quota_cells(obj: Json, now: datetime) -> list[Any]:
    hard, used = status_of(obj).get("hard") or {}, status_of(obj).get("used") or {}
    texts = {key: f"{key}: {used.get(key, '0')}/{hard[key]}" for key in sorted(hard)}
    limits = ", ".join(text for key, text in texts.items() if key.startswith("limits."))
    requests = ", ".join(text for key, text in texts.items() if not key.startswith("limits."))
    return [name(obj), requests, limits, created(obj, now)]


def _data_size(obj: Json, now: datetime) -> int:
    return len(obj.get("data") or {}) + len(obj.get("binaryData") or {})


_node_selector = at("spec.template.spec.nodeSelector", None)
COMMON: dict[str, Cell] = {
    "Name": lambda obj, now: name(obj),
    "Age": created,
    "Created At": lambda obj, now: obj["metadata"].get("creationTimestamp"),
    "Containers": _of_containers("name"),
    "Images": _of_containers("image"),
    "Selector": selector("spec.selector"),
}
"""By the title of the column, for kinds that have no other cell for it."""
_ROLE_BINDING: dict[str, Cell] = {
    "Role": _role,
    "Users": _subjects("User"),
    "Groups": _subjects("Group"),
    "ServiceAccounts": _subjects("ServiceAccount"),
}
CELLS: dict[str, dict[str, Cell]] = {
    "/nodes": {
        "Status": _node_state,
        "Roles": _node_roles,
        "Internal-IP": _address("InternalIP"),
        "External-IP": _address("ExternalIP"),
    },
    "/configmaps": {"Data": _data_size},
    "/secrets": {"Data": _data_size},
    "/persistentvolumes": {
        "Access Modes": lambda obj, now: _modes(spec_of(obj).get("accessModes")),
        "Status": _phase,
        "Claim": _owner,
    },
    "/persistentvolumeclaims": {
        "Status": _phase,
        "Capacity": _if_bound(at("status.capacity.storage")),
        "Access Modes": _if_bound(lambda obj, now: _modes(status_of(obj).get("accessModes"))),
    },
    "admissionregistration.k8s.io/validatingadmissionpolicies": {
        "Validations": count("spec.validations"),
        "ParamKind": _parameter_kind,
    },
    "admissionregistration.k8s.io/validatingadmissionpolicybindings": {"ParamRef": _parameters},
    "apps/deployments": {"Ready": _ready},
    "apps/statefulsets": {"Ready": _ready},
    "apps/daemonsets": {"Node Selector": lambda obj, now: label_text(_node_selector(obj, now))},
    "networking.k8s.io/networkpolicies": {"Pod-Selector": selector("spec.podSelector")},
    "policy/poddisruptionbudgets": {
        "Min Available": _bound("minAvailable"),
        "Max Unavailable": _bound("maxUnavailable"),
    },
    "rbac.authorization.k8s.io/rolebindings": _ROLE_BINDING,
    "rbac.authorization.k8s.io/clusterrolebindings": _ROLE_BINDING,
    "resource.k8s.io/resourceclaims": {"State": _claim_state},
    "resource.k8s.io/devicetaintrules": {"TimeAdded": aged("spec.taint.timeAdded")},
    "scheduling.k8s.io/priorityclasses": {
        "Global-Default": lambda obj, now: str(bool(obj.get("globalDefault"))).lower()
    },
    "storage.k8s.io/csinodes": {"Drivers": count("spec.drivers")},
    "storage.k8s.io/storageclasses": {"Name": _class_name},
}
"""By group and plural, and by the title of the column, for cells that no path of ``table-columns.json`` gives."""
ROWS: dict[str, Cells] = {
    "/pods": pod_cells,
    "/events": event_cells,
    "events.k8s.io/events": event_cells,
    "/services": service_cells,
    "/resourcequotas": quota_cells,
    "batch/cronjobs": cron_job_cells,
    "batch/jobs": job_cells,
    "resource.k8s.io/resourcepoolstatusrequests": pool_status_cells,
}
"""Whole rows, where cells follow from the same part of the object."""
