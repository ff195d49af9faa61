"""Creating, applying, patching and deleting, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from command import BlockingKubectl

POD = """
    apiVersion: v1
    kind: Pod
    metadata:
      name: web
      labels: {app: web}
    spec:
      schedulerName: absent
      containers:
      - {name: c, image: "IMAGE", ports: [{containerPort: 80}]}
"""
CONFIG_MAP = """
    apiVersion: v1
    kind: ConfigMap
    metadata: {NAME}
    data: {colour: green}
"""
CREATED = {
    "namespace": (("namespace", "made-by-hand"), "namespace/made-by-hand created", {}),
    "configmap": (("configmap", "cm", "--from-literal=a=b"), "configmap/cm created", {"data": {"a": "b"}}),
    "secret": (("secret", "generic", "s", "--from-literal=a=b"), "secret/s created", {"data": {"a": "Yg=="}}),
    "serviceaccount": (("serviceaccount", "sa"), "serviceaccount/sa created", {}),
    "deployment": (("deployment", "d", "--image=i", "--replicas=0"), "deployment.apps/d created", {}),
    "quota": (("quota", "q", "--hard=pods=3"), "resourcequota/q created", {"spec": {"hard": {"pods": "3"}}}),
    "role": (
        ("role", "r", "--verb=get", "--resource=pods"),
        "role.rbac.authorization.k8s.io/r created",
        {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]},
    ),
    "poddisruptionbudget": (
        ("poddisruptionbudget", "b", "--selector=a=b", "--min-available=1"),
        "poddisruptionbudget.policy/b created",
        {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}},
    ),
    "ingress": (("ingress", "i", "--rule=host/path=service:80"), "ingress.networking.k8s.io/i created", {}),
}


@pytest.mark.parametrize(("arguments", "said", "content"), CREATED.values(), ids=CREATED)
def test_generators_send_typed_bodies(
    kubectl: BlockingKubectl, arguments: tuple[str, ...], said: str, content: dict[str, Any]
) -> None:
    """These commands send protobuf."""
    assert kubectl("create", *arguments).strip() == said
    kind, name = said.split()[0].split("/")
    obj = kubectl.read(kind, name)
    assert {key: obj[key] for key in content} == content


def test_create_from_a_file_makes_every_object_in_it(kubectl: BlockingKubectl) -> None:
    text = "---".join(CONFIG_MAP.replace("NAME", f"name: {name}") for name in ("a", "b"))
    assert kubectl("create", "-f", "-", stdin=text).split("\n")[:2] == ["configmap/a created", "configmap/b created"]
    again = kubectl("create", "-f", "-", stdin=text, code=1)
    assert 'Error from server (AlreadyExists): error when creating "STDIN": configmaps "a" already exists' in again


def test_the_server_makes_names(kubectl: BlockingKubectl) -> None:
    said = kubectl("create", "-f", "-", stdin=CONFIG_MAP.replace("NAME", "generateName: made-"))
    assert said.startswith("configmap/made-")
    assert len(said.split()[0]) == len("configmap/made-") + 5


def test_run_makes_a_pod(kubectl: BlockingKubectl) -> None:
    assert kubectl("run", "web", "--image=busybox", "--restart=Never", "--", "sleep", "1").strip() == "pod/web created"
    pod = kubectl.read("pod", "web")
    assert pod["spec"]["containers"][0]["args"] == ["sleep", "1"]
    assert pod["spec"]["restartPolicy"] == "Never"


def test_apply_creates_configures_and_leaves_alone(kubectl: BlockingKubectl, manifest: Callable[[str], str]) -> None:
    path = manifest(POD.replace("IMAGE", "one"))
    assert kubectl("apply", "-f", path).strip() == "pod/web created"
    assert kubectl("apply", "-f", path).strip() == "pod/web unchanged"
    assert kubectl("diff", "-f", path) == ""
    manifest(POD.replace("IMAGE", "two").replace("labels: {app: web}", "labels: {tier: front}"))
    difference = kubectl("diff", "-f", path, code=1)
    assert "-  - image: one" in difference
    assert "+  - image: two" in difference
    assert kubectl("apply", "-f", path).strip() == "pod/web configured"
    pod = kubectl.read("pod", "web")
    assert pod["metadata"]["labels"] == {"tier": "front"}, "labels no longer in the file are taken away"
    assert pod["spec"]["containers"][0]["image"] == "two"


def test_server_side_apply_conflicts_until_forced(kubectl: BlockingKubectl, manifest: Callable[[str], str]) -> None:
    path = manifest(POD.replace("IMAGE", "one"))
    assert kubectl("apply", "--server-side", "-f", path).strip() == "pod/web serverside-applied"
    manifest(POD.replace("IMAGE", "two"))
    other = ("apply", "--server-side", "--field-manager=other", "-f", path)
    refused = kubectl(*other, code=1)
    assert 'Apply failed with 1 conflict: conflict with "kubectl": .spec.containers[name="c"].image' in refused
    assert "server-side diff" not in refused
    assert kubectl("diff", "--server-side", "--force-conflicts", "-f", path, code=1).count("image: ") == 2
    assert kubectl(*other, "--force-conflicts").strip() == "pod/web serverside-applied"
    assert kubectl.read("pod", "web")["spec"]["containers"][0]["image"] == "two"


def test_server_side_apply_repeated_writes_nothing(
    kubectl: BlockingKubectl, manifest: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the server fills in defaults below an atomic list, which the configuration lacks each time."""
    path = manifest(
        """
        apiVersion: resource.k8s.io/v1
        kind: ResourceClaim
        metadata: {name: c}
        spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu.example.com}}]}}
        """
    )
    kubectl("apply", "--server-side", "-f", path)
    before = kubectl.read("resourceclaim", "c")["metadata"]
    monkeypatch.setattr("dra_devcluster.apiserver.verbs.patch.now", lambda: "2099-01-01T00:00:00Z")
    kubectl("apply", "--server-side", "-f", path)
    assert kubectl.read("resourceclaim", "c")["metadata"]["resourceVersion"] == before["resourceVersion"]


