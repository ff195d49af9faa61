"""Build hook: with ``KOPF_DRA_COMPILE=1`` a wheel has the allocator and strategies compiled to C by mypyc as well.

    KOPF_DRA_COMPILE=1 pip install .        # needs a C compiler; takes one to two minutes

Without the variable the wheel is pure Python and fits every platform. Both wheels hold the same sources: Python takes
an extension module where one lies beside a source. docs/adr/0012-a-compiled-wheel-beside-the-pure-one.md says what it
gives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOMS = (
    Path("ledger/dra_ledger"),
    Path("operator/dra_operator/allocator"),
    Path("operator/dra_operator/scheduling/strategies.py"),
)
INTERPRETED = frozenset(
    {
        "__init__.py",
        "cel_language.py",
        "entries.py",
        "evaluated.py",
        "explain.py",
        "forms.py",
        "shortages.py",
        "sources.py",
    }
)
_OF_LEDGER = ("cli.py", "features.py", "ledger.py")
INTERPRETED_FILES = frozenset(Path("ledger/dra_ledger") / name for name in _OF_LEDGER)
"""Files and folders of the rooms that stay as they are. What only words a refusal gains nothing; nothing can refer
weakly to a compiled class; decoding is msgspec's work, and its structs are C already."""
SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup

folder, *sources = sys.argv.pop(1).split("\\n")
arguments = ["--config-file=pyproject.toml", f"--cache-dir={folder}/cache", *sources]
modules = mypycify(arguments, opt_level="1", debug_level="0", target_dir=f"{folder}/c", group_name="kopf_dra")
setup(name="kopf-dra", packages=[], ext_modules=modules)
"""
"""Run by an interpreter of its own: mypyc ends the process when it refuses something."""


class CompiledAllocator(BuildHookInterface[Any]):
    """Adds the extension modules to the wheel, and has it named for its platform."""

    @property
    def _is_wanted(self) -> bool:
        return self.target_name == "wheel" and os.environ.get("KOPF_DRA_COMPILE", "0") not in ("", "0")

    def dependencies(self) -> list[str]:
        """The compiler, and the libraries whose types the rooms use."""
        if not self._is_wanted:
            return []
        typed = [text for text in self.metadata.core.dependencies if text.startswith("msgspec")]
        return ["mypy>=1.15", "setuptools>=80", *typed]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles before the wheel is put together; an editable installation stays interpreted."""
        if not self._is_wanted or version == "editable":
            return
        self._folder = Path(mkdtemp(prefix="kopf-dra-"))
        try:
            built = compiled(Path(self.root), self._folder)
        except BaseException:
            shutil.rmtree(self._folder)
            raise
        build_data["force_include"] |= {str(path): str(path.relative_to(built)) for path in built.rglob("*.so")}
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what is in the wheel by now."""
        if not build_data["pure_python"]:
            shutil.rmtree(self._folder)


def compiled(root: Path, folder: Path) -> Path:
    """The folder in which the extension modules lie, at the places of their sources."""
    sources = [
        str(path.relative_to(root))
        for room in ROOMS
        for path in ([root / room] if room.suffix else sorted((root / room).rglob("*.py")))
        if INTERPRETED.isdisjoint(path.relative_to(root / room).parts)
        and path.relative_to(root) not in INTERPRETED_FILES
    ]
    built = folder / "lib"
    arguments = ["\n".join([str(folder), *sources]), "build_ext", f"--build-lib={built}", f"--build-temp={folder}/tmp"]
    done = subprocess.run(
        [sys.executable, "-c", SETUP, *arguments],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"cannot compile the allocator; unset KOPF_DRA_COMPILE for a pure wheel:\n{done.stdout}")
    return built
