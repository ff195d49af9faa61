"""Small faults, one at a time: what a hurried change may get wrong in one place of a file.

A fault is a replacement of some bytes, so that the rest of the file stays as it is and a survivor can be read as a
diff. Which lines can have one is known without running anything; annotations, docstrings, log lines, imports and what
stands inside of formatted strings have none, because nothing follows from a change there that a test could ask for.
"""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
OPERATORS: Final[dict[type[ast.operator], str]] = {ast.Add: "-", ast.Sub: "+", ast.BitAnd: "|", ast.BitOr: "&"}
OPPOSITES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
NO_WEIGHT: Final = ("logger.", "tell(", "assert_never", "warnings.")
"""How statements begin whose loss no user notices but in a log."""


@dataclass(frozen=True)
class Fault:
    """Bytes ``start`` to ``end`` of the file become ``text``. ``names``: the function, the classes around it."""

    source: bytes
    path: Path
    line: int
    kind: str
    start: int
    end: int
    text: str
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """Where it is."""
        return f"{self.path}:{self.line} ({'.'.join(self.names)})"

    @property
    def planted(self) -> bytes:
        """The file with the fault."""
        return self.source[: self.start] + self.text.encode() + self.source[self.end :]

    @property
    def diff(self) -> str:
        """Only the lines that differ."""
        before, after = self.source.decode().splitlines(), self.planted.decode().splitlines()
        lines = difflib.unified_diff(before, after, lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))

    @property
    def key(self) -> str:
        """What names the fault also when it moves to another line: the path, and the lines that differ."""
        return f"{self.path}: " + " => ".join(line[1:].strip() for line in self.diff.splitlines())


def faults_of(path: Path, source: bytes) -> list[Fault]:
    """All faults that a file can have, in the order of its lines."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda it: (it.line, it.start, it.end, it.text))


def statement_lines(source: bytes, line: int) -> range:
    """Return the lines of the smallest statement at the line; of one with a body, those of its head."""
    return next((it for it in _statements(source) if line in it), range(line, line + 1))


@lru_cache(maxsize=8)
def _statements(source: bytes) -> list[range]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.end_lineno is not None:
            body = getattr(node, "body", None)
            last = max(body[0].lineno - 1, node.lineno) if body else node.end_lineno
            found.append(range(node.lineno, last + 1))
    return found[::-1]  # inner statements first


class _Finder(ast.NodeVisitor):
    def __init__(self, path: Path, source: bytes) -> None:
        self._path, self._source = path, source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._names: list[str] = []
        self._says_yes_or_no = False
        self.found: list[Fault] = []

    # --- where no fault is looked for ---

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Formatted strings: before Python 3.12 the places inside are wrong."""

    def visit_Import(self, node: ast.Import) -> None:
        """Nothing to get wrong that would be noticed late."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """The same."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and self._names:
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        """What is asserted is certain already."""

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self._negate(node.test)
            self.generic_visit(node)

    # --- who is around ---

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.visit(statement)
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in ("__repr__", "__str__"):
            return
        before, self._says_yes_or_no = (
            self._says_yes_or_no,
            isinstance(node.returns, ast.Name) and node.returns.id == "bool",
        )
        self._names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._names.pop()
        self._says_yes_or_no = before

    # --- statements ---

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self._drop(node)
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(it, ast.Attribute | ast.Subscript) for it in node.targets) and "__init__" not in self._names:
            self._drop(node)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._drop(node)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._drop(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._drop(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._drop(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._drop(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if self._says_yes_or_no and node.value is not None:
            self._negate(node.value)
        if node.value is not None:
            self.visit(node.value)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if not isinstance(node.body[0], ast.Raise):
            self._put("errors are not caught", node.body[0], "raise", node.body[-1])
        for statement in node.body:
            self.visit(statement)

    # --- expressions ---

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._negate(condition)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            self._between("comparison", left, right, COMPARISONS[type(operator)])
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        first, *others = node.values
        word = "or" if isinstance(node.op, ast.And) else "and"
        if len(others) == 1:
            self._put("half of a condition", node, f"({self._text(first)})")
            self._put("half of a condition", node, f"({self._text(others[0])})")
            self._put("and, or", node, f"({self._text(first)}) {word} ({self._text(others[0])})")
        else:
            for dropped in node.values:
                rest = f" {'and' if word == 'or' else 'or'} ".join(
                    f"({self._text(it)})" for it in node.values if it is not dropped
                )
                self._put("part of a condition", node, f"({rest})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS and not isinstance(node.left, ast.Constant | ast.JoinedStr):
            self._between("operator", node.left, node.right, OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._put("not", node, f"bool(({self._text(node.operand)}))")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in OPPOSITES:
            self._put("opposite", node.func, OPPOSITES[node.func.id])
        for keyword in node.keywords:
            if keyword.arg is not None and not isinstance(node.func, ast.Name):
                self._put("argument dropped", node, self._without(node, keyword))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if node.value is True or node.value is False:
            self._put("yes and no", node, str(not node.value))
        elif isinstance(node.value, int) and 0 <= node.value <= 2:
            self._put("number", node, str(node.value + 1))

    # --- what a fault is made of ---

    def _negate(self, node: ast.expr) -> None:
        self._put("condition negated", node, f"(not ({self._text(node)}))")

    def _drop(self, node: ast.stmt) -> None:
        if not self._text(node).removeprefix("await ").startswith(NO_WEIGHT):
            self._put("statement dropped", node, "pass")

    def _without(self, node: ast.Call, dropped: ast.keyword) -> str:
        arguments = [self._text(it) for it in node.args]
        arguments += [self._text(it) for it in node.keywords if it is not dropped]
        return f"{self._text(node.func)}({', '.join(arguments)})"

    def _between(self, kind: str, left: ast.expr, right: ast.expr, text: str) -> None:
        """What stands between two operands, but for parentheses and spaces."""
        start, end = self._end(left), self._start(right)
        gap = self._source[start:end].decode()
        bare = gap.strip(" ()\n\\")
        if bare and "#" not in gap:
            place = gap.index(bare)
            begins = start + len(gap[:place].encode())
            self._add(kind, left, begins, begins + len(bare.encode()), text)

    def _put(self, kind: str, node: ast.stmt | ast.expr, text: str, last: ast.stmt | None = None) -> None:
        self._add(kind, node, self._start(node), self._end(last or node), text)

    def _add(self, kind: str, node: ast.stmt | ast.expr, start: int, end: int, text: str) -> None:
        if self._names:
            self.found.append(Fault(self._source, self._path, node.lineno, kind, start, end, text, tuple(self._names)))

    def _text(self, node: ast.stmt | ast.expr | ast.keyword) -> str:
        return self._source[self._start(node) : self._end(node)].decode()

    def _start(self, node: ast.stmt | ast.expr | ast.keyword) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.stmt | ast.expr | ast.keyword) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset
