"""``kubectl dra why``: the reason an operator would give, on live data, without an operator running."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from dra_api import yaml_text
from dra_api.meta import EVENTS, LEASES
from dra_devcluster.apiserver import DevApiServer
from dra_kube import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_CLAIMS,
    STORAGE_CLASSES,
    Api,
    Resource,
    connection,
)
from dra_operator.kubectl.cli import main
from supervised import LiveCluster
from volume_lab import SELECTED, storage_class, uses, volume_claim

ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", ("v1",), "rolebindings", "RoleBinding", True)


@pytest.fixture(autouse=True)
async def lease(cluster: LiveCluster) -> None:
    """An operator leads, as far as its Lease says."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "node-1_a", "leaseDurationSeconds": 3600, "renewTime": now}
    name = {"name": "dra-operator-dra-scheduler", "namespace": "kube-system"}
    await cluster.api.create(LEASES, {"metadata": name, "spec": spec})


async def test_on_a_cluster_without_any_lease_the_operator_is_missed(
    cluster: LiveCluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.furnish(nodes=1, devices=1)
    await add_claim(cluster, count=1)
    await add_user(cluster)
    code, output = await ask(capsys, kubeconfig, "pod/pod")
    assert code == 0
    assert output.startswith("pod ns/pod would fit 1 of 1 node: node-0\n")
    assert output.count("\n") == 2
    await cluster.api.delete(LEASES, "dra-operator-dra-scheduler", "kube-system")
    code, output = await ask(capsys, kubeconfig, "pod/pod")
    assert code == 3
    assert "install the operator (kubectl apply -k manifests)" in output


async def test_credentials_that_are_refused_are_to_be_renewed(
    kubeconfig: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = await ask(capsys, expired(kubeconfig, tmp_path / "expired"), "pod/pod")
    assert code == 1
    assert re.search("refuses the credentials: GET .*: Unauthorized; renew them in the kubeconfig", output)


def expired(kubeconfig: Path, file: Path) -> Path:
    content = yaml_text.load(kubeconfig.read_text())
    content["users"][0]["user"] = {"token": "expired"}
    file.write_text(yaml.safe_dump(content))
    return file


async def ask(capsys: pytest.CaptureFixture[str], kubeconfig: Path, *arguments: str) -> tuple[int, str]:
    given = ["why", *arguments, "-n", "ns", "--kubeconfig", str(kubeconfig)]
    code = await asyncio.to_thread(main, given)
    captured = capsys.readouterr()
    return code, captured.out + captured.err


async def add_claim(cluster: LiveCluster, count: int) -> None:
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    spec = {"devices": {"requests": [{"name": "req", "exactly": exactly}]}}
    await cluster.api.create(RESOURCE_CLAIMS, {"metadata": {"name": "claim", "namespace": "ns"}, "spec": spec})


async def add_user(cluster: LiveCluster, **more: Any) -> None:
    spec = {
        **more,
        "schedulerName": "dra-scheduler",
        "containers": [{"name": "main", "image": "none"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "claim"}],
    }
    await cluster.api.create(PODS, {"metadata": {"name": "pod", "namespace": "ns"}, "spec": spec})


async def test_a_claim_that_is_too_big_is_explained_for_every_node(
    cluster: LiveCluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.furnish(nodes=2, devices=1)
    await add_claim(cluster, count=3)
    code, output = await ask(capsys, kubeconfig, "claim", "claim")
    assert code == 0
    assert output.startswith("claim ns/claim: not allocated\n  no pod uses it; ")
    await add_user(cluster)
    code, output = await ask(capsys, kubeconfig, "claim", "claim")
    assert code == 3
    assert "pod ns/pod would fit 0 of 2 nodes" in output
    assert "node node-0: does not fit" in output
    assert 'ns/claim request "req" needs 3 devices' in output


async def test_a_pod_that_fits_says_where(
    cluster: LiveCluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.furnish(nodes=2, devices=1)
    await add_user(cluster)
    code, output = await ask(capsys, kubeconfig, "pod", "pod")
    assert (code, output) == (
        3,
        'pod ns/pod is not tried: resourceclaim "claim" not found: create it, or correct resourceClaimName\n',
    )
    await add_claim(cluster, count=1)
    code, output = await ask(capsys, kubeconfig, "pod", "pod")
    assert code == 0
    assert "pod ns/pod would fit 2 of 2 nodes: node-0, node-1" in output


@pytest.mark.parametrize(
    "words",
    [
        *(["pod", "pod"], ["po", "pod"], ["pods", "pod"], ["Pod", "pod"], ["pod/pod"], ["pods/pod"]),
        *(["resourceclaim", "claim"], ["resourceclaims/claim"], ["resourceclaim.resource.k8s.io/claim"]),
        ["claims/claim"],
    ],
    ids=" ".join,
)
async def test_a_kind_is_written_as_kubectl_takes_and_prints_it(
    words: list[str], cluster: LiveCluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.furnish(nodes=1, devices=1)
    await add_claim(cluster, count=1)
    await add_user(cluster)
    code, output = await ask(capsys, kubeconfig, *words)
    assert code == 0
    assert "pod ns/pod would fit 1 of 1 node: node-0" in output


@pytest.mark.parametrize("words", [["node", "n1"], ["node/n1"], ["pod/"], ["/pod"], ["pod/a", "b"]], ids=" ".join)
def test_a_kind_that_cannot_be_explained_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = tmp_path / "empty.json"
    snapshot.write_text('{"kind": "List", "apiVersion": "v1", "items": []}')
    assert main(["why", *words, "--from", str(snapshot)]) == 2
    assert "expected" in capsys.readouterr().err


async def test_a_permission_that_is_missing_is_named_with_its_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with DevApiServer(authorization="rbac") as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        config = yaml_text.load(kubeconfig.read_text())
        config["users"][0]["user"]["token"] = server.node_token("node-1")
        kubeconfig.write_text(yaml.safe_dump(config))
        code, output = await ask(capsys, kubeconfig, "pod", "pod")
    assert code == 1
    assert 'User "system:node:node-1" cannot list' in output
    assert "the ClusterRole dra-viewer in manifests/operator/viewer.yaml allows it" in output


async def test_who_may_only_view_his_namespace_learns_what_it_has_and_what_he_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with DevApiServer(authorization="rbac") as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with Api(connection(kubeconfig)) as api:
            cluster = LiveCluster(api)
            await cluster.furnish(nodes=1, devices=1)
            await add_claim(cluster, count=3)
            await add_user(cluster)
            subject = {"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}
            role = {"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"}
            binding = {"metadata": {"name": "jane", "namespace": "ns"}, "subjects": [subject], "roleRef": role}
            await api.create(ROLE_BINDINGS, binding)
            said = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]
            await api.patch(PODS, "pod", {"status": {"conditions": said}}, "ns", subresource="status")
        code, output = await ask(capsys, kubeconfig, "pod", "pod", "--as", "jane")
    assert code == 3
    assert "condition PodScheduled is False, Unschedulable: 0/1 nodes" in output
    assert "  claim claim: not allocated\n" in output
    assert (
        "you may not list nodes, deviceclasses, resourceslices, resourceclaims: with the ClusterRole dra-viewer"
        in output
    )


RACK = [{"matchLabelExpressions": [{"key": "rack", "values": ["r1"]}]}]
ONE_DEVICE = {"nodes": 2, "devices": 1}
DISK = {"name": "data", "iscsi": {"targetPortal": "1.2.3.4", "iqn": "iqn.2026-01.com.example:disk", "lun": 0}}
PODS_AND_ANSWERS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str], list[str]]] = {
    "a field is not supported": (
        {},
        {"volumes": [DISK]},
        [],
        ["pod ns/pod is not tried: spec.volumes[0].iscsi is not supported by dra-operator"],
    ),
    "a claim of a volume is missing": (
        {},
        {"volumes": uses("data")},
        [],
        ['pod ns/pod is not tried: persistentvolumeclaim "data" not found'],
    ),
    "a selector does not match what devices publish": (
        {**ONE_DEVICE, "selector": 'device.driver == "other.example.com"'},
        {},
        [],
        [
            'selector #0 of class gpu matches 0 of 1 device: device.driver == "other.example.com"',
            "drivers of the devices: gpu.example.com (1)",
            "1 other node fails for the same reason: node-1",
        ],
    ),
    "a selector fails on one node": (
        {**ONE_DEVICE, "selector": 'device.attributes["gpu.example.com"].model == "A"'},
        {},
        [],
        ["pod ns/pod would fit 0 of 2 nodes", "error: class gpu: selector #0", "no such key"],
    ),
    "the operator does not place": (
        {"nodes": 1},
        {},
        ["--controllers", "templates,release"],
        [
            ":\npod ns/pod would fit 1 of 1 node: node-0\n",
            "pod ns/pod is not placed: the operator runs without the controller placement; ",
        ],
    ),
}


@pytest.mark.parametrize(
    ("furniture", "pod", "setting", "said"), PODS_AND_ANSWERS.values(), ids=PODS_AND_ANSWERS.keys()
)
async def test_what_holds_a_pod_back_is_reported(
    furniture: dict[str, Any],
    pod: dict[str, Any],
    setting: list[str],
    said: list[str],
    cluster: LiveCluster,
    kubeconfig: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await cluster.furnish(**furniture)
    await add_claim(cluster, count=1)
    await add_user(cluster, **pod)
    code, output = await ask(capsys, kubeconfig, "pod", "pod", *setting)
    assert code == (0 if "would fit 1" in said[0] else 3)
    for text in said:
        assert text in output


async def test_a_rule_between_pods_shows_the_pods_that_count(
    cluster: LiveCluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.furnish(nodes=2)
    await add_claim(cluster, count=1)
    web = {"metadata": {"name": "web", "namespace": "ns", "labels": {"app": "web"}}}
    spec = {"nodeName": "node-1", "containers": [{"name": "main", "image": "none"}]}
    await cluster.api.create(PODS, {**web, "spec": spec})
    for number in range(2):
        labels = {"kubernetes.io/hostname": f"node-{number}"}
        await cluster.api.patch(NODES, f"node-{number}", {"metadata": {"labels": labels}})
    constraint = {"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1}
    constraint["labelSelector"] = {"matchLabels": {"app": "web"}}
    await add_user(cluster, topologySpreadConstraints=[{**constraint, "minDomains": 3}])
    _, output = await ask(capsys, kubeconfig, "pod", "pod")
    assert "pod ns/pod would fit 2 of 2 nodes" in output, "it does not count itself"
    await cluster.api.patch(PODS, "pod", {"metadata": {"labels": {"app": "web"}}}, "ns")
    _, output = await ask(capsys, kubeconfig, "pod", "pod")
    rule = "node(s) didn't match pod topology spread constraints (topology key kubernetes.io/hostname)"
    assert f"  node-1: {rule}\n    pods that count: 1 in node-1, 0 in node-0\n" in output


async def test_a_pod_with_preferences_learns_what_the_best_node_has(
    cluster: LiveCluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.furnish(nodes=2)
    await add_claim(cluster, count=1)
    await cluster.api.patch(NODES, "node-1", {"metadata": {"labels": {"zone": "a"}}})
    wish = {"key": "zone", "operator": "Exists"}
    preferred = [{"weight": 7, "preference": {"matchExpressions": [wish]}}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    await add_user(cluster, affinity=affinity)
    _, output = await ask(capsys, kubeconfig, "pod", "pod")
    assert "best is node-1 with a score of 300: node affinity 200, room 100\n" in output


async def test_volumes_are_explained_for_every_node_and_while_they_are_bound(
    cluster: LiveCluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.furnish(nodes=2)
    await add_claim(cluster, count=1)
    await add_user(cluster, volumes=uses("data"))
    await cluster.api.create(STORAGE_CLASSES, storage_class(provisioner="csi.example.com", allowedTopologies=RACK))
    await cluster.api.create(PERSISTENT_VOLUME_CLAIMS, volume_claim())
    await cluster.api.patch(NODES, "node-1", {"metadata": {"labels": {"rack": "r1"}}})
    code, output = await ask(capsys, kubeconfig, "pod", "pod")
    assert code == 0
    assert "pod ns/pod would fit 1 of 2 nodes: node-1\n" in output
    assert "\n  node-0: " in output
    assert "get a new volume" not in output
    selected = {"metadata": {"annotations": {SELECTED: "node-1"}}}
    await cluster.api.patch(PERSISTENT_VOLUME_CLAIMS, "data", selected, "ns")
    code, output = await ask(capsys, kubeconfig, "pod", "pod")
    assert "ns/data to get a new volume on node node-1\n" in output


async def test_an_unknown_name_is_reported_without_a_traceback(
    cluster: LiveCluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.furnish()
    code, output = await ask(capsys, kubeconfig, "pod", "absent")
    assert (code, output) == (1, "kubectl dra: there is no pod absent in namespace ns\n")


async def test_a_pod_that_waits_for_an_extended_resource_learns_class_and_counts(
    cluster: LiveCluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.furnish(nodes=1, devices=1)
    resources = {name: {"example.com/gpu": "2"} for name in ("requests", "limits")}
    containers = [{"name": "main", "image": "none", "resources": resources}]
    spec = {"schedulerName": "dra-scheduler", "containers": containers}
    await cluster.api.create(PODS, {"metadata": {"name": "pod", "namespace": "ns"}, "spec": spec})
    code, output = await ask(capsys, kubeconfig, "pod", "pod")
    assert code == 3
    assert "node-0: cannot fit resource example.com/gpu: neither the node nor a device class offers it" in output
    await cluster.api.patch(DEVICE_CLASSES, "gpu", {"spec": {"extendedResourceName": "example.com/gpu"}})
    _, output = await ask(capsys, kubeconfig, "pod", "pod")
    assert "pod ns/pod would fit 0 of 1 node\n" in output
    assert 'extended resource example.com/gpu (device class gpu) request "container-0-request-0"' in output
    assert "needs 2" in output
    assert "selector #0 of class gpu" in output
    await cluster.add_node("node-1", devices=2)
    _, output = await ask(capsys, kubeconfig, "pod", "pod")
    assert "pod ns/pod would fit 1 of 2 nodes: node-1" in output


async def test_a_taint_rule_counts_with_the_gates_of_the_operator(
    cluster: LiveCluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.furnish(nodes=1, devices=1)
    await add_claim(cluster, count=1)
    await add_user(cluster)
    taint = {"key": "bad", "effect": "NoSchedule"}
    rule = {"metadata": {"name": "rule"}, "spec": {"deviceSelector": {"pool": "node-0"}, "taint": taint}}
    await cluster.api.create(DEVICE_TAINT_RULES, rule)
    _, output = await ask(capsys, kubeconfig, "pod", "pod", "--feature-gates", "DRADeviceTaintRules=false")
    assert "pod ns/pod would fit 1 of 1 node: node-0" in output
    _, output = await ask(capsys, kubeconfig, "pod", "pod")
    assert "pod ns/pod would fit 0 of 1 node" in output
    assert "{key: bad, operator: Exists, effect: NoSchedule}" in output


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (["--feature-gates", "Nope=true"], "--feature-gates: unknown feature gate Nope; known are DRAAdminAccess"),
        (["--controllers", "nope"], "--controllers: nope: not among templates, release, placement"),
    ],
)
async def test_a_wrong_setting_is_named(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str], setting: list[str], said: str
) -> None:
    code, output = await ask(capsys, kubeconfig, "pod", "pod", *setting)
    assert code == 2
    assert said in output


async def test_a_kubeconfig_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = await ask(capsys, tmp_path / "none", "pod", "pod")
    assert code == 2
    assert f"{tmp_path}/none does not exist" in output


async def test_warnings_about_a_pod_are_read(
    cluster: LiveCluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And of the events that tell of a scheduler's attempts, none."""
    await cluster.furnish(nodes=1, devices=1)
    spec = {"nodeName": "node-0", "containers": [{"name": "main", "image": "nosuch"}]}
    pod = await cluster.api.create(PODS, {"metadata": {"name": "bound", "namespace": "ns"}, "spec": spec})
    about = {"kind": "Pod", "namespace": "ns", "name": "bound", "uid": pod["metadata"]["uid"]}
    for reason, kind in (("Failed", "Warning"), ("FailedScheduling", "Warning"), ("Pulling", "Normal")):
        body: dict[str, Any] = {"metadata": {"name": f"bound.{reason.lower()}", "namespace": "ns"}}
        body |= {"involvedObject": about, "reason": reason, "message": f"said by {reason}", "type": kind}
        await cluster.api.create(EVENTS, body)
    code, output = await ask(capsys, kubeconfig, "pod/bound")
    assert code == 3
    assert "said by Failed\n" in output
    assert "said by FailedScheduling" not in output
    assert "said by Pulling" not in output
