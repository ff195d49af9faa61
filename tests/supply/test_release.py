"""What a release consists of: kubectl dra as one file, the plugin manifest of krew, manifests as one text."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from archive import ROOT, archive
from archive_main import tag_here
from command import kubectl_for
from dra_api import VERSION, yaml_text
from release import notes, plugin, rendered, tarball

HERE = {"here.txt": b"for this Python"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file for this Python, without the libraries, which the tests' own environment has."""
    file = tmp_path_factory.mktemp("made") / "kubectl-dra"
    content = archive({tag_here(): HERE, "cp999-other-machine": {"there.txt": b""}})
    assert content == archive({tag_here(): HERE, "cp999-other-machine": {"there.txt": b""}})
    file.write_bytes(content)
    return file


def run(made: Path, cache: Path) -> tuple[int, str]:
    """Exit code and what was printed."""
    environment = {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": sysconfig.get_paths()["purelib"], "PATH": os.defpath}
    found = subprocess.run(
        [sys.executable, str(made), "--version"], env=environment, capture_output=True, text=True, check=False
    )
    return found.returncode, found.stdout + found.stderr


def test_the_file_unpacks_what_suits_this_python_once_and_runs(made: Path, tmp_path: Path) -> None:
    assert run(made, tmp_path) == (0, f"kubectl dra {VERSION}\n")
    (unpacked,) = (tmp_path / "kubectl-dra").iterdir()
    assert (unpacked / "here.txt").read_bytes() == HERE["here.txt"]
    assert not (unpacked / "there.txt").exists()
    assert (unpacked / "dra_operator/kubectl/cli.py").exists()
    assert (unpacked.parent.stat().st_mode | unpacked.stat().st_mode) & 0o077 == 0
    (unpacked / "here.txt").unlink()  # would come back if it were unpacked again
    assert run(made, tmp_path)[0] == 0
    assert not (unpacked / "here.txt").exists()


def test_a_folder_into_which_others_write_is_refused(made: Path, tmp_path: Path) -> None:
    (tmp_path / "kubectl-dra").mkdir()
    (tmp_path / "kubectl-dra").chmod(0o777)
    code, text = run(made, tmp_path)
    assert (code, text.startswith("kubectl dra: others may write to ")) == (1, True)
    assert run(made, Path("/dev/null"))[1].startswith("kubectl dra: cannot unpack itself: ")


def test_a_python_for_which_it_has_nothing_is_told_which_it_is_for(tmp_path: Path) -> None:
    file = tmp_path / "kubectl-dra"
    file.write_bytes(archive({"cp311-other-machine": HERE, "cp312-other-machine": {}, "cp313-other-machine": HERE}))
    code, text = run(file, tmp_path)
    assert code == 1
    assert text.startswith("kubectl dra: this file is made for cp311-other-machine, cp313-other-machine, and not for ")


def test_the_manifest_of_krew_names_each_platform_with_its_hash() -> None:
    packed = tarball({"kubectl-dra": b"x", "LICENSE": b"y"})
    assert packed == tarball({"kubectl-dra": b"x", "LICENSE": b"y"})
    spec = plugin({"linux-aarch64": hashlib.sha256(packed).hexdigest(), "darwin-arm64": "0" * 64})["spec"]
    assert spec["version"] == f"v{VERSION}"
    assert [(it["selector"]["matchLabels"], it["sha256"]) for it in spec["platforms"]] == [
        ({"os": "linux", "arch": "arm64"}, hashlib.sha256(packed).hexdigest()),
        ({"os": "darwin", "arch": "arm64"}, "0" * 64),
    ]
    assert all(
        it["uri"].endswith(f"/v{VERSION}/kubectl-dra-{name}.tar.gz")
        for it, name in zip(spec["platforms"], ("linux-aarch64", "darwin-arm64"), strict=True)
    )
    assert len(spec["shortDescription"]) <= 50 + 1


def test_the_manifests_are_one_text_with_the_image_of_the_release(tmp_path: Path) -> None:
    kubectl_for(tmp_path, tmp_path)
    found = yaml_text.load_all(rendered("manifests/operator"))
    (deployment,) = (it for it in found if it["kind"] == "Deployment")
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == f"ghcr.io/kopf-dra/kopf-dra:{VERSION}"
    kinds = {it["kind"] for it in found}
    assert {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"} <= kinds


def test_notes_are_those_of_the_version() -> None:
    sections = (
        "# Changelog",
        "## [Unreleased]\n\nnew",
        f"## [{VERSION}] - 2026-11-28\n\n- what it has",
        "## [0.0.1] - 2026",
    )
    assert notes("\n\n".join(sections)) == "- what it has"
    with pytest.raises(SystemExit, match=f"no section `## .{VERSION}. - DATE`"):
        notes("# Changelog\n\n## [Unreleased]\n")


WORKFLOW = yaml_text.load((ROOT / ".github/workflows/release.yaml").read_text())
STEPS = [(name, step) for name, job in WORKFLOW["jobs"].items() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize(("job", "step"), STEPS, ids=[step["name"] for _, step in STEPS])
def test_the_release_workflow_publishes_only_on_a_tag_and_calls_what_exists(job: str, step: dict[str, str]) -> None:
    """Started by hand it is a dry run: a step that sends something away is left out."""
    script = step["run"]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    sends = re.search(r"\b(push|publish|gh release create|gh-deploy|imagetools create|registry login)\b", script)
    assert (step.get("if") == "env.PUBLISH == 'true'") == bool(sends or "--check-tag" in script), (job, step["name"])
    for targets in re.findall(r"\bmake ([a-z ]+)", script):
        for target in targets.split():
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
    for file in re.findall(r"\b(supply/\w+(?:\.py)?|manifests)\b", script):
        assert (ROOT / file).exists(), file


def test_the_release_workflow_sends_nothing_for_a_wrong_tag_and_sums_up_all_files() -> None:
    jobs = WORKFLOW["jobs"]
    assert any("--check-tag" in step.get("run", "") for step in jobs["check"]["steps"])
    assert (jobs["linux"]["needs"], jobs["release"]["needs"]) == ("check", "linux")
    names = [step.get("name", "") for step in jobs["release"]["steps"]]
    made = ("pure wheel, source, manifests, kubectl-dra, SBOM, site", "chart", "compiled wheels of both architectures")
    assert max(map(names.index, made)) < names.index("sums of all files") < names.index("publish the wheels")


def test_a_wheel_for_linux_is_built_by_the_script_of_the_workflow() -> None:
    """Its parts without a compiler: the lock that it installs has what the build hook needs."""
    script = (ROOT / "supply/linux_wheels").read_text()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    locked = (ROOT / "requirements-build.lock").read_text()
    assert {name for name in ("hatchling", "mypy", "setuptools", "msgspec") if f"\n{name}==" in f"\n{locked}"} == {
        "hatchling", "mypy", "setuptools", "msgspec"
    }  # fmt: skip
