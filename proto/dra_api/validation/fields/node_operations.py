"""Calls to drivers that the kubelet may skip (DRAOptionalNodeOperations, K37-ONO-01)."""

from __future__ import annotations

from typing import Final

from dra_api.validation.errors import Errors, duplicate, invalid, not_supported

PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"
ALL: Final = "*"


def skipped_operations(operations: tuple[str, ...] | None, path: str) -> Errors:
    """A set of known names; to skip preparing without the undoing would undo what was never done."""
    seen: set[str] = set()
    for index, operation in enumerate(operations or ()):
        if operation in seen:
            yield duplicate(f"{path}[{index}]", operation)
        elif operation not in (PREPARE, UNPREPARE, ALL):
            yield not_supported(f"{path}[{index}]", operation, (PREPARE, UNPREPARE, ALL))
        seen.add(operation)
    if PREPARE in seen and not seen & {UNPREPARE, ALL}:
        yield invalid(path, list(operations or ()), f"{PREPARE} requires {UNPREPARE} or {ALL}")
