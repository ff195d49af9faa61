"""What can be proved of the Dockerfile without an engine: its files suffice for its build, and its command is real."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command import ROOT
from dra_api import yaml_text
from rounds import LONG

Instruction = tuple[str, str]
DEPLOYMENT = ROOT / "manifests" / "operator" / "deployment.yaml"


def stages() -> list[list[Instruction]]:
    """The instructions of each stage, without those before the first; a backslash at the end of a line continues it."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found: list[list[Instruction]] = []
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


def texts(stage: list[Instruction], word: str) -> list[str]:
    return [rest for found, rest in stage if found == word]


def copied() -> list[tuple[str, str]]:
    """Source and destination of what the build stage takes from the checkout."""
    pairs = []
    for text in texts(stages()[0], "COPY"):
        *sources, destination = text.split()
        for source in sources:
            is_folder = (ROOT / source).is_dir()
            pairs.append((source, destination if is_folder else str(Path(destination, Path(source).name))))
    return pairs


def test_two_stages_and_the_last_takes_only_what_was_installed() -> None:
    build, image = stages()
    assert texts(build, "FROM")[0].endswith(" AS build")
    assert texts(image, "COPY") == ["--from=build /opt/kopf-dra /opt/kopf-dra"]
    assert any("/opt/kopf-dra" in text and "-m venv" in text for text in texts(build, "RUN"))
    assert any(text.startswith("PATH=/opt/kopf-dra/bin:") for text in texts(image, "ENV"))


def test_the_allocator_of_the_image_is_compiled_with_locked_tools() -> None:
    """The compiler is in the build stage only; mypyc and setuptools come from the lock of the build."""
    build, image = stages()
    assert any("KOPF_DRA_COMPILE=1" in text for text in texts(build, "ENV"))
    assert any("gcc" in text for text in texts(build, "RUN"))
    assert not any("gcc" in text for text in texts(image, "RUN"))
    assert {"hatchling", "mypy", "setuptools", "msgspec"} <= versions("requirements-build.lock").keys()


def test_it_does_not_run_as_root() -> None:
    (user,) = texts(stages()[-1], "USER")
    assert all(part.isdecimal() and int(part) > 0 for part in user.split(":")), (
        "only numbers can be checked by a kubelet"
    )
    (entries,) = texts(stages()[-1], "RUN")
    assert f":{user}:" in entries, "without an entry in /etc/passwd the group is 0 where a pod names none"


def test_its_command_is_that_of_the_deployment() -> None:
    (command,) = texts(stages()[-1], "CMD")
    pod = yaml_text.load(DEPLOYMENT.read_text())["spec"]["template"]["spec"]
    assert json.loads(command) == pod["containers"][0]["command"]


def test_the_commands_are_console_scripts() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    daemons = yaml_text.load((ROOT / "manifests" / "plugin" / "daemonset.yaml").read_text())
    for text in (
        texts(stages()[-1], "CMD")[0],
        json.dumps(daemons["spec"]["template"]["spec"]["containers"][0]["command"]),
    ):
        assert json.loads(text)[0] in scripts


def versions(lock: str) -> dict[str, str]:
    """Name and version of every package in a lock file."""
    return dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / lock).read_text(), re.MULTILINE))


def test_the_image_has_the_versions_that_are_tested() -> None:
    tested, image = versions("requirements.lock"), versions("requirements-image.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = (
        project["dependencies"] + project["optional-dependencies"]["otel"]
    )  # traces are switched on in the manifests
    direct = {re.split(r"[<>=\[]", each)[0] for each in wanted}
    assert direct <= image.keys()
    assert image.items() <= tested.items(), "run make lock"


@pytest.mark.parametrize("lock", ["requirements-image.lock", "requirements-build.lock"])
def test_every_file_of_the_image_is_known_by_its_hash(lock: str) -> None:
    text = re.sub(r" *\\\n *", " ", (ROOT / lock).read_text())
    assert [line for line in text.splitlines() if "--hash=sha256:" not in line] == []
    installs = [text for text in texts(stages()[0], "RUN") if f"--requirement {lock}" in text]
    assert all("--require-hashes" in text for text in installs)
    assert installs


def test_the_base_is_pinned_in_one_place() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^ARG BASE=\S+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${BASE}", "${BASE}"]


def test_the_context_holds_only_what_is_copied() -> None:
    """Everything is ignored but for what the Dockerfile names: no kubeconfig gets in by accident."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert let_in == {source for source, _ in copied()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the Dockerfile's own commands put the project, given nothing but the files that are copied."""
    context = tmp_path_factory.mktemp("context")
    for source, destination in copied():
        assert (ROOT / source).exists(), f"COPY {source}: not in the checkout"
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, context / destination, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, context / destination)
    (run,) = [text for text in texts(stages()[0], "RUN") if "hatchling build" in text]
    wheel, install = (shlex.split(command)[1:] for command in run.split("&&"))
    prefix = tmp_path_factory.mktemp("prefix")
    installing(wheel, context)
    (built,) = (context / "dist").glob("*.whl")
    words = install[install.index("install") : -1]
    installing(["-m", "pip", *words, "--ignore-installed", "--prefix", str(prefix), str(built)], context)
    return prefix


def installing(words: list[str], context: Path) -> None:
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=context, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr


@LONG
def test_the_copied_files_suffice_for_the_build(installed: Path) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert {path.name for path in (installed / "bin").iterdir()} == set(scripts)
    (packages,) = installed.glob("lib*/python3*/site-packages")
    check = (
        f"import sys; sys.path.insert(0, {str(packages)!r})\n"
        + "".join(f"import {target.partition(':')[0]}\n" for target in scripts.values())
        + "from dra_devcluster.apiserver import DevApiServer\n"  # reads its structure data
        "print(DevApiServer().port, dra_devcluster.__path__)"
    )
    done = subprocess.run([sys.executable, "-c", check], cwd=installed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(packages) in done.stdout
