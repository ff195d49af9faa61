"""Faces of packages that load a name when it is first used.

A package shows by its ``__init__.py`` what others may use, and importing any of its files runs that first. If it
imports all of the package, a command waits for gRPC and Kopf before it can print its help. So the imports of such a
face are for type checkers, and ``__getattr__`` (PEP 562) carries out the one that is asked for::

    if TYPE_CHECKING:
        from .plugin import KubeletPlugin
    else:
        __getattr__, __dir__ = lazy(__name__)

A name must not be that of a file of the package: once the file is loaded, Python sets the package's attribute to it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for a package, by the relative imports that its source has."""
    sources = _sources(package)

    def load(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = sources[name]
        value = getattr(import_module(f".{module}", package), original)
        setattr(sys.modules[package], name, value)  # not asked for again
        return value

    return load, lambda: sorted(sources.keys() | vars(sys.modules[package]).keys())


def _sources(package: str) -> dict[str, tuple[str, str]]:
    """For each name of the face: its module below the package, and its name there."""
    loader: Any = sys.modules[package].__loader__
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(ast.parse(loader.get_source(package)))
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
        for alias in node.names
    }
