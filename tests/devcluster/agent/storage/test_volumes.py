"""Volumes of pods as containers see them: mounted where the pod says, without rights, and nowhere else."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dra_devcluster.agent import AgentSettings
from dra_devcluster.agent.processes.process import why_impossible
from dra_kube import CONFIG_MAPS, SECRETS, Resource
from one_node import OneNode, execute
from waiting import until

Json = dict[str, Any]
SERVICE_ACCOUNTS = Resource("", ("v1",), "serviceaccounts", "ServiceAccount", True)
needs_mounts = pytest.mark.skipif(bool(why_impossible()), reason=f"no mounts on this machine: {why_impossible()}")


@pytest.fixture
def fast(fast: AgentSettings) -> AgentSettings:
    return replace(fast, volume_period=0.1)


def container(script: str, *mounts: Json, **fields: Any) -> Json:
    command = ["sh", "-c", script]
    return {"name": "c", "image": "busybox", "command": command, "volumeMounts": list(mounts)} | fields


def mount(name: str, path: str, **fields: Any) -> Json:
    return {"name": name, "mountPath": path} | fields


async def config_map(node: OneNode, name: str, **data: str) -> None:
    await node.api.create(CONFIG_MAPS, {"metadata": {"name": name, "namespace": "default"}, "data": data})


async def output(node: OneNode, script: str, *mounts: Json, volumes: list[Json], **spec: Any) -> str:
    """What a container prints that mounts these volumes."""
    await node.pod("pod-a", containers=[container(script, *mounts)], volumes=volumes, **spec)
    status = await node.phase("pod-a", "Succeeded")
    assert status["phase"] == "Succeeded"
    return await node.log("pod-a")


MADE_UP = ("/dra-devcluster-test", "/etc/dra-devcluster-test/deep", "/var/run/dra-devcluster-test")


def test_a_machine_on_which_unshare_can_mount_has_mounts_for_containers(tmp_path: Path) -> None:
    """Or all tests below would be skipped by a fault of what they ask for."""
    script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
    command = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", script]
    try:
        done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"cannot compare with unshare: {error}")
    if done.returncode != 0:
        pytest.skip(f"no mounts on this machine: {done.stderr}")
    assert why_impossible() == ""


@needs_mounts
async def test_a_volume_is_seen_where_the_pod_says_and_the_machine_stays_as_it_is(node: OneNode) -> None:
    """Also when one of the places is in the root of the file system, and in a folder that does not exist."""
    await config_map(node, "settings", a="one")
    script = "cat {0}/a {1}/a {2}/a; touch {1}/c 2>/dev/null || echo read-only; ls -d /etc/hostname /usr/bin"
    printed = await output(
        node,
        script.format(*MADE_UP),
        *(mount("v", place) for place in MADE_UP),
        volumes=[{"name": "v", "configMap": {"name": "settings"}}],
    )
    assert printed == "oneoneoneread-only\n/etc/hostname\n/usr/bin\n"
    assert not any(map(os.path.exists, ("/etc/dra-devcluster-test", *MADE_UP)))


@needs_mounts
async def test_chosen_keys_of_a_secret_get_their_paths_and_permissions(node: OneNode) -> None:
    data = {"key": base64.b64encode(b"\xff\x00secret").decode(), "other": ""}
    await node.api.create(SECRETS, {"metadata": {"name": "s", "namespace": "default"}, "data": data})
    items = [{"key": "key", "path": "sub/file", "mode": 0o400}]
    printed = await output(
        node,
        "find /data -type f | wc -l; stat -L -c %a /data/sub/file; od -An -tx1 -N3 /data/sub/file",
        mount("v", "/data"),
        volumes=[{"name": "v", "secret": {"secretName": "s", "items": items}}],
    )
    assert printed.split() == ["1", "400", "ff", "00", "73"]


@needs_mounts
async def test_the_downward_api_and_a_token_of_the_service_account_in_one_volume(node: OneNode) -> None:
    await node.api.create(SERVICE_ACCOUNTS, {"metadata": {"name": "robot", "namespace": "default"}})
    await config_map(node, "ca", **{"ca.crt": "certificate"})
    amount = {"containerName": "c", "resource": "requests.cpu", "divisor": "1m"}
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
        {"configMap": {"name": "ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"downwardAPI": {"items": [{"path": "cpu", "resourceFieldRef": amount}]}},
    ]
    one = container(
        "cd /info; cat name; echo; cat cpu; echo; cat ca.crt; echo; cut -d. -f2 token",
        mount("v", "/info"),
        resources={"requests": {"cpu": "250m"}},
    )
    volumes = [{"name": "v", "projected": {"sources": sources}}]
    await node.pod("pod-a", containers=[one], volumes=volumes, serviceAccountName="robot")
    await node.phase("pod-a", "Succeeded")
    name, cpu, certificate, claims = (await node.log("pod-a")).split()
    assert (name, cpu, certificate) == ("pod-a", "250", "certificate")
    token = json.loads(base64.urlsafe_b64decode(claims + "=="))
    assert token["sub"] == "system:serviceaccount:default:robot"


@needs_mounts
async def test_a_pod_with_a_service_account_of_its_own_can_reach_the_api_server(node: OneNode) -> None:
    await node.api.create(SERVICE_ACCOUNTS, {"metadata": {"name": "robot", "namespace": "default"}})
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    script = f"cat {place}/namespace; head -1 {place}/ca.crt; test -s {place}/token && echo token"
    await node.pod("pod-a", containers=[container(script)], serviceAccountName="robot")
    await node.phase("pod-a", "Succeeded")
    assert await node.log("pod-a") == "default-----BEGIN CERTIFICATE-----\ntoken\n"


@needs_mounts
@pytest.mark.parametrize(
    "spec", [{}, {"serviceAccountName": "robot", "automountServiceAccountToken": False}], ids=["default", "refused"]
)
async def test_a_pod_that_wants_no_token_has_none(node: OneNode, spec: Json) -> None:
    await node.api.create(SERVICE_ACCOUNTS, {"metadata": {"name": "robot", "namespace": "default"}})
    script = "test -e /var/run/secrets/kubernetes.io/serviceaccount/token || echo none"
    assert await output(node, script, volumes=[], **spec) == "none\n"


@needs_mounts
async def test_containers_share_an_empty_directory_and_parts_of_it(node: OneNode) -> None:
    init = container("mkdir /scratch/part; echo hello > /scratch/part/file", mount("v", "/scratch"), name="init")
    main = container(
        "cat /elsewhere/file; cat /one; touch /elsewhere/x 2>/dev/null || echo no; ls /by-name",
        mount("v", "/elsewhere", subPath="part", readOnly=True),
        mount("v", "/one", subPath="part/file"),
        mount("v", "/by-name", subPathExpr="$(POD)"),
        env=[{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    )
    await node.pod("pod-a", containers=[main], initContainers=[init], volumes=[{"name": "v", "emptyDir": {}}])
    await node.phase("pod-a", "Succeeded")
    assert await node.log("pod-a", container="c") == "hello\nhello\nno\n"


@needs_mounts
async def test_the_kubelets_folder_of_a_container_is_that_of_its_node(node: OneNode) -> None:
    volumes = [
        {"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/plugins", "type": "DirectoryOrCreate"}},
        {"name": "cdi", "hostPath": {"path": "/var/run/cdi"}},
    ]
    await output(
        node,
        "echo a > /var/lib/kubelet/plugins/file; echo b > /var/run/cdi/file",
        mount("plugins", "/var/lib/kubelet/plugins"),
        mount("cdi", "/var/run/cdi"),
        volumes=volumes,
    )
    assert (node.root / "plugins" / "file").read_text() == "a\n"
    assert (node.cdi_root / "file").read_text() == "b\n"


@needs_mounts
async def test_a_running_container_sees_the_changes_of_a_config_map(node: OneNode, tmp_path: Path) -> None:
    await config_map(node, "settings", a="old", gone="x")
    seen = tmp_path / "seen"
    # As with a kubelet, contents change in one step, and names a moment later.
    script = f"while ! grep -q new /config/a; do sleep 0.05; done; while sleep 0.05; do ls /config > {seen}; done"
    volumes = [{"name": "v", "configMap": {"name": "settings"}}]
    await node.pod("pod-a", containers=[container(script, mount("v", "/config"))], volumes=volumes)
    await node.phase("pod-a", "Running")
    await node.api.patch(CONFIG_MAPS, "settings", {"data": {"a": "new", "gone": None, "b": "two"}}, "default")

    async def told() -> bool:
        return seen.exists() and seen.read_text().split() == ["a", "b"]

    await until("the container sees the change", told)


@needs_mounts
async def test_exec_sees_the_mounts_of_the_container(node: OneNode) -> None:
    await config_map(node, "settings", a="one")
    volumes = [{"name": "v", "configMap": {"name": "settings"}}]
    await node.pod("pod-a", containers=[container("sleep 100", mount("v", "/config"))], volumes=volumes)
    await node.phase("pod-a", "Running")
    assert (await execute(node, "cat", "/config/a"))[0] == b"one"


@needs_mounts
async def test_a_program_that_does_not_exist_ends_the_container_with_a_line_in_its_log(node: OneNode) -> None:
    one = container("", mount("v", "/v"), command=["no-such-program"])
    await node.pod("pod-a", containers=[one], volumes=[{"name": "v", "emptyDir": {}}])
    status = await node.phase("pod-a", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 128
    assert await node.log("pod-a") == 'exec: "no-such-program": executable file not found in $PATH\n'


# --- what cannot be provided ---

FAULTS: dict[str, tuple[Json, str]] = {
    "a ConfigMap that does not exist": (
        {"configMap": {"name": "none"}},
        'MountVolume.SetUp failed for volume "v" : configmap "none" not found',
    ),
    "a key that does not exist": (
        {"configMap": {"name": "settings", "items": [{"key": "none", "path": "x"}]}},
        'MountVolume.SetUp failed for volume "v" : configmap settings references non-existent config key: none',
    ),
    "a host path of another type": (
        {"hostPath": {"path": "/etc", "type": "File"}},
        'MountVolume.SetUp failed for volume "v" : hostPath type check failed: /etc is not a file',
    ),
    "a host path that does not exist": (
        {"hostPath": {"path": "/nowhere", "type": "Socket"}},
        'MountVolume.SetUp failed for volume "v" : hostPath type check failed: /nowhere is not a socket file',
    ),
    "a source of an unsupported kind": (
        {"projected": {"sources": [{"clusterTrustBundle": {"name": "x", "path": "x"}}]}},
        'MountVolume.SetUp failed for volume "v" : '
        "a source of a projected volume is of a kind that is not supported here",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
async def test_a_pod_waits_for_its_volumes_and_says_which(case: str, node: OneNode) -> None:
    volume, message = FAULTS[case]
    await config_map(node, "settings", a="one")
    await node.pod("pod-a", containers=[container("true", mount("v", "/v"))], volumes=[{"name": "v"} | volume])
    event = await node.event("pod-a", "FailedMount")
    assert (event["type"], event["message"]) == ("Warning", message)
    assert (await node.get("pod-a"))["status"]["phase"] == "Pending"


async def test_a_pod_runs_as_soon_as_the_missing_config_map_is_there_and_does_not_wait_for_an_optional_one(
    node: OneNode,
) -> None:
    volumes = [
        {"name": "v", "configMap": {"name": "late"}},
        {"name": "w", "configMap": {"name": "never", "optional": True}},
    ]
    await node.pod("pod-a", containers=[container("true", mount("v", "/v"), mount("w", "/w"))], volumes=volumes)
    await node.event("pod-a", "FailedMount")
    await config_map(node, "late", a="one")
    await node.phase("pod-a", "Succeeded")


async def test_a_machine_that_forbids_mounts_runs_the_container_without_and_says_so(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_devcluster.agent.containers.container.why_impossible", lambda: "Operation not permitted")
    volumes = [{"name": "v", "emptyDir": {}}]
    assert await output(node, "test -d /v || echo none", mount("v", "/v"), volumes=volumes) == "none\n"
    event = await node.event("pod-a", "NotCarriedOut")
    assert event["message"].endswith(
        "without their volumeMounts (this machine forbids mount namespaces: Operation not permitted)"
    )


async def test_a_volume_of_an_unsupported_kind_is_left_out_and_an_event_says_so(node: OneNode) -> None:
    volumes = [{"name": "v", "nfs": {"server": "s", "path": "/"}}]
    await output(node, "true", mount("v", "/v"), volumes=volumes)
    event = await node.event("pod-a", "NotCarriedOut")
    assert event["message"].endswith("without their volume v (of an unsupported kind)")


@needs_mounts
@pytest.mark.parametrize(
    ("makes", "message"),
    [
        ("ln -s / /v/out", "subPath 'out/etc' leads out of volume v"),
        ("touch /v/out", "subPath 'out/etc' of volume v: [Errno 20] Not a directory"),
    ],
)
async def test_a_part_that_is_outside_of_its_volume_or_no_folder_is_refused(
    node: OneNode, makes: str, message: str
) -> None:
    volumes = [{"name": "v", "emptyDir": {}}]
    link = container(makes, mount("v", "/v"), name="init")
    main = container("true", mount("v", "/w", subPath="out/etc"))
    await node.pod("pod-a", containers=[main], initContainers=[link], volumes=volumes)
    await node.event("pod-a", "Failed", message)
