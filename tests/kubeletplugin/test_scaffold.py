"""``dra-kubelet-plugin new``: what it writes works as it is."""

from __future__ import annotations

import asyncio
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dra_api import VERSION
from dra_devcluster.apiserver import DevApiServer
from dra_devcluster.apiserver.rbac import Attributes, Rule
from dra_driver_test.cli import parser as kit_options
from dra_kube import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Api, connection
from dra_kubeletplugin import ClaimRef, PluginSettings, SettingsError
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.commands.subcommands import create
from dra_kubeletplugin.testing import FakeKubelet
from manifest_accounts import recorded
from waiting import becomes

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ".github/workflows/test.yaml"
FILES = [
    "gpu_driver.py",
    "test_gpu_driver.py",
    "conftest.py",
    "pyproject.toml",
    WORKFLOW,
    "Dockerfile",
    "gpu_driver.yaml",
    "pod.yaml",
]


def test_the_command_writes_a_driver_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "gpu.example.com"]) == 0
    *paths, hint = capsys.readouterr().out.splitlines()
    assert paths == [f"gpu/{name}" for name in FILES]
    assert hint == "Now: pytest gpu/test_gpu_driver.py, then python gpu/gpu_driver.py --help"
    assert not [line for name in FILES for line in (tmp_path / "gpu" / name).read_text().splitlines() if "$$" in line]


@pytest.mark.parametrize("name", ["gpu.example.com", "my-own-card.example.com", f"{'x' * 60}.io"])
def test_the_tests_of_a_new_driver_pass(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, tests, *_ = create(name, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert driver.stem not in sys.modules, "another test left a module of that name"
    try:
        test = runpy.run_path(str(tests))["test_a_container_is_told_its_device"]
        (cases,) = (mark.args[1] for mark in test.pytestmark)
        for device in cases:
            test(device)
    finally:
        sys.modules.pop(driver.stem, None)


def lint(folder: Path) -> None:
    """As in a repository of the driver's own: ruff tells its modules from others by where it is started."""
    ruff = [str(Path(sys.executable).parent / "ruff"), "check", "--isolated", "--select", "E,F,I,UP,B", "."]
    checked = subprocess.run([*ruff, "--line-length", "120"], capture_output=True, text=True, check=False, cwd=folder)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", ["gpu.example.com", "a-card.example.com"])
def test_a_new_driver_passes_strict_checks(tmp_path: Path, name: str) -> None:
    create(name, tmp_path)
    lint(tmp_path)


@pytest.mark.parametrize("network_attached", [False, True])
def test_its_files_need_no_exception_from_a_linter(tmp_path: Path, network_attached: bool) -> None:
    create("gpu.example.com", tmp_path, network_attached=network_attached)
    texts = {path.name: path.read_text() for path in tmp_path.rglob("*.py")}
    assert [name for name, text in texts.items() if "noqa" in text or "sys.path" in text] == []


def test_its_tests_run_in_another_project_that_configures_pytest(tmp_path: Path) -> None:
    """As in a clone of this one, whose import mode adds no folder to sys.path."""
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n')
    create("gpu.example.com", tmp_path / "gpu")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "gpu/test_gpu_driver.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "3 passed" in ran.stdout


@pytest.mark.parametrize("network_attached", [False, True])
def test_the_workflow_tests_the_driver_from_a_git_url(tmp_path: Path, network_attached: bool) -> None:
    create("gpu.example.com", tmp_path, network_attached=network_attached)
    text = (tmp_path / WORKFLOW).read_text()
    workflow = yaml.safe_load(text)
    assert workflow["env"]["KOPF_DRA"] == (f"kopf-dra[testing] @ git+https://github.com/kopf-dra/kopf-dra@v{VERSION}")
    assert f"kopf_dra-{VERSION}-py3-none-any.whl[testing]" in text, "a wheel does as well"
    steps = workflow["jobs"]["test"]["steps"]
    assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in steps if "uses" in step), "pinned"
    install, own, *kit = [step["run"] for step in steps if "run" in step]
    assert (install, own) == ('pip install "$KOPF_DRA"', "pytest")
    assert bool(kit) is not network_attached
    for command in kit:
        program, *arguments = shlex.split(command)
        options = kit_options().parse_args(arguments)
        assert (program, options.quick, options.jobs) == ("dra-driver-test", True, 4)
        assert (tmp_path / options.command[1]).exists()


def rules(manifest: str) -> list[dict[str, Any]]:
    """Those of the one ClusterRole."""
    (found,) = (item["rules"] for item in yaml.safe_load_all(manifest) if item["kind"] == "ClusterRole")
    return list(found)


def test_with_its_comment_it_has_the_permissions_of_a_driver_that_reports_devices(tmp_path: Path) -> None:
    create("gpu.example.com", tmp_path)
    written = (tmp_path / "gpu_driver.yaml").read_text()
    known, reporting = (
        rules((ROOT / f"manifests/{file}.yaml").read_text().replace("simulated.dra.example.com", "gpu.example.com"))
        for file in ("plugin/rbac", "components/device-status/rbac")
    )
    assert rules(written) == known
    with_comment = rules(re.sub(r"^  # (?=- |  )", "  ", written, flags=re.MULTILINE))
    assert [rule for rule in with_comment if rule not in known] == reporting
    assert len(with_comment) == len([*known, *reporting])


async def test_a_new_driver_asks_for_each_of_its_permissions_and_for_no_other(short_path: Path) -> None:
    """It finds slices of an earlier version of itself: one has to change, and one has to go."""
    program, *_ = create("gpu.example.com", short_path)
    (short_path / "k" / "plugins_registry").mkdir(parents=True)
    settings = PluginSettings(
        driver_name="gpu.example.com",
        registry_dir=short_path / "k/plugins_registry",
        data_dir=short_path / "k/plugins/gpu.example.com",
    )
    with recorded() as seen:
        async with DevApiServer() as server:
            kubeconfig = server.write_kubeconfig(short_path / "kubeconfig")
            async with Api(connection(kubeconfig)) as api:
                await api.create(NODES, {"metadata": {"name": "worker-1"}})
                for pool in ("worker-1", "old"):
                    await api.create(RESOURCE_SLICES, slice_of(pool))
                claim = await api.create(RESOURCE_CLAIMS, CLAIM)
                await api.patch(RESOURCE_CLAIMS, "claim", {"status": ALLOCATED}, "default", subresource="status")
                seen.clear()
                flags = [
                    "--node-name",
                    "worker-1",
                    "--kubelet-dir",
                    f"{short_path}/k",
                    "--cdi-dir",
                    f"{short_path}/cdi",
                ]
                process = await asyncio.create_subprocess_exec(
                    sys.executable, str(program), *flags, "--kubeconfig", str(as_node(server, short_path))
                )
                try:
                    await becomes(settings.registration_path.exists)
                    async with FakeKubelet(settings) as kubelet:
                        await kubelet.register()
                        ref = ClaimRef("default", "claim", claim["metadata"]["uid"])
                        assert not (await kubelet.prepare([ref]))[ref.uid].error
                        await becomes(lambda: asked(seen) >= NEEDED - TO_CREATE)
                        await api.delete(RESOURCE_SLICES, slice_of("worker-1")["metadata"]["name"])
                        await becomes(lambda: asked(seen) >= NEEDED)
                        assert not (await kubelet.unprepare([ref]))[ref.uid].error
                finally:
                    process.terminate()
                    await process.wait()
    allowed = {part for rule in rules((short_path / "gpu_driver.yaml").read_text()) for part in Rule.of(rule).parts()}
    assert asked(seen) == NEEDED
    assert {(*part.verbs, *part.resources) for part in allowed} == NEEDED | {AFTER_A_CONFLICT}


def asked(seen: set[Attributes]) -> set[tuple[str, str]]:
    """Verb and resource of each question of the driver; other clusters of this process have other users."""
    return {(each.verb, each.full_resource) for each in seen if each.user.name == "system:node:worker-1"}


def as_node(server: DevApiServer, folder: Path) -> Path:
    """A kubeconfig for the driver's node."""
    content = server.kubeconfig
    content["users"][0]["user"] = {"token": server.node_token("worker-1")}
    path = folder / "node.kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path


def slice_of(pool: str) -> dict[str, Any]:
    """Of an earlier version of the driver."""
    spec = {
        "driver": "gpu.example.com",
        "nodeName": "worker-1",
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    }
    return {"metadata": {"name": f"00000-gpu.example.com-{pool}"}, "spec": spec}


SLICES = "resourceslices"
NEEDED = {("get", "nodes"), ("get", "resourceclaims"),
          *((verb, SLICES) for verb in ("list", "watch", "create", "update", "delete"))}  # fmt: skip
TO_CREATE = {("create", SLICES), ("get", "nodes")}
AFTER_A_CONFLICT = ("get", SLICES)
"""The story has no conflict; tests/manifests has one."""
CLAIM = {
    "metadata": {"name": "claim", "namespace": "default"},
    "spec": {"devices": {"requests": [{"name": "req", "exactly": {"deviceClassName": "gpu.example.com"}}]}},
}
ALLOCATED = {
    "allocation": {
        "devices": {"results": [{"request": "req", "driver": "gpu.example.com", "pool": "worker-1", "device": "gpu-0"}]}
    }
}


def test_files_that_exist_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pod.yaml").write_text("mine")
    assert main(["new", "gpu.example.com", str(tmp_path)]) == 2
    assert f"{tmp_path}/pod.yaml exists: choose another folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["pod.yaml"]


@pytest.mark.parametrize("name", ["GPU", "3d.example.com", "", "a/b"])
def test_a_name_that_no_driver_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="driver name"):
        create(name, tmp_path / "new")
    assert not (tmp_path / "new").exists()


