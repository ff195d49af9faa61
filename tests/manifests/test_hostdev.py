"""The component that deploys the driver of host devices fits that driver, and grants no more than it needs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import ROOT, Kubectl, kubectl_for
from dra_api import yaml_text
from dra_devcluster.apiserver import DevApiServer
from dra_kubeletplugin.cli import parser
from dra_kubeletplugin.drivers.hostdev.config import read_config

COMMON = {"/etc/dra", "/var/lib/kubelet/plugins_registry", "/var/run/cdi"}
NAME = "hostdev.dra.kopf.dev"


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    async with DevApiServer() as server:
        yield kubectl_for(server.write_kubeconfig(tmp_path / "kubeconfig"), tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A kustomization as docs/hostdev.md shows it, elsewhere."""
    folder = tmp_path / "root"
    folder.mkdir()
    up = os.path.relpath(ROOT / "manifests", folder)
    content = {"resources": [f"{up}/plugin"], "components": [f"{up}/components/hostdev"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return folder


async def test_a_server_accepts_what_it_renders(kubectl: Kubectl, root: Path) -> None:
    await kubectl("create", "namespace", "dra-plugins")
    assert "created (server dry run)" in await kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-k", str(root)
    )


async def test_what_it_renders_is_a_driver_of_host_devices_and_no_other(
    kubectl: Kubectl, root: Path, tmp_path: Path
) -> None:
    rendered = yaml_text.load_all(await kubectl("kustomize", str(root)))
    objects: dict[str, Any] = {obj["kind"]: obj for obj in rendered}
    assert len([obj for obj in rendered if obj["kind"] == "DeviceClass"]) == 1
    policies = {obj["metadata"]["name"]: str(obj) for obj in rendered if obj["kind"] == "ValidatingAdmissionPolicy"}
    assert {name: (NAME in text, "simulated" in text) for name, text in policies.items()} == dict.fromkeys(
        ("dra-plugin-resourceslices", "dra-plugin-events"), (True, False)
    )
    pod = objects["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = parser().parse_args(container["command"][1:])
    (file,) = objects["ConfigMap"]["data"]
    assert options.config == f"/etc/dra/{file}"
    config = tmp_path / file
    config.write_text(objects["ConfigMap"]["data"][file])
    read = read_config(config)
    assert read.devices == read_config(ROOT / "examples/hostdev/serial.yaml").devices
    assert read.driver_name == NAME

    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    hosts = {volume["name"]: volume.get("hostPath", {}).get("path", "/etc/dra") for volume in pod["volumes"]}
    assert {path: hosts[mount["name"]] for path, mount in mounts.items()} == {path: path for path in mounts}
    assert mounts.keys() == COMMON | {f"/var/lib/kubelet/plugins/{NAME}", "/dev", "/run/udev/data"}
    assert {path for path, mount in mounts.items() if mount.get("readOnly")} == {"/etc/dra", "/dev", "/run/udev/data"}
    assert not container["terminationMessagePath"].startswith("/dev/"), "the runtime makes that file"
    assert {resource for rule in objects["ClusterRole"]["rules"] for resource in rule["resources"]} == {
        "resourceclaims",
        "resourceslices",
        "nodes",
    }


async def test_network_interfaces_need_the_network_of_the_node(kubectl: Kubectl, root: Path) -> None:
    """Without it the plugin saw its own pod's eth0, and the runtime took the node's of that name."""
    file = root / "kustomization.yaml"
    content = yaml_text.load(file.read_text())
    content["components"].append(content["components"][0] + "-interfaces")
    file.write_text(yaml.safe_dump(content))
    rendered = yaml_text.load_all(await kubectl("kustomize", str(root)))
    (spec,) = (obj["spec"] for obj in rendered if obj["kind"] == "DaemonSet")
    assert spec["template"]["spec"]["hostNetwork"] is True
    [addresses] = (it for it in spec["template"]["spec"]["containers"][0]["env"] if it["name"] == "HOST_IPS")
    assert addresses["valueFrom"]["fieldRef"]["fieldPath"] == "status.hostIPs"
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}, "the port is the node's"
    await kubectl("create", "namespace", "dra-plugins")
    assert "created (server dry run)" in await kubectl("apply", "--dry-run=server", "-k", str(root))


async def test_its_class_selects_the_devices_of_its_configuration(kubectl: Kubectl, root: Path) -> None:
    rendered = yaml_text.load_all(await kubectl("kustomize", str(root)))
    (one,) = (obj for obj in rendered if obj["kind"] == "DeviceClass")
    (selector,) = (item["cel"]["expression"] for item in one["spec"]["selectors"])
    assert one["metadata"]["name"] == "serial"
    assert f'device.driver == "{NAME}"' in selector
    assert f'device.attributes["{NAME}"].entry == "serial"' in selector
