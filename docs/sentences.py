"""Print every text of the project that a person may read; ``make sentences`` keeps it in ``build/``.

    python docs/sentences.py > build/sentences.txt

A text is a string literal with words in a row that is no docstring: messages of errors, conditions, events and log
lines, help, descriptions of settings, headings of tables. So it is found by whatever way it reaches its reader. Words
of ``help=`` count even if there is only one. What is put into a text is shown by its name, in braces.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDERS: Final = (
    "operator",
    "simulator",
    "ledger",
    "kubeletplugin",
    "kube",
    "cel",
    "proto/dra_api",
    "proto/dra_cdi",
    "devcluster",
)
HEAD: Final = """\
Every text of the project that a person may read, by room and file: made by `make sentences`.
Read it aloud after a change. {name} stands for what is put in; a text that several files have is listed once.
"""
_WORDS: Final = re.compile(r"[A-Za-z)}'\"`]{2}[,;:]? [a-zA-Z({'\"`%]")
_CODE: Final = re.compile(r"^(from|import|def|class) |^[a-z]+ \(|^[-*]* ?\\|\(\?|^#!", re.MULTILINE)
_NOT_FOR_READERS: Final = {
    "cel/dra_cel/evaluation/compiler.py": "Python that it writes",
    "devcluster/dra_devcluster/agent/port_forward.py": "the dictionary of a compression",
}


def page() -> str:
    """The whole list."""
    seen: set[str] = set()
    lines = [HEAD]
    files = [file.relative_to(ROOT) for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    files = [file for file in files if str(file) not in _NOT_FOR_READERS]
    for room, members in groupby(sorted(files, key=lambda file: (file.parent, file)), key=lambda file: file.parent):
        texts = {file.name: _new(file, seen) for file in members}
        if any(texts.values()):
            lines.append(f"\n{'=' * 8} {room}\n")
        lines += [f"\n{name}\n" + "".join(f"  - {text}\n" for text in found) for name, found in texts.items() if found]
    return "".join(lines)


def _new(file: Path, seen: set[str]) -> list[str]:
    found = [text for text in dict.fromkeys(texts(ast.parse((ROOT / file).read_text()))) if text not in seen]
    seen.update(found)
    return found


def texts(tree: ast.AST) -> Iterator[str]:
    """The texts of a syntax tree, in the order of its lines."""
    if isinstance(tree, ast.Expr) and isinstance(tree.value, ast.Constant):
        return  # a docstring
    if isinstance(tree, ast.keyword) and tree.arg == "help" and isinstance(tree.value, ast.Constant):
        yield str(tree.value.value)
        return
    if (text := _text(tree)) is not None and _is_sentence(text):
        yield from filter(None, (" ".join(line.split()) for line in text.splitlines()))
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(tree, ast.JoinedStr) and isinstance(child, ast.Constant)):
            yield from texts(child)


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"{{{_name(part.value)}}}" if isinstance(part, ast.FormattedValue) else _text(part) or ""
            for part in node.values
        )
    return None


def _is_sentence(text: str) -> bool:
    return _WORDS.search(text) is not None and _CODE.search(text) is None


def _name(value: ast.expr) -> str:
    """What stands in the braces: the last name of an attribute, the first argument of a call, ``...`` if neither."""
    match value:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case ast.Constant(constant):
            return str(constant)
        case ast.Subscript(value=inner) | ast.Await(value=inner) | ast.Starred(value=inner):
            return _name(inner)
        case ast.Call(func=ast.Attribute(attr="join"), args=[inner, *_]):
            return _name(inner)
        case ast.Call(func=ast.Name("map"), args=[_, inner]):
            return _name(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=_), args=[]):
            return _name(inner)
        case ast.Call(args=[inner, *_]):
            return _name(inner)
        case ast.Call(func=inner):
            return _name(inner)
    return "..."


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(page(), end="")