def test_server_side_apply_takes_over_from_client_side_apply(
    kubectl: BlockingKubectl, manifest: Callable[[str], str]
) -> None:
    path = manifest(POD.replace("IMAGE", "one"))
    kubectl("apply", "-f", path)
    manifest(POD.replace("IMAGE", "one").replace("labels: {app: web}", "labels: {}"))
    assert kubectl("apply", "--server-side", "-f", path).strip() == "pod/web serverside-applied"
    pod = json.loads(kubectl("get", "pod", "web", "-o", "json", "--show-managed-fields"))
    assert "app" not in pod["metadata"].get("labels", {}), "the fields of the former manager were taken over"
    # The annotation stays with a manager of its own, so that older clients can go on applying.
    assert {entry["manager"] for entry in pod["metadata"]["managedFields"]} == {"kubectl", "kubectl-last-applied"}


PATCHES = {
    "strategic": (("-p", '{"data": {"colour": "red"}}'), {"colour": "red"}),
    "merge": (("--type=merge", "-p", '{"data": {"colour": null, "size": "1"}}'), {"size": "1"}),
    "json": (("--type=json", "-p", '[{"op": "replace", "path": "/data/size", "value": "2"}]'), {"size": "2"}),
}


def test_patch_in_three_formats(kubectl: BlockingKubectl) -> None:
    kubectl("create", "-f", "-", stdin=CONFIG_MAP.replace("NAME", "name: cm"))
    for title, (arguments, data) in PATCHES.items():
        assert kubectl("patch", "configmap", "cm", *arguments).strip() == "configmap/cm patched", title
        assert kubectl.read("configmap", "cm")["data"] == data, title
    assert kubectl("patch", "configmap", "cm", *PATCHES["json"][0]).strip() == "configmap/cm patched (no change)"
    missing = '[{"op": "remove", "path": "/data/nothing"}]'
    assert "The request is invalid" in kubectl("patch", "configmap", "cm", "--type=json", "-p", missing, code=1)


def test_label_annotate_and_set(kubectl: BlockingKubectl, pod: Callable[..., str]) -> None:
    pod("web", {"app": "web"})
    assert kubectl("label", "pod", "web", "tier=front", "app-").strip() == "pod/web labeled"
    assert "already has a value (front)" in kubectl("label", "pod", "web", "tier=back", code=1)
    assert kubectl("label", "pod", "web", "tier=back", "--overwrite").strip() == "pod/web labeled"
    assert kubectl("annotate", "pod", "web", "note=hello").strip() == "pod/web annotated"
    assert kubectl("set", "image", "pod/web", "c=other").strip() == "pod/web image updated"
    found = kubectl.read("pod", "web")
    assert found["metadata"]["labels"] == {"tier": "back"}
    assert found["metadata"]["annotations"] == {"note": "hello"}
    assert found["spec"]["containers"][0]["image"] == "other"


