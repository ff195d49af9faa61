"""How the distribution is put together: what a checkout, a wheel and a command line need to work."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from dra_api import VERSION

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = PROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"]
SCRIPTS = sorted(name for name in PROJECT["project"]["scripts"] if not name.startswith("kubectl_complete-"))
"""What people call; kubectl alone calls the other."""
PACKAGES = [Path(package) for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_room_is_a_plain_folder_since_a_package_named_operator_would_shadow_the_standard_library(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_each_package_is_typed(package: Path) -> None:
    assert (ROOT / package / "py.typed").exists()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_every_file_of_every_package_and_nothing_else(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", *map(str, PACKAGES)], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    names = {str(Path(*Path(file).parts[1:])) for file in tracked if (ROOT / file).exists()}
    assert names <= packed, f"missing in the wheel: {sorted(names - packed)}"
    assert {name.split("/")[0] for name in packed} == {package.name for package in PACKAGES}


def test_every_package_imports_from_the_wheel_alone(wheel: Path) -> None:
    names = ", ".join(package.name for package in PACKAGES)
    script = f"import sys; sys.path.insert(0, {str(wheel)!r}); import {names}; print({PACKAGES[0].name}.__file__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=wheel.parent)
    assert done.returncode == 0, done.stderr
    assert str(wheel) in done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_console_script_answers_help(script: str) -> None:
    done = subprocess.run([str(Path(sys.executable).parent / script), "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout.lower()


def untold(parser: argparse.ArgumentParser) -> Iterator[str]:
    """What has no help of the parser and the commands below it."""
    if not parser.description:
        yield f"{parser.prog}: description"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {choice.dest for choice in action._choices_actions if choice.help}
            yield from (f"{parser.prog} {name}" for name in action.choices.keys() - told)
            for below in action.choices.values():
                yield from untold(below)
        elif not action.help:
            yield f"{parser.prog} {action.option_strings or action.dest}"


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_command_and_option_has_help(script: str) -> None:
    module = PROJECT["project"]["scripts"][script].partition(":")[0].replace("kubectl.start", "kubectl.cli")
    assert list(untold(import_module(module).parser())) == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_console_script_tells_the_version(script: str) -> None:
    done = subprocess.run([str(Path(sys.executable).parent / script), "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{script.replace('kubectl-', 'kubectl ')} {VERSION}\n")


def test_the_wheel_has_the_version(wheel: Path) -> None:
    assert wheel.name.split("-")[1] == VERSION


def test_manifests_and_pages_name_the_image_of_this_version() -> None:
    files = [ROOT / "README.md", *(ROOT / "manifests").rglob("*.yaml")]
    tags = {tag for file in files for tag in re.findall(r"kopf-dra/kopf-dra:([\w.]+)", file.read_text())}
    assert tags == {VERSION}


def test_ci_runs_tests_that_exist() -> None:
    """A file that was renamed would end the run on the newest Python, after a quarter of an hour."""
    script = (ROOT / ".ci/run").read_text()
    lists = re.findall(r"^for (\w+) in ([\w ]+);.*?(tests/\w+/test_)\$\1\.py", script, re.MULTILINE | re.DOTALL)
    named = re.findall(r"tests/[\w/]+(?:\.py)?", re.sub(r"tests/\w+/test_\$\w+\.py", "", script))
    named += [f"{start}{name}.py" for _, names, start in lists for name in names.split()]
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert len(lists) == 2
    assert len(named) > 12
