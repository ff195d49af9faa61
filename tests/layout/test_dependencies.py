"""What is declared is what is imported, and each dependency is justified and pinned."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from dra_devcluster.cli import EXTRA

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [ROOT / package for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
DATA = {"tzdata"}  # read by the standard library, imported by no module
PLUGINS = {"pytest-asyncio"}  # found by pytest, imported by no module


def names(requirements: list[str]) -> set[str]:
    """The distributions of requirements, without our own and its extras."""
    found = {re.split(r"[\[<>=;~! ]", requirement)[0].lower() for requirement in requirements}
    return found - {PROJECT["project"]["name"]}


EXTRAS = {extra: names(lines) for extra, lines in PROJECT["project"]["optional-dependencies"].items()}
RUNTIME = names(PROJECT["project"]["dependencies"])
DEVCLUSTER = EXTRAS["devcluster"]
DECLARED = RUNTIME.union(*EXTRAS.values())


def distributions(packages: Iterable[Path]) -> set[str]:
    """The distributions whose modules our packages import."""
    modules = {name.partition(".")[0] for name in imported(packages)} - {package.name for package in PACKAGES}
    foreign = modules - sys.stdlib_module_names - {"google", "opentelemetry"}
    owners = packages_distributions()
    used = {owners[name][0].lower().replace("_", "-") for name in foreign}
    if "google" in modules:  # a namespace of many distributions; of ours only this one
        used.add("protobuf")
    if "opentelemetry" in modules:  # likewise
        used |= EXTRAS["otel"]
    return used


def imported(packages: Iterable[Path]) -> Iterator[str]:
    """The modules that packages name in import statements."""
    for file in (file for package in packages for file in package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                yield node.module


def test_the_base_is_what_operator_and_plugin_library_import() -> None:
    base = distributions(package for package in PACKAGES if package.parent.name != "devcluster")
    assert base == RUNTIME - DATA | EXTRAS["testing"] - PLUGINS | EXTRAS["otel"] | EXTRAS["quality"]


def test_the_extra_is_what_only_the_development_cluster_and_the_test_kit_import() -> None:
    used = distributions(package for package in PACKAGES if package.parent.name == "devcluster")
    assert used - RUNTIME - EXTRAS["testing"] == DEVCLUSTER  # pytest has the plugin of the kit imported
    owners = packages_distributions()
    assert {owners[module][0].lower().replace("_", "-") for module in EXTRA} == DEVCLUSTER


def test_the_development_cluster_says_which_extra_is_missing() -> None:
    script = "import sys; sys.modules['orjson'] = None; import dra_devcluster.cli as cli; sys.exit(cli.main(['up']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        "dra-devcluster: orjson is not installed: pip install 'kopf-dra[devcluster]'\n",
    )


def test_every_dependency_is_justified_once() -> None:
    rows = re.findall(
        r"^\| (?!Package)([a-zA-Z].*?) \| .+ \|$", (ROOT / "docs/dependencies.md").read_text(), re.MULTILINE
    )
    justified = [name.lower() for row in rows for name in row.split(", ")]
    assert sorted(justified) == sorted(DECLARED)


def test_every_dependency_is_pinned() -> None:
    pinned = {line.partition("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()}
    assert pinned >= DECLARED