def test_edit_and_replace(kubectl: BlockingKubectl, manifest: Callable[[str], str]) -> None:
    kubectl("create", "configmap", "cm", "--from-literal=colour=red")
    editing = replace(kubectl, environment=kubectl.environment | {"KUBE_EDITOR": "sed -i s/red/blue/"})
    assert editing("edit", "configmap", "cm").strip() == "configmap/cm edited"
    assert kubectl.read("configmap", "cm")["data"] == {"colour": "blue"}
    path = manifest(CONFIG_MAP.replace("NAME", "name: cm"))
    assert kubectl("replace", "-f", path).strip() == "configmap/cm replaced"
    assert kubectl.read("configmap", "cm")["data"] == {"colour": "green"}


def test_a_dry_run_changes_nothing(kubectl: BlockingKubectl) -> None:
    said = kubectl("create", "configmap", "cm", "--from-literal=a=b", "--dry-run=server")
    assert said.strip() == "configmap/cm created (server dry run)"
    assert "NotFound" in kubectl("get", "configmap", "cm", code=1)


REFUSED = {
    "an unknown field": (
        POD + "      colour: red\n",
        'Error from server (BadRequest): error when creating "STDIN": Pod in version "v1" cannot be handled as a Pod: '
        'strict decoding error: unknown field "spec.colour"',
    ),
    "a wrong type": (
        POD.replace("[{containerPort: 80}]", "many"),
        'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal string into Go struct field '
        "Container.spec.containers.ports of type []v1.ContainerPort",
    ),
    "a bad name": (
        POD.replace("name: web\n", "name: Web_1\n"),
        'The Pod "Web_1" is invalid: metadata.name: Invalid value: "Web_1": a lowercase RFC 1123 subdomain',
    ),
    "a claim without class": (
        """
        apiVersion: resource.k8s.io/v1
        kind: ResourceClaim
        metadata: {name: c}
        spec: {devices: {requests: [{name: r, exactly: {}}]}}
        """,
        'The ResourceClaim "c" is invalid: spec.devices.requests[0].exactly.deviceClassName: Required value',
    ),
    "an unknown kind": (
        POD.replace("v1", "example.com/v1").replace("Pod", "Gadget"),
        'no matches for kind "Gadget" in version "example.com/v1"',
    ),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_told_in_the_words_of_the_real_server(kubectl: BlockingKubectl, text: str, said: str) -> None:
    assert said in kubectl("create", "-f", "-", stdin=text, code=1)


def test_unknown_fields_are_only_warned_of_when_so_asked(kubectl: BlockingKubectl) -> None:
    said = kubectl("create", "-f", "-", "--validate=warn", stdin=POD + "      colour: red\n")
    assert said.splitlines() == ['Warning: unknown field "spec.colour"', "pod/web created"]


def test_delete_by_name_label_and_file(
    kubectl: BlockingKubectl, pod: Callable[..., str], manifest: Callable[[str], str]
) -> None:
    for name in ("one", "two", "web"):
        pod(name, {"app": name})
    assert kubectl("delete", "pod", "one", "--now").strip() == 'pod "one" deleted'
    assert kubectl("delete", "pods", "-l", "app=two", "--now").strip() == 'pod "two" deleted'
    assert kubectl("delete", "-f", manifest(POD), "--now").strip() == 'pod "web" deleted'
    assert kubectl.rows("pods") == []
    assert "NotFound" in kubectl("delete", "pod", "one", code=1)
    assert kubectl("delete", "pod", "one", "--ignore-not-found") == ""


def test_delete_waits_for_finalizers(kubectl: BlockingKubectl, pod: Callable[..., str]) -> None:
    pod("web")
    kubectl("patch", "pod", "web", "-p", '{"metadata": {"finalizers": ["example.com/hold"]}}')
    kubectl("delete", "pod", "web", "--now", "--wait=false")
    assert kubectl.rows("pods")[0][2] == "Terminating"
    kubectl("patch", "pod", "web", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    assert kubectl.rows("pods") == []


def test_a_namespace_takes_everything_in_it_away(kubectl: BlockingKubectl, pod: Callable[..., str]) -> None:
    pod("web")
    kubectl("delete", "namespace", kubectl.namespace)
    assert "NotFound" in kubectl("get", "namespace", kubectl.namespace, code=1)
    assert kubectl.rows("pods") == []


def test_scale_goes_through_the_subresource(kubectl: BlockingKubectl) -> None:
    kubectl("create", "deployment", "d", "--image=i", "--replicas=0")
    assert kubectl("scale", "deployment", "d", "--replicas=3").strip() == "deployment.apps/d scaled"
    assert kubectl.read("deployment", "d")["spec"]["replicas"] == 3
