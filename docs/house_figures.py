"""Print the figures of the table in design.md.

    python docs/house_figures.py

Counted are the Python files of all packages, without generated code. Comments are counted without pragmas. A module has
one importer if exactly one other module of the packages imports it.
"""

from __future__ import annotations

import argparse
import ast
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDERS: Final = ("proto", "kube", "cel", "ledger", "operator", "simulator", "kubeletplugin", "devcluster")
GENERATED: Final = "proto/dra_proto"
COMMENTED: Final = ("controllers", "scheduling", "cache", "allocator")
PRAGMAS: Final = ("# type:", "# noqa", "# pragma", "#!")


def main() -> None:
    """Print them."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sources = {path: path.read_text() for path in files()}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    lines = {path: text.count("\n") for path, text in sources.items()}
    print(f"files {len(sources)}, lines {sum(lines.values()):,}, mean {sum(lines.values()) / len(sources):.0f}")
    ours = [
        path
        for path in lines
        if "dra_operator" in path.parts and not {"kubectl", "commands", "quality"} & {*path.parts}
    ]
    print(f"the operator without its commands: files {len(ours)}, lines {sum(lines[path] for path in ours):,}")
    importers = imported_by(trees)
    print(f"modules with one importer: {sum(len(found) == 1 for found in importers.values())}")
    names: dict[str, Counter[str]] = defaultdict(Counter)
    for path, tree in trees.items():
        package = path.relative_to(ROOT).parts[1]
        names[package].update(
            {node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"}
        )
    twice = [name for found in names.values() for name, count in found.items() if count > 1]
    print("public class names that a package has twice: " + (", ".join(twice) or "none"))
    rooms = [path for path in lines if set(COMMENTED) & {*path.parts} and "dra_operator" in path.parts]
    comments = sum(comments_in(path) for path in rooms)
    print(f"comments in {', '.join(COMMENTED)}: {comments} in {sum(lines[path] for path in rooms):,} lines")
    support = list((ROOT / "tests/support").rglob("*.py"))
    print(f"tests/support: files {len(support)}, lines {sum(path.read_text().count(chr(10)) for path in support):,}")


def files() -> Iterator[Path]:
    """The sources."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not str(path.relative_to(ROOT)).startswith(GENERATED) and path.name not in (
                "generate.py",
                "generate_schema.py",
            ):
                yield path


def module_of(path: Path) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """Return the importers of each module: the others that import it or something of it."""
    modules = {module_of(path): path for path in trees}
    found: dict[str, set[str]] = {name: set() for name in modules}
    for path, tree in trees.items():
        me = module_of(path)
        package = me if path.name == "__init__.py" else me.rpartition(".")[0]
        for node in ast.walk(tree):
            for target in targets(node, package):
                if target in found and target != me:
                    found[target].add(me)
    return {name: importers for name, importers in found.items() if modules[name].name != "__init__.py"}


def targets(node: ast.AST, package: str) -> Iterator[str]:
    """The modules that an import may mean."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
        start = ".".join(filter(None, (base if node.level else "", node.module)))
        yield start
        yield from (f"{start}.{alias.name}" for alias in node.names)


def comments_in(path: Path) -> int:
    """How many lines have a comment that is no pragma."""
    with tokenize.open(path) as file:
        tokens = list(tokenize.generate_tokens(file.readline))
    return sum(it.type == tokenize.COMMENT and not it.string.startswith(PRAGMAS) for it in tokens)


if __name__ == "__main__":
    main()
