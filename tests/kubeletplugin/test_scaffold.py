"""``dra-kubelet-plugin new``: what it writes works as it is."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dra_kubeletplugin import SettingsError
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.scaffold import create

ROOT = Path(__file__).resolve().parents[2]
FILES = ["gpu_driver.py", "test_gpu_driver.py", "Dockerfile", "gpu_driver.yaml", "pod.yaml"]


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
    try:
        test = runpy.run_path(str(tests))["test_a_container_is_told_its_device"]
        (cases,) = (mark.args[1] for mark in test.pytestmark)
        for device in cases:
            test(device)
    finally:
        sys.modules.pop(driver.stem, None)


def test_a_new_driver_passes_strict_checks(tmp_path: Path) -> None:
    create("gpu.example.com", tmp_path)
    ruff = [str(Path(sys.executable).parent / "ruff"), "check", "--isolated", "--select", "E,F,I,UP,B", str(tmp_path)]
    checked = subprocess.run([*ruff, "--line-length", "120"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_its_permissions_are_those_of_the_drivers_that_ship_with_the_library(tmp_path: Path) -> None:
    create("gpu.example.com", tmp_path)
    ours = yaml.safe_load_all((ROOT / "manifests/plugin/rbac.yaml").read_text())
    (known,) = (item["rules"] for item in ours if item["kind"] == "ClusterRole")
    written = yaml.safe_load_all((tmp_path / "gpu_driver.yaml").read_text())
    (rules,) = (item["rules"] for item in written if item["kind"] == "ClusterRole")
    without_status = [rule for rule in known if rule["resources"][0].partition("/")[2] == ""]
    assert rules == without_status


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
