"""`get` in its forms, `describe`, `events`, `explain`, and what a client asks of the server itself."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from command import BlockingKubectl

CLAIM = """
    apiVersion: resource.k8s.io/v1
    kind: ResourceClaim
    metadata: {name: gpus}
    spec:
      devices:
        requests:
        - name: gpu
          exactly: {deviceClassName: gpu.example.com, count: 2}
"""


def test_get_prints_the_columns_of_the_kind(kubectl: BlockingKubectl, pod: Callable[..., str]) -> None:
    pod("web")
    lines = kubectl("get", "pods").splitlines()
    assert lines[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert lines[1].split()[:4] == ["web", "0/1", "Pending", "0"]


def test_get_wide_prints_more(kubectl: BlockingKubectl, pod: Callable[..., str], node: str) -> None:
    pod("web", nodeName=node)
    heading, row = kubectl("get", "po", "-o", "wide").splitlines()
    assert heading.split("  ")[-1].strip() == "READINESS GATES"
    assert row.split()[6] == node


FORMS = {
    "by name": (("pod", "web"), ["web"]),
    "by kind and name": (("pod/web", "pod/db"), ["web", "db"]),
    "by label": (("pods", "-l", "app=web"), ["web"]),
    "by label expression": (("pods", "-l", "app in (db,other)"), ["db"]),
    "by absence of a label": (("pods", "-l", "!app"), []),
    "by field": (("pods", "--field-selector", "metadata.name!=web"), ["db"]),
    "sorted": (("pods", "--sort-by", "{.metadata.labels.rank}"), ["web", "db"]),
    "several kinds": (("pods,secrets",), ["db", "web"]),
    "a category": (("all",), ["db", "web"]),
    "in pages": (("pods", "--chunk-size", "1"), ["db", "web"]),
}


def test_get_finds(kubectl: BlockingKubectl, pod: Callable[..., str]) -> None:
    pod("db", {"app": "db", "rank": "2"})
    pod("web", {"app": "web", "rank": "1"})
    for title, (arguments, names) in FORMS.items():
        assert kubectl("get", *arguments, "-o", "name").split() == [f"pod/{name}" for name in names], title


def test_get_as_data(kubectl: BlockingKubectl, pod: Callable[..., str]) -> None:
    pod("web", {"app": "web"})
    assert "app: web" in kubectl("get", "pod", "web", "-o", "yaml")
    assert kubectl("get", "pod", "web", "-o", "jsonpath={.spec.containers[0].image}") == "busybox"
    table = kubectl("get", "pods", "-o", "custom-columns=N:.metadata.name,L:.metadata.labels.app")
    assert [line.split() for line in table.splitlines()] == [["N", "L"], ["web", "web"]]
    assert (
        "managedFields" in json.loads(kubectl("get", "pod", "web", "-o", "json", "--show-managed-fields"))["metadata"]
    )


def test_get_across_namespaces_names_them(kubectl: BlockingKubectl, pod: Callable[..., str]) -> None:
    pod("web")
    assert [kubectl.namespace, "web"] in [row[:2] for row in kubectl.rows("pods", "--all-namespaces")]


def test_what_is_not_there_is_told(kubectl: BlockingKubectl) -> None:
    assert kubectl("get", "pods").strip() == f"No resources found in {kubectl.namespace} namespace."
    assert 'Error from server (NotFound): pods "web" not found' in kubectl("get", "pod", "web", code=1)
    assert 'the server doesn\'t have a resource type "gadgets"' in kubectl("get", "gadgets", code=1)


def test_a_watch_follows_changes(kubectl: BlockingKubectl, pod: Callable[..., str]) -> None:
    pod("first")
    with kubectl.start("get", "pods", "--watch", "--no-headers") as watch:
        assert watch.readline().split()[:3] == ["first", "0/1", "Pending"]
        pod("second")
        assert watch.readline().split()[:3] == ["second", "0/1", "Pending"]
        kubectl("patch", "pod", "first", "--subresource=status", "-p", '{"status": {"phase": "Running"}}')
        assert watch.readline().split()[:3] == ["first", "0/1", "Running"]


def test_wait_returns_when_the_condition_comes_true(kubectl: BlockingKubectl, pod: Callable[..., str]) -> None:
    pod("web")
    assert "condition not met" in kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=0", code=1)
    with kubectl.start("wait", "--for=condition=Ready", "pod/web", "--timeout=30s") as waiting:
        status = {"conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.0.0.7"}
        kubectl("patch", "pod", "web", "--subresource=status", "-p", json.dumps({"status": status}))
        assert waiting.readline().strip() == "pod/web condition met"
    assert "condition met" in kubectl("wait", "--for=jsonpath={.status.podIP}=10.0.0.7", "pod/web")
    kubectl("delete", "pod", "web", "--now")
    kubectl("wait", "--for=delete", "pod/web", "--timeout=10s")


def test_claims_print_their_state_and_describe_their_requests(kubectl: BlockingKubectl) -> None:
    kubectl("create", "-f", "-", stdin=CLAIM)
    assert kubectl.rows("resourceclaims")[0][:2] == ["gpus", "pending"]
    allocation = {
        "devices": {
            "results": [{"request": "gpu", "driver": "d.example.com", "pool": "p", "device": f"d{n}"} for n in (0, 1)]
        }
    }
    kubectl(
        "patch",
        "resourceclaim",
        "gpus",
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps({"status": {"allocation": allocation}}),
    )
    assert kubectl.rows("resourceclaims")[0][:2] == ["gpus", "allocated"]
    text = kubectl("describe", "resourceclaim", "gpus")
    for part in ("Device Class Name:  gpu.example.com", "Allocation Mode:    ExactCount", "Device:   d1", "Events:"):
        assert part in text


def test_describe_a_pod_shows_its_events(
    kubectl: BlockingKubectl, pod: Callable[..., str], post: Callable[..., None]
) -> None:
    pod("web")
    uid = kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.uid}")
    about = {"apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": kubectl.namespace, "uid": uid}
    times = {"firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z"}
    event = {"reason": "Unallocatable", "message": "no device fits", "type": "Warning", "source": {"component": "test"}}
    post(
        f"/api/v1/namespaces/{kubectl.namespace}/events",
        {"metadata": {"name": "web.1"}, "involvedObject": about, **times, **event},
    )
    text = kubectl("describe", "pod", "web")
    assert ["Status:", "Pending"] in [line.split() for line in text.splitlines()]
    assert "no device fits" in text.split("Events:")[1]
    assert "Unallocatable" in kubectl("events", "--for", "pod/web")
    assert kubectl.rows("events")[0][1:4] == ["Warning", "Unallocatable", "pod/web"]


EXPLAINED = {
    "a kind": (("pods",), ["KIND:       Pod", "VERSION:    v1", "spec\t<PodSpec>"]),
    "a field": (("pod.spec.containers.image",), ["FIELD: image <string>", "The image to run."]),
    "a DRA kind": (("resourceclaim",), ["GROUP:      resource.k8s.io", "asks for devices"]),
    "a beta version": (("resourceclaim", "--api-version=resource.k8s.io/v1beta1"), ["VERSION:    v1beta1"]),
    "a list with all its fields": (
        ("resourceslice.spec.devices", "--recursive"),
        ["FIELD: devices <[]Device>", "  attributes\t<map[string]DeviceAttribute>", "    version\t<string>"],
    ),
    "an enumeration": (("pod.spec.restartPolicy",), ["ENUM:", "OnFailure"]),
}


@pytest.mark.parametrize(("arguments", "parts"), EXPLAINED.values(), ids=EXPLAINED)
def test_explain(kubectl: BlockingKubectl, arguments: tuple[str, ...], parts: list[str]) -> None:
    text = kubectl("explain", *arguments)
    for part in parts:
        assert part in text


def test_explain_refuses_unknown_fields(kubectl: BlockingKubectl) -> None:
    assert 'field "colour" does not exist' in kubectl("explain", "pod.spec.colour", code=1)


def test_the_server_tells_what_it_is(kubectl: BlockingKubectl) -> None:
    assert "Server Version: v1.37" in kubectl("version")
    assert "is running at" in kubectl("cluster-info")
    assert kubectl("get", "--raw", "/readyz") == "ok"
    assert {"v1", "resource.k8s.io/v1", "resource.k8s.io/v1beta1"} <= set(kubectl("api-versions").split())
    lines = [line.split() for line in kubectl("api-resources", "--no-headers").splitlines()]
    assert ["resourceslices", "resource.k8s.io/v1", "false", "ResourceSlice"] in lines
    assert ["pods", "po", "v1", "true", "Pod"] in lines


def test_everything_is_permitted_to_the_administrator(kubectl: BlockingKubectl) -> None:
    assert kubectl("auth", "can-i", "create", "resourceclaims").strip() == "yes"
    assert "system:masters" in kubectl("auth", "whoami")