# --- devices of a network ---


def test_a_new_driver_of_a_network_has_a_controller_and_its_tests_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "--network-attached", "net.example.com"]) == 0
    *paths, _ = capsys.readouterr().out.splitlines()
    assert "net/net_driver_controller.py" in paths
    checked = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "net")],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout
    lint(tmp_path / "net")


def test_the_rights_of_a_network_driver_are_split_between_its_parts(tmp_path: Path) -> None:
    create("net.example.com", tmp_path, network_attached=True)
    items = list(yaml.safe_load_all((tmp_path / "net_driver.yaml").read_text()))
    roles = {item["metadata"]["name"]: item["rules"] for item in items if item["kind"] == "ClusterRole"}
    assert roles["net-driver"] == [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]}
    ]
    assert {resource for rule in roles["net-driver-controller"] for resource in rule["resources"]} == {
        "resourceclaims",
        "resourceclaims/status",
        "resourceclaims/driver",
        "resourceslices",
    }
    own = {item["metadata"]["name"]: item["rules"] for item in items if item["kind"] == "Role"}
    assert own.keys() == {"net-driver-controller"}, "the node part writes no events"
    events = {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}
    assert events in own["net-driver-controller"]
    names = [(item["kind"], item["metadata"]["name"]) for item in items]
    assert len(set(names)) == len(names)
    assert {"DaemonSet", "Deployment", "DeviceClass"} <= {kind for kind, _ in names}
    assert "$" not in (tmp_path / "Dockerfile").read_text()
    assert "net_driver_controller.py" in (tmp_path / "Dockerfile").read_text()
