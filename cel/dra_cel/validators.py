"""Checks of a typed tree beyond its types: literals that can be judged before evaluation."""

from __future__ import annotations

from .lexer import Source
from .tree import Node


def validate(root: Node, source: Source) -> None:
    """Raises CompileError for literals that could never be evaluated."""
