"""What is declared is what is imported, and each dependency is justified and pinned."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [ROOT / package for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
DATA = {"tzdata"}  # read by the standard library, imported by nobody


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=;~! ]", requirement)[0].lower() for requirement in requirements}


RUNTIME = names(PROJECT["project"]["dependencies"])
DEVELOPMENT = names(PROJECT["project"]["optional-dependencies"]["dev"])


def imported() -> Iterator[str]:
    """The modules that our packages name in import statements."""
    for file in (file for package in PACKAGES for file in package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                yield node.module


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    modules = {name.partition(".")[0] for name in imported()} - {package.name for package in PACKAGES}
    foreign = modules - sys.stdlib_module_names - {"google"}
    owners = packages_distributions()
    used = {owners[name][0].lower().replace("_", "-") for name in foreign}
    if "google" in modules:  # a namespace of many distributions; of ours only this one
        used.add("protobuf")
    assert used == RUNTIME - DATA


def test_every_dependency_is_justified_once() -> None:
    rows = re.findall(
        r"^\| (?!Package)([a-zA-Z].*?) \| .+ \|$", (ROOT / "docs/dependencies.md").read_text(), re.MULTILINE
    )
    justified = [name.lower() for row in rows for name in row.split(", ")]
    assert sorted(justified) == sorted(RUNTIME | DEVELOPMENT)


def test_every_dependency_is_pinned() -> None:
    pinned = {line.partition("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()}
    assert pinned >= RUNTIME | DEVELOPMENT
