"""What `kubectl get` prints: columns and cells rendered by the server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from dra_api.values import format_time
from dra_devcluster.apiserver.cells import human_duration, selector_text
from dra_devcluster.apiserver.endpoints.call import find, render_table, shows_labels, shows_spec
from dra_devcluster.apiserver.structure import Structure

Json = dict[str, Any]
NOW = datetime(2026, 1, 10, tzinfo=UTC)


def ago(**kwargs: float) -> str:
    return format_time(NOW - timedelta(**kwargs))


def cells(structure: Structure, group: str, version: str, plural: str, obj: Json) -> dict[str, Any]:
    """The row of one object, by column."""
    resource = structure.resource(group, version, plural)
    assert resource is not None
    obj = {**obj, "metadata": {"name": "x", "creationTimestamp": ago(minutes=5), **obj.get("metadata", {})}}
    table = render_table(resource, [obj], now=NOW)
    titles = [column["name"] for column in table["columnDefinitions"]]
    return dict(zip(titles, table["rows"][0]["cells"], strict=True))


DURATIONS = {
    -5: "<invalid>",
    -1: "0s",
    0: "0s",
    119: "119s",
    120: "2m",
    330: "5m30s",
    600: "10m",
    3 * 3600 - 1: "179m",
    3 * 3600: "3h",
    5 * 3600 + 90: "5h1m",
    47 * 3600: "47h",
    48 * 3600: "2d",
    50 * 3600: "2d2h",
    9 * 86400: "9d",
    800 * 86400: "2y70d",
    3000 * 86400: "8y",
}


@pytest.mark.parametrize(("seconds", "text"), DURATIONS.items())
def test_durations_read_as_kubectl_prints_them(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


def running(name: str = "c", ready: bool = True, **more: Any) -> Json:
    return {"name": name, "ready": ready, "state": {"running": {"startedAt": ago(minutes=1)}}, **more}


def waiting(reason: str, **more: Any) -> Json:
    return {"name": "c", "ready": False, "state": {"waiting": {"reason": reason}}, **more}


def ended(code: int = 0, reason: str = "", **more: Any) -> Json:
    state = {"terminated": {"exitCode": code, "reason": reason, **more}}
    return {"name": "c", "ready": False, "state": state}


def pod(status: Json, inits: list[Json] | None = None, count: int = 1, **metadata: Any) -> Json:
    containers = [{"name": "c"}] * count
    return {"metadata": metadata, "spec": {"containers": containers, "initContainers": inits or []}, "status": status}


INIT = [{"name": "c"}, {"name": "d"}]
SIDECAR = [{"name": "side", "restartPolicy": "Always"}]
PODS: dict[str, tuple[Json, str, str]] = {
    "waiting for a node": (pod({"phase": "Pending"}), "0/1", "Pending"),
    "without status": ({"spec": {"containers": []}}, "0/0", ""),
    "being set up": (
        pod({"phase": "Pending", "containerStatuses": [waiting("ContainerCreating")]}),
        "0/1",
        "ContainerCreating",
    ),
    "running": (pod({"phase": "Running", "containerStatuses": [running()]}), "1/1", "Running"),
    "running but not ready": (pod({"phase": "Running", "containerStatuses": [running(ready=False)]}), "0/1", "Running"),
    "crashing": (
        pod({"phase": "Running", "containerStatuses": [waiting("CrashLoopBackOff")]}),
        "0/1",
        "CrashLoopBackOff",
    ),
    "done": (pod({"phase": "Succeeded", "containerStatuses": [ended(reason="Completed")]}), "0/1", "Completed"),
    "failed with a code": (pod({"phase": "Failed", "containerStatuses": [ended(3)]}), "0/1", "ExitCode:3"),
    "killed by a signal": (pod({"phase": "Failed", "containerStatuses": [ended(1, signal=9)]}), "0/1", "Signal:9"),
    "evicted": (pod({"phase": "Failed", "reason": "Evicted"}), "0/1", "Evicted"),
    "gated": (
        pod({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}),
        "0/1",
        "SchedulingGated",
    ),
    "one done, one running, not ready": (
        pod({"phase": "Running", "containerStatuses": [ended(reason="Completed"), running("d")]}, count=2),
        "1/2",
        "NotReady",
    ),
    "one done, one running, ready": (
        pod(
            {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [ended(reason="Completed"), running("d")],
            },
            count=2,
        ),
        "1/2",
        "Running",
    ),
    "at its second init container": (
        pod({"phase": "Pending", "initContainerStatuses": [ended(), running("d")]}, INIT),
        "0/1",
        "Init:1/2",
    ),
    "with a failed init container": (
        pod({"phase": "Pending", "initContainerStatuses": [ended(1, "Error")]}, INIT),
        "0/1",
        "Init:Error",
    ),
    "with an init container that cannot start": (
        pod({"phase": "Pending", "initContainerStatuses": [waiting("ImagePullBackOff")]}, INIT),
        "0/1",
        "Init:ImagePullBackOff",
    ),
    "with a sidecar": (
        pod(
            {
                "phase": "Running",
                "initContainerStatuses": [running("side", started=True)],
                "containerStatuses": [running()],
            },
            SIDECAR,
        ),
        "2/2",
        "Running",
    ),
    "being deleted": (
        pod({"phase": "Running", "containerStatuses": [running()]}, deletionTimestamp=ago(seconds=1)),
        "1/1",
        "Terminating",
    ),
    "done and being deleted": (
        pod({"phase": "Succeeded", "containerStatuses": [ended(reason="Completed")]}, deletionTimestamp=ago(seconds=1)),
        "0/1",
        "Completed",
    ),
}


@pytest.mark.parametrize(("obj", "ready", "status"), PODS.values(), ids=PODS)
def test_a_pod(structure: Structure, obj: Json, ready: str, status: str) -> None:
    row = cells(structure, "", "v1", "pods", obj)
    assert (row["Ready"], row["Status"]) == (ready, status)


def test_restarts_tell_how_long_ago(structure: Structure) -> None:
    last: Json = {"lastState": {"terminated": {"exitCode": 1, "finishedAt": ago(seconds=90)}}}
    status = {"phase": "Running", "containerStatuses": [running(restartCount=2, **last)]}
    assert cells(structure, "", "v1", "pods", pod(status))["Restarts"] == "2 (90s ago)"
    assert cells(structure, "", "v1", "pods", pod({}))["Restarts"] == "0"


def test_the_wide_columns_of_a_pod(structure: Structure) -> None:
    obj = pod({"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "gate", "status": "True"}]})
    obj["spec"] |= {"nodeName": "n", "readinessGates": [{"conditionType": "gate"}, {"conditionType": "other"}]}
    row = cells(structure, "", "v1", "pods", obj)
    assert (row["IP"], row["Node"], row["Nominated Node"], row["Readiness Gates"]) == ("10.0.0.1", "n", "<none>", "1/2")


def claim(allocation: Json | None = None, reserved: bool = False, **metadata: Any) -> Json:
    status: Json = {"allocation": allocation} if allocation is not None else {}
    return {"metadata": metadata, "status": status | ({"reservedFor": [{"name": "p"}]} if reserved else {})}


CLAIMS = {
    "pending": claim(),
    "allocated": claim({}),
    "allocated,reserved": claim({}, reserved=True),
    "deleted,allocated,reserved": claim({}, reserved=True, deletionTimestamp=ago(seconds=1)),
    "deleted": claim(deletionTimestamp=ago(seconds=1)),
}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
@pytest.mark.parametrize(("state", "obj"), CLAIMS.items(), ids=CLAIMS)
def test_a_claim_tells_its_state(structure: Structure, version: str, state: str, obj: Json) -> None:
    row = cells(structure, "resource.k8s.io", version, "resourceclaims", obj)
    assert row == {"Name": "x", "State": state, "Age": "5m"}


ROWS: dict[str, tuple[str, str, Json, Json]] = {
    "a slice": (
        "resource.k8s.io/v1",
        "resourceslices",
        {"spec": {"nodeName": "n", "driver": "d", "pool": {"name": "p"}}},
        {"Node": "n", "Driver": "d", "Pool": "p", "Age": "5m"},
    ),
    "a taint rule": (
        "resource.k8s.io/v1beta2",
        "devicetaintrules",
        {"spec": {"taint": {"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": ago(minutes=2)}}},
        {"Key": "k", "Value": "v", "Effect": "NoExecute", "TimeAdded": "2m"},
    ),
    "a cordoned node": (
        "v1",
        "nodes",
        {
            "metadata": {"labels": {"node-role.kubernetes.io/control-plane": "", "node-role.kubernetes.io/gpu": ""}},
            "spec": {"unschedulable": True},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1.36.0"},
            },
        },
        {
            "Status": "Ready,SchedulingDisabled",
            "Roles": "control-plane,gpu",
            "Version": "v1.36.0",
            "Internal-IP": "10.0.0.1",
            "External-IP": "<none>",
            "OS-Image": "<unknown>",
        },
    ),
    "the default storage class": (
        "storage.k8s.io/v1",
        "storageclasses",
        {
            "metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "csi.example.com",
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        {
            "Name": "x (default)",
            "Provisioner": "csi.example.com",
            "ReclaimPolicy": "Delete",
            "VolumeBindingMode": "WaitForFirstConsumer",
            "AllowVolumeExpansion": False,
        },
    ),
    "an attachment": (
        "storage.k8s.io/v1",
        "volumeattachments",
        {
            "spec": {"attacher": "csi.example.com", "nodeName": "n1", "source": {"persistentVolumeName": "pv-1"}},
            "status": {"attached": True},
        },
        {"Attacher": "csi.example.com", "PV": "pv-1", "Node": "n1", "Attached": True},
    ),
    "a CSI node": ("storage.k8s.io/v1", "csinodes", {"spec": {"drivers": [{}, {}]}}, {"Drivers": 2}),
    "a node without conditions": ("v1", "nodes", {}, {"Status": "Unknown", "Roles": "<none>"}),
    "an event": (
        "v1",
        "events",
        {
            "involvedObject": {"kind": "Pod", "name": "p"},
            "type": "Warning",
            "reason": "Failed",
            "message": "no luck\n",
            "source": {"component": "kubelet", "host": "n"},
            "count": 3,
            "firstTimestamp": ago(minutes=4),
            "lastTimestamp": ago(seconds=9),
        },
        {
            "Last Seen": "9s",
            "Object": "pod/p",
            "Source": "kubelet, n",
            "Message": "no luck",
            "First Seen": "4m",
            "Count": 3,
        },
    ),
    "an event of the newer kind, in the older view": (
        "v1",
        "events",
        {
            "involvedObject": {"kind": "ResourceClaim", "name": "c"},
            "eventTime": ago(minutes=4),
            "reportingComponent": "operator",
            "series": {"count": 7, "lastObservedTime": ago(seconds=3)},
        },
        {"Last Seen": "3s", "Object": "resourceclaim/c", "Source": "operator", "First Seen": "4m", "Count": 7},
    ),
    "a secret": ("v1", "secrets", {"type": "Opaque", "data": {"a": "", "b": ""}}, {"Type": "Opaque", "Data": 2}),
    "a config map": ("v1", "configmaps", {"data": {"a": ""}, "binaryData": {"b": ""}}, {"Data": 2}),
    "a deployment": (
        "apps/v1",
        "deployments",
        {
            "spec": {
                "replicas": 3,
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
            "status": {"readyReplicas": 1, "updatedReplicas": 2, "availableReplicas": 1},
        },
        {"Ready": "1/3", "Up-to-date": 2, "Available": 1, "Containers": "c", "Images": "i", "Selector": "a=b"},
    ),
    "a service": (
        "v1",
        "services",
        {"spec": {"clusterIP": "10.0.0.9", "ports": [{"port": 80, "nodePort": 30080}], "selector": {"a": "b"}}},
        {"Type": "ClusterIP", "Cluster-IP": "10.0.0.9", "Port(s)": "80:30080/TCP", "Selector": "a=b"},
    ),
    "a quota": (
        "v1",
        "resourcequotas",
        {"status": {"hard": {"pods": "3", "limits.cpu": "2"}, "used": {"pods": "1"}}},
        {"Request": "pods: 1/3", "Limit": "limits.cpu: 0/2"},
    ),
    "a definition": ("apiextensions.k8s.io/v1", "customresourcedefinitions", {}, {"Created At": ago(minutes=5)}),
    "a kind without columns of its own": ("v1", "podtemplates", {}, {"Name": "x", "Created At": ago(minutes=5)}),
}


@pytest.mark.parametrize(("api_version", "plural", "obj", "expected"), ROWS.values(), ids=ROWS)
def test_a_row(structure: Structure, api_version: str, plural: str, obj: Json, expected: Json) -> None:
    group, _, version = api_version.rpartition("/")
    row = cells(structure, group, version, plural, obj)
    assert {title: row[title] for title in expected} == expected


def test_every_kind_has_as_many_cells_as_columns_even_when_empty(structure: Structure) -> None:
    for resource in structure.resources():
        table = render_table(resource, [{"metadata": {}}], now=NOW)
        assert len(table["rows"][0]["cells"]) == len(table["columnDefinitions"]), resource.plural


class _Read(dict[str, Any]):
    """Notes which members are looked at."""

    def __init__(self, members: Json) -> None:
        super().__init__(members)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


def test_only_kinds_whose_cells_show_labels_or_specs_are_decoded_with_them(structure: Structure) -> None:
    samples = {(api_version, plural): obj for api_version, plural, obj, _ in ROWS.values()}
    for resource in structure.resources():
        obj = samples.get((resource.api_version, resource.plural), {})
        meta = _Read({"name": "x", "creationTimestamp": ago(minutes=5), **obj.get("metadata", {})})
        whole = _Read({**obj, "metadata": meta})
        render_table(resource, [whole], now=NOW, include="None")
        assert shows_spec(resource) or "spec" not in whole.read, resource.plural
        has_labels = bool(meta.read & {"labels", "annotations", "managedFields"})
        assert has_labels == (shows_labels(resource) and resource.definition is None), resource.plural


def test_finished_pods_carry_the_row_condition(structure: Structure) -> None:
    pods = structure.resource("", "v1", "pods")
    assert pods is not None
    rows = render_table(pods, [{"metadata": {}, **pod({"phase": "Failed"})}, {"metadata": {}}], now=NOW)["rows"]
    assert rows[0]["conditions"][0]["type"] == "Completed"
    assert "conditions" not in rows[1]


def test_rows_carry_as_much_of_the_object_as_asked_for(structure: Structure) -> None:
    pods = structure.resource("", "v1", "pods")
    assert pods is not None
    obj = {"metadata": {"name": "x"}, "spec": {}}
    seen = {include: render_table(pods, [obj], now=NOW, include=include)["rows"][0] for include in _INCLUDES}
    assert "object" not in seen["None"]
    assert seen["Metadata"]["object"]["kind"] == "PartialObjectMetadata"
    assert seen["Object"]["object"] == obj


_INCLUDES = ("None", "Metadata", "Object")
COLUMNS: list[Json] = [
    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Names", "type": "string", "jsonPath": ".spec.parts[*].name", "priority": 1},
    {"name": "Last", "type": "string", "jsonPath": ".spec.parts[-1].name"},
    {"name": "Note", "type": "string", "jsonPath": ".metadata.annotations.example\\.com/note"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Broken", "type": "string", "jsonPath": ".a[["},
]


def custom(columns: list[Json]) -> Structure:
    structure = Structure.load()
    version = {"name": "v1", "served": True, "additionalPrinterColumns": columns}
    spec = {"group": "e.io", "scope": "Cluster", "names": {"plural": "ws", "kind": "W"}, "versions": [version]}
    structure.add_definition({"metadata": {"name": "ws.e.io"}, "spec": spec})
    return structure


def test_custom_resources_print_their_own_columns() -> None:
    obj: Json = {
        "metadata": {"annotations": {"example.com/note": "hi"}},
        "spec": {"size": 3, "parts": [{"name": "a"}, {"name": "b"}]},
        "status": {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]},
    }
    row = cells(custom(COLUMNS), "e.io", "v1", "ws", obj)
    assert row == {
        "Name": "x",
        "Size": 3,
        "Ready": "True",
        "Names": "a,b",
        "Last": "b",
        "Note": "hi",
        "Age": "5m",
        "Broken": None,
    }


def test_missing_or_mistyped_values_of_custom_columns_are_empty() -> None:
    row = cells(custom(COLUMNS), "e.io", "v1", "ws", {"spec": {"size": "big", "parts": {}}})
    assert (row["Size"], row["Ready"], row["Names"], row["Last"]) == (None, None, None, None)


def test_custom_resources_without_columns_print_name_and_age() -> None:
    assert cells(custom([]), "e.io", "v1", "ws", {}) == {"Name": "x", "Age": "5m"}


def test_a_selector_is_one_text() -> None:
    expressions = [
        {"key": "a", "operator": "In", "values": ["x", "y"]},
        {"key": "b", "operator": "NotIn", "values": ["z"]},
        {"key": "c", "operator": "Exists"},
        {"key": "d", "operator": "DoesNotExist"},
    ]
    selector = {"matchLabels": {"k": "v"}, "matchExpressions": expressions}
    assert selector_text(selector) == "k=v,a in (x,y),b notin (z),c,!d"
    assert (selector_text({}), selector_text(None)) == ("<none>", "<none>")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".items[?(@.type==Ready)].n", [1]),
        ('.items[?(@.type!="Ready")].n', [2]),
        (".items[?(@.n==2)].type", ["Other"]),
        (".items[-1].n", [2]),
        (".items[-2].n", [1]),
        (".items[-3].n", []),
        (".items[2].n", []),
        (".items[*].n", [1, 2]),
        (".map.*", [7]),
        (".map['a.b']", [7]),
        (r".map.a\.b", [7]),
        (".map.", [{"a.b": 7}]),
        ("$.items[1].n", [2]),
        ("{.items[1].n}", [2]),
    ],
)
def test_paths_of_columns(path: str, found: list[object]) -> None:
    document = {"items": [{"type": "Ready", "n": 1}, {"type": "Other", "n": 2}], "map": {"a.b": 7}}
    assert find(path, document) == found


def test_a_path_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ValueError, match=r"cannot be read from '\[x' on"):
        find(".items[x", {})
