"""What is declared is what is imported, and each dependency is justified and pinned."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from dra_api.console import INSTALLING

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [ROOT / package for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
DATA = {"tzdata"}  # read by the standard library, imported by no module


NAME = PROJECT["project"]["name"]
DECLARATIONS = PROJECT["project"]["optional-dependencies"]


def names(requirements: list[str]) -> set[str]:
    """The distributions of requirements, those of our own extras included."""
    found = {re.split(r"[\[<>=;~! ]", requirement)[0].lower() for requirement in requirements}
    own = [extra for requirement in requirements for extra in re.findall(rf"^{NAME}\[(.*)\]$", requirement)]
    return found - {NAME} | {name for extra in ",".join(own).split(",") if extra for name in names(DECLARATIONS[extra])}


EXTRAS = {extra: names(lines) for extra, lines in DECLARATIONS.items()}
BASE = names(PROJECT["project"]["dependencies"])
DECLARED = BASE.union(*EXTRAS.values())
ROOMS = {
    "": ("dra_api", "dra_cel", "dra_ledger"),
    "plugin": ("dra_kubeletplugin",),
    "operator": ("dra_operator", "dra_simulator"),
    "devcluster": ("dra_devcluster", "dra_driver_test"),
}
"""What each extra is for; the packages that these import come with them."""
ASIDE = {"numpy": "quality", "scipy": "quality", "distributed": "dask", "opentelemetry": "otel", "pytest": "testing"}
"""Modules that are imported where they are needed, and the extra whose absence is then told."""


def needed(packages: Iterable[str]) -> set[str]:
    """Our packages, with those that they import."""
    found: set[str] = set()
    waiting = set(packages)
    folders = {package.name: package for package in PACKAGES}
    while waiting:
        found.add(name := waiting.pop())
        waiting |= {module.partition(".")[0] for module in imported([folders[name]])} & folders.keys() - found
    return found


def distributions(packages: Iterable[str]) -> set[str]:
    """The distributions whose modules our packages import, without what stands aside."""
    folders = [package for package in PACKAGES if package.name in needed(packages)]
    modules = {name.partition(".")[0] for name in imported(folders)} - {package.name for package in PACKAGES}
    foreign = modules - sys.stdlib_module_names - {"google"} - ASIDE.keys()
    owners = packages_distributions()
    used = {owners[name][0].lower().replace("_", "-") for name in foreign}
    return (
        used | {"protobuf"} if "google" in modules else used
    )  # a namespace of many distributions; of ours only this one


def imported(packages: Iterable[Path]) -> Iterator[str]:
    """The modules that packages name in import statements."""
    for package in packages:
        yield from _imported(package)


@cache
def _imported(package: Path) -> frozenset[str]:
    found: set[str] = set()
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module)
    return frozenset(found)


def test_the_base_is_four_packages_at_most_and_what_the_ledger_needs() -> None:
    assert distributions(ROOMS[""]) == BASE - DATA
    assert len(BASE) <= 4


@pytest.mark.parametrize("extra", [extra for extra in ROOMS if extra])
def test_an_extra_is_what_its_packages_import(extra: str) -> None:
    used = distributions(ROOMS[extra])
    assert used - BASE - EXTRAS[extra] == set()
    others = {name for lines in DECLARATIONS[extra] for name in names([lines]) if not lines.startswith(NAME)}
    assert others - used == set()


def test_no_driver_installs_kopf() -> None:
    assert "kopf" not in EXTRAS["plugin"] | EXTRAS["devcluster"] | EXTRAS["testing"]


def test_what_stands_aside_is_in_the_extra_that_is_told() -> None:
    owners = packages_distributions()
    for module, extra in ASIDE.items():
        distribution = "opentelemetry-sdk" if module == "opentelemetry" else owners[module][0]
        assert distribution in EXTRAS[extra]


BLOCKED = """
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

allowed = set(sys.argv[1].split(","))
owners = packages_distributions()

class Block:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in owners and not {one.lower().replace("_", "-") for one in owners[top]} & allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
"""


@pytest.mark.parametrize("extra", ROOMS)
def test_the_packages_of_an_extra_are_imported_without_the_others(extra: str) -> None:
    """As if nothing else were installed than the extra's packages, and what these need."""
    allowed = closure(BASE | EXTRAS.get(extra, set())) | {NAME}
    names_ = ", ".join(sorted(needed(ROOMS[extra])))
    code = f"{BLOCKED}\nimport {names_}\nfrom dra_ledger import Ledger; Ledger.of([]).devices()"
    done = subprocess.run([sys.executable, "-c", code, ",".join(allowed)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def closure(distributions: set[str]) -> set[str]:
    """The distributions with those that they need."""
    found: set[str] = set()
    waiting = set(distributions)
    while waiting:
        found.add(name := waiting.pop())
        try:
            wanted = requires(name) or []
        except PackageNotFoundError:  # for another platform
            continue
        plain = (one for one in wanted if "extra ==" not in one)
        waiting |= {re.split(r"[\[<>=;~!( ]", one)[0].lower().replace("_", "-") for one in plain} - found
    return found


@pytest.mark.parametrize(
    ("program", "module", "words", "extra"),
    [
        ("dra-operator", "dra_operator.cli", "['run']", "operator"),
        ("kubectl-dra", "dra_operator.kubectl.cli", "['top']", "operator"),
        ("dra-kubelet-plugin", "dra_kubeletplugin.cli", "['simulated']", "plugin"),
        ("dra-devcluster", "dra_devcluster.cli", "['up']", "devcluster"),
    ],
)
def test_a_program_says_which_extra_is_missing(program: str, module: str, words: str, extra: str) -> None:
    code = f"{BLOCKED}\nimport {module} as cli; sys.exit(cli.main({words}))"
    done = subprocess.run([sys.executable, "-c", code, ",".join(BASE | {NAME})], capture_output=True, text=True)
    assert done.returncode == 2
    said = rf"{program}: \w+ is not installed: the extra kopf-dra\[{extra}\] brings it, see \S+\n"
    assert re.fullmatch(said, done.stderr)


def test_the_development_cluster_says_which_extra_is_missing() -> None:
    script = "import sys; sys.modules['orjson'] = None; import dra_devcluster.cli as cli; sys.exit(cli.main(['up']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        f"dra-devcluster: orjson is not installed: the extra kopf-dra[devcluster] brings it, see {INSTALLING}\n",
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
